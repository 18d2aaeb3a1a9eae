//! The worker's side of `Fleet.Join`: the one ordered session with the controller.
//!
//! ```text
//!   away ──connected──► greeting ──Welcome──► joined ──silence, end, old epoch──► away (backoff 20 ms to 1 s)
//!                           └──Rejected──► away          └── all drained ──► Goodbye
//! ```
//!
//! Invariants: losing a session cancels nothing; it only reverts quiesces and lets the TTLs of holds run. A controller of a lower epoch than
//! any seen is refused (PROTOCOL.md 5).
//!
//! Architecture invariant: decides nothing about instances; orders go to the [`Handler`], reports come from the board.

mod session;

use std::{sync::Arc, time::Duration};

use muster_proto::{
    net::{Address, pauses},
    trust::Credentials,
};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::{command::Handler, instance::registry::Registry};
use session::{Session, SessionError};

const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Keeps a session with the controller.
#[derive(Debug)]
pub(crate) struct Fleet {
    /// Where the controller is.
    pub(crate) controller: Address,
    /// What it is shown.
    pub(crate) credentials: Credentials,
    /// Where gateways reach this worker.
    pub(crate) addresses: Vec<Address>,
    /// The instances.
    pub(crate) registry: Arc<Registry>,
    /// Fires when the first attempt to join has ended, either way.
    pub(crate) tried: CancellationToken,
    /// Fires when everything has drained: say goodbye and end.
    pub(crate) leave: CancellationToken,
}

impl Fleet {
    /// Joins, and joins again, until told to leave.
    pub(crate) async fn run(self) {
        let mut handler = Handler::new(Arc::clone(&self.registry));
        let mut highest_epoch = 0;
        let mut number = 0;
        let mut said = false;
        loop {
            let mut delays = pauses(BACKOFF);
            loop {
                number += 1;
                let session = Session::new(&self, number, &mut handler, &mut highest_epoch);
                let (joined, result) = session.run().await;
                self.tried.cancel();
                match result {
                    Ok(()) => return,
                    Err(error) if joined => tracing::warn!(%error, "the controller's session ended"),
                    // Trying again helps as soon as somebody has put it right.
                    Err(error) if error.is_refusal() && !said => {
                        said = true;
                        tracing::error!(%error, controller = %self.controller, "the controller does not let this worker join");
                    }
                    Err(error) => tracing::debug!(%error, controller = %self.controller, "could not join"),
                }
                if self.leave.is_cancelled() {
                    return;
                }
                let delay = delays.next().unwrap_or(BACKOFF.1);
                tokio::select! {
                    () = sleep(delay) => {}
                    () = self.leave.cancelled() => return,
                }
                if joined {
                    break;
                }
            }
        }
    }
}

/// The controller and this worker do not agree on who speaks.
pub(crate) type Result<T> = std::result::Result<T, SessionError>;
