//! One rig: whole histories through the real driver, executor, sessions and state, on one thread and on a clock of its own.
//!
//! ```text
//!   seed ─► fleet, configuration, ops ─► Rig ─┬─► World: workers that keep the truth (shared with the tests of policy)
//!                                             ├─► Links: a network that loses, holds, and goes deaf ─► Session ─┐
//!                                             ├─► streams of gateways, calls of operators ─► Handle ─► lanes ───┤
//!                                             └─► Driver::turn, one input at a time ◄───────────────────────────┘
//!                                                    └─► checks, after each
//! ```
//!
//! Nothing is random but the seed, nothing waits for real time, and nothing runs on a second thread: the same seed is the same history.
//! `README.md` of the crate says how to run more of them and how to replay one.

#![allow(
    clippy::wildcard_enum_match_arm,
    reason = "a history is about some of what can happen"
)]

mod apply;
mod calm;
mod checks;
mod findings;
mod fleets;
mod link;
mod network;
mod ops;
mod people;
mod seeds;
mod spy;
mod waits;
mod wire;
#[allow(dead_code, reason = "the tests of policy use the rest of it")]
#[path = "../../../policy/tests/world/mod.rs"]
mod world;

use std::{cell::Cell, collections::BTreeMap, time::Duration};

use muster_core::{HoldId, ModelId, RequestId, WorkerId};
use muster_policy::{ModelSpec, Moment, WorkerFacts};
use muster_proto::life::Life;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{Driver, Start, handle::Handle};
use crate::config::{self, Config, Defaults, DeviceRules, ModelEntry, Sources, Timing};
pub(super) use spy::Spy;

use self::{
    link::Link,
    people::{Asked, Stream},
    world::{SimWorker, World},
};

/// Time that passes while everything that can happen at once does.
const INSTANT: Duration = Duration::from_millis(1);

/// Nothing is said for ever without anything new to say.
const MOST_ROUNDS: usize = 400;

/// Sessions are timed as by default, but beats are rare: thousands of histories pay for each.
const TIMING: Timing = Timing {
    heartbeat_every: Duration::from_secs(5),
    lost_after: Duration::from_secs(16),
    ping_wait: Duration::from_secs(1),
    command_wait: Duration::from_secs(10),
    hold_ttl: Duration::from_secs(10),
    roster_ttl: Duration::from_secs(7 * 24 * 3600),
};

thread_local! {
    static SIMULATED: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs a simulated history.
pub(crate) fn simulated() -> bool {
    SIMULATED.get()
}

/// The world, the network, and the controller between them.
pub(super) struct Rig {
    pub(super) world: World,
    /// None while the controller is away.
    driver: Option<Driver>,
    handle: Option<Handle>,
    sessions: JoinSet<()>,
    state: tempfile::TempDir,
    models: Vec<ModelEntry>,
    links: BTreeMap<WorkerId, Link>,
    /// Links that only the controller still takes for open.
    orphans: Vec<Link>,
    pub(super) streams: BTreeMap<HoldId, Stream>,
    pub(super) calls: BTreeMap<RequestId, Asked>,
    spy: Spy,
    started: Instant,
    /// Entries that left the catalogue.
    shelved: Vec<ModelSpec>,
    /// Models that were asked for with settings of their own, or with workers to avoid.
    overridden: std::collections::BTreeSet<ModelId>,
    avoiding: std::collections::BTreeSet<ModelId>,
    /// Everything is carried at once; else ops decide when.
    instant: bool,
    next_name: u64,
    pub(super) figures: Figures,
}

/// What histories took.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Figures {
    /// Inputs of the driver.
    pub(super) inputs: u64,
    /// Events of policy.
    pub(super) steps: u64,
    /// The most events of policy in one input.
    pub(super) most_steps: usize,
    /// The most effects of one input.
    pub(super) most_effects: usize,
    /// The longest that an input took, by the real clock.
    pub(super) longest: Duration,
}

/// Runs a history on a thread and a clock of its own.
pub(super) fn simulate<T>(history: impl AsyncFnOnce() -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let _simulated = Simulated::begin();
    runtime.block_on(history())
}

/// This thread runs a simulated history.
struct Simulated;

impl Simulated {
    fn begin() -> Self {
        SIMULATED.set(true);
        Self
    }
}

impl Drop for Simulated {
    fn drop(&mut self) {
        SIMULATED.set(false);
    }
}

