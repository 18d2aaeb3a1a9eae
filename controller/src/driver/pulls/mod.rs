//! Files of the hub on the hosts of workers: who has which, and downloads (PROTOCOL.md 15).
//!
//! ```text
//!  load, request, pull ─► its files are there ─ yes ───────────────────────────► goes on
//!                         └ no ─► a pull of them is open ─ yes ─► waits for it     ▲
//!                                 └ no ─► opened                                   │
//!   pull:  waiting for a worker ──► at a worker (progress …) ──► done: whoever waited goes on
//!              │   ▲ ▲                  │  │     └► failed: whoever waited fails
//!              │   │ └── session ends ──┘  │ paused
//!              │   └─ resumed ── paused ◄──┘
//!              └ nobody able in time ─► failed
//! ```
//!
//! Invariants: downloads hold no load slot and no claim: policy hears of a load only once its files are there. A pull goes on without
//! anybody waiting, and over a restart of the controller, as long as its model is in the catalogue. There is one pull of the same files at most.
//!
//! * `keep`: what a restart needs of them. * `check`: is there anything newer? * `files`: orders to workers and their answers. * `told`: what those who wait hear. * `list`: what operators see of it, and do to it.
//!
//! Architecture invariant: where a model should run is policy's to say; here is only asked which place it would choose.

mod check;
mod files;
mod keep;
mod list;
mod told;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    time::Duration,
};

use muster_core::{Code, Error, WorkerId, id};
use muster_policy::{DeviceChoice, ModelState};
use muster_proto::v1::{
    self, CachedFiles, FetchFiles, FetchProgress, HubCheckpoint, files_order::Kind as OrderKind,
};
use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};

use super::{
    Driver,
    inbox::{Ask, Order, PullState, Removed},
    looks::Later,
    sessions::Sent,
};
use crate::{config::ModelEntry, convert::model::kind_of, state::Downloads};
use told::{fail, tell};

/// How long a pull waits for a worker that could host the model (PROTOCOL.md 2).
const WORKER_WAIT: Duration = Duration::from_secs(30);
/// How long requests are answered with a pull's failure before it is tried again.
const BACKOFF: Duration = Duration::from_secs(5);
/// How often workers look again: files come and go behind our back.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// All of it.
#[derive(Debug, Default)]
pub(super) struct Pulls {
    open: HashMap<HubCheckpoint, Pull>,
    orders: HashMap<String, OpenOrder>,
    /// What workers have.
    known: HashMap<HubCheckpoint, BTreeMap<WorkerId, CachedFiles>>,
    failed: HashMap<HubCheckpoint, (Instant, Error)>,
    /// The last ones that ended, the newest first.
    ended: VecDeque<v1::Download>,
    removals: HashMap<u64, Removal>,
    removals_begun: u64,
    /// What is on the disk of [`open`](Self::open), or on its way there.
    kept: Downloads,
    looked: Option<Instant>,
}

/// One download.
#[derive(Debug)]
struct Pull {
    /// A model that it is for: decides which workers can do it.
    model: ModelEntry,
    place: Place,
    /// An operator wants the newest files.
    refresh: bool,
    told: FetchProgress,
    listeners: Vec<watch::Sender<PullState>>,
    /// Loads and requests that go on afterwards.
    waiting: Vec<Ask>,
}

/// Where a pull is.
#[derive(Debug)]
enum Place {
    /// Nowhere; given up then.
    Waiting(Instant),
    At(WorkerId),
    /// Nowhere, until an operator wants it to go on.
    Paused,
}

/// An order that a worker has not answered.
#[derive(Debug)]
struct OpenOrder {
    worker: WorkerId,
    about: About,
}

#[derive(Debug)]
enum About {
    Look(HubCheckpoint),
    Fetch(HubCheckpoint),
    Remove(u64, HubCheckpoint),
    List(oneshot::Sender<Result<v1::HubListing, Error>>),
    Check(oneshot::Sender<Result<v1::FilesCheck, Error>>),
}

