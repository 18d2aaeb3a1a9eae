//! Looks at the models' files on another thread, because a disk may be slow and a network mount may hang.
//!
//! ```text
//! call that needs files ─► a look begins ─► done ─► files taken over, call answered
//!                          (one at a time)  └ late ─► call answered with what is known; the look goes on
//! ```
//!
//! Invariants: a call is answered by a look that began after the call came, or by what is known if the look takes too long. At most one
//! look runs, so a mount that hangs costs one thread. The driver itself never touches a file.

use std::{collections::BTreeMap, time::Duration};

use muster_core::Code;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep_until},
};

use super::{
    Driver,
    inbox::{Ask, PullState, Reply},
};
use crate::{
    aside::aside,
    catalogue::{FilePlace, Found, Seen, scan},
    state::Saving,
};
use muster_proto::v1;

/// How long a call waits for a look.
const LOOK_WAIT: Duration = Duration::from_secs(1);

/// How long headers are read before the start. The others are read in the next look, while the driver runs.
const START_BUDGET: Duration = Duration::from_millis(250);

/// The look in progress and the calls that wait.
#[derive(Debug, Default)]
pub(super) struct Looks {
    running: Option<Look>,
    /// Calls that wait for the look in progress.
    waiting: Vec<Later>,
    /// Calls that came after it began and wait for the next one.
    next: Vec<Later>,
    /// Files have changed since it began.
    again: bool,
}

/// What to do once the files were looked at.
#[derive(Debug)]
pub(super) enum Later {
    /// Answer a call.
    Ask(Ask),
    /// Show a model that was just registered.
    Registered {
        id: String,
        /// When its registration is on disk.
        saving: Saving,
        reply: Reply<(v1::Model, Saving)>,
    },
    /// Tell whether the files of a model outside the hub are there.
    Local {
        id: String,
        /// Path of its files.
        checkpoint: String,
        listener: watch::Sender<PullState>,
    },
}

#[derive(Debug)]
struct Look {
    task: JoinHandle<Sight>,
    until: Instant,
    late: bool,
}

/// What a look saw.
#[derive(Debug)]
pub(super) struct Sight {
    seen: Vec<Seen>,
    /// Models in watched folders.
    folders: BTreeMap<String, Found>,
}

/// The result of a look.
#[derive(Debug)]
pub(super) enum Looked {
    /// It has ended; none if its thread failed.
    Done(Option<Sight>),
    /// It takes too long.
    Late,
}

impl Looks {
    /// Waits for the result of the look in progress, if there is one.
    pub(super) async fn looked(&mut self) -> Looked {
        let Some(look) = &mut self.running else {
            return std::future::pending().await;
        };
        tokio::select! {
            biased;
            files = &mut look.task => Looked::Done(files.ok()),
            () = sleep_until(look.until), if !look.late => Looked::Late,
        }
    }
}

impl Driver {
    /// Does something once the files were looked at.
    pub(super) fn look_first(&mut self, later: Later) {
        match &self.looks.running {
            Some(look) if look.late => self.go_on(later),
            Some(_) => self.looks.next.push(later),
            None => {
                self.looks.waiting.push(later);
                self.begin_look();
            }
        }
    }

    fn go_on(&mut self, later: Later) {
        match later {
            Later::Ask(ask) => self.answer(ask),
            // If the caller has left, that is no failure.
            Later::Registered { id, saving, reply } => {
                drop(reply.send(self.known(&id).map(|model| (model, saving))));
            }
            Later::Local {
                id,
                checkpoint,
                listener,
            } => {
                let there = self.catalogue.get(&id).is_none_or(|entry| entry.files().present);
                let missing =
                    || Code::FileNotFound.error(format!("{checkpoint} is a local file, and is not there"));
                let result = if there { Ok(()) } else { Err(missing()) };
                listener.send_replace(PullState::Done(result));
            }
        }
    }

    /// Looks at the files before anything else is done, unless that takes long.
    pub(super) async fn first_look(&mut self) {
        self.look(START_BUDGET);
        let looked = self.looks.looked().await;
        self.looked(looked);
    }

    /// Begins a look for which no call waits.
    pub(super) fn look_again(&mut self) {
        if self.looks.running.is_some() {
            self.looks.again = true;
        } else {
            self.begin_look();
        }
    }

    fn begin_look(&mut self) {
        self.look(Duration::MAX);
    }

    fn look(&mut self, headers_for: Duration) {
        self.looks.again = false;
        let places = self.catalogue.places();
        let folders = self.config.extra_models_dir.clone();
        let begun = Instant::now();
        self.looks.running = Some(Look {
            task: aside(move || {
                let look = |place| FilePlace::inspect(place, begun.elapsed() < headers_for);
                Sight {
                    seen: places.iter().map(look).collect(),
                    folders: scan(&folders),
                }
            }),
            until: Instant::now() + LOOK_WAIT,
            late: false,
        });
    }

    /// Takes over what was seen, and answers the calls that waited.
    pub(super) fn looked(&mut self, looked: Looked) {
        let mut later = std::mem::take(&mut self.looks.waiting);
        match looked {
            Looked::Done(files) => {
                self.looks.running = None;
                if let Some(Sight { seen, folders }) = files {
                    let changed = self.catalogue.take(seen);
                    self.models_changed(changed);
                    self.folders_seen(folders);
                }
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
                later.append(&mut self.looks.next);
            }
        }
        for later in later {
            self.go_on(later);
        }
    }
}
