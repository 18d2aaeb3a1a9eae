//! Everything that can happen to a fleet, as input of policy.

use std::time::Duration;

use super::facts::{InstanceStatus, Report, WorkerFacts};
use super::failure::WorkerFailure;
use super::ids::CommandId;
use super::spec::ModelSpec;
use crate::config::Config;
use muster_core::{HoldId, InstanceId, ModelId, RequestId, WorkerId};

/// An input of [`Fleet::step`](crate::Fleet::step).
///
/// The driver hands over events of a worker in the order of its session, and only those of its current session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A worker's session was accepted. Policy itself tells a new boot of the worker from a re-join of the same boot.
    WorkerJoined {
        facts: WorkerFacts,
        /// All instances that the worker hosts: one that is absent has ended.
        report: Report,
    },
    /// A worker's session broke without a goodbye. Its engines may still run (PROTOCOL 1).
    WorkerLost { worker: WorkerId },
    /// A worker shut down in order: it has drained, and its instances have ended.
    WorkerLeft { worker: WorkerId },
    /// A worker began or stopped draining. A draining worker takes no new loads.
    WorkerDraining { worker: WorkerId, draining: bool },
    /// A worker reported changes.
    WorkerReported {
        worker: WorkerId,
        /// Only what changed since the last report.
        report: Report,
    },
    /// The outcome of a command: exactly one for each [`Effect::Command`](crate::Effect::Command). It is `Unknown` if the command's task or
    /// session died.
    Outcome { id: CommandId, outcome: Outcome },
    /// A gateway opened an `EnsureLoaded` stream. A hold id that is already known re-attaches to its load.
    EnsureOpened {
        /// Identifies the stream; the worker protects the loaded instance under this id.
        hold: HoldId,
        model: ModelId,
        /// Instances that just refused the gateway or did not answer it. They are used only if the model has no other.
        avoid_instances: Vec<InstanceId>,
        /// Workers to avoid in the same way.
        avoid_workers: Vec<WorkerId>,
    },
    /// An `EnsureLoaded` stream ended: its requests were admitted, its callers left, or the gateway died.
    EnsureClosed {
        /// The hold that stands for the stream.
        hold: HoldId,
    },
    /// An operator loads a model; answered by [`Effect::Reply`](crate::Effect::Reply).
    LoadRequested {
        /// The operator's call.
        request: RequestId,
        model: ModelId,
        /// The catalogue's entry with the operator's settings folded in; none = the entry as it is.
        overrides: Option<ModelSpec>,
    },
    /// An operator unloads a model; answered by [`Effect::Reply`](crate::Effect::Reply).
    UnloadRequested {
        /// The operator's call.
        request: RequestId,
        model: ModelId,
        /// What happens to requests and loads of the model.
        how: UnloadHow,
        /// The longest time for running requests to finish; past it the unload is given up. None = `Config::max_drain`.
        drain_for: Option<Duration>,
    },
    /// The configuration asks to load a model at start, if that needs no eviction.
    PreloadRequested { model: ModelId },
    /// An operator declares a lost worker gone, with all its instances; answered by [`Effect::Reply`](crate::Effect::Reply).
    ForgetRequested {
        /// The operator's call.
        request: RequestId,
        worker: WorkerId,
    },
    /// A live worker of the same host saw that the engine process of a lost worker has ended (compared by pid and start time).
    GhostGone { instance: InstanceId },
    /// Some entries of the catalogue are new or changed; the others stay as they were.
    ModelsChanged {
        /// The new and changed entries.
        models: Vec<ModelSpec>,
    },
    /// The whole catalogue; models that are not in it are gone.
    CatalogueChanged { models: Vec<ModelSpec> },
    /// The settings of policy are others from now on. What was decided by the former ones stands: nothing is evicted for a lower limit.
    ConfigChanged { config: Box<Config> },
    /// Tells whether workers are about to join. While the fleet settles, settling goes on until they have joined (PROTOCOL 2).
    JoinsWait { any: bool },
    /// Time has passed: the moment that [`Effect::WakeAt`](crate::Effect::WakeAt) asked for, or any other.
    Tick,
}

/// How an operator wants a model unloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnloadHow {
    /// Cancel queued requests, let running ones finish. Refused while the model loads (`model_loading`).
    Drain,
    /// Cancel queued and running requests, and a load.
    Force,
    /// As `Drain`; in addition a queued load is dropped and a running one cancelled (Lemonade's `/unload` of everything).
    DrainOrCancel,
}

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The worker did it. For a load: the worker accepted it, and reports tell how it goes on.
    Done {
        state: DoneState,
        /// The instance's `touch_seq` afterwards.
        touch_seq: u64,
    },
    /// The worker refused it, and nothing changed.
    Refused {
        reason: Refusal,
        /// The instance's current `touch_seq`.
        touch_seq: u64,
    },
    /// The worker tried and failed.
    Failed(WorkerFailure),
    /// Nobody knows whether it was done. The instance keeps its reservation and slot until the same boot of the worker reports, or a new
    /// boot joins (PROTOCOL 3).
    Unknown,
}

/// Whether the instance exists after a command was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DoneState {
    /// The instance exists; reports tell its state.
    Present,
    /// The instance ended and its memory is free.
    Gone,
}

/// Why a worker refused a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// Requests run or are queued on the instance.
    Busy,
    /// A hold protects the instance.
    Held,
    /// The instance was used after policy last looked.
    Touched,
    /// The worker is shutting down.
    Draining,
    /// `CancelLoad` came after the load had ended.
    NotLoading,
    /// The command came from an earlier controller.
    BadEpoch,
    /// The worker could not read the command.
    Invalid,
}

impl Event {
    /// A report about a single instance.
    #[must_use]
    pub fn reported(worker: WorkerId, status: InstanceStatus) -> Self {
        Self::WorkerReported {
            worker,
            report: Report {
                instances: vec![status],
                ..Report::default()
            },
        }
    }
}
