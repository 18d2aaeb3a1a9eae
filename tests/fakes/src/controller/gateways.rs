//! A scripted controller: its routes are what the test says, and each `EnsureLoaded` gets the scripted answer.

use std::{
    pin::Pin,
    sync::{Arc, Mutex},
};

use muster_core::{Code, Error};
use muster_proto::{
    StatusExt as _,
    net::Address,
    trust::{Door, Keys},
    v1::{
        self, control_server::ControlServer, ensure_loaded_event, load_model_event,
        models_server::ModelsServer, route_update,
    },
};
use tokio::sync::watch;
use tokio_stream::{Stream, StreamExt as _, wrappers::WatchStream};
use tonic::{Request, Response, Status};

use super::catalogue::Catalogue;
use crate::{Process, absent, within};

type Events<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// What the controller says.
#[derive(Clone, Debug, Default)]
pub struct Said {
    pub epoch: u64,
    pub routes: Vec<v1::Route>,
    pub models: Vec<v1::ModelSummary>,
    /// The answer to every wish, once there is one.
    pub answer: Option<ensure_loaded_event::Kind>,
    /// What operators see.
    pub catalogue: Vec<v1::Model>,
    pub devices: Vec<v1::DeviceStatus>,
    pub workers: Vec<v1::WorkerStatus>,
    /// Models of each type that may be loaded at once.
    pub limits: Vec<i32>,
    /// The answer to every load, once there is one.
    pub load: Option<Result<v1::Model, Error>>,
    /// Models that a load evicts first.
    pub evicts: Vec<String>,
    /// The answer to every unload, once there is one.
    pub unload: Option<Result<v1::Model, Error>>,
}

/// What the controller heard.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    pub wishes: Vec<v1::EnsureLoadedRequest>,
    pub closed: usize,
    pub loads: Vec<v1::LoadModelRequest>,
    /// Those in place of what is loaded.
    pub replacements: Vec<v1::LoadModelRequest>,
    /// Options saved, by model.
    pub options: Vec<(String, String)>,
    pub unloads: Vec<v1::UnloadModelRequest>,
    pub pins: Vec<(String, bool)>,
    pub reloads: usize,
}

#[derive(Debug)]
struct State {
    said: watch::Sender<Said>,
    heard: watch::Sender<Heard>,
    version: Mutex<u64>,
}

impl State {
    fn find(&self, id: &str) -> Result<v1::Model, Status> {
        let said = self.said.borrow();
        let model = said.catalogue.iter().find(|model| model.id == id);
        let unknown = || Code::UnknownModel.error(format!("no model {id}")).into_status();
        model.cloned().ok_or_else(unknown)
    }

    /// Waits until the test says the answer.
    async fn answer(
        &self,
        find: impl Fn(&Said) -> Option<Result<v1::Model, Error>>,
    ) -> Result<v1::Model, Status> {
        let mut said = self.said.subscribe();
        let answer = said.wait_for(|said| find(said).is_some()).await.unwrap();
        find(&answer)
            .unwrap()
            .map_err(muster_proto::StatusExt::into_status)
    }

    fn pin(&self, id: String, pinned: bool) -> Result<v1::Model, Status> {
        let model = self.find(&id)?;
        self.heard.send_modify(|heard| heard.pins.push((id, pinned)));
        Ok(v1::Model { pinned, ..model })
    }
}

/// A running controller.
#[derive(Debug)]
pub struct Controller {
    pub address: Address,
    state: Arc<State>,
    process: Process,
}

impl Controller {
    pub async fn start(said: Said) -> Self {
        Self::start_at(&crate::socket(), said).await
    }

    pub async fn start_at(address: &Address, said: Said) -> Self {
        let state = Arc::new(State {
            said: watch::Sender::new(said),
            heard: watch::Sender::default(),
            version: Mutex::new(0),
        });
        let process = Process::new();
        let (service, address) = (Arc::clone(&state), address.clone());
        let heard = state.heard.clone();
        let bound = process.runtime().spawn(async move {
            let door = Door::parts(&address, None, &Keys::default()).await.unwrap();
            let (mut server, listener) = door.open();
            let server = server
                .add_service(ControlServer::new(Service(service)))
                .add_service(ModelsServer::new(Catalogue::new(heard)));
            tokio::spawn(server.serve_with_incoming(listener));
            address
        });
        Self {
            address: bound.await.unwrap(),
            state,
            process,
        }
    }

