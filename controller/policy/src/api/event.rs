//! Everything that can happen to a fleet.

use std::time::Duration;

use super::facts::{InstanceStatus, Report, WorkerFacts};
use super::failure::WorkerFailure;
use super::ids::CommandId;
use super::spec::ModelSpec;
use muster_core::{HoldId, InstanceId, ModelId, RequestId, WorkerId};

/// An input of [`Fleet::step`](crate::Fleet::step).
///
/// The driver hands over events of a worker in the order of its session, and only those of its current session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A worker's session was accepted, with everything it hosts. A new boot or a re-join of the same one, policy tells by itself.
    WorkerJoined {
        /// The worker and what it has.
        facts: WorkerFacts,
        /// Everything it hosts: what is absent here is gone.
        report: Report,
    },
    /// A worker's session was lost without a goodbye. Lost is not gone (PROTOCOL 1).
    WorkerLost {
        /// The worker.
        worker: WorkerId,
    },
    /// A worker ended in order: it has drained, its instances are gone.
    WorkerLeft {
        /// The worker.
        worker: WorkerId,
    },
    /// A worker began or stopped draining: it takes no new loads.
    WorkerDraining {
        /// The worker.
        worker: WorkerId,
        /// Whether it drains.
        draining: bool,
    },
    /// Changes at a worker.
    WorkerReported {
        /// The worker.
        worker: WorkerId,
        /// What changed.
        report: Report,
    },
    /// The answer to a command; exactly one for each [`Effect::Command`](crate::Effect::Command) (unknown if its task or session died).
    Outcome {
        /// The command.
        id: CommandId,
        /// What came of it.
        outcome: Outcome,
    },
    /// A gateway opened an `EnsureLoaded` stream. A known hold id re-attaches.
    EnsureOpened {
        /// The stream, and the hold it stands for.
        hold: HoldId,
        /// The model.
        model: ModelId,
        /// Instances that just refused the gateway or never answered it; used only if there is nothing else.
        avoid_instances: Vec<InstanceId>,
        /// Workers likewise.
        avoid_workers: Vec<WorkerId>,
    },
    /// That stream ended (all admitted, all gone, or the gateway died).
    EnsureClosed {
        /// The hold of the caller's stream.
        hold: HoldId,
    },
    /// An operator loads a model; answered by [`Effect::Reply`](crate::Effect::Reply).
    LoadRequested {
        /// The operator's call.
        request: RequestId,
        /// The model.
        model: ModelId,
        /// The catalogue's entry with overrides folded in; none = as the catalogue says.
        overrides: Option<ModelSpec>,
    },
    /// An operator unloads a model; answered by [`Effect::Reply`](crate::Effect::Reply).
    UnloadRequested {
        /// The operator's call.
        request: RequestId,
        /// The model.
        model: ModelId,
        /// What becomes of work that runs or waits there.
        how: UnloadHow,
        /// The longest that running work may take to finish; then the unload is given up. None = as `Config::max_drain` says.
        drain_for: Option<Duration>,
    },
    /// Configuration wants a model loaded at start if there is free room.
    PreloadRequested {
        /// The model.
        model: ModelId,
    },
    /// An operator declares a lost worker gone, ghosts and all; answered by [`Effect::Reply`](crate::Effect::Reply).
    ForgetRequested {
        /// The operator's call.
        request: RequestId,
        /// The worker.
        worker: WorkerId,
    },
    /// A live worker on the host saw that a lost worker's engine has ended (pid and start time).
    GhostGone {
        /// The instance.
        instance: InstanceId,
    },
    /// Entries of the catalogue that are new or changed; all others are as they were.
    ModelsChanged {
        /// The entries that changed.
        models: Vec<ModelSpec>,
    },
    /// The catalogue as it is now, whole.
    CatalogueChanged {
        /// All entries.
        models: Vec<ModelSpec>,
    },
    /// Whether workers are about to join: while the fleet settles, it goes on until they have (PROTOCOL 2).
    JoinsWait {
        /// Whether there are any.
        any: bool,
    },
    /// Time passed: the moment asked for by [`Effect::WakeAt`](crate::Effect::WakeAt), or any other.
    Tick,
}

/// How an operator wants a model unloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnloadHow {
    /// Queued work is cancelled, running work finishes; refused while it loads (`model_loading`).
    Drain,
    /// Also running work is cancelled, and a load.
    Force,
    /// As `Drain`, but a queued load is dropped and a running one cancelled (Lemonade's `/unload` of everything).
    DrainOrCancel,
}

/// What came of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It was done; for a load: accepted, state follows in reports.
    Done {
        /// The instance afterwards.
        state: DoneState,
        /// Its `touch_seq` afterwards.
        touch_seq: u64,
    },
    /// It was not done, and nothing changed.
    Refused {
        /// Why the worker refused.
        reason: Refusal,
        /// The instance's current `touch_seq`.
        touch_seq: u64,
    },
    /// It was tried and failed.
    Failed(WorkerFailure),
    /// Nobody knows: reservation and slot stay until the same boot reports, or a new one joins (PROTOCOL 3).
    Unknown,
}

/// The instance's state after a command was done, as far as policy reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DoneState {
    /// It exists; its state follows in reports.
    Present,
    /// It ended and its memory is back.
    Gone,
}

/// Why a worker refused a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// Work runs or is queued on the instance.
    Busy,
    /// A hold is in place.
    Held,
    /// It was touched since what policy saw.
    Touched,
    /// The worker is shutting down.
    Draining,
    /// `CancelLoad` came after the load had ended.
    NotLoading,
    /// The command came from an old controller.
    BadEpoch,
    /// The command could not be understood.
    Invalid,
}

impl Event {
    /// A report about one instance only; short for tests and drivers.
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
