//! Sends each instance its next command, one at a time, and acts on what becomes due by time alone.
//!
//! Only instances in `attention` are examined. An instance leaves that set when it needs no command; an alarm puts it back.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::api::{Command, DecisionKind, Effect, Moment};
use crate::fleet::Fleet;
use crate::state::{Asked, Exit, InstanceState, Place};
use crate::timers::Alarm;
use muster_core::{HoldId, InstanceId, WorkerId};

impl Fleet {
    /// Sends the commands that are due, and sets alarms for those that become due by time alone.
    pub(crate) fn attend(&mut self) {
        let mut resync: BTreeSet<WorkerId> = BTreeSet::new();
        let ids: Vec<InstanceId> = self.attention.iter().cloned().collect();
        for id in ids {
            self.next_command(&id);
            let at = self.deadline(&id, &mut resync);
            if !self.needs_attention(&id) {
                self.attention.remove(&id);
            }
            self.timers.set(&Alarm::Instance(id), at);
        }
        let resync = resync.into_iter().map(|worker| Effect::Resync { worker });
        self.effects.extend(resync);
    }

    /// Sends the next command if none is outstanding and the outcome of the last one is known. After an unknown outcome a report or the
    /// next session must first tell the state; else the same command would be sent again and again.
    fn next_command(&mut self, id: &InstanceId) {
        let Some(instance) = self.instances.get_mut(id) else {
            return;
        };
        if instance.pending.is_some() || instance.lost() || instance.doubtful_since.is_some() {
            return;
        }
        if let InstanceState::Cancelling { sent } = &mut instance.state {
            if !*sent && self.ask(id, Asked::CancelLoad, Command::CancelLoad) {
                self.set_state(id, InstanceState::Cancelling { sent: true });
            }
            return;
        }
        if let Some(condemned) = instance.condemned {
            let unload = Command::Unload { mode: condemned.mode };
            if condemned.due && self.ask(id, Asked::OperatorUnload, unload) {
                self.operator_unload_sent(id);
            }
            return;
        }
        let ready = matches!(instance.state, InstanceState::Ready);
        if let InstanceState::Quiesced { plan: None, .. } = instance.state {
            if self.ask(id, Asked::Resume, Command::Resume) {
                self.set_state(id, InstanceState::Resuming);
            }
        } else if (ready || matches!(instance.state, InstanceState::Loading { .. }))
            && !(self.release_next(id) || ready && self.place_next(id))
        {
            self.tell_attributes(id);
        }
    }

    /// Sends a command unless it was sent just before. Returns whether it was sent.
    fn ask(&mut self, id: &InstanceId, asked: Asked, command: Command) -> bool {
        let (now, longest) = (self.now, self.config.unknown_wait);
        let found = self.instances.get_mut(id);
        let rests = found.is_none_or(|instance| instance.given.rests(&asked, now, longest));
        if !rests {
            self.send(id, asked, command);
        }
        !rests
    }

    pub(crate) fn set_state(&mut self, id: &InstanceId, state: InstanceState) {
        if let Some(instance) = self.instances.get_mut(id) {
            instance.state = state;
        }
    }

    fn operator_unload_sent(&mut self, id: &InstanceId) {
        if let Some(instance) = self.instances.get_mut(id) {
            if let Some(condemned) = &mut instance.condemned {
                condemned.due = false;
            }
            if !matches!(instance.state, InstanceState::Leaving(_)) {
                instance.state = InstanceState::Leaving(Exit::Asked);
            }
        }
    }

    fn release_next(&mut self, id: &InstanceId) -> bool {
        let Some(instance) = self.instances.get_mut(id) else {
            return false;
        };
        // The other holds are no longer in place.
        let holds = &instance.holds;
        instance.to_release.retain(|hold| holds.contains(hold));
        let Some(hold) = instance.to_release.first().cloned() else {
            return false;
        };
        self.ask(
            id,
            Asked::ReleaseHold(hold.clone()),
            Command::ReleaseHold { hold },
        )
    }