/// Files that are being removed from some workers.
#[derive(Debug)]
struct Removal {
    left: usize,
    freed: u64,
    failed: Option<Error>,
    reply: oneshot::Sender<Result<Removed, Error>>,
}

impl Pulls {
    /// When there is something to do without being asked.
    pub(super) fn due(&self) -> Option<Instant> {
        let waits = self.open.values().filter_map(|pull| match pull.place {
            Place::Waiting(until) => Some(until),
            Place::At(_) | Place::Paused => None,
        });
        waits.chain(self.looked.map(|at| at + LOOK_EVERY)).min()
    }

    /// How far the download of a checkpoint is, if there is one.
    pub(super) fn progress(&self, checkpoint: &HubCheckpoint) -> Option<FetchProgress> {
        self.open.get(checkpoint).map(|pull| pull.told.clone())
    }

    fn order(&mut self, worker: &WorkerId, about: About) -> String {
        let order_id = id::fresh().to_string();
        let asked = OpenOrder {
            worker: worker.clone(),
            about,
        };
        self.orders.insert(order_id.clone(), asked);
        order_id
    }

    /// Which workers have a checkpoint, and what one of them says of it.
    fn holders(&self, checkpoint: &HubCheckpoint) -> (BTreeSet<WorkerId>, Option<CachedFiles>) {
        let known = self.known.get(checkpoint);
        let complete = known.into_iter().flatten().filter(|(_, files)| files.complete);
        let workers = complete.clone().map(|(worker, _)| worker.clone()).collect();
        let files = complete.map(|(_, files)| files.clone()).next();
        (workers, files)
    }
}

impl Driver {
    /// Whether a load or a request must wait for files; then it does.
    pub(super) fn fetched_first(&mut self, ask: Ask) -> Option<Ask> {
        let id = match &ask {
            Ask::Ensure { wish, .. } => wish.model.as_str(),
            Ask::Call {
                order: Order::Load(load),
                ..
            } if load.download => load.model.as_str(),
            Ask::Call { .. } | Ask::Pin(_) | Ask::Query(_) | Ask::Models(_) => return Some(ask),
        };
        let Some((checkpoint, model)) = self.missing(id) else {
            return Some(ask);
        };
        let automatic = matches!(ask, Ask::Ensure { .. });
        if let Some(error) = self.failed_lately(&checkpoint).filter(|_| automatic) {
            fail(&ask, &error, *self.epoch.borrow());
            return None;
        }
        let epoch = *self.epoch.borrow();
        let pull = self.pull(&checkpoint, &model);
        if matches!(pull.place, Place::Paused) {
            if automatic {
                fail(&ask, &list::paused(), epoch);
                return None;
            }
            pull.resume();
        }
        tell(&ask, &pull.told, epoch);
        pull.waiting.push(ask);
        self.start_pull(&checkpoint);
        None
    }

    /// A model's checkpoint, if a load of it needs files that no worker has.
    fn missing(&self, id: &str) -> Option<(HubCheckpoint, ModelEntry)> {
        let entry = self.catalogue.get(id)?;
        let checkpoint = entry.model().hub.clone()?;
        let standing = self.fleet.model(id);
        let idle =
            standing.is_none_or(|view| matches!(view.state, ModelState::Unloaded | ModelState::Failed(_)));
        (idle && entry.workers().is_empty()).then(|| (checkpoint, entry.model().clone()))
    }

    fn failed_lately(&mut self, checkpoint: &HubCheckpoint) -> Option<Error> {
        let now = Instant::now();
        self.pulls.failed.retain(|_, (until, _)| *until > now);
        self.pulls.failed.get(checkpoint).map(|(_, error)| error.clone())
    }

    /// The pull of a checkpoint, opened if there is none.
    fn pull(&mut self, checkpoint: &HubCheckpoint, model: &ModelEntry) -> &mut Pull {
        self.pulls.open.entry(checkpoint.clone()).or_insert_with(|| Pull {
            model: model.clone(),
            place: Place::Waiting(Instant::now() + WORKER_WAIT),
            refresh: false,
            told: FetchProgress::default(),
            listeners: Vec::new(),
            waiting: Vec::new(),
        })
    }

