//! `muster workers`, `muster devices` and `muster events`.

use muster_proto::v1::{
    FleetEvent, ForgetWorkerRequest, ListDevicesRequest, ListWorkersRequest, ReloadRequest, ReloadResponse,
    WatchEventsRequest, WorkerStatus,
};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    client::{CONTROLLER, Controller, answer},
    failure::Failure,
    output::{Output, bytes, moment, or_dash, span, word},
};

/// Lists workers, absent ones included.
pub(crate) async fn workers(controller: &Controller, output: Output) -> Result<(), Failure> {
    let mut client = controller.connect().await?;
    let response = answer(client.list_workers(ListWorkersRequest {}).await)?;
    if output.is_json() {
        return output.message("ListWorkersResponse", &response);
    }
    if response.workers.is_empty() {
        return output.line("no worker has joined");
    }
    let rows = response.workers.iter().map(|worker| {
        let runtimes: Vec<&str> = worker
            .runtimes
            .iter()
            .map(|runtime| runtime.name.as_str())
            .collect();
        [
            worker.worker_id.clone(),
            state(worker).to_owned(),
            or_dash(&worker.device_ids.join(",")),
            or_dash(&runtimes.join(",")),
            or_dash(&worker.addresses.join(",")),
            or_dash(&worker.version),
            span(worker.silence.as_ref()),
        ]
    });
    output.table(
        [
            "WORKER",
            "STATE",
            "DEVICES",
            "RUNTIMES",
            "ADDRESSES",
            "VERSION",
            "LAST HEARD",
        ],
        rows,
    )
}

fn state(worker: &WorkerStatus) -> &'static str {
    match (worker.connected, worker.draining) {
        (true, true) => "draining",
        (true, false) => "connected",
        (false, _) => "absent",
    }
}

/// Declares a lost worker gone.
pub(crate) async fn forget(
    controller: &Controller,
    output: Output,
    worker_id: String,
) -> Result<(), Failure> {
    let mut client = controller.connect().await?;
    let request = ForgetWorkerRequest {
        worker_id: worker_id.clone(),
    };
    let response = answer(client.forget_worker(request).await)?;
    if output.is_json() {
        return output.message("ForgetWorkerResponse", &response);
    }
    output.line(match response.instance_ids.as_slice() {
        [] => format!("{worker_id} is forgotten; it hosted nothing"),
        gone => format!("{worker_id} is forgotten, with {}", gone.join(", ")),
    })
}

/// Has the configuration read again.
pub(crate) async fn reload(controller: &Controller, output: Output) -> Result<(), Failure> {
    let mut client = controller.connect().await?;
    let response = answer(client.reload(ReloadRequest {}).await)?;
    if output.is_json() {
        return output.message("ReloadResponse", &response);
    }
    let ReloadResponse {
        added,
        changed,
        removed,
        restart,
        policy,
    } = response;
    let told = [
        ("new", added),
        ("changed", changed),
        ("gone", removed),
        ("counts after a restart only", restart),
    ];
    for (what, names) in told.iter().filter(|(_, names)| !names.is_empty()) {
        output.line(format_args!("{what}: {}", names.join(", ")))?;
    }
    if policy {
        output.line("policy has other settings")?;
    }
    if !policy && told.iter().all(|(_, names)| names.is_empty()) {
        output.line("nothing has changed")?;
    }
    Ok(())
}

/// Lists devices with their memory.
pub(crate) async fn devices(controller: &Controller, output: Output) -> Result<(), Failure> {
    let mut client = controller.connect().await?;
    let response = answer(client.list_devices(ListDevicesRequest {}).await)?;
    if output.is_json() {
        return output.message("ListDevicesResponse", &response);
    }
    if response.devices.is_empty() {
        return output.line("no worker has reported a device");
    }
    let rows = response.devices.iter().map(|status| {
        let device = status.device.clone().unwrap_or_default();
        let sample = status.sample.clone().unwrap_or_default();
        [
            device.device_id.clone(),
            word(device.kind().as_str_name(), "DEVICE_KIND_"),
            or_dash(&device.name),
            bytes(device.capacity_bytes),
            bytes(sample.free_bytes),
            bytes(status.reserved_bytes),
            or_dash(&status.worker_ids.join(",")),
            or_dash(&status.models.join(",")),
        ]
    });
    output.table(
        [
            "DEVICE", "KIND", "NAME", "MEMORY", "FREE", "RESERVED", "WORKERS", "MODELS",
        ],
        rows,
    )
}

/// Follows events until Ctrl-C or the controller's end.
pub(crate) async fn events(controller: &Controller, output: Output, model: String) -> Result<(), Failure> {
    let mut client = controller.connect().await?;
    let mut events = answer(client.watch_events(WatchEventsRequest { model }).await)?;
    // One listener for all events: a Ctrl-C while a line is written counts too.
    let mut interrupt = signal(SignalKind::interrupt())?;
    loop {
        let next = tokio::select! {
            next = events.message() => next.map_err(|status| Failure::from_status(CONTROLLER, &status))?,
            _ = interrupt.recv() => return Ok(()),
        };
        let Some(event) = next else {
            return Err(Failure::Lost(
                CONTROLLER.to_owned(),
                "it ended the stream".to_owned(),
            ));
        };
        if output.is_json() {
            output.message("FleetEvent", &event)?;
        } else {
            output.line(describe(&event))?;
        }
    }
}

fn describe(event: &FleetEvent) -> String {
    if event.lagged > 0 {
        return format!("… {} events were skipped", event.lagged);
    }
    let mut text = format!("{}  {:<16}", moment(event.at.as_ref()), event.kind);
    for part in [&event.model, &event.worker_id, &event.instance_id] {
        if !part.is_empty() {
            text.push_str("  ");
            text.push_str(part);
        }
    }
    if !event.reason.is_empty() {
        text.push_str("  · ");
        text.push_str(&event.reason);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_name_what_they_are_about() {
        let event = FleetEvent {
            kind: "loaded".into(),
            model: "tiny".into(),
            reason: "took 20 ms".into(),
            ..Default::default()
        };
        assert_eq!(describe(&event), "-  loaded            tiny  · took 20 ms");
        let lagged = FleetEvent {
            lagged: 3,
            ..Default::default()
        };
        assert_eq!(describe(&lagged), "… 3 events were skipped");
    }
}
