//! The task of an instance, and what its stages share.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use muster_core::{Code, Error, GatewayId};
use muster_proto::v1::{
    Capabilities, Device, DeviceKind, Done, EngineMemory, Hold, InstanceSpec, InstanceState, InstanceStatus,
    ProcessId, Refused, RefusedReason, Reservation, SetAttributes, command::Kind as Order,
};
use tokio::sync::watch;

use super::{
    Inbox, Instance, Request, Verdict, Visits, ending, holds::Holds, incomplete, load, refused,
    registry::Registry, serve, stale,
};
use crate::{
    board::{Board, Urgency},
    config::Patience,
    convert,
    devices::{Devices, Sample},
    engine::{EngineProcess, Runtime, gpus::names_of},
    hub::desk::Desk,
};

/// What the worker accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Service {
    /// It accepts everything.
    #[default]
    Open,
    /// An operator drained it: it accepts nothing new, and loaded models stay.
    Closed,
    /// It is shutting down: it accepts nothing new, and idle models are unloaded.
    Leaving,
}

/// What instances must know about the worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Surroundings {
    /// Number of the controller's session, if there is one.
    pub(crate) session: Option<u64>,
    /// Gateways with an open session.
    pub(crate) gateways: Gateways,
    /// What the worker accepts.
    pub(crate) service: Service,
}

/// The gateways that have sessions, and how many. Gateways that did not give their id count as one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gateways(BTreeMap<Option<GatewayId>, usize>);

impl Gateways {
    /// Counts one more session.
    pub(crate) fn came(&mut self, gateway: Option<GatewayId>) {
        *self.0.entry(gateway).or_default() += 1;
    }

    /// Counts one session less.
    pub(crate) fn left(&mut self, gateway: &Option<GatewayId>) {
        if let Some(sessions) = self.0.get_mut(gateway) {
            *sessions -= 1;
            if *sessions == 0 {
                self.0.remove(gateway);
            }
        }
    }

    /// Whether `gateway` may have a session: it has one, or a gateway without an id has. If `gateway` is none, any session counts.
    pub(crate) fn has(&self, gateway: &Option<GatewayId>) -> bool {
        if gateway.is_none() {
            return !self.0.is_empty();
        }
        self.0.contains_key(gateway) || self.0.contains_key(&None)
    }
}

/// What all instances use.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) board: Arc<Board>,
    pub(crate) devices: Devices,
    pub(crate) runtimes: Vec<Arc<dyn Runtime>>,
    pub(crate) patience: Patience,
    pub(crate) around: watch::Sender<Surroundings>,
    /// Access to model files in the hub's cache.
    pub(crate) files: Desk,
}

/// The result of a load.
#[derive(Debug)]
pub(super) struct Loaded {
    /// The engine's processes.
    pub(super) tree: Vec<ProcessId>,
    /// The engine's command line without secrets.
    pub(super) command: Vec<String>,
    /// What the loaded model can do.
    pub(super) capabilities: Option<Capabilities>,
    /// Address of the engine, for people.
    pub(super) url: String,
    /// Numbers of requests that may run and that may wait.
    pub(super) limits: (u32, u32),
}

/// How an instance ends.
#[derive(Debug)]
pub(super) struct End {
    /// The engine's processes, if they must be ended.
    pub(super) process: Option<Arc<dyn EngineProcess>>,
    /// Kill them instead of asking them to end.
    pub(super) force: bool,
    /// The failure; `None` if it ended on request.
    pub(super) failure: Option<Box<Error>>,
}

/// What all stages of an instance share.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) handle: Instance,
    pub(super) inbox: Inbox,
    pub(super) spec: InstanceSpec,
    pub(super) devices: Vec<Device>,
    pub(super) ground: Arc<Ground>,
    pub(super) around: watch::Receiver<Surroundings>,
    pub(super) holds: Holds,
    pub(super) visits: Visits,
    pub(super) touch_seq: u64,
    registry: Arc<Registry>,
    state: InstanceState,
    revision: u64,
    /// The board has its terminal state.
    over: bool,
}

impl Core {
    pub(super) fn new(
        handle: Instance,
        inbox: Inbox,
        spec: InstanceSpec,
        devices: Vec<Device>,
        holds: Holds,
        registry: Arc<Registry>,
    ) -> Self {
        let ground = Arc::clone(registry.ground());
        Self {
            handle,
            inbox,
            spec,
            devices,
            around: ground.around.subscribe(),
            ground,
            holds,
            visits: Visits::default(),
            touch_seq: 1,
            registry,
            state: InstanceState::Loading,
            revision: 1,
            over: false,
        }
    }

