//! Workers' reports as events of policy.

use std::{collections::BTreeMap, sync::Arc};

use muster_core::{
    BootId, Bytes, Code, DeviceId, Error, GroupId, HoldId, HostId, InstanceId, Missing, ModelId, ModelType,
    Runtime, SpecHash, WorkerId,
};
use muster_policy::{
    DeviceFacts, DeviceSample, DoneState, Exclusivity, FailureClass, Group, InstanceSpec, InstanceStatus,
    Origin, Outcome, Progress, Refusal, Report, ReportedState, Reservation, Touch, WorkerFacts,
    WorkerFailure,
};
use muster_proto::{convert::UnknownValue, v1};

use super::{estimate_source_from, ids, origin_from, settings, span_from};

/// A message that cannot be understood.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// A required field is missing.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// An enum has a value that this version does not know and cannot ignore.
    #[error(transparent)]
    UnknownValue(#[from] UnknownValue),
}

/// A worker's introduction. Runtimes that this version does not know are left out.
///
/// # Errors
/// A name is missing, or a device is of an unknown kind.
pub(crate) fn facts(hello: &v1::Hello) -> Result<WorkerFacts, Malformed> {
    let mut runtimes = BTreeMap::new();
    for info in &hello.runtimes {
        match info.name.parse::<Runtime>() {
            Ok(runtime) => {
                let devices = info.device_ids.iter().map(|id| DeviceId::new(id.as_str()));
                runtimes.insert(runtime, devices.collect::<Result<_, _>>()?);
            }
            Err(error) => tracing::debug!(worker = hello.worker_id, %error, "left out"),
        }
    }
    Ok(WorkerFacts {
        id: WorkerId::new(hello.worker_id.as_str())?,
        boot: BootId::new(hello.boot_id.as_str())?,
        host: HostId::new(hello.host_id.as_str())?,
        devices: hello.devices.iter().map(device).collect::<Result<_, _>>()?,
        runtimes,
        draining: hello.draining,
    })
}

fn device(device: &v1::Device) -> Result<DeviceFacts, Malformed> {
    Ok(DeviceFacts {
        id: DeviceId::new(device.device_id.as_str())?,
        kind: device.kind().try_into()?,
        capacity: Bytes::new(device.capacity_bytes),
        exclusivity: if device.exclusive {
            Exclusivity::OneModel
        } else {
            Exclusivity::Shared
        },
    })
}

/// A worker's report. Entries that cannot be understood are left out and returned beside it, with their instance ids.
pub(crate) fn report(wire: &v1::WorkerReport) -> (Report, Vec<(String, Malformed)>) {
    let mut malformed = Vec::new();
    let mut left_out = |about: &str, why: Malformed| malformed.push((about.to_owned(), why));
    let mut report = Report {
        instances: Vec::with_capacity(wire.instances.len()),
        touches: Vec::with_capacity(wire.touches.len()),
        samples: Vec::with_capacity(wire.devices.len()),
    };
    for status in &wire.instances {
        match instance(status) {
            Ok(status) => report.instances.push(status),
            Err(error) => left_out(&status.instance_id, error),
        }
    }
    for told in &wire.touches {
        match touch(told) {
            Ok(touch) => report.touches.push(touch),
            Err(error) => left_out(&told.instance_id, error.into()),
        }
    }
    for told in &wire.devices {
        match sample(told) {
            Ok(sample) => report.samples.push(sample),
            Err(error) => left_out("", error.into()),
        }
    }
    (report, malformed)
}

fn touch(touch: &v1::Touch) -> Result<Touch, Missing> {
    Ok(Touch {
        instance: InstanceId::new(touch.instance_id.as_str())?,
        touch_seq: touch.touch_seq,
        age: span_from(touch.age.as_ref()),
    })
}

fn sample(sample: &v1::DeviceSample) -> Result<DeviceSample, Missing> {
    Ok(DeviceSample {
        device: DeviceId::new(sample.device_id.as_str())?,
        capacity: Bytes::new(sample.capacity_bytes),
        free: Bytes::new(sample.free_bytes),
        age: span_from(sample.age.as_ref()),
        lifecycle_seq: sample.lifecycle_seq,
    })
}

