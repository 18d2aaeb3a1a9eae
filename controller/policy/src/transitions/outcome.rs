//! A worker answered a command, or nobody knows whether it did (PROTOCOL 3).
//!
//! Outcomes matter for what a report cannot say: refusals, acceptance, and ignorance. States themselves come in reports.

use super::ended::End;
use crate::api::{CommandId, DecisionKind, DoneState, LoadError, Moment, Outcome, Refusal};
use crate::fleet::Fleet;
use crate::state::{Asked, Exit, Instance, InstanceState, Place};
use muster_core::InstanceId;

impl Fleet {
    /// An outcome. One of a command that is not outstanding (an acknowledgement, or one of an old session) means nothing.
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
            // Accepted; what follows is reported. A quiesce counts once reported, with the counts after it.
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
            // A hold or an unload is no use; only the count is taken over.
            instance.usage.counted(touch_seq);
        }
    }

    /// Outcomes and reports come in no order between them: what the worker wrote of it before its end may still arrive.
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
                // Nothing was started: the load goes back to its place, and not to this worker while it drains.
                let refused = LoadError::Refused {
                    worker: worker.clone(),
                    reason,
                };
                self.instance_ended(id, End::LostWith(refused));
            }
            Asked::CancelLoad => {
                if matches!(instance.state, InstanceState::Cancelling { .. }) && reason == Refusal::NotLoading
                {
                    // It came too late; if an operator wanted the instance gone, that is still so.
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
                // Not asked again before a report has told what the instance really is.
                instance.doubtful_since.get_or_insert(now);
                if let Some(waiter) = self.waiters.get_mut(&hold) {
                    waiter.place = Place::Waiting;
                }
            }
            Asked::ReleaseHold(hold) => {
                instance.to_release.remove(&hold);
                instance.holds.remove(&hold);
            }
            // Only for show; a report will tell what it shows.
            Asked::SetAttributes => {}
        }
        if reason == Refusal::Draining {
            self.worker_draining(&worker, true);
        }
    }

    /// Nobody knows: reservation and slot stay, and nothing more is asked of it, until a report tells (PROTOCOL 3).
    pub(super) fn unknown(&mut self, id: &InstanceId, asked: &Asked) {
        let now = self.now;
        if let Some(instance) = self.instances.get_mut(id) {
            // A load that its worker has reported was taken: only the answer is lost, and the load has its own time.
            if *asked != Asked::Load || instance.revision == 0 {
                instance.doubtful_since.get_or_insert(now);
            }
            // Asked again: a load that ended well meanwhile refuses it, and nothing else would tell that the cancellation was lost.
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

/// A victim is in use after all: it is as before, and must be quiet for a while before it is tried again.
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
