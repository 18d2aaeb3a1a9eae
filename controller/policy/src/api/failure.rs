//! Why a load, an unload or an instance failed: one enum, each value with its key in the error catalogue.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::event::Refusal;
use super::ids::DeviceKey;
use muster_core::{Bytes, Code, ModelId, Runtime, WorkerId};

/// What a failure at the worker means to policy. The driver tells it from the error's code, never from its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureClass {
    /// An engine that really started failed to load: one retry after everything was evicted (I7).
    EngineLoad,
    /// Refused, file not found, bad arguments, backend or driver initialisation: a retry would not help.
    BeforeEngine,
    /// The load was cancelled as asked.
    Cancelled,
    /// A loaded engine ended by itself.
    Crash,
}

/// A failure as a worker reported it; carried whole to whoever asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerFailure {
    /// What it means.
    pub class: FailureClass,
    /// What it is, for programs.
    pub code: Code,
    /// A sentence for people.
    pub message: Arc<str>,
    /// Numbers, names, last log lines.
    pub details: Arc<BTreeMap<String, String>>,
}

/// Why a wish was not fulfilled. [`LoadError::code`] is the key in the error catalogue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// Not in the catalogue.
    #[error("model '{0}' is not known")]
    UnknownModel(ModelId),
    /// An overriding load while it loads, or an unload while it loads.
    #[error("model '{0}' is loading")]
    Loading(ModelId),
    /// An operator is unloading it.
    #[error("model '{0}' is unloading")]
    Unloading(ModelId),
    /// Overrides while it is loaded.
    #[error("model '{0}' is loaded; unload it before loading it with other settings")]
    LoadedAlready(ModelId),
    /// It failed lately; automatic loads are refused for a while (I7).
    #[error("model '{model}' failed to load and is not tried again for {}: {last}", span(*retry_in))]
    Failed {
        /// The model.
        model: ModelId,
        /// What happened then.
        last: Arc<LoadError>,
        /// When automatic loads are tried again.
        retry_in: Duration,
    },
    /// The worker's word.
    #[error("{}", .0.message)]
    Worker(WorkerFailure),
    /// It can never fit, or other programs or lost workers hold what it needs.
    #[error("model '{model}' needs {wanted} and at most {possible} can be had ({})", place(device.as_ref()))]
    InsufficientMemory {
        /// The model.
        model: ModelId,
        /// Bytes wanted on the device that comes closest.
        wanted: Bytes,
        /// Bytes possible there.
        possible: Bytes,
        /// That device; none if no device of the kind exists.
        device: Option<DeviceKey>,
    },
    /// Only pinned models stand in the way (I6).
    #[error("model '{model}' finds no room: only pinned models could make it")]
    SlotsPinned {
        /// The model.
        model: ModelId,
        /// The pinned models in the way.
        pinned: Vec<ModelId>,
    },
    /// There is room for some of its replicas only, and they are loaded together or not at all.
    #[error("model '{model}' is to have {replicas} replicas, and there is room for {possible}")]
    TooFewPlaces {
        /// The model.
        model: ModelId,
        /// Replicas wanted.
        replicas: u32,
        /// Replicas for which there is room.
        possible: u32,
    },
    /// No worker that could host it came in time.
    #[error("no worker that can host model '{model}' joined within {}{}", span(*waited), lacks(*missing))]
    NoWorker {
        /// The model.
        model: ModelId,
        /// How long was waited.
        waited: Duration,
        /// Its runtime, if no worker that is here has it.
        missing: Option<Runtime>,
    },
    /// The worker that hosted or loaded it was lost.
    #[error("worker '{0}' was lost")]
    WorkerLost(WorkerId),
    /// A worker refused the load, again and again.
    #[error("worker '{worker}' refused the load: {reason:?}")]
    Refused {
        /// The worker.
        worker: WorkerId,
        /// Its reason.
        reason: Refusal,
    },
    /// Room was being made, but those in the way did not finish their work in time (PROTOCOL 11).
    #[error("model '{model}' waited {} for others to finish their work", span(*waited))]
    EvictionTimeout {
        /// The model.
        model: ModelId,
        /// How long they had.
        waited: Duration,
    },
    /// An unload was given up: running work did not finish in time.
    #[error("model '{0}' is loaded again: its running work did not finish in time to unload it")]
    NotDrained(ModelId),
    /// The load was dropped: nobody waits for it, or an operator cancelled it.
    #[error("the load of model '{0}' was cancelled")]
    Cancelled(ModelId),
    /// A preload found no free room; it never evicts.
    #[error("model '{0}' was not preloaded: it would have to evict another")]
    NoRoomToPreload(ModelId),
    /// `forget` of a worker that is connected or unknown.
    #[error("worker '{0}' is connected or not known")]
    NotLost(WorkerId),
}

impl LoadError {
    /// What it is, for programs.
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

/// For people: whole seconds, or milliseconds below one.
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
