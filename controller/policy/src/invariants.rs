//! What must hold of a fleet after every step, by what policy knows. Tests and the simulator call it; it changes nothing.

mod decisions;

use crate::api::{Decision, DecisionKind, DeviceKey, Effect};
use crate::fleet::{Fleet, Phase};
use crate::state::{InstanceState, Place};
use decisions::{all_or_none, commanded, least_recently_used};
use muster_core::{Bytes, HostId, InstanceId, ModelId, ModelType, WorkerId};

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// An instance is being evicted though work runs, queues or is held there.
    #[error("I1/I10: busy instance {0} is being evicted")]
    EvictsBusy(InstanceId),
    /// Too many models of a type on a host.
    #[error("I2: {count} models of type {} on host {host}", kind.name())]
    TooManyOfType {
        /// The host.
        host: HostId,
        /// The type.
        kind: ModelType,
        /// How many.
        count: usize,
    },
    /// Too many models of a type in the fleet.
    #[error("I2: {count} models of type {} in the fleet", kind.name())]
    TooManyInFleet {
        /// The type.
        kind: ModelType,
        /// How many.
        count: usize,
    },
    /// More than one model on an exclusive device.
    #[error("I3: {device} hosts {models:?}")]
    NotExclusive {
        /// The device.
        device: DeviceKey,
        /// The models.
        models: Vec<ModelId>,
    },
    /// More memory promised than there is.
    #[error("I4: {charged} of {capacity} promised on {device}")]
    Overcommitted {
        /// The device.
        device: DeviceKey,
        /// Bytes promised.
        charged: Bytes,
        /// Bytes there are.
        capacity: Bytes,
    },
    /// A load began where less memory is free than it needs beside what the others may still come to use.
    #[error("I4: {wanted} wanted and {unrealised} promised of {free} free on {device}")]
    NotFree {
        /// The device.
        device: DeviceKey,
        /// Bytes the load needs.
        wanted: Bytes,
        /// Bytes that others have reserved and do not use yet.
        unrealised: Bytes,
        /// Bytes free by the sample that was relied on.
        free: Bytes,
    },
    /// A load began though no sample showed the last start or exit on the device yet, and one was still to be waited for.
    #[error("I4: a load began on {0} without a sample newer than the last change there")]
    Unsampled(DeviceKey),
    /// Too many loads at once on a host.
    #[error("I5: {count} loads run on host {host}")]
    TooManyLoads {
        /// The host.
        host: HostId,
        /// How many.
        count: usize,
    },
    /// A load began on a device where this instance loads or unloads.
    #[error("I5: a load began beside instance {0}, which loads or unloads")]
    LoadsBeside(InstanceId),
    /// One of several victims of a load is unloaded though not all of them have said that they are idle.
    #[error(
        "PROTOCOL 10: {victim} goes for {for_model} before all that are to go have said that they are idle"
    )]
    NotAllIdle {
        /// Who goes.
        victim: InstanceId,
        /// For which model.
        for_model: ModelId,
    },
    /// An instance takes no new work for a load that does not wait any more.
    #[error("PROTOCOL 10: {0} is quiesced for nobody")]
    QuiescedForNobody(InstanceId),
    /// A stream is promised an instance that takes no new work.
    #[error("PROTOCOL 11: a hold is placed on {0}, which takes no new work")]
    PromisesQuiesced(InstanceId),
    /// Policy unloads an instance on a device where a load runs.
    #[error("PROTOCOL 13: policy unloads {0} beside a load")]
    UnloadsBeside(InstanceId),
    /// A pinned model is being evicted.
    #[error("I6: pinned model {0} is being evicted")]
    EvictsPinned(ModelId),
    /// A load whose engine failed is tried more than once more.
    #[error("I7: attempt {attempt} of {model} begins")]
    RetriesAgain {
        /// The model.
        model: ModelId,
        /// Which attempt.
        attempt: u32,
    },
    /// A load began on a host that is closed for the second attempt of another.
    #[error("I7: {model} begins while the second attempt of {retry} has the host")]
    BesideRetry {
        /// The model that begins.
        model: ModelId,
        /// The model whose load failed before.
        retry: ModelId,
    },
    /// One model made room though another that would have done was idle for longer.
    #[error("I9: {victim} goes before {older}")]
    NotTheLeastRecentlyUsed {
        /// Who goes.
        victim: ModelId,
        /// Who should.
        older: ModelId,
    },
    /// A queued load that nobody waits for.
    #[error("I8: nobody waits for the queued load of {0}")]
    Abandoned(ModelId),
    /// A command that nobody can carry out: without a session there is nobody to send it to (PROTOCOL 3).
    #[error("a command to worker {0}, which has no session")]
    NoSession(WorkerId),
    /// Policy's own books do not agree.
    #[error("inconsistent: {0}")]
    Inconsistent(String),
}

