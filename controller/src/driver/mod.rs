//! The one task that owns the fleet: it turns what happens into events of policy and has the effects carried out.
//!
//! ```text
//!  worker sessions ──► ends, outcomes, reports, joins ─┐
//!  ensure streams  ──► closings                        ├─► Driver ─► Fleet::step ─► Effects ─► executor ─► commands, routes, streams, events
//!  timer           ────────────────────────────────────┤     ▲                                    │
//!  gRPC calls      ──► asks ───────────────────────────┘     └──────── follow-up events ──────────┘
//! ```
//!
//! Invariants: the driver never awaits a send; every effect is carried out before the next event; one input is bounded work ([`agenda`]), and one that
//! is not is said ([`watchdog`]); nothing waits for ever behind others ([`input`]). What changed for watchers is published, and other tasks have their
//! turn, when nothing is left to do or a slot of half a millisecond is over ([`run`]).
//!
//! Architecture invariant: no decision about the fleet is made here or in the executor; whoever wants one changes policy.

mod agenda;
mod calls;
mod executor;
mod explain;
mod ghosts;
pub(crate) mod handle;
pub(crate) mod inbox;
mod input;
mod looks;
mod mirror;
mod models;
mod pulls;
pub(crate) mod pulse;
mod queries;
pub(crate) mod replace;
#[cfg(test)]
mod rig;
mod run;
mod sessions;
mod watchdog;
mod workers;

#[cfg(test)]
pub(crate) use rig::simulated;

use std::{
    collections::BTreeSet,
    ops::Bound,
    path::Path,
    time::{Duration, SystemTime},
};

