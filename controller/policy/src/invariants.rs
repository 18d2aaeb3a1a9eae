//! Checks what must hold of a fleet after every step, as far as policy knows. Tests and the simulator call it; it changes nothing.

mod decisions;

use crate::api::{Decision, DecisionKind, DeviceKey, Effect};
use crate::fleet::{Fleet, Phase};
use crate::state::{InstanceState, Place};
use decisions::{all_or_none, commanded, least_recently_used};
use muster_core::{Bytes, HostId, InstanceId, ModelId, ModelType, WorkerId};

/// A broken rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// An instance is being evicted although it has requests or holds.
    #[error("I1/I10: busy instance {0} is being evicted")]
    EvictsBusy(InstanceId),
    /// Too many models of a type on a host.
    #[error("I2: {count} models of type {} on host {host}", kind.name())]
    TooManyOfType {
        host: HostId,
        kind: ModelType,
        count: usize,
    },
    /// Too many models of a type in the fleet.
    #[error("I2: {count} models of type {} in the fleet", kind.name())]
    TooManyInFleet { kind: ModelType, count: usize },
    /// More than one model on an exclusive device.
    #[error("I3: {device} hosts {models:?}")]
    NotExclusive { device: DeviceKey, models: Vec<ModelId> },
    /// Instances and claims together are larger than the device.
    #[error("I4: {charged} of {capacity} promised on {device}")]
    Overcommitted {
        device: DeviceKey,
        /// Bytes of all instances and claims.
        charged: Bytes,
        /// The device's total memory.
        capacity: Bytes,
    },
    /// A load began although the free memory minus what other instances may still take is less than it needs.
    #[error("I4: {wanted} wanted and {unrealised} promised of {free} free on {device}")]
    NotFree {
        device: DeviceKey,
        /// Bytes the load needs.
        wanted: Bytes,
        /// Bytes that other instances have reserved and do not use yet.
        unrealised: Bytes,
        /// Free bytes by the sample that the decision relied on.
        free: Bytes,
    },
    /// A load began before a memory sample showed the last start or exit on the device, while it should still have waited for one.
    #[error("I4: a load began on {0} without a sample newer than the last change there")]
    Unsampled(DeviceKey),
    /// Too many loads at once on a host.
    #[error("I5: {count} loads run on host {host}")]
    TooManyLoads { host: HostId, count: usize },
    /// A load began on a device where this instance loads or ends.
    #[error("I5: a load began beside instance {0}, which loads or unloads")]
    LoadsBeside(InstanceId),
    /// One of several victims of a load is unloaded before all of them were reported idle.
    #[error(
        "PROTOCOL 10: {victim} goes for {for_model} before all that are to go have said that they are idle"
    )]
    NotAllIdle {
        /// The instance that goes.
        victim: InstanceId,
        for_model: ModelId,
    },
    /// An instance is quiesced for a load that no longer waits.
    #[error("PROTOCOL 10: {0} is quiesced for nobody")]
    QuiescedForNobody(InstanceId),
    /// A stream was promised an instance that takes no new requests.
    #[error("PROTOCOL 11: a hold is placed on {0}, which takes no new work")]
    PromisesQuiesced(InstanceId),
    /// Policy unloads an instance on a device where a load runs.
    #[error("PROTOCOL 13: policy unloads {0} beside a load")]
    UnloadsBeside(InstanceId),
    /// A pinned model is being evicted.
    #[error("I6: pinned model {0} is being evicted")]
    EvictsPinned(ModelId),
    /// A load whose engine failed is tried a third time.
    #[error("I7: attempt {attempt} of {model} begins")]
    RetriesAgain { model: ModelId, attempt: u32 },
    /// A load began on a host that is reserved for another load's second attempt.
    #[error("I7: {model} begins while the second attempt of {retry} has the host")]
    BesideRetry {
        /// The model that begins.
        model: ModelId,
        /// The model that has the host for its second attempt.
        retry: ModelId,
    },
    /// A model was evicted although another one would have done and was idle for longer.
    #[error("I9: {victim} goes before {older}")]
    NotTheLeastRecentlyUsed {
        /// The model that goes.
        victim: ModelId,
        /// The model that should go.
        older: ModelId,
    },
    /// A queued load has nobody who waits for it.
    #[error("I8: nobody waits for the queued load of {0}")]
    Abandoned(ModelId),
    /// A command was sent to a worker without a session (PROTOCOL 3).
    #[error("a command to worker {0}, which has no session")]
    NoSession(WorkerId),
    /// Policy's own data contradicts itself.
    #[error("inconsistent: {0}")]
    Inconsistent(String),
}

/// Checks a fleet and the decisions of its last step. A decision is judged at the time it is made, by what policy knew then: a worker that
/// comes back may bring more than there is room for, which nobody decided.
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

/// Checks that the ledger agrees with the fleet.
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
