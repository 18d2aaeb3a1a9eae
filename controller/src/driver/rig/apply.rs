//! What each op does.

use std::time::Duration;

use muster_core::{Bytes, Code, InstanceId, ModelId, WorkerId};
use muster_policy::{Command, Event, FailureClass, IdleTtl, Outcome};

use super::{
    Rig,
    link::Condition,
    ops::{ModelOp, Op, WorkerOp},
    world::{Life, failure, limits, unlimited, worker::SimInstance},
};

fn choose<T>(from: impl IntoIterator<Item = T>, n: u8) -> Option<T> {
    let mut all: Vec<T> = from.into_iter().collect();
    if all.is_empty() {
        None
    } else {
        let n = usize::from(n) % all.len();
        Some(all.swap_remove(n))
    }
}

impl Rig {
    fn worker(&self, n: u8) -> WorkerId {
        choose(self.worker_ids(), n).unwrap()
    }

    fn model(&self, n: u8) -> ModelId {
        choose(self.world.catalogue.keys().cloned(), n).unwrap()
    }

    /// Instances that requests may be sent to, as gateways see them.
    fn routes(&self) -> Vec<(InstanceId, WorkerId)> {
        let instances = self.driver().fleet.instances().into_iter();
        let routed = instances.filter(|instance| instance.route.is_some());
        routed.map(|instance| (instance.id, instance.worker)).collect()
    }

    /// Whether the controller has no session with a worker that hosts something.
    fn somebody_is_lost(&self) -> bool {
        let lost = |worker: &WorkerId| self.driver().sessions.of(worker).is_none();
        let workers = self.world.workers.iter();
        workers
            .filter(|(_, worker)| !worker.instances.is_empty())
            .any(|(id, _)| lost(id))
    }

    pub(super) async fn apply(&mut self, op: &Op) {
        match *op {
            Op::Open(n) => {
                let model = self.model(n);
                self.open(model.as_str()).await;
            }
            Op::Close(n) => {
                if let Some(hold) = choose(self.streams.keys().cloned(), n) {
                    self.close(&hold).await;
                }
            }
            Op::OpenAvoiding(n, other) => {
                let instance = choose(self.routes(), other).map(|(instance, _)| instance);
                let (model, avoid) = (self.model(n), self.worker(other));
                self.open_avoiding(model.as_str(), instance.into_iter().collect(), vec![avoid])
                    .await;
            }
            Op::Down(n) => {
                let id = self.worker(n);
                if self.links.get(&id).is_some_and(super::Link::open) {
                    self.world.carry_out_next(&id);
                }
            }
            Op::Up(n) => {
                let id = self.worker(n);
                if self.links.get(&id).is_some_and(super::Link::open) {
                    self.say_next(&id);
                    self.settle().await;
                }
            }
            Op::Unknown(n, reached) => {
                let id = self.worker(n);
                if let Some(number) = self.take_command(&id, reached) {
                    let now = self.world.now;
                    let outcome = Event::Outcome {
                        id: number,
                        outcome: Outcome::Unknown,
                    };
                    self.world
                        .workers
                        .get_mut(&id)
                        .unwrap()
                        .up
                        .push_back((now, outcome));
                }
            }
            Op::Unanswered(n, reached) => drop(self.take_command(&self.worker(n), reached)),
            Op::Worker(n, op) => self.apply_to_worker(n, op).await,
            Op::Model(n, op) => self.apply_to_model(n, op).await,
            Op::RestartController(at_once) => {
                self.restart_controller().await;
                if at_once {
                    self.connect_all().await;
                }
            }
            Op::RestartWith(n) => {
                self.world.config.limits = match n % 4 {
                    0 => unlimited(),
                    limit => limits(limit.into()),
                };
                self.restart_controller().await;
                self.connect_all().await;
            }
            Op::Advance(ms) => self.advance(Duration::from_millis(u64::from(ms))).await,
            Op::Jump(seconds) => self.stand_still(Duration::from_secs(seconds.into())).await,
            Op::Settle => self.carry_all().await,
            Op::Burst(n) => self.burst(n).await,
            Op::Request(_)
            | Op::RouteRequest(_)
            | Op::EndRequest(_)
            | Op::FinishLoad(_)
            | Op::FailLoad(..)
            | Op::BeginEnd(..)
            | Op::Exit(_)
            | Op::Crash(_)
            | Op::Memory(..)
            | Op::Touches(_)
            | Op::LateTouch(_)
            | Op::Withhold(_)
            | Op::Foreign(_) => self.apply_to_world(op),
        }
    }