/// Where state is kept: in memory, where the system has a place for that.
fn state_dir() -> tempfile::TempDir {
    let memory = std::path::Path::new("/dev/shm");
    let in_memory = tempfile::Builder::new().prefix("muster-rig").tempdir_in(memory);
    in_memory.unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

impl Rig {
    /// A world without workers, and a controller that knows its models.
    pub(super) async fn new(policy: muster_policy::Config, specs: Vec<ModelSpec>) -> Self {
        let models = specs.iter().map(entry).collect();
        let mut world = World::new(policy, Moment::START);
        world.engines_grow = true;
        world.catalogue = specs.into_iter().map(|spec| (spec.id.clone(), spec)).collect();
        let spy = Spy::watching(world.catalogue.clone());
        let mut rig = Self {
            world,
            driver: None,
            handle: None,
            sessions: JoinSet::new(),
            state: state_dir(),
            models,
            links: BTreeMap::new(),
            orphans: Vec::new(),
            streams: BTreeMap::new(),
            calls: BTreeMap::new(),
            spy,
            started: Instant::now(),
            shelved: Vec::new(),
            overridden: std::collections::BTreeSet::new(),
            avoiding: std::collections::BTreeSet::new(),
            instant: false,
            next_name: 0,
            figures: Figures::default(),
        };
        rig.start_controller().await;
        rig
    }

    pub(super) fn driver(&self) -> &Driver {
        self.driver.as_ref().unwrap()
    }

    fn handle(&self) -> &Handle {
        self.handle.as_ref().unwrap()
    }

    fn name(&mut self, what: &str) -> String {
        self.next_name += 1;
        format!("{what}-{:05}", self.next_name)
    }

    /// A worker process, before it joins.
    pub(super) fn add_worker(&mut self, facts: WorkerFacts) {
        self.world.workers.insert(facts.id.clone(), SimWorker::new(facts));
    }

    async fn start_controller(&mut self) {
        let config = Config {
            any_name: false,
            builtin: false,
            extra_models_dir: Vec::new(),
            policy: self.world.config.clone(),
            timing: TIMING,
            devices: DeviceRules::default(),
            models: self.models.clone(),
            defaults: Defaults::default(),
            sources: Sources::default(),
        };
        let start = Start::read(
            config,
            self.state.path(),
            CancellationToken::new(),
            Life::default(),
        );
        let (mut driver, handle) = Driver::new(start.unwrap());
        driver.spy = self.spy.clone();
        driver.first_look().await;
        driver.begin();
        self.driver = Some(driver);
        self.handle = Some(handle);
        self.settle().await;
    }

    /// The controller dies, and another takes its place, knowing what is on disk only.
    pub(super) async fn restart_controller(&mut self) {
        self.driver = None;
        self.handle = None;
        self.sessions.abort_all();
        while self.sessions.join_next().await.is_some() {}
        self.streams.clear();
        self.calls.clear();
        self.links.clear();
        self.orphans.clear();
        for worker in self.world.workers.values_mut() {
            worker.known = false;
        }
        for id in self.worker_ids() {
            self.disconnected(&id);
        }
        // What writes its state notices that it has gone, and gives the lock back.
        tokio::time::sleep(INSTANT).await;
        self.start_controller().await;
    }

    pub(super) fn worker_ids(&self) -> Vec<WorkerId> {
        self.world.workers.keys().cloned().collect()
    }

    /// Until nothing is left that can happen without time, or without an op.
    pub(super) async fn settle(&mut self) {
        for _ in 0..MOST_ROUNDS {
            self.run_until(Instant::now() + INSTANT).await;
            if !self.look_around() {
                return;
            }
        }
        panic!("there is always something more to say\n{}", self.world.tail());
    }

    /// Lets time pass.
    pub(super) async fn advance(&mut self, span: Duration) {
        self.run_until(Instant::now() + span).await;
        self.world.give_up_drains();
        if self.instant {
            self.carry_all().await;
        }
    }

    /// The process stands still while time passes.
    pub(super) async fn stand_still(&mut self, span: Duration) {
        tokio::time::advance(span).await;
        self.settle().await;
        self.world.give_up_drains();
    }

    async fn run_until(&mut self, end: Instant) {
        loop {
            let Some(driver) = &mut self.driver else { return };
            tokio::select! {
                biased;
                goes_on = turn(driver, &mut self.figures) => assert!(goes_on, "the driver ended"),
                () = sleep_until(end) => break,
            }
            self.look_around();
            self.check_input();
        }
        self.world.now = Moment::after_start(self.started.elapsed());
    }

    /// Sees what came of the last input; whether that was anything.
    fn look_around(&mut self) -> bool {
        self.world.now = Moment::after_start(self.started.elapsed());
        self.heed_spy();
        let arrived = self.drain_links();
        self.hear_streams();
        arrived
    }

    /// Carries everything in both directions until nothing moves.
    pub(super) async fn carry_all(&mut self) {
        for _ in 0..MOST_ROUNDS {
            self.settle().await;
            let mut moved = false;
            for id in self.worker_ids() {
                if self.links.get(&id).is_none_or(|link| !link.open()) {
                    continue;
                }
                while self.world.carry_out_next(&id) {
                    moved = true;
                }
                while self.say_next(&id) {
                    moved = true;
                }
            }
            if !moved {
                return;
            }
        }
        panic!("it never comes to rest\n{}", self.world.tail());
    }
}

/// One input of the driver, and what it took.
async fn turn(driver: &mut Driver, figures: &mut Figures) -> bool {
    driver.part.beat();
    let input = driver.next().await;
    let begun = std::time::Instant::now();
    let steps = driver.stats.policy_steps;
    let goes_on = driver.take(input);
    driver.publish();
    figures.inputs += 1;
    figures.steps += driver.stats.policy_steps - steps;
    figures.longest = figures.longest.max(begun.elapsed());
    goes_on
}

/// A catalogue entry; what it needs the spy fills in.
fn entry(spec: &ModelSpec) -> ModelEntry {
    let mut table = toml::Table::new();
    table.insert("runtime".to_owned(), "stub".into());
    config::definition(
        spec.id.as_str(),
        table,
        std::path::Path::new("rig.toml"),
        &Defaults::default(),
    )
    .unwrap()
}
