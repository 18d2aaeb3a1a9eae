//! All instances of this worker, and how requests and loads find theirs.
//!
//! Invariants: an instance is in the registry from its Load until its processes have ended. A request is refused unless it names an
//! instance of this boot (PROTOCOL.md 4).

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use muster_core::{BootId, Code, Error, InstanceId, Missing, ModelId, Runtime, WorkerId};
use muster_proto::v1::{
    Done, InstanceRef, InstanceSpec, InstanceState, Load, ModelType, RefusedReason, command::Kind as Order,
};
use tokio_util::task::TaskTracker;

use super::{
    Instance, Request, Verdict,
    actor::{self, Core, Ground, Service},
    duplicates::Duplicates,
    holds::Holds,
    incomplete, refused,
    relay::Begin,
    stale,
};
use crate::{
    board::first_status,
    session::outbox::{Outbox, Reply, Route},
};

/// The ids of this worker.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// Stable name.
    pub(crate) worker: WorkerId,
    /// New at each start of the process.
    pub(crate) boot: BootId,
    /// Id of the machine.
    pub(crate) host: muster_core::HostId,
}

/// All instances.
#[derive(Debug)]
pub(crate) struct Registry {
    identity: Identity,
    ground: Arc<Ground>,
    instances: Mutex<HashMap<InstanceId, Instance>>,
    duplicates: Arc<Duplicates>,
    tickets: AtomicU64,
    tasks: TaskTracker,
}