    /// What happens at workers, of which the controller hears later.
    fn apply_to_world(&mut self, op: &Op) {
        match *op {
            Op::Request(n) => {
                let ready: Vec<_> = self.streams.values().filter_map(super::Stream::ready).collect();
                if let Some((instance, worker)) = choose(ready, n) {
                    self.world.start_request(&worker, &instance);
                }
            }
            Op::RouteRequest(n) => {
                if let Some((instance, worker)) = choose(self.routes(), n) {
                    self.world.start_request(&worker, &instance);
                }
            }
            Op::EndRequest(n) => {
                if let Some((_, instance)) = self.choose(n, |found| found.running > 0) {
                    self.world.end_request(&instance);
                }
            }
            Op::FinishLoad(n) => {
                if let Some((worker, instance)) = choose(self.world.loading(), n) {
                    self.world.finish_load(&worker, &instance);
                }
            }
            Op::FailLoad(n, engine) => {
                let class = if engine {
                    FailureClass::EngineLoad
                } else {
                    FailureClass::BeforeEngine
                };
                if let Some((worker, instance)) = choose(self.world.loading(), n) {
                    self.world.fail_load(&worker, &instance, class);
                }
            }
            Op::BeginEnd(n, engine) => self.begin_end(n, engine),
            Op::Exit(n) => {
                if let Some((worker, instance)) = choose(self.world.in_life(&Life::Unloading), n) {
                    self.world.exit(&worker, &instance);
                }
            }
            Op::Crash(n) => {
                if let Some((worker, instance)) = choose(self.world.in_life(&Life::Ready), n) {
                    self.world.crash(&worker, &instance);
                }
            }
            Op::Memory(n, bytes) => {
                if let Some((worker, instance)) = self.choose(n, SimInstance::exists) {
                    let less = self.world.engine_uses(&worker, &instance, bytes);
                    self.world.strict &= !(less && self.somebody_is_lost());
                }
            }
            Op::Touches(n) => self.world.flush_touches(&self.worker(n)),
            Op::LateTouch(n) => self.world.repeat_old_touches(&self.worker(n)),
            Op::Withhold(withhold) => self.world.withhold_samples = withhold,
            Op::Foreign(n) => {
                let used = Bytes::new(u64::from(n % 60));
                let before = self.world.foreign.insert(("h0".into(), "g0".into()), used);
                // Memory that another program gives back may pass for a lost engine's end (PROTOCOL 1).
                let less = before.is_some_and(|before| before > used);
                self.world.strict &= !(less && self.somebody_is_lost());
            }
            _ => {}
        }
    }

    fn choose(&self, n: u8, wanted: impl Fn(&SimInstance) -> bool) -> Option<(WorkerId, InstanceId)> {
        let workers = self.world.workers.iter();
        let all =
            workers.flat_map(|(worker, found)| found.instances.iter().map(move |(id, i)| (worker, id, i)));
        let wanted = all.filter(|(_, _, found)| wanted(found));
        choose(wanted.map(|(worker, id, _)| (worker.clone(), id.clone())), n)
    }

    /// The next command to a worker goes astray, before or after it is carried out.
    pub(super) fn take_command(&mut self, id: &WorkerId, reached: bool) -> Option<muster_policy::CommandId> {
        if !self.links.get(id).is_some_and(super::Link::open) {
            return None;
        }
        let (number, instance, what) = self.world.workers.get_mut(id).unwrap().down.pop_front()?;
        // Nobody waits to hear that an end was acknowledged: its worker is asked when it joins anew.
        self.links.get_mut(id).unwrap().acknowledged &= what != Command::AckTombstone;
        if reached {
            self.world.execute(id, &instance, what);
        }
        Some(number)
    }

    async fn burst(&mut self, n: u8) {
        let Some((instance, worker)) = choose(self.routes(), n) else {
            return;
        };
        for _ in 0..4 {
            if self.world.start_request(&worker, &instance) {
                self.advance(Duration::from_millis(5)).await;
                self.world.end_request(&instance);
            }
            self.advance(Duration::from_millis(5)).await;
            self.world.flush_touches(&worker);
        }
    }