    /// Says something else from now on.
    pub fn say(&self, change: impl FnOnce(&mut Said)) {
        self.state.said.send_modify(change);
    }

    pub fn heard(&self) -> Heard {
        self.state.heard.borrow().clone()
    }

    /// Waits until it has heard what the test wants.
    pub async fn hears(&self, what: impl Fn(&Heard) -> bool) -> Heard {
        let mut heard = self.state.heard.subscribe();
        within(heard.wait_for(what)).await.unwrap().clone()
    }

    /// Dies without a word.
    pub fn kill(self) -> Address {
        drop(self.process);
        self.address
    }
}

#[derive(Debug)]
struct Service(Arc<State>);

/// Counts a wish as closed when its stream is dropped.
struct Closing(Arc<State>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.heard.send_modify(|heard| heard.closed += 1);
    }
}

#[tonic::async_trait]
impl v1::control_server::Control for Service {
    type LoadModelStream = Events<v1::LoadModelEvent>;
    type ReplaceLoadStream = Events<v1::LoadModelEvent>;
    type EnsureLoadedStream = Events<v1::EnsureLoadedEvent>;
    type WatchRoutesStream = Events<v1::RouteUpdate>;
    type WatchEventsStream = Events<v1::FleetEvent>;

    async fn ensure_loaded(
        &self,
        request: Request<v1::EnsureLoadedRequest>,
    ) -> Result<Response<Self::EnsureLoadedStream>, Status> {
        let closing = Closing(Arc::clone(&self.0));
        self.0
            .heard
            .send_modify(|heard| heard.wishes.push(request.into_inner()));
        let events = WatchStream::new(self.0.said.subscribe()).filter_map(move |said| {
            let _open = &closing;
            said.answer.map(|kind| {
                Ok(v1::EnsureLoadedEvent {
                    epoch: said.epoch,
                    kind: Some(kind),
                })
            })
        });
        Ok(Response::new(Box::pin(events)))
    }

    async fn watch_routes(
        &self,
        _: Request<v1::WatchRoutesRequest>,
    ) -> Result<Response<Self::WatchRoutesStream>, Status> {
        let state = Arc::clone(&self.0);
        let updates = WatchStream::new(self.0.said.subscribe()).map(move |said| {
            let mut version = state.version.lock().unwrap();
            *version += 1;
            let part = v1::SnapshotPart {
                routes: said.routes,
                models: said.models,
                last: true,
                settled: true,
            };
            let kind = Some(route_update::Kind::Snapshot(part));
            Ok(v1::RouteUpdate {
                epoch: said.epoch,
                version: *version,
                kind,
            })
        });
        Ok(Response::new(Box::pin(updates)))
    }