    fn place_next(&mut self, id: &InstanceId) -> bool {
        let Some(hold) = self.hold_to_place(id) else {
            return false;
        };
        self.ask(id, Asked::PlaceHold(hold.clone()), Command::PlaceHold { hold })
    }

    /// The pin and idle time to send to the worker, if it shows other values.
    fn attributes_to_tell(&self, id: &InstanceId) -> Option<(bool, Option<Duration>)> {
        let instance = self.instances.get(id)?;
        let model = self.spec_of(&instance.spec.model)?;
        let wanted = (model.pinned, self.config.ttl(model.idle_ttl));
        (wanted != (instance.spec.pinned, instance.spec.idle_ttl)).then_some(wanted)
    }

    fn tell_attributes(&mut self, id: &InstanceId) {
        let Some((pinned, idle_ttl)) = self.attributes_to_tell(id) else {
            return;
        };
        let command = Command::SetAttributes { pinned, idle_ttl };
        if self.ask(id, Asked::SetAttributes, command)
            && let Some(instance) = self.instances.get_mut(id)
        {
            let spec = Arc::make_mut(&mut instance.spec);
            (spec.pinned, spec.idle_ttl) = (pinned, idle_ttl);
        }
    }

    fn hold_to_place(&self, id: &InstanceId) -> Option<HoldId> {
        let instance = self.instances.get(id)?;
        let model = self.models.get(&instance.spec.model)?;
        let place = Place::Placing(id.clone());
        let to_place = |hold: &&HoldId| {
            !instance.holds.contains(*hold)
                && self
                    .waiters
                    .get(*hold)
                    .is_some_and(|waiter| waiter.place == place)
        };
        model.waiters.iter().find(to_place).cloned()
    }

    fn needs_attention(&self, id: &InstanceId) -> bool {
        let Some(instance) = self.instances.get(id).filter(|found| !found.lost()) else {
            return false;
        };
        let serves = instance.is_ready() || matches!(instance.state, InstanceState::Loading { .. });
        !instance.to_release.is_empty()
            || instance.condemned.is_some_and(|condemned| condemned.due)
            || matches!(
                instance.state,
                InstanceState::Quiesced { .. } | InstanceState::Cancelling { sent: false }
            )
            || self.hold_to_place(id).is_some()
            || serves && self.attributes_to_tell(id).is_some()
    }

    /// Acts on what is due, and returns when something becomes due next.
    fn deadline(&mut self, id: &InstanceId, resync: &mut BTreeSet<WorkerId>) -> Option<Moment> {
        let (now, config) = (self.now, &self.config);
        let known = &self.waiters;
        let instance = self.instances.get_mut(id).filter(|found| !found.lost())?;
        let mut overdue = false;
        let mut wake = instance.given.rests_until.take();
        let mut later = |at: Moment| wake = Some(wake.map_or(at, |wake: Moment| wake.min(at)));
        if let Some(since) = instance.doubtful_since {
            if since + config.unknown_wait <= now {
                instance.doubtful_since = Some(now);
                resync.insert(instance.worker.clone());
            }
            later(instance.doubtful_since.unwrap_or(now) + config.unknown_wait);
        }
        if let InstanceState::Quiesced {
            plan: plan @ Some(_),
            confirmed: false,
            since,
            patient: _,
        } = &mut instance.state
        {
            if *since + config.unknown_wait > now {
                later(*since + config.unknown_wait);
            } else if instance.pending.is_none() {
                *plan = None;
                overdue = true;
                later(now);
            }
        }
        let strangers: Vec<HoldId> = instance
            .holds
            .iter()
            .filter(|hold| !known.contains_key(*hold))
            .cloned()
            .collect();
        if strangers.iter().all(|hold| instance.to_release.contains(hold)) {
            instance.strangers_since = None;
        } else {
            let since = *instance.strangers_since.get_or_insert(now);
            if since + config.stranger_holds <= now {
                instance.to_release.extend(strangers);
                later(now);
            } else {
                later(since + config.stranger_holds);
            }
        }
        if overdue {
            self.decided_on(DecisionKind::Resumed, id);
        }
        wake
    }
}
