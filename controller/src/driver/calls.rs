//! Open `EnsureLoaded` streams and operators' calls. Each has a `watch` channel that keeps the newest message, so a slow reader delays
//! nobody and misses only outdated messages.

use std::{collections::HashMap, num::NonZeroU32};

use muster_core::{Code, Error, GatewayId, HoldId, ModelId, RequestId, WorkerId};
use muster_policy::{Event, LoadError, ModelSpec, ModelState, UnloadHow};
use muster_proto::v1;
use tokio::sync::watch;

use super::{
    Driver,
    inbox::{Answer, CallState, Closing, Order, Pin},
};
use crate::{
    catalogue::Entry,
    config,
    convert::{self, stage, wish::Wish},
    state::Pin as KeptPin,
};

/// Open `EnsureLoaded` streams.
#[derive(Debug, Default)]
pub(super) struct Ensures {
    open: HashMap<HoldId, Open>,
}

#[derive(Debug)]
struct Open {
    serial: u64,
    gateway: Option<GatewayId>,
    sender: watch::Sender<Option<v1::EnsureLoadedEvent>>,
}

impl Ensures {
    /// Sends a stream its newest event.
    pub(super) fn tell(&self, hold: &HoldId, event: v1::EnsureLoadedEvent) {
        if let Some(open) = self.open.get(hold) {
            open.sender.send_replace(Some(event));
        }
    }

    /// The gateway that opened the stream; none once the stream has ended.
    pub(super) fn gateway(&self, hold: &HoldId) -> Option<GatewayId> {
        self.open.get(hold)?.gateway.clone()
    }
}

/// Operators' calls that are not answered yet.
#[derive(Debug, Default)]
pub(super) struct Calls {
    open: HashMap<RequestId, OpenCall>,
}

#[derive(Debug)]
struct OpenCall {
    about: About,
    sender: watch::Sender<CallState>,
}

#[derive(Debug)]
enum About {
    Model(String),
    Worker { instances: Vec<String> },
}

impl Calls {
    /// Sends a call its progress.
    pub(super) fn progress(&self, request: &RequestId, kind: v1::load_model_event::Kind) {
        if let Some(call) = self.open.get(request) {
            call.sender.send_replace(CallState::Progress(Box::new(kind)));
        }
    }
}

impl Driver {
    /// Handles a new stream of a gateway. A known hold id re-attaches: the older stream ends.
    pub(super) fn ensure(
        &mut self,
        wish: Wish,
        serial: u64,
        sender: watch::Sender<Option<v1::EnsureLoadedEvent>>,
    ) {
        // The stream's end may come before its beginning, since closings have a lane of their own.
        if sender.is_closed() {
            return;
        }
        self.stats.ensures += 1;
        let Wish {
            hold,
            gateway,
            model,
            avoid_instances,
            avoid_workers,
        } = wish;
        let open = Open {
            serial,
            gateway,
            sender,
        };
        self.ensures.open.insert(hold.clone(), open);
        self.feed(Event::EnsureOpened {
            hold,
            model,
            avoid_instances,
            avoid_workers,
        });
    }

    /// Handles the end of a stream. Only the newest stream of a hold counts.
    pub(super) fn closed(&mut self, closing: &Closing) {
        if self
            .ensures
            .open
            .get(&closing.hold)
            .is_some_and(|open| open.serial == closing.serial)
        {
            self.ensures.open.remove(&closing.hold);
            self.feed(Event::EnsureClosed {
                hold: closing.hold.clone(),
            });
        }
    }

    /// Handles an operator's call.
    pub(super) fn call(&mut self, request: RequestId, order: Order, sender: &watch::Sender<CallState>) {
        if let Err(error) = self.take_order(request, order, sender) {
            // If nobody listens, that is fine: nothing was begun.
            sender.send_replace(CallState::Done(Err(error)));
        }
    }

    fn take_order(
        &mut self,
        request: RequestId,
        order: Order,
        sender: &watch::Sender<CallState>,
    ) -> Result<(), Error> {
        let sender = sender.clone();
        match order {
            Order::Load(load) => {
                let overrides = self.overrides(&load)?;
                let model = ModelId::new(load.model.as_str()).map_err(convert::missing)?;
                self.calls.open.insert(
                    request.clone(),
                    OpenCall {
                        about: About::Model(load.model),
                        sender,
                    },
                );
                self.feed(Event::LoadRequested {
                    request,
                    model,
                    overrides,
                });
            }
            Order::Unload(unload) => {
                let how = match (unload.force, unload.cancel_load) {
                    (true, _) => UnloadHow::Force,
                    (false, true) => UnloadHow::DrainOrCancel,
                    (false, false) => UnloadHow::Drain,
                };
                self.forget_waiting(&unload.model);
                let model = ModelId::new(unload.model.as_str()).map_err(convert::missing)?;
                self.calls.open.insert(
                    request.clone(),
                    OpenCall {
                        about: About::Model(unload.model),
                        sender,
                    },
                );
                self.feed(Event::UnloadRequested {
                    request,
                    model,
                    how,
                    drain_for: None,
                });
            }
            Order::Forget(forget) => {
                let id = WorkerId::new(forget.worker_id).map_err(convert::missing)?;
                let hosted = self
                    .fleet
                    .instances()
                    .into_iter()
                    .filter(|instance| instance.worker == id);
                let instances = hosted.map(|instance| instance.id.to_string()).collect();
                let about = About::Worker { instances };
                self.calls
                    .open
                    .insert(request.clone(), OpenCall { about, sender });
                self.feed(Event::ForgetRequested { request, worker: id });
            }
        }
        Ok(())
    }