    async fn list_models(
        &self,
        request: Request<v1::ListModelsRequest>,
    ) -> Result<Response<v1::ListModelsResponse>, Status> {
        let models = if request.into_inner().suggested {
            Vec::new()
        } else {
            self.0.said.borrow().catalogue.clone()
        };
        Ok(Response::new(v1::ListModelsResponse {
            models,
            settled: true,
        }))
    }
    async fn get_model(
        &self,
        request: Request<v1::GetModelRequest>,
    ) -> Result<Response<v1::GetModelResponse>, Status> {
        let model = Some(self.0.find(&request.into_inner().model)?);
        Ok(Response::new(v1::GetModelResponse { model }))
    }
    async fn load_model(
        &self,
        request: Request<v1::LoadModelRequest>,
    ) -> Result<Response<Self::LoadModelStream>, Status> {
        let request = request.into_inner();
        self.0.heard.send_modify(|heard| heard.loads.push(request));
        let (evicts, evicting) = (
            self.0.said.borrow().evicts.clone(),
            !self.0.said.borrow().evicts.is_empty(),
        );
        let evicting = evicting.then(|| {
            let models = evicts;
            let reason = String::new();
            load_model_event::Kind::Evicting(v1::Evicting { models, reason })
        });
        let state = Arc::clone(&self.0);
        let last = futures::stream::once(async move {
            let model = state.answer(|said| said.load.clone()).await?;
            Ok(load_model_event::Kind::Loaded(model))
        });
        let events = tokio_stream::iter(evicting.map(Ok)).chain(last);
        let events = events.map(|kind| kind.map(|kind| v1::LoadModelEvent { kind: Some(kind) }));
        Ok(Response::new(Box::pin(events)))
    }
    async fn replace_load(
        &self,
        request: Request<v1::LoadModelRequest>,
    ) -> Result<Response<Self::ReplaceLoadStream>, Status> {
        let request = request.into_inner();
        self.0.find(&request.model)?;
        self.0.heard.send_modify(|heard| heard.replacements.push(request));
        let state = Arc::clone(&self.0);
        let last = futures::stream::once(async move {
            let model = state.answer(|said| said.load.clone()).await?;
            let kind = Some(load_model_event::Kind::Loaded(model));
            Ok(v1::LoadModelEvent { kind })
        });
        Ok(Response::new(Box::pin(last)))
    }
    async fn unload_model(
        &self,
        request: Request<v1::UnloadModelRequest>,
    ) -> Result<Response<v1::UnloadModelResponse>, Status> {
        let request = request.into_inner();
        self.0.find(&request.model)?;
        self.0.heard.send_modify(|heard| heard.unloads.push(request));
        let model = Some(self.0.answer(|said| said.unload.clone()).await?);
        Ok(Response::new(v1::UnloadModelResponse { model }))
    }
    async fn adjust(&self, _: Request<v1::AdjustRequest>) -> Result<Response<v1::AdjustResponse>, Status> {
        let settings = r#"{"max_loaded_models":1,"ctx_size":-1,"llamacpp_args":"","extra_models_dir":""}"#;
        Ok(Response::new(v1::AdjustResponse {
            settings_json: settings.to_owned(),
        }))
    }
    async fn pin_model(
        &self,
        request: Request<v1::PinModelRequest>,
    ) -> Result<Response<v1::PinModelResponse>, Status> {
        let model = Some(self.0.pin(request.into_inner().model, true)?);
        Ok(Response::new(v1::PinModelResponse { model }))
    }
    async fn explain_load(
        &self,
        _: Request<v1::ExplainLoadRequest>,
    ) -> Result<Response<v1::ExplainLoadResponse>, Status> {
        absent()
    }
    async fn unpin_model(
        &self,
        request: Request<v1::UnpinModelRequest>,
    ) -> Result<Response<v1::UnpinModelResponse>, Status> {
        let model = Some(self.0.pin(request.into_inner().model, false)?);
        Ok(Response::new(v1::UnpinModelResponse { model }))
    }
    async fn watch_events(
        &self,
        _: Request<v1::WatchEventsRequest>,
    ) -> Result<Response<Self::WatchEventsStream>, Status> {
        absent()
    }
    async fn list_devices(
        &self,
        _: Request<v1::ListDevicesRequest>,
    ) -> Result<Response<v1::ListDevicesResponse>, Status> {
        let devices = self.0.said.borrow().devices.clone();
        Ok(Response::new(v1::ListDevicesResponse { devices }))
    }
    async fn list_workers(
        &self,
        _: Request<v1::ListWorkersRequest>,
    ) -> Result<Response<v1::ListWorkersResponse>, Status> {
        let workers = self.0.said.borrow().workers.clone();
        Ok(Response::new(v1::ListWorkersResponse { workers }))
    }
    async fn reload(&self, _: Request<v1::ReloadRequest>) -> Result<Response<v1::ReloadResponse>, Status> {
        self.0.heard.send_modify(|heard| heard.reloads += 1);
        Ok(Response::new(v1::ReloadResponse {
            added: vec!["new".to_owned()],
            ..v1::ReloadResponse::default()
        }))
    }

    async fn forget_worker(
        &self,
        _: Request<v1::ForgetWorkerRequest>,
    ) -> Result<Response<v1::ForgetWorkerResponse>, Status> {
        absent()
    }
    async fn get_stats(
        &self,
        _: Request<v1::GetStatsRequest>,
    ) -> Result<Response<v1::GetStatsResponse>, Status> {
        let max_loaded_models = self.0.said.borrow().limits.clone();
        Ok(Response::new(v1::GetStatsResponse {
            max_loaded_models,
            ..v1::GetStatsResponse::default()
        }))
    }
}
