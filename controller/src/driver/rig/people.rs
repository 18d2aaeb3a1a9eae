//! Gateways with their streams, operators with their calls.

use std::collections::BTreeSet;

use futures::FutureExt as _;
use muster_core::{Error, HoldId, InstanceId, ModelId, RequestId, WorkerId};
use muster_policy::{Event, UnloadHow};
use muster_proto::v1::{self, ensure_loaded_event::Kind as Stage};
use tokio::sync::oneshot;

use super::{Rig, world::Life};
use crate::driver::{
    handle::{Ensure, RunningCall, Word},
    inbox::{Ask, Order, Pin, Query},
};
use crate::state::Pin as KeptPin;

/// A gateway's stream as the gateway sees it.
pub(in crate::driver) struct Stream {
    ensure: Ensure,
    pub(in crate::driver) last: Option<Stage>,
}

impl Stream {
    pub(in crate::driver) fn ready(&self) -> Option<(InstanceId, WorkerId)> {
        match &self.last {
            Some(Stage::Ready(ready)) => {
                let route = ready.route.as_ref()?.instance.as_ref()?;
                Some((route.instance_id.as_str().into(), route.worker_id.as_str().into()))
            }
            _ => None,
        }
    }

    pub(in crate::driver) fn failed(&self) -> Option<Error> {
        match &self.last {
            Some(Stage::Failed(error)) => Some(error.clone().into()),
            _ => None,
        }
    }
}

/// An operator's call.
pub(in crate::driver) struct Asked {
    call: RunningCall,
    pub(in crate::driver) answer: Option<Result<(), tonic::Status>>,
}

impl Rig {
    pub(super) async fn open(&mut self, model: &str) -> HoldId {
        self.open_avoiding(model, Vec::new(), Vec::new()).await
    }

    pub(super) async fn open_avoiding(
        &mut self,
        model: &str,
        instances: Vec<InstanceId>,
        workers: Vec<WorkerId>,
    ) -> HoldId {
        let name = self.name("hold");
        if !instances.is_empty() || !workers.is_empty() {
            self.avoiding.insert(model.into());
        }
        let request = v1::EnsureLoadedRequest {
            ensure_id: name.clone(),
            gateway_id: "gateway".to_owned(),
            model_id: model.to_owned(),
            avoid_instances: instances.iter().map(InstanceId::to_string).collect(),
            avoid_workers: workers.iter().map(WorkerId::to_string).collect(),
            wait_budget: None,
        };
        let ensure = self.handle().ensure((&request).try_into().unwrap()).unwrap();
        let hold = HoldId::from(name.as_str());
        self.streams.insert(hold.clone(), Stream { ensure, last: None });
        self.settle().await;
        hold
    }

    /// A gateway has what it wanted, or gives up.
    pub(super) async fn close(&mut self, hold: &HoldId) {
        self.streams.remove(hold);
        self.settle().await;
    }

    async fn call(&mut self, order: Order) -> RequestId {
        let call = self.handle().call(order).unwrap();
        let name = RequestId::from(self.name("call").as_str());
        self.calls.insert(name.clone(), Asked { call, answer: None });
        self.settle().await;
        name
    }

    /// An operator's load; of so many bytes, if it is one with settings of its own.
    pub(super) async fn load(&mut self, model: &str, bytes: Option<u8>) -> RequestId {
        let mut request = v1::LoadModelRequest {
            model: model.to_owned(),
            ..v1::LoadModelRequest::default()
        };
        if let Some(bytes) = bytes {
            self.overridden.insert(model.into());
            self.spy
                .next_load_takes(muster_core::Bytes::new(u64::from(bytes % 100)));
            request.override_json = format!("{{\"ctx_size\": {}}}", 256 * (1 + u32::from(bytes)));
        }
        self.call(Order::Load(request)).await
    }

    pub(super) async fn unload(&mut self, model: &str, how: UnloadHow) -> RequestId {
        let request = v1::UnloadModelRequest {
            model: model.to_owned(),
            force: how == UnloadHow::Force,
            cancel_load: how == UnloadHow::DrainOrCancel,
        };
        self.call(Order::Unload(request)).await
    }

