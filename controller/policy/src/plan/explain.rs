//! What the load queue would do for a model now, and why (`Control.Explain`). It decides nothing.
//!
//! The answer comes from the queue's own code: a load of the model is placed behind the claims of the loads before it, and a plan is chosen
//! for it.

use super::Pass;
use super::choose::{Ease, Plan, Stop};
use super::obstacle::{Obstacle, Victim};
use super::room::{Room, WantedLoad};
use super::tenure::Tenure;
use crate::api::{
    Explanation, ModelSpec, Moment, Obstruction, Origin, PartView, PlaceView, Verdict, VictimStanding,
    VictimView,
};
use crate::fleet::Fleet;
use crate::ledger::{Host, ModelTag};
use crate::state::{Load, LoadId};
use muster_core::{Bytes, ModelId};

use std::sync::Arc;

impl Fleet {
    /// What would happen to a load of this model now, with at most `places` places in detail, the chosen one first; none if the model is
    /// unknown. It changes no decision; it only brings the planning data up to date.
    pub fn explain(&mut self, now: Moment, id: &str, places: usize) -> Option<Explanation> {
        self.now = self.now.max(now);
        let id = &self.models.get_key_value(id)?.0.clone();
        let state = self.model_state(id)?;
        let spec = Arc::clone(self.spec_of(id)?);
        let queued = self.models.get(id).and_then(|model| model.queued);
        let load = queued.and_then(|load| self.queue.get(&load)).cloned();
        let load = load.unwrap_or_else(|| Load::new(LoadId(u64::MAX), spec, Origin::Auto));
        let pass = Pass {
            claims: self.claims_before(load.id),
            retries: self.retries(),
            ..Pass::default()
        };
        let answer = self
            .best_plan_anew(&load, &pass)
            .and_then(|plan| self.fit_into_fleet(&load, plan, &pass));
        let chosen = answer.as_ref().ok().cloned();
        let verdict = self.verdict(id, &load, answer, &pass);
        let mut views = self.places_of(&load.spec, &pass, chosen.as_ref());
        views.sort_by_key(|view| !view.chosen);
        let more = views.len().saturating_sub(places);
        views.truncate(places);
        Some(Explanation {
            model: id.clone(),
            state,
            queue_position: queued.and_then(|load| self.positions().get(&load).copied()),
            verdict,
            places: views,
            more,
        })
    }

    fn verdict(&self, id: &ModelId, load: &Load, answer: Result<Plan, Stop>, pass: &Pass) -> Verdict {
        let serving = self.instances_of(id).filter(|found| self.will_serve(found));
        let serving: Vec<_> = serving.map(|found| found.id.clone()).collect();
        if !serving.is_empty() {
            return Verdict::Here(serving);
        }
        match answer {
            Ok(plan) => {
                let first = self.slot_taken_by(load, &plan.candidate.host, &plan.victims, pass);
                match plan.ease {
                    Ease::Wait => Verdict::WaitForBusy(models_of(&plan.victims)),
                    Ease::Free | Ease::Evict if !first.is_empty() => Verdict::WaitForLoads(first),
                    Ease::Free => Verdict::Load,
                    Ease::Evict => Verdict::Evict(models_of(&plan.victims)),
                }
            }
            Err(Stop::Claims(models)) => Verdict::WaitForClaims(models),
            Err(Stop::Ghosts { models, .. }) => Verdict::WaitForLost(models),
            Err(Stop::Refused(error)) => Verdict::Refuse(error),
            Err(Stop::NobodyHere) => Verdict::Refuse(self.no_worker(&load.spec)),
        }
    }

    fn places_of(&self, spec: &ModelSpec, pass: &Pass, chosen: Option<&Plan>) -> Vec<PlaceView> {
        let wanted = WantedLoad {
            model: ModelTag::new(&spec.id),
            spec,
            evicts: true,
        };
        let mut views = Vec::new();
        for host in self.hosts.keys().filter_map(|host| self.ledger.named(host)) {
            let claims = pass.claims_on(&host.id);
            host.places(spec, &self.config, |place| {
                let Some(candidate) = host.candidate(place) else {
                    return;
                };
                let mut room = Room::new(&self.config, host, &wanted, place, claims);
                let part = |&(space, bytes): &(usize, Bytes)| part_view(host, &room, space, bytes);
                let parts = place.parts.iter().filter_map(part).collect();
                let obstruction = room.make().err().map(obstruction);
                let is = |plan: &Plan| {
                    let there = &plan.candidate;
                    (&there.worker, there.need, &there.reservations)
                        == (&candidate.worker, candidate.need, &candidate.reservations)
                };
                let chosen = chosen.filter(|plan| is(plan));
                // Victims do not matter if evicting them is not enough.
                let victims = match (&obstruction, chosen) {
                    (Some(_), _) => Vec::new(),
                    // The fleet's limit may require more victims than the place itself.
                    (None, Some(plan)) => plan.victims.clone(),
                    (None, None) => room.victims(),
                };
                views.push(PlaceView {
                    chosen: chosen.is_some(),
                    victims: victims.iter().map(|victim| self.victim_view(victim)).collect(),
                    worker: candidate.worker,
                    host: candidate.host,
                    need: candidate.need,
                    parts,
                    obstruction,
                });
            });
        }
        views
    }

    fn victim_view(&self, victim: &Victim) -> VictimView {
        let instance = self.instances.get(&victim.id);
        VictimView {
            instance: victim.id.clone(),
            model: victim.model.clone(),
            rule: victim.rule,
            standing: match victim.tenure {
                Tenure::Idle | Tenure::Going => VictimStanding::Idle,
                Tenure::Finishing => VictimStanding::Finishing,
                Tenure::Busy { until } => VictimStanding::Busy {
                    at_least: until.map(|until| until.since(self.now)),
                },
                // Such an instance is never chosen as a victim.
                Tenure::Pinned | Tenure::Ghost => VictimStanding::Busy { at_least: None },
            },
            last_used: instance.map(|instance| instance.usage.last_used),
            reservations: instance
                .map(|instance| instance.spec.reservations.clone())
                .unwrap_or_default(),
        }
    }
}

fn part_view(host: &Host, room: &Room<'_>, space: usize, wanted: Bytes) -> Option<PartView> {
    let device = host.spaces.get(space)?;
    Some(PartView {
        device: device.id.clone(),
        kind: device.kind,
        wanted,
        capacity: device.capacity,
        committed: device.sums.committed,
        free: device.free,
        possible: room.possible_on(space),
    })
}

fn obstruction(obstacle: Obstacle) -> Obstruction {
    match obstacle {
        Obstacle::Claims(models) => Obstruction::Claims(models),
        Obstacle::Ghosts { models, .. } => Obstruction::Lost(models),
        Obstacle::Pinned(models) => Obstruction::Pinned(models),
        Obstacle::Foreign(shortage) => Obstruction::OtherPrograms {
            device: shortage.device,
            wanted: shortage.wanted,
            possible: shortage.possible,
        },
    }
}

fn models_of(victims: &[Victim]) -> Vec<ModelId> {
    let mut models: Vec<ModelId> = victims.iter().map(|victim| victim.model.clone()).collect();
    models.sort();
    models.dedup();
    models
}