fn instance(status: &v1::InstanceStatus) -> Result<InstanceStatus, Malformed> {
    let touch = status.touch.as_ref();
    let wire = status.spec.as_ref().ok_or(Missing("spec"))?;
    let understood = ModelType::try_from(wire.r#type()).is_ok()
        && origin_from(wire.origin()).is_some()
        && wire.runtime.parse::<Runtime>().is_ok();
    let ended = matches!(
        status.state(),
        v1::InstanceState::Gone | v1::InstanceState::Failed
    );
    Ok(InstanceStatus {
        id: InstanceId::new(status.instance_id.as_str())?,
        spec: spec(wire)?,
        // A newer version's instance: its spec cannot be judged, but its memory is taken until it ends.
        state: if understood || ended {
            state(status)
        } else {
            ReportedState::Unknown
        },
        revision: status.revision,
        running: status.running,
        queued: status.queued,
        holds: ids(&status.hold_ids, HoldId::new)?,
        touch_seq: touch.map_or(0, |touch| touch.touch_seq),
        touch_age: span_from(touch.and_then(|touch| touch.age.as_ref())),
        observed: status
            .observed
            .iter()
            .map(reservation)
            .collect::<Result<_, _>>()?,
    })
}

fn state(status: &v1::InstanceStatus) -> ReportedState {
    match status.state() {
        v1::InstanceState::Unspecified => ReportedState::Unknown,
        v1::InstanceState::Loading => ReportedState::Loading {
            progress: progress(status.progress.as_ref()),
        },
        v1::InstanceState::Ready => ReportedState::Ready,
        v1::InstanceState::Quiesced => ReportedState::Quiesced,
        v1::InstanceState::Draining => ReportedState::Draining,
        v1::InstanceState::Unloading => ReportedState::Unloading,
        v1::InstanceState::Gone => ReportedState::Gone,
        v1::InstanceState::Failed => {
            // Capabilities are known from `ready` on. The load time does not tell, since a failed load took time as well.
            let was_ready = status.capabilities.is_some();
            let unsaid = || Code::Internal.error("the worker did not say why");
            let why = status.failure.clone().map_or_else(unsaid, Error::from);
            ReportedState::Failed(failure(why, was_ready))
        }
    }
}

fn progress(progress: Option<&v1::LoadProgress>) -> Progress {
    let Some(progress) = progress else {
        return Progress::default();
    };
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to 0..=1000 before"
    )]
    let permille = (progress.fraction.clamp(0.0, 1.0) * 1000.0) as u16;
    Progress {
        phase: progress.phase,
        permille,
        elapsed: span_from(progress.elapsed.as_ref()),
    }
}

pub(crate) fn spec(spec: &v1::InstanceSpec) -> Result<InstanceSpec, Malformed> {
    let group = match GroupId::new(spec.group_id.as_str()) {
        Ok(id) => Some(Group {
            id,
            size: spec.group_size,
        }),
        // It belongs to no group.
        Err(Missing(_)) => None,
    };
    Ok(InstanceSpec {
        model: ModelId::new(spec.model_id.as_str())?,
        // The type of an unknown runtime's instance does not matter: its state is unknown.
        kind: spec.r#type().try_into().unwrap_or(ModelType::Llm),
        runtime: spec.runtime.parse().unwrap_or(Runtime::Stub),
        settings: settings(spec.settings.as_ref().ok_or(Missing("settings"))?),
        spec_hash: SpecHash::new(spec.spec_hash.as_str())?,
        reservations: spec
            .reservations
            .iter()
            .map(reservation)
            .collect::<Result<_, _>>()?,
        source: estimate_source_from(spec.source()),
        origin: origin_from(spec.origin()).unwrap_or(Origin::Auto),
        attempt: spec.attempt,
        pinned: spec.pinned,
        idle_ttl: Some(span_from(spec.idle_ttl.as_ref())).filter(|ttl| !ttl.is_zero()),
        group,
    })
}

fn reservation(reservation: &v1::Reservation) -> Result<Reservation, Missing> {
    Ok(Reservation {
        device: DeviceId::new(reservation.device_id.as_str())?,
        bytes: Bytes::new(reservation.bytes),
    })
}

/// The outcome of a command. An outcome without contents means that nobody knows.
pub(crate) fn outcome(outcome: &v1::Outcome) -> Outcome {
    use v1::outcome::Kind;
    match &outcome.kind {
        Some(Kind::Done(done)) => Outcome::Done {
            state: done_state(done.state()),
            touch_seq: done.touch_seq,
        },
        Some(Kind::Refused(refused)) => Outcome::Refused {
            reason: refusal(refused.reason()),
            touch_seq: refused.touch_seq,
        },
        // A command fails only before the engine starts; later failures come in reports.
        Some(Kind::Failed(error)) => Outcome::Failed(failure(error.clone().into(), false)),
        None => Outcome::Unknown,
    }
}

const fn done_state(state: v1::InstanceState) -> DoneState {
    match state {
        v1::InstanceState::Gone | v1::InstanceState::Failed => DoneState::Gone,
        v1::InstanceState::Unspecified
        | v1::InstanceState::Loading
        | v1::InstanceState::Ready
        | v1::InstanceState::Quiesced
        | v1::InstanceState::Draining
        | v1::InstanceState::Unloading => DoneState::Present,
    }
}

const fn refusal(reason: v1::RefusedReason) -> Refusal {
    match reason {
        v1::RefusedReason::Busy => Refusal::Busy,
        v1::RefusedReason::Held => Refusal::Held,
        v1::RefusedReason::Touched => Refusal::Touched,
        v1::RefusedReason::Draining => Refusal::Draining,
        v1::RefusedReason::NotLoading => Refusal::NotLoading,
        v1::RefusedReason::BadEpoch => Refusal::BadEpoch,
        v1::RefusedReason::Unspecified | v1::RefusedReason::Invalid => Refusal::Invalid,
    }
}

