//! Follows `WatchRoutes`: a stream as long as the controller is there, with a backoff in between.

use std::time::Duration;

use muster_proto::v1::WatchRoutesRequest;
use tonic::Status;

use super::{Fleet, table::Tracker};

const FIRST_RETRY: Duration = Duration::from_millis(10);
const LAST_RETRY: Duration = Duration::from_millis(500);

/// Runs until the runtime ends.
pub(super) async fn follow(fleet: &Fleet) {
    let mut retry = FIRST_RETRY;
    let mut away = false;
    loop {
        let mut heard = false;
        let result = stream(fleet, &mut heard).await;
        if heard {
            retry = FIRST_RETRY;
            away = false;
        }
        let reason = result.err().map_or_else(
            || "the stream ended".to_owned(),
            |status| status.message().to_owned(),
        );
        if away {
            tracing::debug!(%reason, "the controller is still away");
        } else {
            tracing::warn!(%reason, "the controller is away; serving with the last known routes");
            away = true;
        }
        if !heard {
            // Whoever waits for the first attempt need not wait longer.
            fleet.publish(None);
        }
        // A jitter keeps many gateways from coming back in step.
        tokio::time::sleep(retry.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
        retry = (retry * 2).min(LAST_RETRY);
    }
}

/// One stream; `heard` says that the controller sent something acceptable.
async fn stream(fleet: &Fleet, heard: &mut bool) -> Result<(), Status> {
    let request = WatchRoutesRequest {
        gateway_id: (&fleet.controller.gateway_id).into(),
    };
    let mut updates = fleet
        .controller
        .client()
        .watch_routes(request)
        .await?
        .into_inner();
    let mut tracker = Tracker::resume(&fleet.table());
    while let Some(update) = updates.message().await? {
        let epoch = update.epoch;
        let stale = || Status::failed_precondition(format!("a controller of the older epoch {epoch} speaks"));
        if !fleet.controller.epochs.admit(epoch) {
            return Err(stale());
        }
        let changed = tracker.apply(update).map_err(|_| stale())?;
        if changed {
            if !*heard {
                tracing::info!(epoch, "following the controller's routes");
            }
            fleet.publish(Some(tracker.table().clone()));
        }
        *heard = true;
    }
    Ok(())
}
