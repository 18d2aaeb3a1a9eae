//! The load queue: one pass in order, in which every load decides anew what it claims, whom it evicts, and whether it starts (I5).
//!
//! ```text
//!   for each load, second attempts first (I7), then first come first:
//!     candidates ──► room (who would have to go?) ──► best plan ──► claim ──► start | evict | wait | refuse
//! ```
//!
//! Claims are seen by the loads after them in the same pass and are never stored: they are what this pass decided. What does persist
//! is what was done for them (instances quiesced or evicting), which a later pass finds and takes into account.

mod act;
mod candidates;
mod choose;
mod explain;
mod fleet_slot;
mod memory;
mod obstacle;
pub(crate) mod order;
mod parts;
mod patience;
mod retry;
mod room;
mod survey;
mod tenure;
mod ways;

use std::collections::{BTreeMap, BTreeSet};

use crate::api::{IdSource, LoadError, ModelSpec, Moment, WaitReason};
use crate::fleet::{Fleet, Phase};
use crate::state::{Claim, Delay, Goal, InstanceState, Load, LoadId, Standing, Worker};
use crate::timers::Alarm;
use choose::Stop;
use muster_core::{HostId, InstanceId, ModelId};

pub(crate) use survey::Memos;
pub(crate) use tenure::Tenure;

/// The state of one pass over the queue.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    /// What earlier loads of the queue have set aside.
    claims: BTreeMap<HostId, Vec<Claim>>,
    /// The first retry on each host. While it waits or runs, no other load starts there (I7).
    retries: BTreeMap<HostId, LoadId>,
    /// Quiesced instances that a plan of this pass still needs.
    kept: BTreeSet<InstanceId>,
    /// When the next pass is due even if no event arrives.
    wake: Option<Moment>,
    /// What the current load has claimed.
    claimed: Vec<Claim>,
}

impl Pass {
    fn claims_on(&self, host: &HostId) -> &[Claim] {
        self.claims.get(host).map_or(&[], Vec::as_slice)
    }

    /// Adds a claim of the current load.
    fn claim(&mut self, claim: Claim) {
        self.claimed.push(claim.clone());
        self.claims.entry(claim.host.clone()).or_default().push(claim);
    }

    /// A copy to answer a question with; changes to it do not affect this pass.
    fn fork(&self) -> Self {
        Self {
            claims: self.claims.clone(),
            retries: self.retries.clone(),
            ..Self::default()
        }
    }

    fn wake_at(&mut self, at: Moment) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }
}

impl Fleet {
    /// Runs a pass if something it depends on changed or its time has come. Returns whether it ran.
    pub(crate) fn plan_if_due(&mut self, ids: &mut dyn IdSource) -> bool {
        let due = self.replan || self.became_idle();
        if !due {
            return false;
        }
        self.replan = false;
        let queued: Vec<ModelId> = self.queue.values().map(|load| load.model.clone()).collect();
        for model in &queued {
            self.touch_model(model);
        }
        match self.phase {
            Phase::Settling { .. } => {}
            Phase::Running => self.pass(ids),
        }
        true
    }

    /// Whether an instance has become idle by time alone since the last pass, so that a waiting load may evict it now.
    fn became_idle(&mut self) -> bool {
        let turned = !self.queue.is_empty() && self.ledger.next_turn().is_some_and(|at| at <= self.now);
        let before = self.ledger.stamp();
        if turned {
            self.refresh_ledger();
        }
        self.ledger.stamp() != before
    }

    fn pass(&mut self, ids: &mut dyn IdSource) {
        let mut pass = Pass {
            retries: self.retries(),
            ..Pass::default()
        };
        let groups = self.loading_groups();
        let turns = self.turns_in_queue();
        let order = groups.iter().map(|load| load.id).chain(turns.iter().copied());
        self.begin_choosing(&pass, order.collect());
        self.claim_for_loading_groups(&groups, &mut pass);
        for id in turns {
            if let Some(load) = self.queue.get(&id).cloned() {
                self.decide(&load, &mut pass, ids);
                self.note_claims(id, std::mem::take(&mut pass.claimed));
            }
        }
        self.drop_plans_except(&pass.kept);
        self.timers.set(&Alarm::Queue, pass.wake);
    }

    /// The order of the queue: retries first, since their hosts are closed to all others and no claim there may stand in their way (I7);
    /// then groups that have begun; then the oldest load.
    pub(super) fn turns_in_queue(&self) -> Vec<LoadId> {
        let rank = |load: &Load| match load.goal {
            Goal::RetryAt { .. } => 0,
            Goal::Anywhere if self.has_begun(load) => 1,
            Goal::Anywhere => 2,
        };
        let mut turns: Vec<(u8, LoadId)> = self.queue.values().map(|load| (rank(load), load.id)).collect();
        turns.sort_unstable();
        turns.into_iter().map(|(_, id)| id).collect()
    }

