//! The outcome of a command, or the news that it is unknown (PROTOCOL 3).
//!
//! Outcomes tell what reports cannot: refusals, acceptance, and that nobody knows. States come in reports.

use super::ended::End;
use crate::api::{CommandId, DecisionKind, DoneState, LoadError, Moment, Outcome, Refusal};
use crate::fleet::Fleet;
use crate::state::{Asked, Exit, Instance, InstanceState, Place};
use muster_core::InstanceId;

impl Fleet {
    /// Handles an outcome. The outcome of a command that is not outstanding (an acknowledgement, or one of an earlier session) is ignored.
    pub(crate) fn command_answered(&mut self, id: CommandId, outcome: Outcome) {
        let Some(instance_id) = self.commands.remove(&id) else {
            return;
        };
        let Some(instance) = self.instances.get_mut(&instance_id) else {
            return;
        };
        let Some(pending) = instance.pending.take_if(|pending| pending.id == id) else {
            return;
        };
        let model = instance.spec.model.clone();
        match outcome {
            Outcome::Done { state, touch_seq } => self.done(&instance_id, pending.asked, state, touch_seq),
            Outcome::Refused { reason, touch_seq } => {
                self.refused(&instance_id, pending.asked, reason, touch_seq)
            }
            Outcome::Failed(failure) => match pending.asked {
                Asked::Load => self.instance_ended(&instance_id, End::Failed(failure)),
                asked @ (Asked::CancelLoad
                | Asked::Quiesce
                | Asked::Resume
                | Asked::Evict
                | Asked::OperatorUnload
                | Asked::SetAttributes
                | Asked::PlaceHold(_)
                | Asked::ReleaseHold(_)) => self.unknown(&instance_id, &asked),
            },
            Outcome::Unknown => self.unknown(&instance_id, &pending.asked),
        }
        self.touch_model(&model);
        self.attention.insert(instance_id);
        self.room_changed();
    }

    fn done(&mut self, id: &InstanceId, asked: Asked, state: DoneState, touch_seq: u64) {
        match state {
            DoneState::Gone => {
                self.expect_late_reports(id);
                return self.instance_ended(id, End::Asked);
            }
            DoneState::Present => {}
        }
        let Some(instance) = self.instances.get_mut(id) else {
            return;
        };
        match asked {
            // Accepted; reports tell the rest. A quiesce counts once it is reported, with the request counts after it.
            Asked::OperatorUnload => {
                if let Some(condemned) = &mut instance.condemned {
                    condemned.accepted = true;
                }
            }
            Asked::Load | Asked::CancelLoad | Asked::Quiesce | Asked::SetAttributes => {}
            Asked::Resume => {
                if matches!(instance.state, InstanceState::Resuming) {
                    instance.state = InstanceState::Ready;
                }
            }
            Asked::Evict => {
                if matches!(instance.state, InstanceState::Evicting { .. }) {
                    instance.state = InstanceState::Leaving(Exit::Asked);
                }
            }
            Asked::PlaceHold(hold) => {
                instance.holds.insert(hold);
                self.confirm_holds(id);
            }
            Asked::ReleaseHold(hold) => {
                instance.holds.remove(&hold);
                instance.to_release.remove(&hold);
            }
        }
        if let Some(instance) = self.instances.get_mut(id) {
            // A hold or an unload is no use of the instance; only the count is taken over.
            instance.usage.counted(touch_seq);
        }
    }

    /// Expects more reports of an instance that has ended: outcomes and reports arrive in no fixed order, so older reports of it may still
    /// come.
    fn expect_late_reports(&mut self, id: &InstanceId) {
        if let Some(instance) = self.instances.get(id)
            && let Some(worker) = self.workers.get_mut(&instance.worker)
            && worker.connected()
        {
            worker.ended.insert(id.clone());
        }
    }

    fn refused(&mut self, id: &InstanceId, asked: Asked, reason: Refusal, touch_seq: u64) {
        let (now, quiet) = (self.now, self.config.quiet);
        let Some(instance) = self.instances.get_mut(id) else {
            return;
        };
        match asked {
            Asked::Evict | Asked::Quiesce => instance.usage.refused(now, touch_seq, quiet),
            Asked::Load
            | Asked::CancelLoad
            | Asked::Resume
            | Asked::OperatorUnload
            | Asked::SetAttributes
            | Asked::PlaceHold(_)
            | Asked::ReleaseHold(_) => instance.usage.counted(touch_seq),
        }
        let worker = instance.worker.clone();
        match asked {
            Asked::Load => {
                // Nothing was started. The load goes back to its place, and not to this worker while it drains.
                let refused = LoadError::Refused {
                    worker: worker.clone(),
                    reason,
                };
                self.instance_ended(id, End::LostWith(refused));
            }
            Asked::CancelLoad => {
                if matches!(instance.state, InstanceState::Cancelling { .. }) && reason == Refusal::NotLoading
                {
                    // The cancellation came too late. If an operator wanted the instance gone, that still holds.
                    self.became_ready(id);
                } else {
                    instance.doubtful_since.get_or_insert(now);
                }
            }
            Asked::Evict | Asked::Quiesce => {
                eviction_refused(instance, now);
                self.decided_on(DecisionKind::EvictionRefused, id);
            }
            Asked::OperatorUnload => {
                instance.condemned = None;
                if matches!(instance.state, InstanceState::Leaving(Exit::Asked)) {
                    instance.state = InstanceState::Ready;
                }
            }
            Asked::Resume => {
                if matches!(instance.state, InstanceState::Resuming) {
                    instance.state = InstanceState::Ready;
                }
            }
            Asked::PlaceHold(hold) => {
                // Nothing more is sent before a report has told the instance's state.
                instance.doubtful_since.get_or_insert(now);
                if let Some(waiter) = self.waiters.get_mut(&hold) {
                    waiter.place = Place::Waiting;
                }
            }
            Asked::ReleaseHold(hold) => {
                instance.to_release.remove(&hold);
                instance.holds.remove(&hold);
            }
            // The attributes are only for display; a report will tell which ones the worker has.
            Asked::SetAttributes => {}
        }
        if reason == Refusal::Draining {
            self.worker_draining(&worker, true);
        }
    }

    /// Handles an unknown outcome: reservation and slot stay, and no further command is sent until a report tells the state (PROTOCOL 3).
    pub(super) fn unknown(&mut self, id: &InstanceId, asked: &Asked) {
        let now = self.now;
        if let Some(instance) = self.instances.get_mut(id) {
            // The worker has reported this instance, so it took the load; only the answer was lost.
            if *asked != Asked::Load || instance.revision == 0 {
                instance.doubtful_since.get_or_insert(now);
            }
            // Send the cancellation again: a load that finished meanwhile refuses it, and nothing else would tell that it was lost.
            if let (Asked::CancelLoad, InstanceState::Cancelling { sent, .. }) = (asked, &mut instance.state)
            {
                *sent = false;
            }
        }
        if let Asked::PlaceHold(hold) = asked
            && let Some(waiter) = self.waiters.get_mut(hold)
        {
            waiter.place = Place::Waiting;
        }
    }
}

/// Undoes an eviction that the worker refused because the instance is in use. It must be unused for a while before the next try.
fn eviction_refused(instance: &mut Instance, now: Moment) {
    if let InstanceState::Evicting { quiesced: true } = instance.state {
        instance.state = InstanceState::Quiesced {
            plan: None,
            confirmed: true,
            patient: false,
            since: now,
        };
    } else if let InstanceState::Evicting { .. } | InstanceState::Quiesced { .. } = instance.state {
        instance.state = InstanceState::Ready;
    }
}
