//! The worker's end of the wire: what it says, as messages, and what it is told, as policy's commands.

use muster_core::{Code, DeviceKind, Error, HoldId, InstanceId};
use muster_policy::{
    Command, DeviceFacts, DoneState, Exclusivity, FailureClass, InstanceStatus, Outcome, Refusal, Report,
    ReportedState, UnloadMode, WorkerFacts, WorkerFailure,
};
use muster_proto::v1;

use crate::convert::{
    command::{reservation, spec_to_wire},
    report::spec,
    span, span_from,
};

pub(super) fn hello(
    facts: &WorkerFacts,
    report: &Report,
    engine: impl Fn(&InstanceId) -> v1::ProcessId,
) -> v1::Hello {
    let runtime =
        |(name, devices): (&muster_core::Runtime, &std::collections::BTreeSet<_>)| v1::RuntimeInfo {
            name: name.to_string(),
            version: String::new(),
            device_ids: devices.iter().map(muster_core::DeviceId::to_string).collect(),
        };
    v1::Hello {
        worker_id: facts.id.to_string(),
        boot_id: facts.boot.to_string(),
        host_id: facts.host.to_string(),
        protocol_min: muster_proto::PROTOCOL_VERSION,
        protocol_max: muster_proto::PROTOCOL_VERSION,
        devices: facts.devices.iter().map(device).collect(),
        runtimes: facts.runtimes.iter().map(runtime).collect(),
        full: Some(self::report(report, engine)),
        draining: facts.draining,
        pid_namespace: facts.host.to_string(),
        ..v1::Hello::default()
    }
}

fn device(facts: &DeviceFacts) -> v1::Device {
    let kind = match facts.kind {
        DeviceKind::Cpu => v1::DeviceKind::Cpu,
        DeviceKind::Gpu => v1::DeviceKind::Gpu,
        DeviceKind::Npu => v1::DeviceKind::Npu,
        DeviceKind::Sim => v1::DeviceKind::Sim,
    };
    v1::Device {
        device_id: facts.id.to_string(),
        kind: kind.into(),
        name: String::new(),
        capacity_bytes: facts.capacity.get(),
        exclusive: facts.exclusivity == Exclusivity::OneModel,
        index: None,
        driver_version: String::new(),
        api: String::new(),
    }
}

pub(super) fn report(report: &Report, engine: impl Fn(&InstanceId) -> v1::ProcessId) -> v1::WorkerReport {
    v1::WorkerReport {
        instances: report
            .instances
            .iter()
            .map(|told| status(told, engine(&told.id)))
            .collect(),
        touches: report
            .touches
            .iter()
            .map(|told| v1::Touch {
                instance_id: told.instance.to_string(),
                touch_seq: told.touch_seq,
                age: Some(span(told.age)),
            })
            .collect(),
        devices: report
            .samples
            .iter()
            .map(|sample| v1::DeviceSample {
                device_id: sample.device.to_string(),
                capacity_bytes: sample.capacity.get(),
                free_bytes: sample.free.get(),
                age: Some(span(sample.age)),
                lifecycle_seq: sample.lifecycle_seq,
            })
            .collect(),
        draining: None,
    }
}

fn status(told: &InstanceStatus, engine: v1::ProcessId) -> v1::InstanceStatus {
    let mut status = v1::InstanceStatus {
        instance_id: told.id.to_string(),
        spec: Some(spec_to_wire(&told.spec)),
        revision: told.revision,
        running: told.running,
        queued: told.queued,
        hold_ids: told.holds.iter().map(HoldId::to_string).collect(),
        touch: Some(v1::Touch {
            instance_id: told.id.to_string(),
            touch_seq: told.touch_seq,
            age: Some(span(told.touch_age)),
        }),
        observed: told
            .observed
            .iter()
            .map(reservation)
            .collect::<Vec<v1::Reservation>>(),
        engine: vec![engine],
        ..v1::InstanceStatus::default()
    };
    let state = match &told.state {
        ReportedState::Loading { .. } => v1::InstanceState::Loading,
        ReportedState::Ready => v1::InstanceState::Ready,
        ReportedState::Quiesced => v1::InstanceState::Quiesced,
        ReportedState::Draining => v1::InstanceState::Draining,
        ReportedState::Unloading => v1::InstanceState::Unloading,
        ReportedState::Gone => v1::InstanceState::Gone,
        ReportedState::Failed(failure) => {
            let (error, was_ready) = error(failure);
            status.failure = Some(error.into());
            status.capabilities = was_ready.then(v1::Capabilities::default);
            v1::InstanceState::Failed
        }
        ReportedState::Unknown => v1::InstanceState::Unspecified,
    };
    status.set_state(state);
    status
}

