//! What must hold of a fleet after every step, by what policy knows. Tests and the simulator call it; it changes nothing.

use std::collections::BTreeSet;

use crate::api::{
    Bytes, Command, Decision, DecisionKind, DeviceKey, Effect, EvictionRule, HostId, InstanceId, ModelId,
    ModelType, UnloadMode,
};
use crate::config::Eviction;
use crate::fleet::{Fleet, Phase};
use crate::plan::Tenure;
use crate::state::{Instance, InstanceState, Place};

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
    /// A type's slot was taken from one model though another was idle for longer.
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
    for effect in effects {
        match effect {
            Effect::Command {
                instance, command, ..
            } => {
                if let Some(instance) = fleet.instances.get(instance) {
                    commanded(fleet, instance, command, &mut found);
                }
            }
            Effect::Decided(Decision {
                kind:
                    DecisionKind::Evicting {
                        rule: EvictionRule::TypeSlot,
                        ..
                    },
                instance: Some(victim),
                ..
            }) => least_recently_used(fleet, victim, &mut found),
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
    queue(fleet, &mut found);
    books(fleet, &mut found);
    ledger(fleet, &mut found);
    if found.is_empty() { Ok(()) } else { Err(found) }
}

fn commanded(fleet: &Fleet, instance: &Instance, command: &Command, found: &mut Vec<Violation>) {
    match command {
        Command::Load { .. } => {
            types(fleet, instance, found);
            devices(fleet, instance, found);
            loads(fleet, instance, found);
            if instance.spec.attempt > 2 {
                found.push(Violation::RetriesAgain {
                    model: instance.spec.model.clone(),
                    attempt: instance.spec.attempt,
                });
            }
        }
        Command::Quiesce
        | Command::Unload {
            mode: UnloadMode::IfIdle { .. },
        } => {
            // Who waited for `max_eviction_wait` may have running work finished, but none that is promised (I8, I10).
            let patient = matches!(instance.state, InstanceState::Quiesced { patient: true, .. })
                && fleet.config.max_eviction_wait.is_some()
                && instance.holds.is_empty();
            if instance.busy() && !patient {
                found.push(Violation::EvictsBusy(instance.id.clone()));
            }
            if fleet
                .spec_of(&instance.spec.model)
                .is_some_and(|spec| spec.pinned)
            {
                found.push(Violation::EvictsPinned(instance.spec.model.clone()));
            }
        }
        Command::CancelLoad
        | Command::Resume
        | Command::Unload {
            mode: UnloadMode::Drain { .. } | UnloadMode::Force,
        }
        | Command::PlaceHold { .. }
        | Command::ReleaseHold { .. }
        | Command::SetAttributes { .. }
        | Command::AckTombstone => {}
    }
}

fn types(fleet: &Fleet, loading: &Instance, found: &mut Vec<Violation>) {
    let (host, kind) = (&loading.host, loading.spec.kind);
    let models: BTreeSet<&ModelId> = fleet
        .on_host(host)
        .filter(|i| i.spec.kind == kind)
        .map(|i| &i.spec.model)
        .collect();
    if !fleet.config.limits.of(kind).allows(models.len()) {
        found.push(Violation::TooManyOfType {
            host: host.clone(),
            kind,
            count: models.len(),
        });
    }
}

fn devices(fleet: &Fleet, loading: &Instance, found: &mut Vec<Violation>) {
    for reservation in &loading.spec.reservations {
        let key = Fleet::key(&loading.host, &reservation.device);
        let Some(device) = fleet.devices.get(&key) else {
            found.push(Violation::Inconsistent(format!("{key} is not known")));
            continue;
        };
        let on: Vec<&Instance> = fleet.on_device(&key).collect();
        let kind = loading.spec.kind;
        let models: BTreeSet<&ModelId> = on
            .iter()
            .filter(|other| device.exclusivity.counts_together(kind, other.spec.kind))
            .map(|instance| &instance.spec.model)
            .collect();
        if device
            .exclusivity
            .limit(kind)
            .is_some_and(|limit| models.len() > limit)
        {
            let models = models.into_iter().cloned().collect();
            found.push(Violation::NotExclusive {
                device: key.clone(),
                models,
            });
        }
        let charged: Bytes = on.iter().map(|instance| instance.charge_on(&key.device)).sum();
        if !fleet.config.overcommit && charged + fleet.config.margin > device.capacity {
            found.push(Violation::Overcommitted {
                device: key.clone(),
                charged,
                capacity: device.capacity,
            });
        }
        let moving = on
            .iter()
            .filter(|other| other.id != loading.id && other.in_motion());
        found.extend(moving.map(|other| Violation::LoadsBeside(other.id.clone())));
    }
}

fn loads(fleet: &Fleet, loading: &Instance, found: &mut Vec<Violation>) {
    let count = fleet
        .on_host(&loading.host)
        .filter(|instance| instance.takes_load_slot())
        .count();
    if count > usize::try_from(fleet.config.max_concurrent_loads.get()).unwrap_or(usize::MAX) {
        found.push(Violation::TooManyLoads {
            host: loading.host.clone(),
            count,
        });
    }
}

/// I9, where one load alone decides: claims of others take their victims out of the order. Of replicas the most recently used one speaks for
/// all, so only models with one instance are compared.
fn least_recently_used(fleet: &Fleet, victim: &InstanceId, found: &mut Vec<Violation>) {
    let Some(victim) = fleet.instances.get(victim) else {
        return;
    };
    let alone = |instance: &Instance| {
        let model = fleet.models.get(&instance.spec.model);
        model.is_some_and(|model| model.instances.len() == 1)
    };
    if fleet.config.eviction != Eviction::Lru || fleet.queue.len() != 1 || !alone(victim) {
        return;
    }
    let older = fleet.on_host(&victim.host).find(|other| {
        other.spec.kind == victim.spec.kind
            && alone(other)
            && other.usage.last_used < victim.usage.last_used
            && fleet.tenure(other, &[]) == Tenure::Idle
    });
    if let Some(older) = older {
        found.push(Violation::NotTheLeastRecentlyUsed {
            victim: victim.spec.model.clone(),
            older: older.spec.model.clone(),
        });
    }
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
        if !load.explicit() && unheld == 0 && model.loads.is_empty() {
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