/// A failure, classified by its code and by whether the engine had been ready.
fn failure(error: Error, was_ready: bool) -> WorkerFailure {
    WorkerFailure {
        class: class(error.code, was_ready),
        code: error.code,
        message: error.message.into(),
        details: Arc::new(error.details),
    }
}

#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "of the whole catalogue only these codes say that an engine really started (I7)"
)]
const fn class(code: Code, was_ready: bool) -> FailureClass {
    if was_ready {
        return FailureClass::Crash;
    }
    match code {
        Code::ModelLoadFailed
        | Code::LoadStalled
        | Code::RuntimeCrashed
        | Code::RuntimeError
        | Code::InsufficientMemory => FailureClass::EngineLoad,
        Code::LoadCancelled | Code::Cancelled => FailureClass::Cancelled,
        _ => FailureClass::BeforeEngine,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_classed_by_code_and_history() {
        let class = |code: Code, ready| failure(code.error("x"), ready).class;
        assert_eq!(class(Code::ModelLoadFailed, false), FailureClass::EngineLoad);
        assert_eq!(class(Code::RuntimeCrashed, false), FailureClass::EngineLoad);
        assert_eq!(class(Code::RuntimeCrashed, true), FailureClass::Crash);
        assert_eq!(class(Code::FileNotFound, false), FailureClass::BeforeEngine);
        assert_eq!(class(Code::InvalidLoadRequest, false), FailureClass::BeforeEngine);
        assert_eq!(class(Code::LoadCancelled, false), FailureClass::Cancelled);
    }

    #[test]
    fn an_unknown_state_is_unknown_and_an_unknown_outcome_too() {
        let status = v1::InstanceStatus {
            state: 99,
            ..v1::InstanceStatus::default()
        };
        assert_eq!(state(&status), ReportedState::Unknown);
        assert_eq!(outcome(&v1::Outcome::default()), Outcome::Unknown);
    }

    #[test]
    fn an_instance_of_an_unknown_type_is_in_an_unknown_state_until_it_ends() {
        let mut status = v1::InstanceStatus {
            instance_id: "i".to_owned(),
            state: v1::InstanceState::Ready.into(),
            spec: Some(v1::InstanceSpec {
                r#type: 99,
                ..known_spec()
            }),
            ..v1::InstanceStatus::default()
        };
        assert_eq!(instance(&status).unwrap().state, ReportedState::Unknown);
        status.set_state(v1::InstanceState::Gone);
        assert_eq!(instance(&status).unwrap().state, ReportedState::Gone);
        status.set_state(v1::InstanceState::Ready);
        status.spec = Some(known_spec());
        assert_eq!(instance(&status).unwrap().state, ReportedState::Ready);
        status.spec = Some(v1::InstanceSpec {
            runtime: "of_tomorrow".to_owned(),
            ..known_spec()
        });
        assert_eq!(instance(&status).unwrap().state, ReportedState::Unknown);
    }

    fn known_spec() -> v1::InstanceSpec {
        v1::InstanceSpec {
            model_id: "m".to_owned(),
            spec_hash: "hash".to_owned(),
            runtime: Runtime::Stub.to_string(),
            r#type: v1::ModelType::Llm.into(),
            origin: v1::Origin::Auto.into(),
            settings: Some(v1::ModelSettings::default()),
            ..v1::InstanceSpec::default()
        }
    }

    /// Regression: an entry without a name entered policy under the empty name.
    #[test]
    fn what_lacks_its_name_is_left_out_and_told_of() {
        let wire = v1::WorkerReport {
            touches: vec![v1::Touch::default()],
            devices: vec![v1::DeviceSample::default()],
            ..v1::WorkerReport::default()
        };
        let (report, malformed) = report(&wire);
        assert!(report.touches.is_empty() && report.samples.is_empty());
        let why = |words| (String::new(), Malformed::Missing(Missing(words)));
        assert_eq!(malformed, [why("instance id"), why("device id")]);
    }

    #[test]
    fn a_failed_load_took_time_and_was_not_ready() {
        let mut status = v1::InstanceStatus {
            state: v1::InstanceState::Failed.into(),
            failure: Some(Code::RuntimeCrashed.error("x").into()),
            load_time: Some(prost_types::Duration::default()),
            ..v1::InstanceStatus::default()
        };
        let failed_as = |status: &v1::InstanceStatus, class: FailureClass| matches!(state(status), ReportedState::Failed(failure) if failure.class == class);
        assert!(failed_as(&status, FailureClass::EngineLoad));
        status.capabilities = Some(v1::Capabilities::default());
        assert!(failed_as(&status, FailureClass::Crash));
    }

    #[test]
    fn an_instance_without_spec_is_left_out_and_named() {
        let wire = v1::WorkerReport {
            instances: vec![v1::InstanceStatus {
                instance_id: "i".to_owned(),
                ..v1::InstanceStatus::default()
            }],
            ..v1::WorkerReport::default()
        };
        let (report, malformed) = report(&wire);
        assert!(report.instances.is_empty());
        assert_eq!(malformed, [("i".to_owned(), Missing("spec").into())]);
    }
}