    /// What the worker accepts.
    pub(super) fn service(&self) -> Service {
        self.around.borrow().service
    }

    /// The controller's session, if there is one.
    pub(super) fn session(&self) -> Option<u64> {
        self.around.borrow().session
    }

    /// Changes the instance's status on the board.
    pub(super) fn publish(&self, urgency: Urgency, change: impl FnOnce(&mut InstanceStatus)) {
        self.ground.board.update(self.handle.id(), urgency, change);
    }

    /// Enters a state and reports it at once. Does nothing if it is in that state already.
    pub(super) fn enter(&mut self, state: InstanceState, change: impl FnOnce(&mut InstanceStatus)) {
        self.enter_with(state, Vec::new(), change);
    }

    fn enter_with(
        &mut self,
        state: InstanceState,
        samples: Vec<Sample>,
        change: impl FnOnce(&mut InstanceStatus),
    ) {
        if state == self.state {
            return;
        }
        self.state = state;
        self.revision += 1;
        let revision = self.revision;
        let name = state.as_str_name();
        tracing::info!(instance = %self.handle.id(), model = %self.handle.model(), state = name, "instance");
        self.ground
            .board
            .update_with(self.handle.id(), Urgency::Now, samples, |status| {
                status.set_state(state);
                status.revision = revision;
                change(status);
            });
    }

    /// Records one or more touches (I9).
    pub(super) fn touch(&mut self, touches: u64, urgency: Urgency, counts: (usize, usize)) {
        self.touch_seq += touches;
        let counts = (convert::count(counts.0), convert::count(counts.1));
        self.ground
            .board
            .touch(self.handle.id(), urgency, self.touch_seq, Instant::now(), counts);
    }

    /// The verdict on an order that was carried out.
    pub(super) fn done(&self) -> Verdict {
        Ok(Done {
            state: self.state.into(),
            touch_seq: self.touch_seq,
        })
    }

    /// The verdict on an order that was refused.
    pub(super) fn refuse(&self, reason: RefusedReason, why: &str) -> Verdict {
        Err(refused(reason, self.touch_seq, why))
    }

    fn hold(&mut self, holds: Vec<Hold>) -> Result<(), Refused> {
        self.holds.place_all(holds).map_err(incomplete)?;
        self.look_around(Instant::now());
        self.show_holds();
        Ok(())
    }

    /// Carries out an order that means the same in all stages. Returns any other order.
    pub(super) fn obey(&mut self, order: Order) -> Result<Verdict, Box<Order>> {
        match order {
            // The instance exists: attach to it and add the caller's holds.
            Order::Load(load) => {
                if let Err(refused) = self.hold(load.holds) {
                    return Ok(Err(refused));
                }
            }
            Order::PlaceHold(hold) => {
                if let Err(refused) = self.hold(vec![hold]) {
                    return Ok(Err(refused));
                }
            }
            Order::ReleaseHoldId(id) => {
                self.holds.release(&id);
                self.show_holds();
            }
            Order::Set(attributes) => self.set(&attributes),
            Order::Ack(_) | Order::LookAt(_) => {}
            order @ (Order::Cancel(_) | Order::Quiesce(_) | Order::Resume(_) | Order::Unload(_)) => {
                return Err(Box::new(order));
            }
        }
        Ok(self.done())
    }

    fn set(&mut self, attributes: &SetAttributes) {
        if let Some(pinned) = attributes.pinned {
            self.spec.pinned = pinned;
        }
        if let Some(ttl) = attributes.idle_ttl {
            self.spec.idle_ttl = convert::span_from(Some(ttl))
                .filter(|ttl| !ttl.is_zero())
                .map(convert::span);
        }
        let spec = self.spec.clone();
        self.publish(Urgency::Now, |status| status.spec = Some(spec));
    }

    fn show_holds(&self) {
        let ids = self.holds.ids();
        self.publish(Urgency::Now, |status| status.hold_ids = ids);
    }

    /// Updates the holds after a session of the controller or a gateway began or ended.
    pub(super) fn look_around(&mut self, now: Instant) {
        self.holds.look_around(&self.around.borrow(), now);
    }

