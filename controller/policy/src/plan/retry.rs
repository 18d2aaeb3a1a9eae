//! The second and last attempt of a load whose engine failed (I7): everything unpinned on the host goes first.
//!
//! ```text
//!   engine failed to load ──► host is closed to other loads ──► idle instances go, busy ones as they become idle
//!                                                                    │ none left
//!                                            failed ◄── fails ── one retry ── ready ──► loaded
//! ```

use super::Pass;
use super::choose::{Ease, Stop};
use super::obstacle::Victim;
use super::tenure::Tenure;
use crate::api::{EvictionRule, IdSource, LoadError, WaitReason, WorkerFailure};
use crate::fleet::Fleet;
use crate::state::{Goal, InstanceState, Load, Standing};
use muster_core::{HostId, ModelId, WorkerId};

impl Fleet {
    /// Takes a retry one step further: empties the host, then starts the load.
    pub(crate) fn decide_retry(
        &mut self,
        load: &Load,
        host: &HostId,
        worker: &WorkerId,
        failure: &WorkerFailure,
        pass: &mut Pass,
        ids: &mut dyn IdSource,
    ) {
        let first = self
            .first_retry(host, pass)
            .is_none_or(|retry| retry.id == load.id);
        let loading: Vec<ModelId> = self
            .on_host(host)
            .filter(|instance| {
                let wanted = matches!(
                    instance.state,
                    InstanceState::Loading {
                        unwanted_since: None,
                        ..
                    }
                );
                wanted || instance.takes_load_slot() && self.tenure(instance, &[]) == Tenure::Pinned
            })
            .map(|instance| instance.spec.model.clone())
            .collect();
        if !first || !loading.is_empty() {
            return self.wait(load.id, WaitReason::LoadSlot, loading);
        }
        let remaining = self.empty_host(load, host, pass);
        if !remaining.is_empty() {
            if self.queue.contains_key(&load.id) {
                self.stand_evicting(load, remaining);
            }
            return;
        }
        match self.best_plan_at(load, worker, pass) {
            Ok(plan) if plan.ease == Ease::Free => match self.fit_into_fleet(load, plan, pass) {
                Ok(plan) => self.proceed(load, &plan, pass, ids),
                Err(stop) => self.stopped(load, stop, pass),
            },
            Err(Stop::Claims(models)) if models.iter().any(|model| *model != load.model) => {
                self.wait(load.id, WaitReason::Claim, models);
            }
            Err(Stop::NobodyHere) => self.retry_elsewhere(load.id),
            // The instances that remain are pinned, lost, other programs', in an unknown state, or of its own group: a retry would find
            // what the first attempt found.
            Ok(_) | Err(Stop::Claims(_) | Stop::Ghosts { .. } | Stop::Refused(_)) => {
                self.load_failed_for_good(&load.model, &LoadError::Worker(failure.clone()));
            }
        }
    }

    /// The retry that has the host to itself: the first one in the queue, or the next one if the first ended in this pass.
    pub(crate) fn first_retry(&self, host: &HostId, pass: &Pass) -> Option<&Load> {
        let here = |load: &&Load| matches!(&load.goal, Goal::RetryAt { host: at, .. } if at == host);
        pass.retries.get(host)?;
        self.queue.values().find(here)
    }

    /// Evicts the idle instances of the host. Returns the models that still have instances there.
    fn empty_host(&mut self, load: &Load, host: &HostId, pass: &mut Pass) -> Vec<ModelId> {
        let mut remaining = Vec::new();
        let (mut victims, mut busy) = (Vec::new(), Vec::new());
        let mut withheld = Vec::new();
        for instance in self.on_host(host) {
            if !instance.published && matches!(instance.state, InstanceState::Ready) {
                // Replicas of its own group wait for this load. Another group starts again later, since it cannot go on meanwhile.
                if instance.spec.model != load.model {
                    withheld.push(instance.id.clone());
                    remaining.push(instance.spec.model.clone());
                }
                continue;
            }
            if matches!(instance.state, InstanceState::Opaque) {
                continue;
            }
            let tenure = self.tenure(instance, &[]);
            match tenure {
                Tenure::Ghost | Tenure::Pinned => continue,
                Tenure::Going => {}
                Tenure::Idle | Tenure::Finishing | Tenure::Busy { .. } => {
                    let list = if tenure == Tenure::Idle {
                        &mut victims
                    } else {
                        &mut busy
                    };
                    list.push(Victim {
                        id: instance.id.clone(),
                        model: instance.spec.model.clone(),
                        rule: EvictionRule::FailedLoad,
                        tenure,
                    });
                }
            }
            remaining.push(instance.spec.model.clone());
        }
        for id in &withheld {
            self.tear_down(id);
        }
        for victim in &victims {
            self.evict_one(load, victim, true, pass);
        }
        if !busy.is_empty() {
            self.lose_patience(load, &busy, |_, _| true, pass);
        }
        remaining
    }

    fn stand_evicting(&mut self, load: &Load, mut models: Vec<ModelId>) {
        models.sort();
        models.dedup();
        if let Some(queued) = self.queue.get_mut(&load.id) {
            queued.standing = Standing::Evicting { models };
        }
    }
}
