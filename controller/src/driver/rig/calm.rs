//! Calming down: faults end, workers come back, and then everything that waits comes to an end and nothing is left behind.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use muster_core::{InstanceId, WorkerId};
use muster_policy::{ModelState, Moment};
use muster_proto::v1;

use crate::convert::stage::route_state;

use super::{
    Rig,
    link::Link,
    world::{Life, SimWorker},
};

/// Rounds of half a second within which everything ends that can.
const ROUNDS: usize = 400;

impl Rig {
    /// No more faults: who has no session that works opens one, and says all.
    pub(super) async fn calm(&mut self) {
        self.instant = true;
        self.world.withhold_samples = false;
        for id in self.worker_ids() {
            let fine = |link: &Link| link.open() && link.acknowledged;
            if !self.links.get(&id).is_some_and(fine) {
                self.connect(&id).await;
            }
            self.world.flush_touches(&id);
        }
        self.carry_all().await;
    }

    /// Lets every load and every exit under way end well, until nothing is under way.
    pub(super) async fn let_end(&mut self) {
        for _ in 0..64 {
            for id in self.worker_ids() {
                if !self.world.workers[&id].connected {
                    self.connect(&id).await;
                }
            }
            self.carry_all().await;
            let ending = self.world.in_life(&Life::Unloading);
            let loading = self.world.loading();
            if ending.is_empty() && loading.is_empty() {
                return;
            }
            for (id, instance) in ending {
                self.world.exit(&id, &instance);
            }
            for (id, instance) in loading {
                self.world.finish_load(&id, &instance);
            }
        }
        panic!("loads never end\n{}", self.world.tail());
    }

    /// Gateways close streams that have had their last word.
    pub(super) async fn close_ended(&mut self) {
        let ended = |stream: &super::Stream| stream.ready().is_some() || stream.failed().is_some();
        let ended = self.streams.iter().filter(|(_, stream)| ended(stream));
        for hold in ended.map(|(hold, _)| hold.clone()).collect::<Vec<_>>() {
            self.close(&hold).await;
        }
    }

    /// Brings everything to an end: sessions, loads, unloads, requests. Asserts that every waiter ends, and that nothing is left.
    pub(super) async fn run_out(&mut self) {
        self.calm().await;
        for _ in 0..ROUNDS {
            self.let_end().await;
            self.world.end_all_requests();
            self.carry_all().await;
            self.close_ended().await;
            let held = |worker: &SimWorker| worker.instances.values().any(|found| !found.holds.is_empty());
            let quiet = |worker: &SimWorker| worker.quiet() && !held(worker);
            let quiet = self.world.workers.values().all(quiet);
            let driver = self.driver();
            // What is in doubt is asked again, and sessions that were ended for it begin anew, before anything is at rest (seeds 22749, 24966).
            let known = driver.fleet.instances();
            let known = known
                .iter()
                .all(|instance| instance.route.is_some() && !instance.ghost);
            // A command whose answer got lost keeps others waiting until its time is over (seed 50998).
            let moving = |state: &ModelState| matches!(state, ModelState::Loading | ModelState::Unloading);
            let moving = driver.fleet.models().iter().any(|model| moving(&model.state));
            if self.streams.is_empty() && quiet && known && !moving {
                return self.check_rest();
            }
            self.advance(Duration::from_millis(500)).await;
        }
        let waiting: Vec<_> = self
            .streams
            .iter()
            .map(|(hold, stream)| (hold, &stream.last))
            .collect();
        panic!("waiters never ended: {waiting:#?}\n{}", self.world.tail());
    }

    /// Where nothing happens, nothing is done about it.
    async fn check_idle(&mut self) {
        let (steps, loads) = (self.figures.steps, self.world.loads.len());
        self.advance(Duration::from_secs(60)).await;
        self.let_end().await;
        let (steps, loads) = (self.figures.steps - steps, self.world.loads.len() - loads);
        assert!(
            steps <= 150 && loads <= 12,
            "{steps} events and {loads} loads in an idle minute\n{}",
            self.world.tail()
        );
        // Whatever is not answered by now has had its time.
        let sessions = self
            .world
            .workers
            .keys()
            .filter_map(|id| self.driver().sessions.of(id));
        let outstanding: usize = sessions.map(|session| session.outstanding.len()).sum();
        assert_eq!(outstanding, 0, "{}", self.world.tail());
    }

    fn check_rest(&mut self) {
        let unanswered = self.calls.iter().filter(|(_, asked)| asked.answer.is_none());
        let unanswered: Vec<_> = unanswered.map(|(call, _)| call).collect();
        assert!(
            unanswered.is_empty(),
            "never answered: {unanswered:?}\n{}",
            self.world.tail()
        );
        self.calls.clear();
        let truth: BTreeSet<(WorkerId, InstanceId)> = self.what_runs().collect();
        let known = self.driver().fleet.instances().into_iter();
        let known: BTreeSet<(WorkerId, InstanceId)> =
            known.map(|instance| (instance.worker, instance.id)).collect();
        assert_eq!(known, truth, "what runs and what is known\n{}", self.world.tail());
        for view in self.driver().fleet.devices() {
            let on = self.world.on_host(&view.key.host);
            let reserved = on.map(|found| found.reserved_on(&view.key.device)).sum();
            assert_eq!(view.reserved, reserved, "{}\n{}", view.key, self.world.tail());
        }
        self.check_watchers();
        let driver = self.driver();
        let waiting = format!("{:?} {:?}", driver.ensures, driver.calls);
        assert_eq!(
            waiting,
            "Ensures { open: {} } Calls { open: {} }",
            "{}",
            self.world.tail()
        );
    }