    /// Drops holds whose time has run out.
    pub(super) fn expire_holds(&mut self, now: Instant) {
        if self.holds.expire(now) {
            tracing::warn!(instance = %self.handle.id(), "holds ran out");
            self.show_holds();
        }
    }

    /// Refuses a request in a stage that takes none.
    pub(super) fn turn_away(request: Request, why: &str) {
        match request {
            Request::Begin(begin) => begin.reply.fail(stale(why)),
            Request::Visit(_, reply) => drop(reply.send(Err(stale(why)))),
            Request::Cancel(_) | Request::Supersede(_) | Request::Credit(..) => {}
        }
    }

    /// Passes on what the engine says it took of its GPUs, for drivers that cannot tell.
    pub(super) fn tell_memory(&self, took: &[EngineMemory]) {
        let devices = &self.ground.devices;
        let Ok(owned) = devices.resolve(&self.spec.reservations) else {
            return;
        };
        let of = |(device, name): (&Device, String)| {
            let took = took.iter().find(|took| took.device == name)?;
            let bytes = took.weights_bytes + took.cache_bytes + took.compute_bytes;
            (device.kind() == DeviceKind::Gpu).then(|| Reservation {
                device_id: device.device_id.clone(),
                bytes,
            })
        };
        let told: Vec<Reservation> = owned.iter().zip(names_of(&owned)).filter_map(of).collect();
        devices.tell(self.handle.id(), &told);
    }

    /// Reports that the model is loaded, together with samples and figures taken since: policy counts samples in the same report as fresh.
    pub(super) async fn loaded(&mut self, engine: Loaded) {
        let Loaded {
            tree,
            command,
            capabilities,
            url,
            limits,
        } = engine;
        let (samples, observed) = self
            .ground
            .devices
            .loaded(self.handle.id(), &tree, &self.spec.reservations)
            .await;
        self.touch(1, Urgency::None, (0, 0));
        self.enter_with(InstanceState::Ready, samples, |status| {
            status.progress = None;
            status.engine = tree;
            status.launch_command = command;
            status.observed = observed;
            status.capabilities = capabilities;
            (status.target_inflight, status.queue_limit) = limits;
            status.backend_url = url;
        });
    }

    /// Puts the terminal state on the board, with samples taken after the processes had ended.
    async fn finish(&mut self, failure: Option<Error>) {
        let samples = self
            .ground
            .devices
            .ended(self.handle.id(), &self.spec.reservations)
            .await;
        self.registry.remove(self.handle.id());
        self.tombstone(failure, samples);
    }

    fn tombstone(&mut self, failure: Option<Error>, samples: Vec<Sample>) {
        self.over = true;
        let state = if failure.is_some() {
            InstanceState::Failed
        } else {
            InstanceState::Gone
        };
        match &failure {
            Some(error) => {
                tracing::warn!(instance = %self.handle.id(), model = %self.handle.model(), %error, "instance failed");
            }
            None => {
                tracing::info!(instance = %self.handle.id(), model = %self.handle.model(), "instance gone")
            }
        }
        let revision = self.revision + 1;
        self.ground
            .board
            .update_with(self.handle.id(), Urgency::Now, samples, |status| {
                status.set_state(state);
                status.revision = revision;
                status.failure = failure.map(Into::into);
                status.progress = None;
                (status.running, status.queued) = (0, 0);
                status.hold_ids.clear();
                status.observed.clear();
                status.engine.clear();
            });
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if !self.over {
            // A bug ended the task early; its engine ended with the handles that the task held.
            self.registry.remove(self.handle.id());
            self.tombstone(
                Some(Code::Internal.error("the instance's task ended unexpectedly")),
                Vec::new(),
            );
        }
    }
}

/// Runs an instance from its load to its end.
pub(super) async fn run(mut core: Core, runtime: Arc<dyn Runtime>) {
    core.look_around(Instant::now());
    let end = match load::load(&mut core, runtime.as_ref()).await {
        Ok(engine) => serve::serve(&mut core, engine).await,
        Err(end) => end,
    };
    ending::end(&mut core, &end).await;
    core.finish(end.failure.map(|error| *error)).await;
    core.inbox.requests.close();
    while let Some(request) = core.inbox.requests.recv().await {
        Core::turn_away(request, "the instance has ended");
    }
}
