//! Carries out policy's effects. It decides nothing: if an effect cannot be carried out, policy hears that its result is unknown.

use muster_core::{InstanceId, ModelId, WorkerId};
use muster_policy::{Command, CommandId, Decision, DecisionKind, Effect, Event, Outcome, RouteState};
use muster_proto::v1;

use super::{Driver, sessions::Sent};
use crate::convert::{command::command as to_wire, stage};

impl Driver {
    /// Carries out one effect.
    pub(super) fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Command {
                id,
                worker,
                instance,
                command,
            } => self.command(id, &worker, &instance, &command),
            Effect::Notify { hold, stage } => {
                let kind = Some(stage::ensure(&stage, self));
                self.ensures.tell(
                    &hold,
                    v1::EnsureLoadedEvent {
                        epoch: *self.epoch.borrow(),
                        kind,
                    },
                );
            }
            Effect::Progress { request, stage } => {
                if let Some(kind) = stage::load(&stage, self) {
                    self.calls.progress(&request, kind);
                }
            }
            Effect::Reply { request, result } => self.reply(&request, result),
            Effect::PublishRoute {
                instance,
                worker,
                model,
                state,
            } => {
                self.publish_route(&instance, &worker, &model, state);
            }
            Effect::RetractRoute { instance } => {
                let model = self
                    .routes
                    .route(instance.as_str())
                    .map(|route| route.model_id.clone());
                self.changed_models.extend(model);
                self.routes.remove_route(instance.as_str());
                self.ended.insert(instance);
            }
            Effect::ModelChanged { model, state } => {
                tracing::debug!(%model, ?state, "model state");
                self.changed_models.insert(model.to_string());
            }
            Effect::Settled => {
                tracing::info!("the fleet has settled");
                self.routes.settle();
                // Workers that did not come in that time are lost and will expire.
                for worker in self.writer.here() {
                    if self.sessions.of(&worker).is_none() {
                        self.writer.away(&worker, false);
                    }
                }
            }
            Effect::RosterPut { facts } => self.writer.put(facts),
            Effect::RosterRemove { worker } => {
                self.devices_changed = true;
                self.writer.remove(&worker);
                self.may_have_ended(&worker);
                self.mirror.forget(worker.as_str());
                self.files_gone(&worker);
            }
            Effect::Resync { worker } => self.sessions.end(&worker),
            Effect::WakeAt { at } => self.wake = Some(at),
            Effect::Decided(decision) => self.decided(&decision),
        }
    }

    fn command(&mut self, id: CommandId, worker: &WorkerId, instance: &InstanceId, command: &Command) {
        let wire_id = format!("{}-{}", self.run, id.0);
        let ttl = self.config.timing.hold_ttl;
        let wire = to_wire(wire_id, instance, command, ttl, |hold| self.ensures.gateway(hold));
        if matches!(command, Command::AckTombstone) {
            self.ended.insert(instance.clone());
        }
        if self.sessions.send(worker, id, wire) == Sent::No {
            self.feed(Event::Outcome {
                id,
                outcome: Outcome::Unknown,
            });
        }
    }

    fn publish_route(
        &mut self,
        instance: &InstanceId,
        worker: &WorkerId,
        model: &ModelId,
        state: RouteState,
    ) {
        self.changed_models.insert(model.to_string());
        match self.mirror.route(instance, worker, state) {
            Some(route) => self.routes.put_route(route),
            None => {
                tracing::error!(%instance, %worker, "policy publishes an instance that was never reported")
            }
        }
    }

    fn decided(&mut self, decision: &Decision) {
        match &decision.kind {
            DecisionKind::LoadStarted { .. } => self.stats.loads_started += 1,
            DecisionKind::Loaded => self.stats.loads_done += 1,
            DecisionKind::Failed(_) => self.stats.loads_failed += 1,
            DecisionKind::Evicting { .. } | DecisionKind::TtlOver { .. } | DecisionKind::NotInCatalogue => {
                self.stats.evictions += 1
            }
            DecisionKind::LoadQueued
            | DecisionKind::RetryAfterEvictingAll
            | DecisionKind::Refused(_)
            | DecisionKind::Abandoned
            | DecisionKind::Needless
            | DecisionKind::Quiescing { .. }
            | DecisionKind::Surplus
            | DecisionKind::GroupPublished { .. }
            | DecisionKind::GroupTornDown
            | DecisionKind::Refilling
            | DecisionKind::EvictionRefused
            | DecisionKind::Resumed
            | DecisionKind::OperatorUnload
            | DecisionKind::Unloaded
            | DecisionKind::WorkerJoined
            | DecisionKind::WorkerLost
            | DecisionKind::WorkerLeft
            | DecisionKind::GhostEnded
            | DecisionKind::Settled => {}
        }
        let event = stage::event(decision, self.timestamp(self.now()));
        tracing::info!(
            kind = event.kind,
            model = event.model,
            instance = event.instance_id,
            worker = event.worker_id,
            reason = event.reason,
            "decided"
        );
        // If nobody watches, that is no failure.
        drop(self.events.send(event));
    }
}

impl stage::Places for Driver {
    fn instance(&self, id: &InstanceId, worker: &WorkerId) -> v1::InstanceRef {
        self.mirror.place(id, worker)
    }

    fn route(&self, id: &InstanceId, worker: &WorkerId) -> Option<v1::Route> {
        let published = self.routes.route(id.as_str()).cloned();
        published.or_else(|| self.mirror.route(id, worker, RouteState::Ready))
    }
}
