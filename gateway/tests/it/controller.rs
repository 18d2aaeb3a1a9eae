//! A scripted controller: its routes are what the test says, and each `EnsureLoaded` gets the scripted answer.

use std::{
    pin::Pin,
    sync::{Arc, Mutex},
};

use muster_proto::{
    Code, ErrorExt as _,
    net::{self, Address, Listener},
    v1::{self, control_server::ControlServer, ensure_loaded_event, route_update},
};
use tokio::sync::watch;
use tokio_stream::{Stream, StreamExt as _, wrappers::WatchStream};
use tonic::{Request, Response, Status};

use crate::{Process, within};

type Events<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// What the controller says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Said {
    pub(crate) epoch: u64,
    pub(crate) routes: Vec<v1::Route>,
    pub(crate) models: Vec<v1::ModelSummary>,
    /// The answer to every wish, once there is one.
    pub(crate) answer: Option<ensure_loaded_event::Kind>,
}

/// What the controller heard.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard {
    pub(crate) wishes: Vec<v1::EnsureLoadedRequest>,
    pub(crate) closed: usize,
}

#[derive(Debug)]
struct State {
    said: watch::Sender<Said>,
    heard: watch::Sender<Heard>,
    version: Mutex<u64>,
}

/// A running controller.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) address: Address,
    state: Arc<State>,
    process: Process,
}

impl Controller {
    pub(crate) async fn start(said: Said) -> Self {
        Self::start_at(&"127.0.0.1:0".parse().unwrap(), said).await
    }

    pub(crate) async fn start_at(address: &Address, said: Said) -> Self {
        let state = Arc::new(State {
            said: watch::Sender::new(said),
            heard: watch::Sender::default(),
            version: Mutex::new(0),
        });
        let process = Process::new();
        let (service, address) = (Arc::clone(&state), address.clone());
        let bound = process.runtime().spawn(async move {
            let listener = Listener::bind(&address).await.unwrap();
            let address = listener.address().unwrap();
            let server = net::server().add_service(ControlServer::new(Service(service)));
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
    pub(crate) fn say(&self, change: impl FnOnce(&mut Said)) {
        self.state.said.send_modify(change);
    }

    pub(crate) fn heard(&self) -> Heard {
        self.state.heard.borrow().clone()
    }

    /// Waits until it has heard what the test wants.
    pub(crate) async fn hears(&self, what: impl Fn(&Heard) -> bool) -> Heard {
        let mut heard = self.state.heard.subscribe();
        within(heard.wait_for(what)).await.unwrap().clone()
    }

    /// Dies without a word.
    pub(crate) fn kill(self) -> Address {
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

fn absent<T>() -> Result<T, Status> {
    Err(Code::UnsupportedByRuntime.error("not scripted").into_status())
}

#[tonic::async_trait]
impl v1::control_server::Control for Service {
    type LoadModelStream = Events<v1::LoadModelEvent>;
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
        _: Request<v1::ListModelsRequest>,
    ) -> Result<Response<v1::ListModelsResponse>, Status> {
        absent()
    }
    async fn get_model(
        &self,
        _: Request<v1::GetModelRequest>,
    ) -> Result<Response<v1::GetModelResponse>, Status> {
        absent()
    }
    async fn load_model(
        &self,
        _: Request<v1::LoadModelRequest>,
    ) -> Result<Response<Self::LoadModelStream>, Status> {
        absent()
    }
    async fn unload_model(
        &self,
        _: Request<v1::UnloadModelRequest>,
    ) -> Result<Response<v1::UnloadModelResponse>, Status> {
        absent()
    }
    async fn pin_model(
        &self,
        _: Request<v1::PinModelRequest>,
    ) -> Result<Response<v1::PinModelResponse>, Status> {
        absent()
    }
    async fn explain_load(
        &self,
        _: Request<v1::ExplainLoadRequest>,
    ) -> Result<Response<v1::ExplainLoadResponse>, Status> {
        absent()
    }
    async fn unpin_model(
        &self,
        _: Request<v1::UnpinModelRequest>,
    ) -> Result<Response<v1::UnpinModelResponse>, Status> {
        absent()
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
        absent()
    }
    async fn list_workers(
        &self,
        _: Request<v1::ListWorkersRequest>,
    ) -> Result<Response<v1::ListWorkersResponse>, Status> {
        absent()
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
        absent()
    }
}
