//! A load whose victims stay busy (I8, PROTOCOL 11): after `max_eviction_wait` they take no new work, and have `max_drain` to finish.
//!
//! ```text
//!   waits for busy victims ── max_eviction_wait ──► victims quiesced, they finish ── idle ──► evicted
//!                                                              └── max_drain ──► the load fails, victims take work again
//! ```
//!
//! A hold (I10) and a load are always waited for: neither can be hurried.

use super::Pass;
use super::obstacle::Victim;
use super::tenure::Tenure;
use crate::api::{Command, DecisionKind, LoadError, Moment, Quiesce};
use crate::fleet::Fleet;
use crate::state::{Asked, InstanceState, Load};
use muster_core::InstanceId;

impl Fleet {
    /// Quiesces the busy victims of a load that has waited too long, and gives the load up if they do not finish in time. `may_begin` tells
    /// whether the load could start once they are gone; it is called only after the wait.
    pub(crate) fn lose_patience(
        &mut self,
        load: &Load,
        victims: &[Victim],
        may_begin: impl FnOnce(&Self, &Pass) -> bool,
        pass: &mut Pass,
    ) {
        let since = load.blocked_since.unwrap_or(self.now);
        if let Some(queued) = self.queue.get_mut(&load.id) {
            queued.blocked_since = Some(since);
        }
        let Some(limit) = self.config.max_eviction_wait else {
            return;
        };
        if since + limit > self.now {
            return pass.wake_at(since + limit);
        }
        if !may_begin(self, pass) {
            // If the load cannot start anyway, quiesced victims would be resumed and quiesced again for as long as the other load takes.
            return self.drains(load, false, pass);
        }
        let mut finishing = false;
        for victim in victims {
            finishing |= self.quiesce_patiently(load, victim, since, pass);
        }
        self.drains(load, finishing, pass);
    }

    /// Quiesces a busy victim. Returns whether it takes no new requests now.
    fn quiesce_patiently(&mut self, load: &Load, victim: &Victim, since: Moment, pass: &mut Pass) -> bool {
        let now = self.now;
        let settled = self
            .instances
            .get(&victim.id)
            .and_then(|instance| instance.ready_since)
            .map(|ready| ready + self.config.min_residency);
        let held = self.held(&victim.id)
            || self
                .instances
                .get(&victim.id)
                .is_some_and(|found| !found.published);
        let rests = self.quiesced_just_now(&victim.id, pass);
        let Some(instance) = self.instances.get_mut(&victim.id) else {
            return false;
        };
        // An idle victim has nothing to finish. If it were quiesced, it would no longer be the first choice, and would be resumed for the
        // next.
        let may_go =
            victim.tenure != Tenure::Idle && !rests && !held && settled.is_none_or(|settled| settled <= now);
        if let InstanceState::Quiesced { plan, patient, .. } = &mut instance.state {
            *plan = Some(load.id);
            *patient = true;
        } else if matches!(instance.state, InstanceState::Ready) && instance.pending.is_none() && may_go {
            instance.state = InstanceState::Quiesced {
                plan: Some(load.id),
                confirmed: false,
                patient: true,
                since: now,
            };
            let waited = now.since(since);
            let kind = DecisionKind::Quiescing {
                for_model: load.model.clone(),
                why: Quiesce::Patience { waited },
            };
            self.decided_on(kind, &victim.id);
            self.send(&victim.id, Asked::Quiesce, Command::Quiesce);
        } else {
            return false;
        }
        self.attention.insert(victim.id.clone());
        pass.kept.insert(victim.id.clone());
        self.touch_model(&victim.model);
        victim.tenure != Tenure::Idle
    }

    /// Whether the instance was quiesced a moment ago without result; then it is not quiesced again before a pause that grows.
    pub(super) fn quiesced_just_now(&mut self, id: &InstanceId, pass: &mut Pass) -> bool {
        let (now, longest) = (self.now, self.config.unknown_wait);
        let Some(instance) = self.instances.get_mut(id).filter(|found| found.is_ready()) else {
            return false;
        };
        let rests = instance.given.rests(&Asked::Quiesce, now, longest);
        if let Some(until) = instance.given.rests_until.take().filter(|_| rests) {
            pass.wake_at(until);
        }
        rests
    }

    /// Whether somebody was promised the instance and has not arrived yet.
    fn held(&self, id: &InstanceId) -> bool {
        let Some(instance) = self.instances.get(id) else {
            return false;
        };
        let waiters = self
            .models
            .get(&instance.spec.model)
            .into_iter()
            .flat_map(|model| &model.waiters);
        let promised = waiters
            .filter_map(|hold| self.waiters.get(hold))
            .any(|waiter| waiter.instance() == Some(id));
        promised || !instance.holds.is_empty()
    }

    /// Limits how long a load waits for requests that only have to finish.
    pub(crate) fn drains(&mut self, load: &Load, finishing: bool, pass: &mut Pass) {
        let since = finishing.then(|| load.drains_since.unwrap_or(self.now));
        if let Some(queued) = self.queue.get_mut(&load.id) {
            queued.drains_since = since;
        }
        let (Some(since), Some(limit)) = (since, self.config.max_drain) else {
            return;
        };
        if since + limit > self.now {
            return pass.wake_at(since + limit);
        }
        let error = LoadError::EvictionTimeout {
            model: load.model.clone(),
            waited: limit,
        };
        pass.kept.retain(|id| {
            !self.instances.get(id).is_some_and(
                |instance| matches!(instance.state, InstanceState::Quiesced { plan: Some(plan), .. } if plan == load.id),
            )
        });
        self.refuse_load(&load.model, &error);
    }
}