    fn retries(&self) -> BTreeMap<HostId, LoadId> {
        let mut retries = BTreeMap::new();
        for load in self.queue.values() {
            if let Goal::RetryAt { host, .. } = &load.goal {
                retries.entry(host.clone()).or_insert(load.id);
            }
        }
        retries
    }

    fn decide(&mut self, load: &Load, pass: &mut Pass, ids: &mut dyn IdSource) {
        if let Goal::RetryAt {
            worker,
            host,
            failure,
        } = &load.goal
        {
            if self.workers.get(worker).is_some_and(Worker::takes_loads) {
                let first = |fleet: &Self, pass: &Pass| fleet.first_retry(host, pass).map(|retry| retry.id);
                let before = first(self, pass);
                self.decide_retry(load, host, worker, failure, pass, ids);
                if before != first(self, pass) {
                    // The end of this load opens the host to the loads after it in this pass.
                    self.ledger.host_changed(host);
                }
                return;
            }
            self.retry_elsewhere(load.id);
        }
        let plans = self.plans(load, pass).and_then(|plans| {
            let mut plans = plans.into_iter();
            let first = plans.next().ok_or_else(|| Stop::Claims(Vec::new()))?;
            Ok((self.fit_into_fleet(load, first, pass)?, plans))
        });
        match plans {
            Ok((first, others)) => {
                self.unstick(load.id);
                self.proceed(load, &first, pass, ids);
                for plan in others {
                    pass.claim(Self::claim_of(load, &plan, Delay::Loads));
                }
            }
            Err(stop) => self.stopped(load, stop, pass),
        }
    }

    /// Sends a retry to any place: the worker where it was to run no longer takes loads.
    fn retry_elsewhere(&mut self, id: LoadId) {
        if let Some(queued) = self.queue.get_mut(&id) {
            queued.goal = Goal::Anywhere;
        }
        self.room_changed();
    }

    /// Acts on a load for which no place will do: it waits or is refused.
    fn stopped(&mut self, load: &Load, stop: Stop, pass: &mut Pass) {
        match stop {
            Stop::Claims(models) => {
                self.unstick(load.id);
                if self.has_begun(load) {
                    self.begin_anew(load);
                }
                self.wait(load.id, WaitReason::Claim, models);
            }
            Stop::Ghosts { models, error } => self.wait_stuck(load, WaitReason::Claim, models, &error, pass),
            Stop::Refused(error) => self.refuse_load(&load.model, &error),
            Stop::NobodyHere => {
                let error = self.no_worker(&load.spec);
                self.wait_stuck(load, WaitReason::NoWorker, Vec::new(), &error, pass);
            }
        }
    }

    /// The error of a load for which no capable worker came in time.
    pub(super) fn no_worker(&self, spec: &ModelSpec) -> LoadError {
        let mut here = self.workers.values();
        let has = here.any(|worker| worker.facts.runtimes.contains_key(&spec.runtime));
        LoadError::NoWorker {
            model: spec.id.clone(),
            waited: self.config.worker_wait,
            missing: (!has).then_some(spec.runtime),
        }
    }

    /// Lets a load wait for something that may never happen, for `worker_wait` at most (PROTOCOL 2).
    pub(super) fn wait_stuck(
        &mut self,
        load: &Load,
        reason: WaitReason,
        blocked_by: Vec<ModelId>,
        error: &LoadError,
        pass: &mut Pass,
    ) {
        let since = load.stuck_since.unwrap_or(self.now);
        let until = since + self.config.worker_wait;
        if until <= self.now {
            return self.refuse_load(&load.model, error);
        }
        pass.wake_at(until);
        if let Some(queued) = self.queue.get_mut(&load.id) {
            queued.stuck_since = Some(since);
        }
        self.wait(load.id, reason, blocked_by);
    }

    fn unstick(&mut self, id: LoadId) {
        if let Some(queued) = self.queue.get_mut(&id) {
            queued.stuck_since = None;
        }
    }

    fn wait(&mut self, id: LoadId, reason: WaitReason, mut blocked_by: Vec<ModelId>) {
        blocked_by.sort();
        blocked_by.dedup();
        if let Some(queued) = self.queue.get_mut(&id) {
            queued.standing = Standing::Waiting { reason, blocked_by };
        }
    }

    /// Resumes quiesced instances that no plan needs any more (PROTOCOL 10).
    fn drop_plans_except(&mut self, kept: &BTreeSet<InstanceId>) {
        let orphans: Vec<InstanceId> = self
            .attention
            .iter()
            .filter(|id| !kept.contains(*id))
            .cloned()
            .collect();
        for id in orphans {
            let Some(instance) = self.instances.get_mut(&id) else {
                continue;
            };
            if let InstanceState::Quiesced {
                plan: plan @ Some(_), ..
            } = &mut instance.state
            {
                *plan = None;
                let model = instance.spec.model.clone();
                self.decided_on(crate::api::DecisionKind::Resumed, &id);
                self.touch_model(&model);
            }
        }
    }
}
