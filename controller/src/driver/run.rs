//! The driver's loop.
//!
//! ```text
//!   ┌─► input ready? ── yes ──► taken ──► slot over? ── no ──┐
//!   │        └ no: publish, wait                └ yes: publish, others have their turn
//!   └────────────────────────────────────────────────────────┘
//! ```
//!
//! Invariant: changes for watchers are published before the driver waits, and otherwise after a slot and at most one more input.

use std::time::Duration;

use muster_policy::Event;
use tokio::{task::yield_now, time::Instant};

use super::{Driver, input::Input, watchdog::Watchdog};

/// How long inputs are handled without a break. Then other tasks of the thread run, which produce the inputs.
const SLOT: Duration = Duration::from_micros(500);

impl Driver {
    /// Runs until stopped, then writes what is not on disk.
    pub(crate) async fn run(mut self) {
        self.first_look().await;
        self.begin();
        // Dropped with this task, whose inputs it watches.
        let watchdog = Watchdog::start();
        let mut slot = Instant::now();
        loop {
            self.part.beat();
            if slot.elapsed() >= SLOT {
                self.publish();
                yield_now().await;
                slot = Instant::now();
            }
            let input = match self.ready() {
                Some(input) => input,
                None => {
                    self.publish();
                    let input = self.wait().await;
                    slot = Instant::now();
                    input
                }
            };
            watchdog.begin(input.what());
            let goes_on = self.take(input);
            watchdog.done();
            if !goes_on {
                break;
            }
        }
        self.publish();
        self.writer.finish().await;
    }

    /// Handles an input and everything that follows from it. Returns false at the end.
    pub(super) fn take(&mut self, input: Input) -> bool {
        self.tell_joins();
        match input {
            Input::End(session) => self.session_ended(&session),
            Input::Outcome(session) => self.session_answered(&session),
            Input::Report(session) => {
                // An outcome may have made the driver read it already.
                let _heard = self.session_said(&session);
            }
            Input::Join(join) => self.join(*join),
            Input::Closing(closing) => self.closed(&closing),
            Input::Ask(ask) => self.ask(ask),
            Input::Wake => {
                self.wake = None;
                self.woken = Instant::now();
                self.feed(Event::Tick);
            }
            Input::PutOff => {
                for event in self.agenda.take_up() {
                    self.feed(event);
                }
            }
            Input::Overdue => self.commands_overdue(),
            Input::Look => self.look_at_ghosts(),
            Input::Looked(looked) => self.looked(looked),
            Input::Files => self.files_due(),
            Input::Beat => {}
            Input::Stop => return false,
        }
        true
    }
}
