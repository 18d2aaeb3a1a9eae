//! Measures memory periodically: that of devices, and each engine's part.
//!
//! A device's sample and the engines' figures are measured together and reported together: a new sample beside old figures would count an
//! engine's memory twice.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use muster_core::InstanceId;
use muster_proto::v1::{InstanceState, ProcessId, Reservation};
use tokio::time::sleep;

use crate::{board::is_terminal, devices::Sample, instance::actor::Ground};

/// Interval while a model loads; the other one applies otherwise.
const LOADING: Duration = Duration::from_secs(1);
const STEADY: Duration = Duration::from_secs(5);

/// The memory of an engine, per device.
type Seen = (InstanceId, Vec<Reservation>);

/// Measures until it is dropped.
pub(crate) async fn run(ground: Arc<Ground>) {
    loop {
        let loading = sample(&ground).await;
        sleep(if loading { LOADING } else { STEADY }).await;
    }
}

/// Measures all devices and engines once. Returns whether a model loads.
async fn sample(ground: &Arc<Ground>) -> bool {
    let instances = ground.board.snapshot(Instant::now(), false).instances;
    let loading = instances
        .iter()
        .any(|status| status.state() == InstanceState::Loading);
    let engines: Vec<(InstanceId, Vec<ProcessId>, Vec<Reservation>)> = instances
        .into_iter()
        .filter(|status| !is_terminal(status) && !status.engine.is_empty())
        .filter_map(|status| {
            let reservations = status.spec.map(|spec| spec.reservations).unwrap_or_default();
            let id = InstanceId::new(status.instance_id).ok()?;
            Some((id, status.engine, reservations))
        })
        .collect();
    let devices = ground.devices.clone();
    let figures = tokio::task::spawn_blocking(move || -> (Vec<Sample>, Vec<Seen>) {
        let see = |(id, tree, reservations): (InstanceId, Vec<ProcessId>, Vec<Reservation>)| {
            let seen = devices.observe(&id, &tree, &reservations);
            (id, seen)
        };
        (devices.sample(), engines.into_iter().map(see).collect())
    });
    if let Ok((samples, seen)) = figures.await {
        ground.board.observed(samples, seen);
    }
    loading
}