use muster_core::{DeviceKind, InstanceId, ModelId, id};
use muster_policy::{Event, Fleet, Moment, WorkerFacts};
use muster_proto::{
    life::{Life, Part},
    v1,
};
use tokio::{
    sync::{broadcast, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use self::{
    agenda::{Agenda, Round},
    calls::{Calls, Ensures},
    ghosts::Ghosts,
    handle::Handle,
    inbox::{Ask, Inbox, Order, Query},
    looks::{Later, Looks},
    mirror::Mirror,
    pulls::Pulls,
    sessions::Sessions,
};
use crate::{
    catalogue::Catalogue,
    config::Config,
    convert,
    estimate::Observed,
    routes::Publisher,
    state::{Expiry, Own, Pins, StateDir, StateError, Writer},
};

/// Events that a watcher of `WatchEvents` may be behind.
const EVENT_RING: usize = 1024;

/// The least time between two looks at the clock, whatever policy asks for: timers come before calls.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

/// How often watchers of routes hear that a model was used.
const TELL_USE: Duration = Duration::from_secs(1);

/// Of how many models at a time.
const MOST_USED: usize = 64;

/// What the driver starts from.
#[derive(Debug)]
pub(crate) struct Start {
    /// Configuration.
    pub(crate) config: Config,
    /// The epoch, already written.
    pub(crate) epoch: u64,
    /// Workers whose engines may run.
    pub(crate) expected: Vec<WorkerFacts>,
    /// Workers that left in order lately.
    pub(crate) leavers: Vec<WorkerFacts>,
    /// Memory seen before.
    pub(crate) observed: Observed,
    /// What operators pinned and unpinned.
    pub(crate) pins: Pins,
    /// What users registered and saved.
    pub(crate) own: Own,
    /// Keeps all of it.
    pub(crate) writer: Writer,
    /// Ends the driver.
    pub(crate) stop: CancellationToken,
    /// Whether the process is alive: not without the driver.
    pub(crate) life: Life,
}

impl Start {
    /// With what is on disk; the epoch is raised, and written if it can be.
    ///
    /// # Errors
    /// The state directory is of no use or taken by another controller.
    pub(crate) fn read(
        config: Config,
        state_dir: &Path,
        stop: CancellationToken,
        life: Life,
    ) -> Result<Self, StateError> {
        let state = StateDir::open(state_dir)?;
        let (epoch, epoch_kept) = state.begin_epoch();
        let mut roster = state.roster();
        let expiry = Expiry {
            left: config.policy.absent_counts,
            lost: config.timing.roster_ttl,
        };
        let (expected, leavers) = roster.at_start(SystemTime::now(), expiry);
        let (observed, pins, own) = (state.observed(), state.pins()?, state.own()?);
        let writer = Writer::spawn(state, roster, &life);
        if !epoch_kept {
            writer.epoch(epoch);
        }
        Ok(Self {
            config,
            epoch,
            expected,
            leavers,
            observed,
            pins,
            own,
            writer,
            stop,
            life,
        })
    }
}

/// The task's state.
#[derive(Debug)]
pub(crate) struct Driver {
    fleet: Fleet,
    config: Config,
    started: Instant,
    /// The same instant on the wall.
    started_wall: SystemTime,
    /// Names this run in command ids, so that a worker that remembers commands never takes ours for another controller's.
    run: std::sync::Arc<str>,
    epoch: watch::Sender<u64>,
    catalogue: Catalogue,
    observed: Observed,
    pins: Pins,
    own: Own,
    pulls: Pulls,
    looks: Looks,
    mirror: Mirror,
    ghosts: Ghosts,
    sessions: Sessions,
    ensures: Ensures,
    calls: Calls,
    routes: Publisher,
    events: broadcast::Sender<v1::FleetEvent>,
    writer: Writer,
    stats: Stats,
    wake: Option<Moment>,
    /// When the last timer went off.
    woken: Instant,
    agenda: Agenda<Event>,
    /// Models whose summaries are to be looked at again.
    changed_models: BTreeSet<String>,
    /// Models that were only used: told every now and then, use is too frequent for watchers.
    used_models: BTreeSet<String>,
    /// The last of them that was told.
    used_last: String,
    used_told: Moment,
    /// Instances that policy may not know any more.
    ended: BTreeSet<InstanceId>,
    /// Kinds of device that there are, as of when they last changed.
    present: BTreeSet<DeviceKind>,
    devices_changed: bool,
    inbox: Inbox,
    /// Whether policy has been told that workers are about to join.
    joins_told: bool,
    /// The lane that had its turn last.
    turn: usize,
    stop: CancellationToken,
    part: Part,
    #[cfg(test)]
    spy: rig::Spy,
}

/// Counters since the start.
#[derive(Debug, Default)]
struct Stats {
    loads_started: u64,
    loads_done: u64,
    loads_failed: u64,
    evictions: u64,
    ensures: u64,
    policy_steps: u64,
}

impl Driver {
    /// A driver and the handle to it; nothing happens until it runs.
    pub(crate) fn new(start: Start) -> (Self, Handle) {
        let Start {
            mut config,
            epoch,
            expected,
            leavers,
            observed,
            pins,
            own,
            writer,
            stop,
            life,
        } = start;
        let mut catalogue = Catalogue::new(std::mem::take(&mut config.models), config.any_name);
        models::restore(&mut catalogue, &own, &config, writer.path());
        for (model, pinned) in &pins {
            // One that left the catalogue may come back.
            catalogue.pin(model, *pinned);
        }
        let sessions = Sessions::new(config.timing.command_wait);
        let (lanes, inbox) = handle::lanes();
        let epoch_sender = watch::Sender::new(epoch);
        let events = broadcast::Sender::new(EVENT_RING);
        let handle = Handle::new(
            lanes,
            &epoch_sender,
            &events,
            config.timing,
            stop.clone(),
            (&life, writer.troubles()),
        );
        let mut fleet = Fleet::new(config.policy.clone(), expected, Moment::START);
        fleet.remember_leavers(leavers);
        let driver = Self {
            fleet,
            config,
            started: Instant::now(),
            started_wall: SystemTime::now(),
            run: id::fresh(),
            epoch: epoch_sender,
            catalogue,
            observed,
            pins,
            own,
            pulls: Pulls::default(),
            looks: Looks::default(),
            mirror: Mirror::default(),
            ghosts: Ghosts::default(),
            sessions,
            ensures: Ensures::default(),
            calls: Calls::default(),
            routes: Publisher::new(epoch),
            events,
            writer,
            stats: Stats::default(),
            wake: None,
            woken: Instant::now(),
            agenda: Agenda::default(),
            changed_models: BTreeSet::new(),
            used_models: BTreeSet::new(),
            used_last: String::new(),
            used_told: Moment::START,
            ended: BTreeSet::new(),
            present: BTreeSet::new(),
            devices_changed: true,
            inbox,
            joins_told: false,
            turn: 0,
            stop,
            part: life.part("driver"),
            #[cfg(test)]
            spy: rig::Spy::default(),
        };
        (driver, handle)
    }

    /// Tells policy the catalogue, and what to load at start, in the order of the configuration.
    fn begin(&mut self) {
        self.catalogue_changed();
        if self.catalogue.unread() {
            self.look_again();
        }
        let enabled = |entry: &&crate::catalogue::Entry| entry.model().enabled;
        let preload: Vec<ModelId> = self
            .catalogue
            .entries()
            .iter()
            .filter(enabled)
            .map(|entry| entry.model().id.clone())
            .collect();
        for model in preload {
            self.feed(Event::PreloadRequested { model });
        }
        // With nobody to wait for, the fleet is settled from the start.
        if self.fleet.settled() {
            self.routes.settle();
        }
        self.publish();
    }

    /// Files come and go behind our back: they are looked at when somebody asks for them.
    fn ask(&mut self, mut ask: Ask) {
        self.by_id(&mut ask);
        match &ask {
            Ask::Call {
                order: Order::Load(_),
                ..
            }
            | Ask::Query(
                Query::Models(..) | Query::Model(..) | Query::Explain(..) | Query::Replacement(..),
            ) => self.look_first(Later::Ask(ask)),
            Ask::Ensure { .. }
            | Ask::Call {
                order: Order::Unload(_) | Order::Forget(_),
                ..
            }
            | Ask::Pin(_)
            | Ask::Models(_)
            | Ask::Query(Query::Devices(_) | Query::Workers(_) | Query::Stats(_) | Query::Routes(_)) => {
                self.answer(ask);
            }
        }
    }

    fn answer(&mut self, ask: Ask) {
        let Some(ask) = self.fetched_first(ask) else {
            return;
        };
        match ask {
            Ask::Ensure { wish, serial, sender } => self.ensure(wish, serial, sender),
            Ask::Call {
                request,
                order,
                sender,
            } => self.call(request, order, &sender),
            Ask::Pin(pin) => self.pin(pin),
            Ask::Query(query) => self.query(query),
            Ask::Models(models) => self.models(models),
        }
    }

    fn now(&self) -> Moment {
        Moment::after_start(self.started.elapsed())
    }

    fn timestamp(&self, moment: Moment) -> prost_types::Timestamp {
        convert::timestamp(self.started_wall, moment)
    }

    /// Gives policy an event, carries out what it wants, and does the same for what follows from that. While effects are carried out it only
    /// notes the event.
    fn feed(&mut self, event: Event) {
        if !self.agenda.add(event) {
            return;
        }
        loop {
            match self.agenda.round(Instant::now()) {
                Round::Events(events) => events.into_iter().for_each(|event| self.step(event)),
                Round::Done => return,
                Round::PutOff(events) => {
                    tracing::error!(events, "too much follows from one input; the rest is put off");
                    debug_assert!(events == 0, "one input is bounded work");
                    return;
                }
            }
        }
    }

    fn step(&mut self, event: Event) {
        tracing::trace!(?event, "policy event");
        #[cfg(test)]
        let event = self.spy.hears(event);
        let now = self.now();
        let effects = self.fleet.step(now, event, &mut || InstanceId::fresh());
        #[cfg(test)]
        self.spy.decides(&effects);
        // Far too slow for a large fleet; the tests run such a build.
        if cfg!(debug_assertions)
            && let Err(broken) = muster_policy::invariants::check(&self.fleet, &effects)
        {
            tracing::error!(?broken, "an invariant of policy is broken");
            #[cfg(test)]
            self.spy.breaks(&broken);
        }
        self.stats.policy_steps += 1;
        for effect in effects {
            tracing::trace!(?effect, "policy effect");
            self.carry_out(effect);
        }
    }

    /// Tells the use of some models: in a large fleet all are used all the time, and each has its turn.
    fn tell_use(&mut self) {
        for _ in 0..MOST_USED {
            let mut later = self
                .used_models
                .range::<str, _>((Bound::Excluded(self.used_last.as_str()), Bound::Unbounded));
            let Some(next) = later.next().or_else(|| self.used_models.first()).cloned() else {
                return;
            };
            self.used_models.remove(&next);
            self.used_last.clone_from(&next);
            self.changed_models.insert(next);
        }
    }

    /// Publishes what changed for watchers since the last input.
    fn publish(&mut self) {
        for instance in std::mem::take(&mut self.ended) {
            if self.fleet.instance(&instance).is_none() {
                self.mirror.remove(instance.as_str());
                self.ghosts.remove(&instance);
            }
        }
        let now = self.now();
        if now.since(self.used_told) >= TELL_USE {
            self.used_told = now;
            self.tell_use();
        }
        self.refresh_summaries();
        self.routes.commit();
    }
}
