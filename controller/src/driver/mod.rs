//! The one task that owns the fleet: it turns what happens into events of policy and has the effects carried out.
//!
//! ```text
//!  worker sessions ──► ends, outcomes, reports, joins ─┐
//!  ensure streams  ──► closings                        ├─► Driver ─► Fleet::step ─► Effects ─► executor ─► commands, routes, streams, events
//!  timer           ────────────────────────────────────┤     ▲                                    │
//!  gRPC calls      ──► asks ───────────────────────────┘     └──────── follow-up events ──────────┘
//! ```
//!
//! Invariants: the driver never awaits a send. Every effect is carried out before the next event. One input is limited work ([`agenda`]),
//! and one that takes too long is logged ([`watchdog`]). No input waits for ever behind others ([`input`]). Changes for watchers are
//! published, and other tasks run, when nothing is left to do or half a millisecond has passed ([`run`]).
//!
//! Architecture invariant: neither the driver nor the executor decides anything about the fleet; policy does.

mod agenda;
mod calls;
mod executor;
mod explain;
mod folders;
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
mod registrations;
mod reload;
pub(crate) mod replace;
#[cfg(test)]
mod rig;
mod run;
mod sessions;
mod shelf;
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
    folders::Folders,
    ghosts::Ghosts,
    handle::Handle,
    inbox::{Ask, Inbox, Order, Query},
    looks::{Later, Looks},
    mirror::Mirror,
    pulls::Pulls,
    sessions::Sessions,
};
use crate::{
    catalogue::{Catalogue, Shelf},
    config::Config,
    convert,
    estimate::Observed,
    routes::Publisher,
    state::{Downloads, Expiry, Own, Pins, StateDir, StateError, Writer},
};

/// Number of events that a watcher of `WatchEvents` may lag behind.
const EVENT_RING: usize = 1024;

/// Shortest time between two timer events, whatever policy asks for, because timers come before calls.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

/// How often watchers of routes are told that models were used.
const TELL_USE: Duration = Duration::from_secs(1);

/// Number of models that are told each time.
const MOST_USED: usize = 64;

/// What the driver starts with.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) config: Config,
    /// The epoch, which is written already.
    pub(crate) epoch: u64,
    /// Workers whose engines may still run.
    pub(crate) expected: Vec<WorkerFacts>,
    /// Workers that shut down in order a short time ago.
    pub(crate) leavers: Vec<WorkerFacts>,
    /// Memory measured before.
    pub(crate) observed: Observed,
    /// Downloads that had not ended.
    pub(crate) downloads: Downloads,
    /// The pins that operators set.
    pub(crate) pins: Pins,
    /// Models that users registered and options they saved.
    pub(crate) own: Own,
    /// Writes changes to disk.
    pub(crate) writer: Writer,
    /// Ends the driver when cancelled.
    pub(crate) stop: CancellationToken,
    /// The process's sign of life, which depends on the driver.
    pub(crate) life: Life,
}

impl Start {
    /// Reads the start from disk. The epoch is raised, and written if possible.
    ///
    /// # Errors
    /// The state directory cannot be used, or another controller uses it.
    pub(crate) fn read(
        config: Config,
        state_dir: &Path,
        stop: CancellationToken,
        life: Life,
    ) -> Result<Self, StateError> {
        let state = StateDir::open(state_dir)?;
        // What a newer version wrote is refused before anything is written.
        let (pins, own) = (state.pins()?, state.own_at_start()?);
        let (observed, downloads) = (state.observed()?, state.downloads()?);
        let mut roster = state.roster()?;
        let (epoch, epoch_kept) = state.begin_epoch();
        let expiry = Expiry {
            left: config.policy.absent_counts,
            lost: config.timing.roster_ttl,
        };
        let (expected, leavers) = roster.at_start(SystemTime::now(), expiry);
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
            downloads,
            pins,
            own,
            writer,
            stop,
            life,
        })
    }
}

/// The state of the driver's task.
#[derive(Debug)]
pub(crate) struct Driver {
    fleet: Fleet,
    config: Config,
    started: Instant,
    /// The wall clock's time at the same instant.
    started_wall: SystemTime,
    /// Begins all command ids of this run, so that a worker never takes a command for one of an earlier controller.
    run: std::sync::Arc<str>,
    epoch: watch::Sender<u64>,
    catalogue: Catalogue,
    shelf: Shelf,
    folders: Folders,
    observed: Observed,
    pins: Pins,
    own: Own,
    /// Models whose definition changed while they were, perhaps, loaded.
    stale: BTreeSet<String>,
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
    /// When the timer went off last.
    woken: Instant,
    agenda: Agenda<Event>,
    /// Models whose summaries must be made again.
    changed_models: BTreeSet<String>,
    /// Models that were used and did not change otherwise. Watchers are told only from time to time, since models are used often.
    used_models: BTreeSet<String>,
    /// The last of them that watchers were told about.
    used_last: String,
    used_told: Moment,
    /// Instances that policy may have forgotten.
    ended: BTreeSet<InstanceId>,
    /// Kinds of device that exist, updated when they change.
    present: BTreeSet<DeviceKind>,
    devices_changed: bool,
    inbox: Inbox,
    /// Whether policy knows that workers are about to join.
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
    /// A driver and its handle. Nothing happens before it runs.
    pub(crate) fn new(start: Start) -> (Self, Handle) {
        let Start {
            config,
            epoch,
            expected,
            leavers,
            observed,
            downloads,
            pins,
            own,
            writer,
            stop,
            life,
        } = start;
        let shelf = Shelf::new(&config, &config.models);
        let mut catalogue = Catalogue::new(config.models.clone(), config.any_name);
        registrations::restore(&mut catalogue, &own, &config, writer.path());
        for (model, pinned) in &pins {
            // A model that left the catalogue may come back.
            catalogue.pin(model, pinned.pins());
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
            config.sources.clone(),
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
            shelf,
            folders: Folders::default(),
            observed,
            pins,
            own,
            stale: BTreeSet::new(),
            pulls: Pulls::new(downloads),
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

    /// Tells policy the catalogue and which models to load at start, in the order of the configuration.
    fn begin(&mut self) {
        self.catalogue_changed();
        self.reopen_pulls();
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
        // If no worker is expected, the fleet is settled from the start.
        if self.fleet.settled() {
            self.routes.settle();
        }
        self.publish();
    }

    /// Handles a call. The files are looked at first if the call needs them, because they may change at any time.
    fn ask(&mut self, mut ask: Ask) {
        self.by_id(&mut ask);
        self.off_the_shelf(&ask);
        match &ask {
            // They are none of the catalogue's: a look at its files says nothing of them.
            Ask::Query(Query::Models(request, _)) if request.suggested => self.answer(ask),
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
            | Ask::Query(
                Query::Devices(_)
                | Query::Workers(_)
                | Query::Stats(_)
                | Query::Routes(_)
                | Query::Saved(_)
                | Query::Stale(_),
            ) => {
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

    /// Gives policy an event and carries out the effects, and the same for events that follow. While effects are carried out, an event is
    /// only added to the agenda.
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
        // Too slow for a large fleet in a release build; tests use debug builds.
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

    /// Tells watchers about the use of some models. In a large fleet all models are used all the time, so each has its turn.
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

    /// Publishes changes for watchers since the last input.
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
        self.loosen_pins();
        self.refresh_summaries();
        self.routes.commit();
    }
}