    /// Gateways see what policy knows.
    fn check_watchers(&self) {
        let driver = self.driver();
        let (mut routes, mut states) = (BTreeMap::new(), BTreeMap::new());
        for part in driver.routes.subscribe().snapshot {
            let Some(v1::route_update::Kind::Snapshot(part)) = part.kind else {
                panic!("no snapshot: {part:?}");
            };
            let id = |route: &v1::Route| route.instance.clone().unwrap().instance_id;
            routes.extend(part.routes.iter().map(|route| (id(route), route.state())));
            states.extend(
                part.models
                    .into_iter()
                    .map(|model| (model.id.clone(), model.status())),
            );
        }
        let known = driver.fleet.instances().into_iter();
        let known =
            known.filter_map(|instance| Some((instance.id.to_string(), route_state(instance.route?))));
        assert_eq!(routes, known.collect(), "routes\n{}", self.world.tail());
        for view in driver.fleet.models() {
            let state = crate::convert::model::state(&view.state).0;
            let shown = states.get(view.id.as_str());
            assert!(
                shown.is_none_or(|shown| *shown == state),
                "{} is {state:?} and shown as {shown:?}\n{}",
                view.id,
                self.world.tail()
            );
        }
    }

    /// PROTOCOL 14: as many replicas as were wanted, no more, and no fewer where there is room for the others.
    pub(super) async fn check_groups(&mut self) {
        // A replica that failed is replaced after a while.
        for _ in 0..60 {
            self.let_end().await;
            self.advance(Duration::from_secs(2)).await;
        }
        self.run_out().await;
        self.check_idle().await;
        for spec in self
            .world
            .catalogue
            .values()
            .filter(|spec| spec.replicas.get() > 1)
        {
            // Those of a worker that shuts down go with it, and are replaced before.
            let workers = self.world.workers.values();
            let staying = workers.filter(|worker| !worker.facts.draining);
            let all = staying.flat_map(|worker| worker.instances.values());
            let of: Vec<_> = all.filter(|found| found.spec.model == spec.id).collect();
            let Some(group) = of.first().and_then(|found| found.spec.group.clone()) else {
                continue;
            };
            let wanted = usize::try_from(group.size).unwrap();
            assert!(
                of.len() <= wanted,
                "PROTOCOL 14: {} copies of {}, of which {wanted} were wanted\n{}",
                of.len(),
                spec.id,
                self.world.tail()
            );
            // With settings of its own it takes more or less than the catalogue says.
            let plain = !self.overridden.contains(&spec.id);
            let single = of.iter().all(|found| found.spec.reservations.len() == 1);
            assert!(
                of.len() == wanted || !plain || !single || !self.has_room_beside(spec),
                "PROTOCOL 14: {} of {wanted} copies of {} although there is room\n{}",
                of.len(),
                spec.id,
                self.world.tail()
            );
        }
    }

    fn what_runs(&self) -> impl Iterator<Item = (WorkerId, InstanceId)> {
        let workers = self.world.workers.iter();
        workers.flat_map(|(id, worker)| {
            worker
                .instances
                .keys()
                .map(move |instance| (id.clone(), instance.clone()))
        })
    }

    /// PROTOCOL 7: a controller that comes back knows what the one before it knew.
    pub(super) async fn check_rebuilt(&mut self) {
        // What has been idle for too long beside a load is looked at once a second; a new controller does so at once.
        self.advance(Duration::from_secs(1)).await;
        self.run_out().await;
        // A part of a group that was never used may be one that was never published: a new controller cannot tell.
        for (id, instance) in self.world.in_life(&Life::Ready) {
            if self.world.start_request(&id, &instance) {
                self.world.end_request(&instance);
            }
        }
        for id in self.worker_ids() {
            self.world.flush_touches(&id);
        }
        self.carry_all().await;
        let before = self.digest();
        self.restart_controller().await;
        self.connect_all().await;
        self.carry_all().await;
        assert_eq!(self.digest(), before, "{}", self.world.tail());
    }

    /// What policy reads of a fleet, without what only one controller can know (failures, streams) or what moves with time.
    fn digest(&self) -> (Vec<String>, Vec<String>, Vec<InstanceId>) {
        let fleet = &self.driver().fleet;
        let instances = fleet.instances();
        let instances = instances.iter().map(|instance| format!("{instance:?}")).collect();
        let devices = fleet.devices();
        let devices = devices.iter().map(|device| format!("{device:?}")).collect();
        let order = fleet.models().into_iter();
        let order = order.filter_map(|m| Some((m.last_used?, m.instances.first()?.clone())));
        let mut order: Vec<(Moment, InstanceId)> = order.collect();
        order.sort();
        (instances, devices, order.into_iter().map(|(_, id)| id).collect())
    }
}
