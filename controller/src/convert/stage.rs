//! Stages of loads and errors, for gateways and operators.

use muster_core::{Code, Error, InstanceId, ModelId, WorkerId};
use muster_policy::{Decision, LoadError, Progress, RouteState, Stage, WaitReason};
use muster_proto::v1;

use super::span;

/// The reason why a load or unload failed, with typed details.
pub(crate) fn error(error: &LoadError) -> Error {
    let base = error.code().error(error.to_string());
    match error {
        LoadError::UnknownModel(model) => base.with_param("model").with_detail("model", model),
        LoadError::Loading(model)
        | LoadError::Unloading(model)
        | LoadError::LoadedAlready(model)
        | LoadError::Cancelled(model)
        | LoadError::NoRoomToPreload(model) => base.with_detail("model", model),
        LoadError::Failed {
            model,
            last,
            retry_in,
        } => base
            .with_detail("model", model)
            .with_detail("last_code", last.code())
            .with_detail("last_message", last)
            .with_retry_after(*retry_in),
        LoadError::Worker(failure) => {
            let details = failure.details.as_ref().clone();
            Error { details, ..base }
        }
        LoadError::InsufficientMemory {
            model,
            wanted,
            possible,
            device,
        } => {
            let info = base
                .with_detail("model", model)
                .with_detail("wanted_bytes", wanted.get())
                .with_detail("possible_bytes", possible.get());
            match device {
                Some(key) => info
                    .with_detail("device", &key.device)
                    .with_detail("host", &key.host),
                None => info,
            }
        }
        LoadError::SlotsPinned { model, pinned } => base
            .with_detail("model", model)
            .with_detail("pinned", names(pinned).join(",")),
        LoadError::TooFewPlaces {
            model,
            replicas,
            possible,
        } => base
            .with_detail("model", model)
            .with_detail("replicas", replicas)
            .with_detail("possible", possible),
        LoadError::NotDrained(model) => base.with_detail("model", model),
        LoadError::NoWorker {
            model,
            waited,
            missing,
        } => {
            let info = base
                .with_detail("model", model)
                .with_detail("waited_ms", waited.as_millis());
            match missing {
                Some(runtime) => info.with_detail("missing_runtime", runtime),
                None => info,
            }
        }
        LoadError::EvictionTimeout { model, waited } => base
            .with_detail("model", model)
            .with_detail("waited_ms", waited.as_millis()),
        LoadError::WorkerLost(worker) | LoadError::NotLost(worker) => base.with_detail("worker_id", worker),
        LoadError::Refused { worker, reason } => base
            .with_detail("worker_id", worker)
            .with_detail("reason", format!("{reason:?}").to_lowercase()),
    }
}

/// The error for a model that is not in the catalogue.
pub(crate) fn unknown_model(model: &str) -> Error {
    match ModelId::new(model) {
        Ok(model) => error(&LoadError::UnknownModel(model)),
        Err(missing) => Code::InvalidRequest
            .error(missing.to_string())
            .with_param("model"),
    }
}

/// Ids as texts.
pub(crate) fn names(models: &[ModelId]) -> Vec<String> {
    models.iter().map(ModelId::to_string).collect()
}

/// The stage of a load that waits.
pub(crate) fn queued(position: u32, reason: WaitReason, blocked_by: &[ModelId]) -> v1::Queued {
    let reason = match reason {
        WaitReason::Settling => v1::QueuedReason::Settling,
        WaitReason::LoadSlot => v1::QueuedReason::LoadSlot,
        WaitReason::Claim => v1::QueuedReason::Claim,
        WaitReason::NoWorker => v1::QueuedReason::NoWorker,
    };
    v1::Queued {
        position,
        reason: reason.into(),
        blocked_by: names(blocked_by),
    }
}

/// The stage of a load for which others make room.
pub(crate) fn evicting(models: &[ModelId]) -> v1::Evicting {
    v1::Evicting {
        models: names(models),
        reason: "making room".to_owned(),
    }
}

/// How far a load is.
pub(crate) fn progress(progress: Progress) -> v1::LoadProgress {
    v1::LoadProgress {
        phase: progress.phase,
        fraction: f32::from(progress.permille) / 1000.0,
        elapsed: Some(span(progress.elapsed)),
    }
}

