//! Why a load, an unload or an instance failed. Each reason has a code in the error catalogue.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::event::Refusal;
use super::ids::DeviceKey;
use muster_core::{Bytes, Code, ModelId, Runtime, WorkerId};

/// How policy has to react to a failure at a worker. The driver derives it from the error's code, never from its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureClass {
    /// The engine started and then failed to load the model: policy evicts everything and tries once more (I7).
    EngineLoad,
    /// The load failed before the engine ran (file not found, bad arguments, backend or driver initialisation): another try would not help.
    BeforeEngine,
    /// The controller had cancelled the load.
    Cancelled,
    /// A loaded engine ended by itself.
    Crash,
}

/// A failure as a worker reported it. Whoever asks about the model gets all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerFailure {
    pub class: FailureClass,
    /// Key in the error catalogue, for programs.
    pub code: Code,
    /// A sentence for people.
    pub message: Arc<str>,
    /// More facts by name: numbers, file names, the engine's last log lines.
    pub details: Arc<BTreeMap<String, String>>,
}

/// Why a load or an unload was refused or failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The model is not in the catalogue.
    #[error("model '{0}' is not known")]
    UnknownModel(ModelId),
    /// An unload, or a load with other settings, was asked for while the model loads.
    #[error("model '{0}' is loading")]
    Loading(ModelId),
    /// An operator is unloading the model.
    #[error("model '{0}' is unloading")]
    Unloading(ModelId),
    /// A load with other settings was asked for while the model is loaded.
    #[error("model '{0}' is loaded; unload it before loading it with other settings")]
    LoadedAlready(ModelId),
    /// The model failed to load a short time ago; loads that requests cause are refused for a while (I7).
    #[error("model '{model}' failed to load and is not tried again for {}: {last}", span(*retry_in))]
    Failed {
        model: ModelId,
        /// The failure that began the pause.
        last: Arc<LoadError>,
        /// Time until requests may cause a load again.
        retry_in: Duration,
    },
    /// A failure that a worker reported.
    #[error("{}", .0.message)]
    Worker(WorkerFailure),
    /// The model can never fit, or other programs or lost workers hold the memory it needs.
    #[error("model '{model}' needs {wanted} and at most {possible} can be had ({})", place(device.as_ref()))]
    InsufficientMemory {
        model: ModelId,
        /// Bytes that the model needs on the device that comes closest.
        wanted: Bytes,
        /// Bytes it could get there.
        possible: Bytes,
        /// The device that comes closest; none if no device of the kind exists.
        device: Option<DeviceKey>,
    },
    /// Only pinned models could make room (I6).
    #[error("model '{model}' finds no room: only pinned models could make it")]
    SlotsPinned {
        model: ModelId,
        /// The pinned models that hold the room.
        pinned: Vec<ModelId>,
    },
    /// The model's replicas are loaded together or not at all, and not all of them fit.
    #[error("model '{model}' is to have {replicas} replicas, and there is room for {possible}")]
    TooFewPlaces {
        model: ModelId,
        replicas: u32,
        /// The number of replicas that would fit.
        possible: u32,
    },
    /// No worker that can host the model joined in time.
    #[error("no worker that can host model '{model}' joined within {}{}", span(*waited), lacks(*missing))]
    NoWorker {
        model: ModelId,
        /// How long the load waited.
        waited: Duration,
        /// The model's runtime, if no connected worker has it; none if that is not the reason.
        missing: Option<Runtime>,
    },
    /// The worker that ran or loaded the model was lost.
    #[error("worker '{0}' was lost")]
    WorkerLost(WorkerId),
    /// A worker refused the load several times.
    #[error("worker '{worker}' refused the load: {reason:?}")]
    Refused { worker: WorkerId, reason: Refusal },
    /// Models that had to make room did not finish their requests in time (PROTOCOL 11).
    #[error("model '{model}' waited {} for others to finish their work", span(*waited))]
    EvictionTimeout {
        model: ModelId,
        /// How long the load waited.
        waited: Duration,
    },
    /// An unload was given up because running requests did not finish in time.
    #[error("model '{0}' is loaded again: its running work did not finish in time to unload it")]
    NotDrained(ModelId),
    /// The load was cancelled by an operator, or because nobody waited for it any more.
    #[error("the load of model '{0}' was cancelled")]
    Cancelled(ModelId),
    /// A preload found no free room. Preloads never evict.
    #[error("model '{0}' was not preloaded: it would have to evict another")]
    NoRoomToPreload(ModelId),
    /// An operator asked to forget a worker that is connected or unknown.
    #[error("worker '{0}' is connected or not known")]
    NotLost(WorkerId),
}

impl LoadError {
    /// The error's key in the catalogue.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::UnknownModel(_) => Code::UnknownModel,
            Self::Loading(_) => Code::ModelLoading,
            Self::Unloading(_) => Code::ModelUnloading,
            Self::LoadedAlready(_) => Code::InvalidLoadRequest,
            Self::Failed { .. } => Code::ModelFailed,
            Self::Worker(failure) => failure.code,
            Self::InsufficientMemory { .. } | Self::TooFewPlaces { .. } | Self::NoRoomToPreload(_) => {
                Code::InsufficientMemory
            }
            Self::SlotsPinned { .. } => Code::SlotsPinned,
            Self::EvictionTimeout { .. } | Self::NotDrained(_) => Code::EvictionTimeout,
            Self::NoWorker { .. } => Code::NoWorker,
            Self::WorkerLost(_) => Code::WorkerLost,
            Self::Refused { .. } => Code::ModelLoadFailed,
            Self::Cancelled(_) => Code::LoadCancelled,
            Self::NotLost(_) => Code::WorkerNotLost,
        }
    }
}

/// The time in whole seconds, or in milliseconds below one second.
fn span(time: Duration) -> String {
    match time.as_millis() {
        ms @ 0..1000 => format!("{ms} ms"),
        ms => format!("{} s", ms.div_ceil(1000)),
    }
}

fn lacks(runtime: Option<Runtime>) -> String {
    runtime.map_or_else(String::new, |runtime| {
        format!("; its runtime `{runtime}` is on no worker that is here")
    })
}

fn place(device: Option<&DeviceKey>) -> String {
    device.map_or_else(|| "no such device".to_owned(), ToString::to_string)
}
