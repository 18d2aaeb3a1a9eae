//! Follows `WatchRoutes`: opens the stream again, after a pause, whenever it ends.

use std::time::Duration;

use muster_proto::{
    pauses::Pauses,
    v1::{WatchRoutesRequest, route_update},
};
use tokio::time::timeout;
use tonic::Status;

use super::{Contact, Fleet, table::Tracker};

/// Shortest and longest pause between attempts, without the random part.
const RETRY: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));
/// Longest silence of a controller; its driver sends a heartbeat each second.
const SILENCE: Duration = Duration::from_secs(5);

/// Runs until the runtime ends.
pub(super) async fn follow(fleet: &Fleet) {
    let mut retry = Pauses::new(RETRY);
    let mut away = false;
    loop {
        let mut heard = false;
        let result = stream(fleet, &mut heard).await;
        if heard {
            retry.reset();
            away = false;
        }
        let (contact, reason) = match result {
            Ok(()) => (Contact::Unreachable, "the stream ended".to_owned()),
            Err(Away::Said(status)) => (Contact::Unreachable, status.message().to_owned()),
            Err(Away::Silent) => (Contact::NotAnswering, format!("it said nothing for {SILENCE:?}")),
        };
        fleet.contact.store(contact.into());
        if away {
            tracing::debug!(%reason, "the controller is still away");
        } else {
            tracing::warn!(%reason, "the controller is away; serving with the last known routes");
            away = true;
        }
        if !heard {
            // Whoever waits for the first attempt can go on.
            fleet.publish(None);
        }
        retry.wait().await;
    }
}

/// Why a stream ended.
enum Away {
    /// It broke or was refused, with this status.
    Said(Status),
    /// The controller was silent for too long.
    Silent,
}

impl From<Status> for Away {
    fn from(status: Status) -> Self {
        Self::Said(status)
    }
}

/// Reads one stream to its end. `heard` is set once the controller sent something acceptable.
async fn stream(fleet: &Fleet, heard: &mut bool) -> Result<(), Away> {
    let request = WatchRoutesRequest {
        gateway_id: (&fleet.controller.gateway_id).into(),
    };
    let mut client = fleet.controller.client();
    let mut updates = spoken(client.watch_routes(request)).await?.into_inner();
    let mut tracker = Tracker::resume(&fleet.table());
    while let Some(update) = spoken(updates.message()).await? {
        let epoch = update.epoch;
        let stale = || Status::failed_precondition(format!("a controller of the older epoch {epoch} speaks"));
        if !fleet.controller.epochs.admit(epoch) {
            return Err(stale().into());
        }
        if let Some(route_update::Kind::Heartbeat(heartbeat)) = &update.kind
            && **fleet.troubles.load() != heartbeat.troubles
        {
            fleet.troubles.store(heartbeat.troubles.clone().into());
        }
        let changed = tracker.apply(update).map_err(|_| stale())?;
        if changed {
            if !*heard {
                tracing::info!(epoch, "following the controller's routes");
            }
            fleet.publish(Some(tracker.table().clone()));
        }
        if !*heard {
            fleet.contact.store(Contact::Ok.into());
        }
        *heard = true;
    }
    Ok(())
}

/// The next answer of the controller, if it comes in time.
async fn spoken<T>(words: impl Future<Output = Result<T, Status>>) -> Result<T, Away> {
    match timeout(SILENCE, words).await {
        Ok(said) => Ok(said?),
        Err(_) => Err(Away::Silent),
    }
}
