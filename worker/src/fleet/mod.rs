//! The worker's side of `Fleet.Join`: the one ordered session with the controller.
//!
//! ```text
//!   away ──connected──► greeting ──Welcome──► joined ──silence, end, old epoch──► away (backoff 20 ms to 1 s)
//!                           └──Rejected──► away          └── all drained ──► Goodbye
//! ```
//!
//! Invariants: the end of a session cancels nothing. It only undoes quiesces and lets the time limits of holds run. A controller with a
//! lower epoch than one seen before is refused (PROTOCOL.md 5).
//!
//! Architecture invariant: this module decides nothing about instances. The [`Handler`] carries out orders, and reports come from the
//! board.

mod session;

use std::{sync::Arc, time::Duration};

use muster_proto::{net::Address, pauses::Pauses, trust::Credentials};
use tokio_util::sync::CancellationToken;

use crate::{command::Handler, instance::registry::Registry};
use session::{Session, SessionError};

const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Keeps a session with the controller open.
#[derive(Debug)]
pub(crate) struct Fleet {
    /// Address of the controller.
    pub(crate) controller: Address,
    /// Credentials for the controller.
    pub(crate) credentials: Credentials,
    /// Addresses at which gateways reach this worker.
    pub(crate) addresses: Vec<Address>,
    pub(crate) registry: Arc<Registry>,
    /// Cancelled when the first attempt to join has ended, successfully or not.
    pub(crate) tried: CancellationToken,
    /// Cancelled when everything has drained: then the worker says goodbye and ends.
    pub(crate) leave: CancellationToken,
}

impl Fleet {
    /// Joins the controller, again and again, until told to leave.
    pub(crate) async fn run(self) {
        let mut handler = Handler::new(Arc::clone(&self.registry));
        let mut highest_epoch = 0;
        let mut number = 0;
        let mut said = false;
        loop {
            let mut delays = Pauses::new(BACKOFF);
            loop {
                number += 1;
                let session = Session::new(&self, number, &mut handler, &mut highest_epoch);
                let (joined, result) = session.run().await;
                self.tried.cancel();
                match result {
                    Ok(()) => return,
                    Err(error) if joined => tracing::warn!(%error, "the controller's session ended"),
                    // The next attempt succeeds as soon as somebody has corrected this.
                    Err(error) if error.is_refusal() && !said => {
                        said = true;
                        tracing::error!(%error, controller = %self.controller, "the controller does not let this worker join");
                    }
                    Err(error) => tracing::debug!(%error, controller = %self.controller, "could not join"),
                }
                if self.leave.is_cancelled() {
                    return;
                }
                tokio::select! {
                    () = delays.wait() => {}
                    () = self.leave.cancelled() => return,
                }
                if joined {
                    break;
                }
            }
        }
    }
}

/// The result of a step of a session.
pub(crate) type Result<T> = std::result::Result<T, SessionError>;