/// The stage of a gateway's wish. `find` looks up what only the driver knows (instances, routes).
pub(crate) fn ensure(stage: &Stage, find: &impl Places) -> v1::ensure_loaded_event::Kind {
    use v1::ensure_loaded_event::Kind;
    match stage {
        Stage::Queued {
            position,
            reason,
            blocked_by,
        } => Kind::Queued(queued(*position, *reason, blocked_by)),
        Stage::Evicting { models } => Kind::Evicting(evicting(models)),
        Stage::Loading {
            instance,
            worker,
            progress: far,
        } => Kind::Loading(v1::Loading {
            instance: Some(find.instance(instance, worker)),
            progress: Some(progress(*far)),
        }),
        Stage::Ready { instance, worker } => match find.route(instance, worker) {
            Some(route) => Kind::Ready(v1::Ready { route: Some(route) }),
            None => Kind::Failed(Code::Internal.error("a ready instance has no route").into()),
        },
        Stage::Failed(why) => Kind::Failed(error(why).into()),
    }
}

/// The stage of an operator's load; none at its end.
pub(crate) fn load(stage: &Stage, find: &impl Places) -> Option<v1::load_model_event::Kind> {
    use v1::load_model_event::Kind;
    match stage {
        Stage::Queued {
            position,
            reason,
            blocked_by,
        } => Some(Kind::Queued(queued(*position, *reason, blocked_by))),
        Stage::Evicting { models } => Some(Kind::Evicting(evicting(models))),
        Stage::Loading {
            instance,
            worker,
            progress: far,
        } => Some(Kind::Loading(v1::Loading {
            instance: Some(find.instance(instance, worker)),
            progress: Some(progress(*far)),
        })),
        // The end is told by policy's reply to the call.
        Stage::Ready { .. } | Stage::Failed(_) => None,
    }
}

/// Looks up the instances and routes that stages name.
pub(crate) trait Places {
    /// The reference of an instance.
    fn instance(&self, id: &InstanceId, worker: &WorkerId) -> v1::InstanceRef;
    /// The route to a ready instance; none if its worker never reported the instance.
    fn route(&self, id: &InstanceId, worker: &WorkerId) -> Option<v1::Route>;
}

/// The state of a route as a message's value.
pub(crate) const fn route_state(state: RouteState) -> v1::RouteState {
    match state {
        RouteState::Ready => v1::RouteState::Ready,
        RouteState::Suspect => v1::RouteState::Suspect,
        RouteState::Draining => v1::RouteState::Draining,
    }
}

/// A decision as an event of `WatchEvents`.
pub(crate) fn event(decision: &Decision, at: prost_types::Timestamp) -> v1::FleetEvent {
    let text = |id: Option<String>| id.unwrap_or_default();
    v1::FleetEvent {
        at: Some(at),
        kind: decision.kind.word().to_owned(),
        model: text(decision.model.as_ref().map(ToString::to_string)),
        instance_id: text(decision.instance.as_ref().map(ToString::to_string)),
        worker_id: text(decision.worker.as_ref().map(ToString::to_string)),
        reason: decision.kind.to_string(),
        lagged: 0,
    }
}

#[cfg(test)]
mod tests {
    use muster_core::Bytes;
    use muster_policy::DeviceKey;

    use super::*;

    #[test]
    fn every_code_of_policy_is_in_the_catalogue() {
        let model = || ModelId::from("m");
        let errors = [
            LoadError::UnknownModel(model()),
            LoadError::Loading(model()),
            LoadError::Unloading(model()),
            LoadError::LoadedAlready(model()),
            LoadError::Failed {
                model: model(),
                last: LoadError::Cancelled(model()).into(),
                retry_in: std::time::Duration::from_secs(1),
            },
            LoadError::InsufficientMemory {
                model: model(),
                wanted: Bytes::mib(2),
                possible: Bytes::mib(1),
                device: Some(DeviceKey {
                    host: "h".into(),
                    device: "d".into(),
                }),
            },
            LoadError::SlotsPinned {
                model: model(),
                pinned: vec![model()],
            },
            LoadError::NoWorker {
                model: model(),
                waited: std::time::Duration::ZERO,
                missing: Some(muster_core::Runtime::LlamaServer),
            },
            LoadError::WorkerLost("w".into()),
            LoadError::Cancelled(model()),
            LoadError::NoRoomToPreload(model()),
            LoadError::NotLost("w".into()),
            LoadError::Refused {
                worker: "w".into(),
                reason: muster_policy::Refusal::Draining,
            },
        ];
        for why in &errors {
            assert_ne!(error(why).code, Code::Internal, "{why:?}");
        }
        assert_eq!(
            error(&errors[5]).details["wanted_bytes"],
            (2_u64 << 20).to_string()
        );
    }
}