    pub(super) async fn forget(&mut self, worker: &WorkerId) -> RequestId {
        let request = v1::ForgetWorkerRequest {
            worker_id: worker.to_string(),
        };
        self.call(Order::Forget(request)).await
    }

    pub(super) async fn pin(&mut self, model: &ModelId) {
        let pinned = !self.world.catalogue[model].pinned;
        let (reply, _) = oneshot::channel();
        let pin = Pin {
            model: model.to_string(),
            pin: KeptPin::Always(pinned),
            reply,
        };
        self.ask(Ask::Pin(pin)).await;
    }

    /// What a load would do is asked for, which changes nothing.
    pub(super) async fn explain(&mut self, model: &ModelId) {
        let driver = self.driver.as_mut().unwrap();
        let before = format!("{:?}", driver.fleet.instances());
        let now = driver.now();
        assert!(driver.fleet.explain(now, model.as_str(), 3).is_some());
        assert_eq!(before, format!("{:?}", driver.fleet.instances()));
        let (reply, mut answer) = oneshot::channel();
        let request = v1::ExplainLoadRequest {
            model: model.to_string(),
            ..v1::ExplainLoadRequest::default()
        };
        self.ask(Ask::Query(Query::Explain(request, 3, reply))).await;
        assert!(answer.try_recv().unwrap().is_ok(), "{}", self.world.tail());
    }

    /// From now on each start of the controller is to load so many models.
    pub(super) fn preload_at_starts(&mut self, count: u8) {
        for model in self.models.iter_mut().take(count.into()) {
            model.enabled = true;
        }
    }

    /// The configuration wants a model loaded as long as there is free room.
    pub(super) async fn preload(&mut self, model: ModelId) {
        let driver = self.driver.as_mut().unwrap();
        driver.feed(Event::PreloadRequested { model });
        driver.publish();
        self.settle().await;
    }

    /// The catalogue changed: policy hears it whole.
    pub(super) async fn publish_catalogue(&mut self) {
        self.spy.table(&self.world.catalogue);
        let driver = self.driver.as_mut().unwrap();
        driver.catalogue_changed();
        driver.publish();
        self.settle().await;
    }

    async fn ask(&mut self, ask: Ask) {
        let driver = self.driver.as_mut().unwrap();
        driver.ask(ask);
        driver.publish();
        self.settle().await;
    }

    /// Gateways and operators hear what is said to them.
    pub(super) fn hear_streams(&mut self) {
        let mut ready = Vec::new();
        let mut over = BTreeSet::new();
        for (hold, stream) in &mut self.streams {
            while let Some(word) = stream.ensure.next().now_or_never() {
                let Some(event) = word else {
                    over.insert(hold.clone());
                    break;
                };
                stream.last = event.kind;
                ready.extend(stream.ready().map(|place| (hold.clone(), place)));
            }
        }
        assert!(
            over.is_empty(),
            "streams end by themselves: {over:?}\n{}",
            self.world.tail()
        );
        for (hold, (instance, worker)) in ready {
            self.check_hold(&hold, &instance, &worker);
        }
        for asked in self.calls.values_mut().filter(|asked| asked.answer.is_none()) {
            while let Some(word) = asked.call.next().now_or_never() {
                match word {
                    Ok(Word::Progress(_)) => {}
                    Ok(Word::Done(_)) => {
                        asked.answer = Some(Ok(()));
                        break;
                    }
                    Err(error) => {
                        asked.answer = Some(Err(error));
                        break;
                    }
                }
            }
        }
    }

    /// PROTOCOL 9: who is told that a model is ready has its hold at the worker, as far as the controller can know.
    fn check_hold(&self, hold: &HoldId, instance: &InstanceId, worker: &WorkerId) {
        let at = &self.world.workers[worker];
        let alive = |life: &Life| matches!(life, Life::Ready | Life::Quiesced | Life::Loading);
        let found = at.instances.get(instance).filter(|found| alive(&found.life));
        let held = found.is_none_or(|found| found.holds.contains(hold));
        assert!(
            held || !at.connected,
            "PROTOCOL 9: {hold} is told that {instance} is ready, which does not hold it\n{}",
            self.world.tail()
        );
    }
}
