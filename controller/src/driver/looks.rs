//! Looks at the models' files, away from the driver: a disk may be slow, and a network mount may hang.
//!
//! ```text
//! call that needs files ─► a look begins ─► done ─► files taken over, call answered
//!                          (one at a time)  └ late ─► call answered with what is known; the look goes on
//! ```
//!
//! Invariant: a call is answered by a look that began after it came, or by what is known when looks take too long.

use std::time::Duration;

use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::{Instant, sleep_until},
};

use super::{Driver, inbox::Ask};
use crate::catalogue::{FilePlace, Seen};

/// How long a call waits for a look.
const LOOK_WAIT: Duration = Duration::from_secs(1);

/// The look under way, and who waits.
#[derive(Debug, Default)]
pub(super) struct Looks {
    running: Option<Look>,
    /// Waiting for the look under way.
    waiting: Vec<Ask>,
    /// Came after it began: waiting for the next.
    next: Vec<Ask>,
    /// Files have changed since it began.
    again: bool,
}

#[derive(Debug)]
struct Look {
    task: JoinHandle<Vec<Seen>>,
    until: Instant,
    late: bool,
}

/// What became of a look.
#[derive(Debug)]
pub(super) enum Looked {
    /// It is done; nothing was seen if its thread failed.
    Done(Option<Vec<Seen>>),
    /// It takes too long.
    Late,
}

impl Looks {
    /// Resolves when something becomes of the look under way, if there is one.
    pub(super) async fn looked(&mut self) -> Looked {
        let Some(look) = &mut self.running else {
            return std::future::pending().await;
        };
        tokio::select! {
            files = &mut look.task => Looked::Done(files.ok()),
            () = sleep_until(look.until), if !look.late => Looked::Late,
        }
    }
}

impl Driver {
    /// Answers a call once the files have been looked at.
    pub(super) fn look_first(&mut self, ask: Ask) {
        match &self.looks.running {
            Some(look) if look.late => self.answer(ask),
            Some(_) => self.looks.next.push(ask),
            None => {
                self.looks.waiting.push(ask);
                self.begin_look();
            }
        }
    }

    /// Looks at the files as they are now, for nobody in particular.
    pub(super) fn look_again(&mut self) {
        if self.looks.running.is_some() {
            self.looks.again = true;
        } else {
            self.begin_look();
        }
    }

    pub(super) fn begin_look(&mut self) {
        self.looks.again = false;
        let places = self.catalogue.places();
        self.looks.running = Some(Look {
            task: spawn_blocking(move || places.iter().map(FilePlace::look).collect()),
            until: Instant::now() + LOOK_WAIT,
            late: false,
        });
    }

    /// Takes over what was seen, and answers who waited for it.
    pub(super) fn looked(&mut self, looked: Looked) {
        let mut asks = std::mem::take(&mut self.looks.waiting);
        match looked {
            Looked::Done(files) => {
                self.looks.running = None;
                let changed = files.map(|files| self.catalogue.take(files));
                self.models_changed(changed.unwrap_or_default());
                self.looks.waiting = std::mem::take(&mut self.looks.next);
                if self.looks.again || !self.looks.waiting.is_empty() {
                    self.begin_look();
                }
            }
            Looked::Late => {
                tracing::warn!("looking at the models' files takes long; their state may be old");
                if let Some(look) = &mut self.looks.running {
                    look.late = true;
                }
                asks.append(&mut self.looks.next);
            }
        }
        for ask in asks {
            self.answer(ask);
        }
    }
}