    /// `engine`: none if nothing fails, else whether a load fails in its engine.
    fn begin_end(&mut self, n: u8, engine: Option<bool>) {
        let (loading, ready) = (self.world.loading(), self.world.in_life(&Life::Ready));
        let Some((worker, instance)) = choose(loading.iter().chain(&ready).cloned(), n) else {
            return;
        };
        let class = match engine {
            Some(_) if !loading.contains(&(worker.clone(), instance.clone())) => FailureClass::Crash,
            Some(true) => FailureClass::EngineLoad,
            Some(false) | None => FailureClass::BeforeEngine,
        };
        let why = engine.map(|_| failure(class, Code::Internal));
        self.world.begin_end(&worker, &instance, why);
    }

    pub(super) async fn connect_all(&mut self) {
        for id in self.worker_ids() {
            self.connect(&id).await;
        }
    }

    async fn apply_to_worker(&mut self, n: u8, op: WorkerOp) {
        let id = self.worker(n);
        let connected = self.world.workers[&id].connected;
        let away = self.world.workers.iter().filter(|(_, worker)| !worker.connected);
        let away: Vec<WorkerId> = away.map(|(id, _)| id.clone()).collect();
        match op {
            WorkerOp::Lose => self.lose(&id).await,
            WorkerOp::Rejoin => {
                if let Some(id) = choose(away, n) {
                    self.connect(&id).await;
                }
            }
            WorkerOp::JoinAnew => self.connect(&id).await,
            WorkerOp::Restart => self.restart(&id, false).await,
            WorkerOp::RestartSilently => self.restart(&id, true).await,
            WorkerOp::Leave if connected => self.leave(&id).await,
            WorkerOp::Drain(draining) if connected => {
                let now = self.world.now;
                let worker = self.world.workers.get_mut(&id).unwrap();
                worker.facts.draining = draining;
                let event = Event::WorkerDraining { worker: id, draining };
                worker.up.push_back((now, event));
            }
            WorkerOp::Leave | WorkerOp::Drain(_) => {}
            WorkerOp::GhostGone => {
                let all = away.iter().flat_map(|id| {
                    let instances = self.world.workers[id].instances.keys();
                    instances.map(move |instance| (id.clone(), instance.clone()))
                });
                if let Some((worker, instance)) = choose(all.collect::<Vec<_>>(), n) {
                    let worker = self.world.workers.get_mut(&worker).unwrap();
                    worker.instances.remove(&instance);
                }
            }
            WorkerOp::Deaf => self.link_becomes(&id, Condition::Deaf),
            WorkerOp::FillUp => self.fill_up(&id).await,
            WorkerOp::HalfOpen => self.link_becomes(&id, Condition::HalfOpen),
            // Operators who forget a worker that still runs get what they asked for; the checks of the truth would not.
            WorkerOp::Forget => {
                let gone = away
                    .into_iter()
                    .filter(|id| self.world.workers[id].instances.is_empty());
                if let Some(id) = choose(gone.collect::<Vec<_>>(), n) {
                    self.forget(&id).await;
                }
            }
        }
    }

    async fn apply_to_model(&mut self, n: u8, op: ModelOp) {
        let model = self.model(n);
        match op {
            ModelOp::Load => drop(self.load(model.as_str(), None).await),
            ModelOp::LoadWith(bytes) => drop(self.load(model.as_str(), Some(bytes)).await),
            ModelOp::Unload(how) => drop(self.unload(model.as_str(), how).await),
            ModelOp::Files(n) => {
                let only = (n % 3 != 0).then(|| self.worker(n));
                self.world.catalogue.get_mut(&model).unwrap().workers = only.into_iter().collect();
                self.publish_catalogue().await;
            }
            ModelOp::Preload => self.preload(model).await,
            ModelOp::Pin => self.pin(&model).await,
            ModelOp::Ttl(seconds) => {
                let ttl = match seconds % 8 {
                    0 => IdleTtl::Default,
                    1 => IdleTtl::Never,
                    more => IdleTtl::After(Duration::from_secs(more.into())),
                };
                self.world.catalogue.get_mut(&model).unwrap().idle_ttl = ttl;
                self.publish_catalogue().await;
            }
            ModelOp::Catalogue => {
                let back = self.shelved.pop();
                if let Some(spec) = self.world.catalogue.remove(&model) {
                    self.shelved.push(spec);
                }
                self.world
                    .catalogue
                    .extend(back.map(|spec| (spec.id.clone(), spec)));
                self.publish_catalogue().await;
            }
            ModelOp::Explain => self.explain(&model).await,
        }
    }
}