/// Checks a fleet and what its last step decided. Decisions are judged when they are made, by what policy knew then: a worker that
/// comes back may bring more than there is room for, and that is nobody's decision.
///
/// # Errors
/// All violations found.
pub fn check(fleet: &Fleet, effects: &[Effect]) -> Result<(), Vec<Violation>> {
    let mut found = Vec::new();
    for (number, effect) in effects.iter().enumerate() {
        match effect {
            Effect::Command {
                worker,
                instance,
                command,
                id: _,
            } => {
                if !fleet.connected(worker) {
                    found.push(Violation::NoSession(worker.clone()));
                }
                if let Some(instance) = fleet.instances.get(instance) {
                    let later = effects.get(number + 1..).unwrap_or_default();
                    commanded(fleet, instance, (command, later), &mut found);
                }
            }
            Effect::Decided(Decision {
                kind: DecisionKind::Evicting { for_model, rule },
                instance: Some(victim),
                ..
            }) => least_recently_used(fleet, victim, (for_model, *rule), &mut found),
            Effect::Decided(_)
            | Effect::Notify { .. }
            | Effect::Progress { .. }
            | Effect::Reply { .. }
            | Effect::PublishRoute { .. }
            | Effect::RetractRoute { .. }
            | Effect::ModelChanged { .. }
            | Effect::Settled
            | Effect::RosterPut { .. }
            | Effect::RosterRemove { .. }
            | Effect::Resync { .. }
            | Effect::WakeAt { .. } => {}
        }
    }
    all_or_none(fleet, effects, &mut found);
    queue(fleet, &mut found);
    books(fleet, &mut found);
    ledger(fleet, &mut found);
    if found.is_empty() { Ok(()) } else { Err(found) }
}

fn queue(fleet: &Fleet, found: &mut Vec<Violation>) {
    for load in fleet.queue.values() {
        let Some(model) = fleet.models.get(&load.model) else {
            found.push(Violation::Inconsistent(format!(
                "queued load of unknown model {}",
                load.model
            )));
            continue;
        };
        if model.queued != Some(load.id) {
            found.push(Violation::Inconsistent(format!(
                "model {} does not know its queued load",
                load.model
            )));
        }
        let waited_for = model.waiters.iter().filter_map(|hold| fleet.waiters.get(hold));
        let unheld = waited_for
            .filter(|waiter| !matches!(waiter.place, Place::Held(_)))
            .count();
        let settled = fleet.phase == Phase::Running;
        if settled && !load.explicit() && unheld == 0 && model.loads.is_empty() {
            found.push(Violation::Abandoned(load.model.clone()));
        }
    }
}

/// What the load queue reads of hosts is what the fleet says.
fn ledger(fleet: &Fleet, found: &mut Vec<Violation>) {
    if !fleet.ledger_is_fresh() {
        found.push(Violation::Inconsistent("the ledger was not refreshed".to_owned()));
    }
    let differing = fleet.ledger_errors().into_iter();
    found.extend(differing.map(|host| Violation::Inconsistent(format!("the ledger is wrong about {host}"))));
}

fn books(fleet: &Fleet, found: &mut Vec<Violation>) {
    for instance in fleet.instances.values() {
        let listed = fleet
            .workers
            .get(&instance.worker)
            .is_some_and(|w| w.instances.contains(&instance.id))
            && fleet
                .models
                .get(&instance.spec.model)
                .is_some_and(|m| m.instances.contains(&instance.id));
        if !listed {
            found.push(Violation::Inconsistent(format!(
                "instance {} is not indexed",
                instance.id
            )));
        }
        let lost = !fleet.connected(&instance.worker);
        if lost != instance.lost() {
            found.push(Violation::Inconsistent(format!(
                "instance {} and its worker disagree",
                instance.id
            )));
        }
        if let InstanceState::Quiesced { plan: Some(load), .. } = &instance.state
            && fleet.phase == Phase::Running
            && !fleet.queue.contains_key(load)
        {
            found.push(Violation::QuiescedForNobody(instance.id.clone()));
        }
        if let Some(pending) = &instance.pending
            && fleet.commands.get(&pending.id) != Some(&instance.id)
        {
            found.push(Violation::Inconsistent(format!(
                "command of instance {} is not known",
                instance.id
            )));
        }
    }
    for (hold, waiter) in &fleet.waiters {
        let known = waiter
            .instance()
            .is_none_or(|id| fleet.instances.contains_key(id));
        let listed = fleet
            .models
            .get(&waiter.model)
            .is_some_and(|model| model.waiters.contains(hold));
        if !known || !listed {
            found.push(Violation::Inconsistent(format!("stream {hold} is not indexed")));
        }
    }
    if fleet.phase == Phase::Running && fleet.replan {
        found.push(Violation::Inconsistent(
            "the queue was not decided to the end".to_owned(),
        ));
    }
}
