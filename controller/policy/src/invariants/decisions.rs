//! Checks a decision at the moment it is made.

use std::collections::BTreeSet;

use super::Violation;
use crate::api::{Command, DecisionKind, DeviceKey, Effect, EvictionRule, Quiesce, UnloadMode};
use crate::fleet::Fleet;
use crate::plan::{Tenure, order};
use crate::state::{Free, Goal, Instance, InstanceState, Standing};
use muster_core::{Bytes, InstanceId, ModelId};

/// Checks a command, given what was decided after it in the same step.
pub(super) fn commanded(
    fleet: &Fleet,
    instance: &Instance,
    (command, later): (&Command, &[Effect]),
    found: &mut Vec<Violation>,
) {
    match command {
        Command::Load { .. } => {
            types(fleet, instance, found);
            devices(fleet, instance, found);
            loads(fleet, instance, found);
            beside_retry(fleet, instance, later, found);
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
            if !matches!(command, Command::Quiesce) && fleet.loads_run_beside(&instance.id) {
                found.push(Violation::UnloadsBeside(instance.id.clone()));
            }
            // A load that waited for `max_eviction_wait` may have running requests finished, but no promised ones (I8, I10).
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
        Command::PlaceHold { .. } => {
            let takes_work = matches!(
                instance.state,
                InstanceState::Ready | InstanceState::Loading { .. }
            );
            if !takes_work {
                found.push(Violation::PromisesQuiesced(instance.id.clone()));
            }
        }
        Command::CancelLoad
        | Command::Resume
        | Command::Unload {
            mode: UnloadMode::Drain { .. } | UnloadMode::Force,
        }
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
    let everywhere = fleet.instances.values().filter(|i| i.spec.kind == kind);
    let count = everywhere.map(|i| &i.spec.model).collect::<BTreeSet<_>>().len();
    if !fleet.config.fleet_limits.of(kind).allows(count) {
        found.push(Violation::TooManyInFleet { kind, count });
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
        // A load that needs no memory here takes none, even if engines have outgrown their reservations (seed 78592).
        let takes = reservation.bytes > Bytes::ZERO;
        if takes && !fleet.config.overcommit && charged + fleet.config.margin > device.capacity {
            found.push(Violation::Overcommitted {
                device: key.clone(),
                charged,
                capacity: device.capacity,
            });
        }
        free_memory(fleet, &key, loading, &on, found);
        let moving = on
            .iter()
            .filter(|other| other.id != loading.id && other.in_motion());
        found.extend(moving.map(|other| Violation::LoadsBeside(other.id.clone())));
    }
}

/// Checks I4 against the memory that was really free when the load began.
fn free_memory(
    fleet: &Fleet,
    key: &DeviceKey,
    loading: &Instance,
    on: &[&Instance],
    found: &mut Vec<Violation>,
) {
    match fleet.devices.get(key).and_then(|device| device.judged_by) {
        Some(Free::Known(free)) => {
            let others = on.iter().filter(|other| other.id != loading.id);
            let unrealised: Bytes = others.map(|other| other.unrealised_on(&key.device)).sum();
            let wanted = loading.reserved_on(&key.device);
            if !fleet.config.overcommit && wanted + unrealised + fleet.config.margin > free {
                found.push(Violation::NotFree {
                    device: key.clone(),
                    wanted,
                    unrealised,
                    free,
                });
            }
        }
        Some(Free::Stale { .. }) => found.push(Violation::Unsampled(key.clone())),
        // No sample came in time: only reservations decide.
        Some(Free::Unknown) => {}
        None => found.push(Violation::Inconsistent(format!("no load began on {key}"))),
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

/// Checks I7: while a second attempt waits for its host to become empty or runs there, no other load begins.
fn beside_retry(fleet: &Fleet, loading: &Instance, later: &[Effect], found: &mut Vec<Violation>) {
    if loading.spec.attempt > 1 {
        return;
    }
    let began_later = |other: &Instance| {
        later.iter().any(|effect| {
            matches!(effect, Effect::Command { instance, command: Command::Load { .. }, .. } if *instance == other.id)
        })
    };
    let running = fleet
        .on_host(&loading.host)
        .filter(|other| other.takes_load_slot() && other.spec.attempt > 1 && !began_later(other));
    let waiting = fleet
        .queue
        .values()
        .filter(|load| matches!(&load.goal, Goal::RetryAt { host, .. } if *host == loading.host));
    let retries = running
        .map(|other| &other.spec.model)
        .chain(waiting.map(|load| &load.model));
    found.extend(retries.map(|retry| Violation::BesideRetry {
        model: loading.spec.model.clone(),
        retry: retry.clone(),
    }));
}

/// Checks that several victims of one load go only after all of them were reported idle, even if the load is planned twice in one step. A
/// second attempt empties its host in any case (I7).
pub(super) fn all_or_none(fleet: &Fleet, effects: &[Effect], found: &mut Vec<Violation>) {
    let decisions: Vec<(&DecisionKind, &Instance)> = effects
        .iter()
        .filter_map(|effect| {
            let Effect::Decided(decision) = effect else {
                return None;
            };
            Some((&decision.kind, fleet.instances.get(decision.instance.as_ref()?)?))
        })
        .collect();
    for load in fleet.queue.values() {
        if !matches!(load.standing, Standing::Evicting { .. }) {
            continue;
        }
        let decided = |is: fn(&DecisionKind) -> Option<&ModelId>| {
            let ours = decisions
                .iter()
                .filter(move |(kind, _)| is(kind) == Some(&load.model));
            ours.map(|(_, instance)| *instance).collect::<Vec<&Instance>>()
        };
        let evicted = decided(|kind| {
            let DecisionKind::Evicting { for_model, rule } = kind else {
                return None;
            };
            (*rule != EvictionRule::FailedLoad).then_some(for_model)
        });
        let asked = decided(|kind| {
            let DecisionKind::Quiescing { for_model, why } = kind else {
                return None;
            };
            (*why == Quiesce::AllOrNone).then_some(for_model)
        });
        let unasked =
            |instance: &&&Instance| matches!(instance.state, InstanceState::Evicting { quiesced: false });
        let too_soon = if asked.is_empty() {
            evicted.iter().find(unasked).filter(|_| evicted.len() > 1)
        } else {
            evicted.first()
        };
        if let Some(victim) = too_soon {
            found.push(Violation::NotAllIdle {
                victim: victim.id.clone(),
                for_model: load.model.clone(),
            });
        }
    }
}

/// Checks I9 where a single load decides; claims of other loads change the order. The most recently used replica counts for its model, so
/// only models with one instance are compared.
pub(super) fn least_recently_used(
    fleet: &Fleet,
    victim: &InstanceId,
    (for_model, rule): (&ModelId, EvictionRule),
    found: &mut Vec<Violation>,
) {
    let Some(victim) = fleet.instances.get(victim) else {
        return;
    };
    let alone = |instance: &Instance| {
        let model = fleet.models.get(&instance.spec.model);
        model.is_some_and(|model| model.instances.len() == 1)
    };
    if !fleet.config.eviction.by_last_use() || fleet.queue.len() != 1 || !alone(victim) {
        return;
    }
    let wanted = fleet
        .queue
        .values()
        .next()
        .filter(|load| load.model == *for_model);
    let wanted = wanted.map(|load| load.spec.kind);
    let would_do = |other: &Instance| match rule {
        EvictionRule::TypeSlot => other.spec.kind == victim.spec.kind,
        // The wanted type goes first. Another instance would have been enough if it has as much on each of the victim's devices.
        EvictionRule::Memory => {
            let sooner = other.spec.kind == victim.spec.kind || Some(other.spec.kind) == wanted;
            let mut parts = victim.spec.reservations.iter().map(|part| &part.device);
            sooner && parts.all(|device| other.charge_on(device) >= victim.charge_on(device))
        }
        EvictionRule::ExclusiveDevice | EvictionRule::FailedLoad => false,
    };
    let host = fleet.ledger.named(&victim.host);
    let turn = |instance: &Instance| {
        let mut residents = host.into_iter().flat_map(|host| &host.residents);
        let found = residents.find(|resident| resident.id == instance.id)?;
        Some(order::by_instance(
            found,
            instance.spec.kind,
            fleet.config.eviction,
        ))
    };
    let older = fleet.on_host(&victim.host).find(|other| {
        would_do(other)
            && alone(other)
            && other.spec.model != *for_model
            && turn(other) < turn(victim)
            && fleet.tenure(other, &[]) == Tenure::Idle
    });
    if let Some(older) = older {
        found.push(Violation::NotTheLeastRecentlyUsed {
            victim: victim.spec.model.clone(),
            older: older.spec.model.clone(),
        });
    }
}