    /// An operator wants a model's files; the model is in the catalogue, or about to change to these files.
    pub(super) fn pull_files(&mut self, model: &ModelEntry, listener: watch::Sender<PullState>) {
        let Some(checkpoint) = model.hub.clone() else {
            return self.look_first(Later::Local {
                id: model.id.to_string(),
                checkpoint: model.checkpoint.to_string(),
                listener,
            });
        };
        self.pulls.failed.remove(&checkpoint);
        let pull = self.pull(&checkpoint, model);
        // One that joins hears at once how far it is.
        if pull.told.total_files > 0 {
            listener.send_replace(PullState::Progress(pull.told.clone()));
        }
        pull.listeners.push(listener);
        pull.refresh = true;
        pull.resume();
        self.start_pull(&checkpoint);
    }

    /// Gives a waiting pull to a worker, if one is able.
    fn start_pull(&mut self, checkpoint: &HubCheckpoint) {
        self.keep_pulls();
        let Some(pull) = self.pulls.open.get(checkpoint) else {
            return;
        };
        match pull.place {
            Place::Waiting(_) => {}
            Place::At(_) | Place::Paused => return,
        }
        let (model, refresh) = (pull.model.clone(), pull.refresh);
        let Some(worker) = self.worker_for(&model, checkpoint) else {
            return;
        };
        tracing::info!(%worker, model = %model.id, repo = checkpoint.repo, variant = checkpoint.variant, "pulling");
        let kind = OrderKind::Fetch(FetchFiles { refresh });
        if self.order_files(&worker, checkpoint, About::Fetch(checkpoint.clone()), kind) == Sent::Yes
            && let Some(pull) = self.pulls.open.get_mut(checkpoint)
        {
            pull.place = Place::At(worker);
        }
    }

    /// Who fetches a model's files: who has them, else whom policy would choose, else the first who can host the model.
    fn worker_for(&mut self, model: &ModelEntry, checkpoint: &HubCheckpoint) -> Option<WorkerId> {
        let able = self.able_workers(model);
        let (holders, _) = self.pulls.holders(checkpoint);
        if let Some(holder) = able.iter().find(|worker| holders.contains(*worker)) {
            return Some(holder.clone());
        }
        let now = self.now();
        let plan = self.fleet.explain(now, model.id.as_str(), 1);
        let chosen = plan
            .into_iter()
            .flat_map(|plan| plan.places)
            .map(|place| place.worker);
        chosen
            .into_iter()
            .find(|worker| able.contains(worker))
            .or_else(|| able.first().cloned())
    }

    /// Connected workers that could host a model and take orders about files.
    fn able_workers(&self, model: &ModelEntry) -> BTreeSet<WorkerId> {
        let able = |view: &muster_policy::WorkerView| {
            let worker = self.mirror.worker(view.facts.id.as_str())?;
            let hello = &worker.hello;
            let runtime = hello
                .runtimes
                .iter()
                .find(|runtime| runtime.name == model.runtime.name())?;
            let usable = |device: &&v1::Device| {
                let chosen = match &model.device {
                    DeviceChoice::Any => true,
                    DeviceChoice::Kind(kind) => kind_of(device) == Some(*kind),
                    DeviceChoice::Device(id) => id.as_str() == device.device_id,
                };
                chosen && runtime.device_ids.contains(&device.device_id)
            };
            let fits =
                view.connected && !view.facts.draining && hello.devices.iter().any(|device| usable(&device));
            let takes = model
                .hub
                .as_ref()
                .is_none_or(|checkpoint| worker.takes(checkpoint));
            (fits && takes).then(|| view.facts.id.clone())
        };
        self.fleet.workers().iter().filter_map(able).collect()
    }

