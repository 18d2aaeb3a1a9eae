//! What a load or a request hears while it waits for files, and if they do not come.

use muster_core::Error;
use muster_proto::v1::{self, FetchProgress};

use crate::driver::inbox::{Ask, CallState};

/// Tells whoever waits how far the download is.
pub(super) fn tell(ask: &Ask, told: &FetchProgress, epoch: u64) {
    let queued = v1::Queued {
        position: 0,
        reason: v1::QueuedReason::Downloading.into(),
        blocked_by: Vec::new(),
    };
    let loading = v1::Loading {
        instance: None,
        progress: Some(v1::LoadProgress {
            phase: v1::LoadPhase::Downloading.into(),
            fraction: fraction(told),
            elapsed: None,
        }),
    };
    match ask {
        Ask::Ensure { sender, .. } => {
            use v1::ensure_loaded_event::Kind;
            let kind = if told.all_total == 0 {
                Kind::Queued(queued)
            } else {
                Kind::Loading(loading)
            };
            sender.send_replace(Some(v1::EnsureLoadedEvent {
                epoch,
                kind: Some(kind),
            }));
        }
        Ask::Call { sender, .. } => {
            use v1::load_model_event::Kind;
            let kind = if told.all_total == 0 {
                Kind::Queued(queued)
            } else {
                Kind::Loading(loading)
            };
            sender.send_replace(CallState::Progress(Box::new(kind)));
        }
        Ask::Pin(_) | Ask::Query(_) | Ask::Models(_) => {}
    }
}

#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "a share for people"
)]
fn fraction(told: &FetchProgress) -> f32 {
    (told.all_downloaded as f64 / told.all_total as f64) as f32
}

/// Tells whoever waits that it waited in vain; nobody listening is fine.
pub(super) fn fail(ask: &Ask, error: &Error, epoch: u64) {
    match ask {
        Ask::Ensure { sender, .. } => {
            let kind = v1::ensure_loaded_event::Kind::Failed(error.clone().into());
            sender.send_replace(Some(v1::EnsureLoadedEvent {
                epoch,
                kind: Some(kind),
            }));
        }
        Ask::Call { sender, .. } => {
            sender.send_replace(CallState::Done(Err(error.clone())));
        }
        Ask::Pin(_) | Ask::Query(_) | Ask::Models(_) => {}
    }
}