    /// Pins or unpins a model. Policy reads pins from the catalogue.
    pub(super) fn pin(&mut self, pin: Pin) {
        let already = self
            .catalogue
            .get(&pin.model)
            .is_some_and(|entry| entry.model().pinned);
        if !self.catalogue.pin(&pin.model, pin.pin.pins()) {
            // A caller that has left is no failure, here and below.
            drop(pin.reply.send(None));
            return;
        }
        // Whoever pinned it for good meant longer than that.
        if pin.pin != KeptPin::WHILE_LOADED || !already {
            let former = self.pins.get(&pin.model).copied();
            self.pins.insert(pin.model.clone(), pin.pin.after(former));
        }
        let saving = self.writer.pins(&self.pins);
        self.models_changed([pin.model.clone()]);
        drop(
            pin.reply
                .send(self.model(&pin.model).map(|model| (model, saving))),
        );
    }

    /// Takes pins away that were for as long as a model is loaded.
    pub(super) fn loosen_pins(&mut self) {
        if !self.fleet.settled() {
            return;
        }
        let left = |id: &String| {
            let left = self.pins.get(id)?.once_unloaded()?;
            let view = self.fleet.model(id);
            let gone =
                view.is_none_or(|view| matches!(view.state, ModelState::Unloaded | ModelState::Failed(_)));
            gone.then(|| (id.clone(), left))
        };
        let left: Vec<(String, Option<KeptPin>)> = self.changed_models.iter().filter_map(left).collect();
        let mut gone = Vec::with_capacity(left.len());
        for (id, left) in left {
            match left {
                Some(pin) => drop(self.pins.insert(id.clone(), pin)),
                None => drop(self.pins.remove(&id)),
            }
            self.catalogue.pin(&id, false);
            gone.push(id);
        }
        if !gone.is_empty() {
            drop(self.writer.pins(&self.pins));
            self.models_changed(gone);
        }
    }

    /// Answers a call with policy's reply.
    pub(super) fn reply(&mut self, request: &RequestId, result: Result<ModelState, LoadError>) {
        let Some(OpenCall { about, sender }) = self.calls.open.remove(request) else {
            return;
        };
        let answer = match (result, about) {
            (Err(why), _) => Err(stage::error(&why)),
            (Ok(state), About::Model(id)) => {
                // A model that had left the catalogue is gone with its last instance.
                let gone = || v1::Model {
                    status: convert::model::state(&state).0.into(),
                    id: id.clone(),
                    ..v1::Model::default()
                };
                Ok(Answer::Model(Box::new(self.model(&id).unwrap_or_else(gone))))
            }
            (Ok(_), About::Worker { instances }) => Ok(Answer::Forgotten(instances)),
        };
        // If nobody listens, that is fine: the call has done its work.
        sender.send_replace(CallState::Done(answer));
    }

    /// The catalogue's entry with the device and settings that an operator chose; none if nothing was chosen or the model is unknown.
    pub(super) fn overrides(&self, load: &v1::LoadModelRequest) -> Result<Option<ModelSpec>, Error> {
        let Some(entry) = self.catalogue.get(&load.model) else {
            return Ok(None);
        };
        let changed = entry.overridden(&load.override_json)?;
        // Before that, a worker may still join whose server accepts the arguments.
        if self.fleet.settled() {
            changed.check_args()?;
        }
        let replicas = replicas(load, entry)?;
        if load.device_id.is_empty() && load.replicas == 0 && changed.settings() == entry.settings() {
            return Ok(None);
        }
        let device = match load.device_id.as_str() {
            "" => entry.model().device.clone(),
            chosen => config::device(chosen),
        };
        let spec = convert::model::spec_on(&changed, device, &self.observed);
        Ok(Some(ModelSpec { replicas, ..spec }))
    }
}

/// Number of instances that a load makes: the request's, else the configured one.
fn replicas(load: &v1::LoadModelRequest, entry: &Entry) -> Result<NonZeroU32, Error> {
    let most = entry.model().replica_max;
    let wanted = NonZeroU32::new(load.replicas).unwrap_or(entry.model().replicas);
    if wanted <= most {
        return Ok(wanted);
    }
    let message = format!("`replicas` must be at most {most} (`replica_max`), not {wanted}");
    Err(Code::InvalidLoadRequest.error(message).with_param("replicas"))
}