    fn progressed(&mut self, order_id: &str, told: FetchProgress) {
        let epoch = *self.epoch.borrow();
        let Some(About::Fetch(checkpoint)) = self.pulls.orders.get(order_id).map(|asked| &asked.about) else {
            return;
        };
        let Some(pull) = self.pulls.open.get_mut(checkpoint) else {
            return;
        };
        for listener in &pull.listeners {
            listener.send_replace(PullState::Progress(told.clone()));
        }
        for ask in &pull.waiting {
            tell(ask, &told, epoch);
        }
        pull.told = told;
    }

    /// A pull is over.
    fn pulled(&mut self, checkpoint: &HubCheckpoint, result: &Result<(), Error>) {
        let Some(pull) = self.pulls.open.remove(checkpoint) else {
            return;
        };
        self.keep_pulls();
        let epoch = *self.epoch.borrow();
        if let Err(error) = result {
            tracing::warn!(model = %pull.model.id, repo = checkpoint.repo, %error, "pull failed");
            let failed = (Instant::now() + BACKOFF, error.clone());
            self.pulls.failed.insert(checkpoint.clone(), failed);
        }
        self.pulls.keep(&pull, checkpoint, result);
        for listener in pull.listeners {
            listener.send_replace(PullState::Done(result.clone()));
        }
        for ask in pull.waiting {
            match result {
                // Once the files' headers have been read: how much memory it takes is known only then.
                Ok(()) => self.look_first(Later::Ask(ask)),
                Err(error) => fail(&ask, error, epoch),
            }
        }
        if result.is_err() {
            self.back_on_shelf(pull.model.id.as_str());
        }
    }

    /// An operator unloads a model: what waits for its files waits in vain. The download goes on.
    pub(super) fn forget_waiting(&mut self, model: &str) {
        let error =
            Code::LoadCancelled.error(format!("{model} was unloaded while its files were downloaded"));
        let epoch = *self.epoch.borrow();
        let of = |ask: &Ask| match ask {
            Ask::Ensure { wish, .. } => wish.model.as_str() == model,
            Ask::Call {
                order: Order::Load(load),
                ..
            } => load.model == model,
            Ask::Call { .. } | Ask::Pin(_) | Ask::Query(_) | Ask::Models(_) => false,
        };
        for pull in self.pulls.open.values_mut() {
            let (gone, left) = std::mem::take(&mut pull.waiting).into_iter().partition(of);
            pull.waiting = left;
            let gone: Vec<Ask> = gone;
            gone.iter().for_each(|ask| fail(ask, &error, epoch));
        }
    }

    /// What is due by the clock: pulls that waited long enough for a worker, and a look at all files.
    pub(super) fn files_due(&mut self) {
        let now = Instant::now();
        let waited = |pull: &Pull| matches!(pull.place, Place::Waiting(until) if until <= now);
        let open = &self.pulls.open;
        let late: Vec<HubCheckpoint> = open
            .iter()
            .filter(|(_, pull)| waited(pull))
            .map(|(checkpoint, _)| checkpoint.clone())
            .collect();
        for checkpoint in late {
            let error = "no worker that could host the model came to download its files";
            self.pulled(&checkpoint, &Err(Code::NoWorker.error(error)));
        }
        if self.pulls.looked.is_some_and(|at| at + LOOK_EVERY <= now) {
            self.pulls.looked = Some(now);
            self.folders_due();
            let asked: HashSet<&HubCheckpoint> = self
                .pulls
                .orders
                .values()
                .filter_map(|asked| match &asked.about {
                    About::Look(checkpoint) => Some(checkpoint),
                    About::Fetch(_) | About::Remove(..) | About::List(_) | About::Check(_) => None,
                })
                .collect();
            // One look at a time: a slow disk is not asked more and more.
            let due: Vec<HubCheckpoint> = self
                .wanted_checkpoints()
                .into_iter()
                .filter(|checkpoint| !asked.contains(checkpoint))
                .collect();
            due.iter().for_each(|checkpoint| self.look_everywhere(checkpoint));
        }
    }
}