/// A failure that the controller takes for one of the same class, and whether the engine had been ready.
fn error(failure: &WorkerFailure) -> (Error, bool) {
    let (code, was_ready) = match failure.class {
        FailureClass::EngineLoad => (Code::ModelLoadFailed, false),
        FailureClass::Crash => (Code::RuntimeCrashed, true),
        FailureClass::BeforeEngine => (Code::FileNotFound, false),
        FailureClass::Cancelled => (Code::LoadCancelled, false),
    };
    (code.error(failure.message.to_string()), was_ready)
}

pub(super) fn outcome(outcome: &Outcome) -> Option<v1::outcome::Kind> {
    use v1::outcome::Kind;
    match outcome {
        Outcome::Done { state, touch_seq } => {
            let state = match state {
                DoneState::Present => v1::InstanceState::Ready,
                DoneState::Gone => v1::InstanceState::Gone,
            };
            Some(Kind::Done(v1::Done {
                state: state.into(),
                touch_seq: *touch_seq,
            }))
        }
        Outcome::Refused { reason, touch_seq } => {
            let reason = match reason {
                Refusal::Busy => v1::RefusedReason::Busy,
                Refusal::Held => v1::RefusedReason::Held,
                Refusal::Touched => v1::RefusedReason::Touched,
                Refusal::Draining => v1::RefusedReason::Draining,
                Refusal::NotLoading => v1::RefusedReason::NotLoading,
                Refusal::BadEpoch => v1::RefusedReason::BadEpoch,
                Refusal::Invalid => v1::RefusedReason::Invalid,
            };
            Some(Kind::Refused(v1::Refused {
                reason: reason.into(),
                touch_seq: *touch_seq,
                message: String::new(),
            }))
        }
        Outcome::Failed(failure) => Some(Kind::Failed(error(failure).0.into())),
        Outcome::Unknown => None,
    }
}

/// What a worker is to do with an instance; none for a question about somebody else's.
pub(super) fn command(wire: &v1::Command) -> Option<Command> {
    use v1::command::Kind;
    let command = match wire.kind.as_ref().unwrap() {
        Kind::Load(load) => Command::Load {
            spec: std::sync::Arc::new(spec(load.spec.as_ref().unwrap()).unwrap()),
            holds: load
                .holds
                .iter()
                .map(|hold| hold.hold_id.as_str().into())
                .collect(),
        },
        Kind::Cancel(_) => Command::CancelLoad,
        Kind::Quiesce(_) => Command::Quiesce,
        Kind::Resume(_) => Command::Resume,
        Kind::Unload(unload) => Command::Unload {
            mode: match unload.mode() {
                v1::UnloadMode::Unspecified => panic!("an unload without a mode"),
                v1::UnloadMode::IfIdle => UnloadMode::IfIdle {
                    if_touch_seq: unload.if_touch_seq,
                },
                v1::UnloadMode::Drain => UnloadMode::Drain {
                    within: unload.drain_for.as_ref().map(|span| span_from(Some(span))),
                },
                v1::UnloadMode::Force => UnloadMode::Force,
            },
        },
        Kind::PlaceHold(hold) => Command::PlaceHold {
            hold: hold.hold_id.as_str().into(),
        },
        Kind::ReleaseHoldId(hold) => Command::ReleaseHold {
            hold: hold.as_str().into(),
        },
        Kind::Set(set) => Command::SetAttributes {
            pinned: set.pinned.unwrap(),
            idle_ttl: Some(span_from(set.idle_ttl.as_ref())).filter(|ttl| !ttl.is_zero()),
        },
        Kind::Ack(_) => Command::AckTombstone,
        Kind::LookAt(_) => return None,
    };
    Some(command)
}