impl Registry {
    /// Makes a registry. `tasks` tracks the instances' tasks.
    pub(crate) fn new(identity: Identity, ground: Arc<Ground>, tasks: TaskTracker) -> Self {
        Self {
            identity,
            ground,
            instances: Mutex::new(HashMap::new()),
            duplicates: Arc::default(),
            tickets: AtomicU64::new(1),
            tasks,
        }
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(crate) fn ground(&self) -> &Arc<Ground> {
        &self.ground
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<InstanceId, Instance>> {
        self.instances.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An instance that has not ended.
    pub(crate) fn get(&self, id: &InstanceId) -> Option<Instance> {
        self.lock().get(id).cloned()
    }

    /// All instances that have not ended.
    pub(crate) fn all(&self) -> Vec<Instance> {
        self.lock().values().cloned().collect()
    }

    pub(super) fn remove(&self, id: &InstanceId) {
        self.lock().remove(id);
    }

    /// Begins a load, or attaches to one that exists.
    pub(crate) async fn load(self: &Arc<Self>, id: &InstanceId, load: Load) -> Verdict {
        if let Some(known) = self.get(id) {
            if let Some(verdict) = known.order(Order::Load(load)).await {
                return verdict;
            }
            return self.ended(id);
        }
        if self.ground.board.get(id).is_some() {
            return self.ended(id);
        }
        if self.ground.around.borrow().service != Service::Open {
            return Err(refused(
                RefusedReason::Draining,
                0,
                "the worker takes no loads any more",
            ));
        }
        let Some(spec) = load.spec else {
            return Err(refused(RefusedReason::Invalid, 0, "the load has no spec"));
        };
        let model = ModelId::new(spec.model_id.as_str()).map_err(incomplete)?;
        if spec.r#type() == ModelType::Unspecified {
            return Err(incomplete(Missing("model type")));
        }
        let mut holds = Holds::default();
        holds.place_all(load.holds).map_err(incomplete)?;
        self.begin(id, model, spec, holds);
        Ok(Done {
            state: InstanceState::Loading.into(),
            touch_seq: 1,
        })
    }

    /// The verdict on an order for an instance that has ended or never existed.
    pub(crate) fn ended(&self, id: &InstanceId) -> Verdict {
        let status = self.ground.board.get(id);
        Ok(Done {
            state: status
                .as_ref()
                .map_or(InstanceState::Gone, |status| status.state())
                .into(),
            touch_seq: status
                .and_then(|status| status.touch)
                .map_or(0, |touch| touch.touch_seq),
        })
    }

    fn begin(self: &Arc<Self>, id: &InstanceId, model: ModelId, spec: InstanceSpec, holds: Holds) {
        let mut status = first_status(id, InstanceState::Loading);
        status.spec = Some(spec.clone());
        status.hold_ids = holds.ids();
        let wanted = spec.runtime.parse::<Runtime>().ok();
        let runtime = self
            .ground
            .runtimes
            .iter()
            .find(|runtime| Some(runtime.kind()) == wanted)
            .cloned();
        let devices = self.ground.devices.resolve(&spec.reservations);
        let (runtime, devices) = match (runtime, devices) {
            (Some(runtime), Ok(devices)) => (runtime, devices),
            (runtime, devices) => {
                let what = match (runtime, devices) {
                    (None, _) => format!("this worker has no runtime `{}`", spec.runtime),
                    (Some(_), Err(device)) => format!("this worker has no device `{device}`"),
                    (Some(_), Ok(_)) => String::new(),
                };
                status.set_state(InstanceState::Failed);
                status.failure = Some(Code::InvalidLoadRequest.error(what).into());
                self.ground.board.add(id, status, Instant::now());
                return;
            }
        };
        tracing::info!(instance = %id, model = spec.model_id, runtime = spec.runtime, "load");
        let (instance, inbox) = Instance::new(id.clone(), model);
        self.ground.board.add(id, status, Instant::now());
        self.lock().insert(id.clone(), instance.clone());
        let core = Core::new(instance, inbox, spec, devices, holds, Arc::clone(self));
        // If the task fails, dropping its core records that on the board. It is never cancelled from outside.
        self.tasks.spawn(actor::run(core, runtime));
    }

    /// The instance that a request names.
    ///
    /// # Errors
    /// `stale_instance` if it is not here; if no instance is named, an error unless exactly one of `model` is here.
    pub(crate) fn find(&self, named: Option<&InstanceRef>, model: &str) -> Result<Instance, Error> {
        let Some(named) = named.filter(|named| !named.instance_id.is_empty()) else {
            return self.only_of(model);
        };
        let other = |field: &str, own: &str| !field.is_empty() && field != own;
        if other(&named.worker_id, self.identity.worker.as_str())
            || other(&named.worker_boot_id, self.identity.boot.as_str())
        {
            return Err(stale(
                "the request is for another worker, or for an earlier boot of this one",
            ));
        }
        let id = named.instance_id.as_str();
        self.lock()
            .get(id)
            .cloned()
            .ok_or_else(|| stale("the instance is not here"))
    }

    fn only_of(&self, model: &str) -> Result<Instance, Error> {
        let instances = self.lock();
        let mut of_model = instances
            .values()
            .filter(|instance| instance.model().as_str() == model);
        match (of_model.next(), of_model.next()) {
            (Some(only), None) => Ok(only.clone()),
            (Some(_), Some(_)) => {
                let error =
                    Code::InvalidRequest.error(format!("several instances of `{model}` are here: name one"));
                Err(error.with_param("instance"))
            }
            (None, _) if model.is_empty() => {
                Err(Code::InvalidRequest.error("neither an instance nor a model is named"))
            }
            (None, _) => Err(Code::ModelNotLoaded.error(format!("`{model}` is not loaded here"))),
        }
    }

    /// Sends a request to its instance; the answers go to `outbox`. Returns false if the handle is in use, which breaks the protocol.
    pub(crate) async fn start(
        &self,
        outbox: &Arc<Outbox>,
        instance: Instance,
        start: muster_proto::v1::Start,
    ) -> bool {
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        let route = Route { instance, ticket };
        if !outbox.open(start.handle, route.clone()) {
            return false;
        }
        let reply = Reply::new(Arc::clone(outbox), start.handle);
        let (claim, older) = self.duplicates.claim(&start.request_id, route.clone());
        if let Some(older) = older {
            older.instance.send(Request::Supersede(older.ticket)).await;
        }
        let begin = Begin {
            ticket,
            reply,
            start,
            claim,
            arrived: Instant::now(),
        };
        route.instance.send(Request::Begin(Box::new(begin))).await;
        true
    }
}
