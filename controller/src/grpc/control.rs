//! The service `muster.v1.Control`, for operators, gateways and the CLI.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures::{StreamExt as _, stream};
use muster_core::Code;
use muster_proto::{
    StatusExt,
    life::BEAT_EVERY,
    v1::{self, control_server::Control, ensure_loaded_event, load_model_event, route_update},
};
use tokio::{
    sync::broadcast::{self, error::RecvError},
    time::{Instant, sleep_until, timeout_at},
};
use tonic::{Request, Response, Status};

use super::{Boxed, until_stopped};
use crate::{
    convert::{self, stage::unknown_model, wish::Wish},
    driver::{
        handle::{Ensure, Handle, Word},
        inbox::{Answer, Order, Query, stopping},
    },
    reload, replace,
    routes::{Step, Subscription},
    state::{Pin, StateDir},
};

/// Largest number of places in an explanation if the caller sets none.
const EXPLAINED_PLACES: usize = 16;

/// The service.
#[derive(Debug, Clone)]
pub(crate) struct ControlService {
    handle: Handle,
    disk: Arc<StateDir>,
}

impl ControlService {
    /// Answers from `handle`.
    pub(crate) fn new(handle: Handle, disk: Arc<StateDir>) -> Self {
        Self { handle, disk }
    }
}

#[tonic::async_trait]
impl Control for ControlService {
    type LoadModelStream = Boxed<v1::LoadModelEvent>;
    type ReplaceLoadStream = Boxed<v1::LoadModelEvent>;
    type EnsureLoadedStream = Boxed<v1::EnsureLoadedEvent>;
    type WatchRoutesStream = Boxed<v1::RouteUpdate>;
    type WatchEventsStream = Boxed<v1::FleetEvent>;

    async fn list_models(
        &self,
        request: Request<v1::ListModelsRequest>,
    ) -> Result<Response<v1::ListModelsResponse>, Status> {
        let request = request.into_inner();
        self.handle
            .query(|reply| Query::Models(request, reply))
            .await
            .map(Response::new)
    }

    async fn get_model(
        &self,
        request: Request<v1::GetModelRequest>,
    ) -> Result<Response<v1::GetModelResponse>, Status> {
        let id = named(request.into_inner().model, "model")?;
        let model = self.handle.query(|reply| Query::Model(id.clone(), reply)).await?;
        let model = model.ok_or_else(|| unknown_model(&id).into_status())?;
        Ok(Response::new(v1::GetModelResponse { model: Some(model) }))
    }

    async fn reload(&self, _: Request<v1::ReloadRequest>) -> Result<Response<v1::ReloadResponse>, Status> {
        let reloaded = reload::reload(&self.handle, self.handle.sources()).await;
        reloaded.map(Response::new).map_err(StatusExt::into_status)
    }

    async fn adjust(
        &self,
        request: Request<v1::AdjustRequest>,
    ) -> Result<Response<v1::AdjustResponse>, Status> {
        let text = request.into_inner().settings_json;
        let wrong = |error: serde_json::Error| {
            let error = Code::InvalidRequest.error(format!("`settings_json` is no object: {error}"));
            error.with_param("settings_json").into_status()
        };
        let changes = match text.as_str() {
            "" => serde_json::Map::new(),
            text => serde_json::from_str(text).map_err(wrong)?,
        };
        let shown = reload::adjust(&self.handle, Arc::clone(&self.disk), changes).await;
        let settings_json = shown
            .map(|shown| serde_json::Value::Object(shown).to_string())
            .map_err(StatusExt::into_status)?;
        Ok(Response::new(v1::AdjustResponse { settings_json }))
    }

    async fn load_model(
        &self,
        request: Request<v1::LoadModelRequest>,
    ) -> Result<Response<Self::LoadModelStream>, Status> {
        let request = request.into_inner();
        named(request.model.clone(), "model")?;
        let mut call = self.handle.call(Order::Load(request))?;
        // An immediate refusal fails the call itself.
        let first = call.next().await?;
        let words = stream::unfold(Some((call, Some(first))), |state| async {
            let (mut call, waiting) = state?;
            let word = match waiting {
                Some(word) => Ok(word),
                None => call.next().await,
            };
            match word {
                Ok(Word::Progress(kind)) => Some((Ok(load_event(*kind)), Some((call, None)))),
                Ok(Word::Done(Answer::Model(model))) => {
                    Some((Ok(load_event(load_model_event::Kind::Loaded(*model))), None))
                }
                Ok(Word::Done(Answer::Forgotten(_))) => Some((Err(confused()), None)),
                Err(status) => Some((Err(status), None)),
            }
        });
        Ok(Response::new(until_stopped(words, self.handle.stop())))
    }

    async fn replace_load(
        &self,
        request: Request<v1::LoadModelRequest>,
    ) -> Result<Response<Self::ReplaceLoadStream>, Status> {
        let request = request.into_inner();
        named(request.model.clone(), "model")?;
        let mut heard = replace::begin(self.handle.clone(), request);
        // An immediate refusal fails the call itself.
        let first = heard.recv().await.ok_or_else(confused)??;
        let others = stream::poll_fn(move |context| heard.poll_recv(context));
        let words = stream::iter([Ok(first)]).chain(others);
        Ok(Response::new(Box::pin(words)))
    }

    async fn unload_model(
        &self,
        request: Request<v1::UnloadModelRequest>,
    ) -> Result<Response<v1::UnloadModelResponse>, Status> {
        let request = request.into_inner();
        named(request.model.clone(), "model")?;
        match self.finish(Order::Unload(request)).await? {
            Answer::Model(model) => Ok(Response::new(v1::UnloadModelResponse { model: Some(*model) })),
            Answer::Forgotten(_) => Err(confused()),
        }
    }

    async fn ensure_loaded(
        &self,
        request: Request<v1::EnsureLoadedRequest>,
    ) -> Result<Response<Self::EnsureLoadedStream>, Status> {
        let request = request.into_inner();
        named(request.ensure_id.clone(), "ensure_id")?;
        named(request.model_id.clone(), "model_id")?;
        let wish = Wish::try_from(&request).map_err(|error| convert::missing(error).into_status())?;
        let budget = request
            .wait_budget
            .as_ref()
            .and_then(|budget| Duration::try_from(*budget).ok());
        let wait = Wait {
            deadline: budget.and_then(|budget| Instant::now().checked_add(budget)),
            last: None,
            epoch: self.handle.epoch(),
            ensure: self.handle.ensure(wish)?,
        };
        let events = stream::unfold(Some(wait), |wait| async { wait?.next().await });
        Ok(Response::new(until_stopped(events, self.handle.stop())))
    }

    async fn watch_routes(
        &self,
        _request: Request<v1::WatchRoutesRequest>,
    ) -> Result<Response<Self::WatchRoutesStream>, Status> {
        let watch = Watch::open(self.handle.clone()).await?;
        let updates = stream::unfold(Some(watch), |watch| async {
            let mut watch = watch?;
            match watch.next().await {
                Ok(update) => Some((Ok(update), Some(watch))),
                Err(status) => Some((Err(status), None)),
            }
        });
        Ok(Response::new(until_stopped(updates, self.handle.stop())))
    }

    async fn watch_events(
        &self,
        request: Request<v1::WatchEventsRequest>,
    ) -> Result<Response<Self::WatchEventsStream>, Status> {
        let model = request.into_inner().model;
        let start = (self.handle.events(), model);
        let events = stream::unfold(start, |(mut events, model)| async {
            let event = next_event(&mut events, &model).await?;
            Some((Ok(event), (events, model)))
        });
        Ok(Response::new(until_stopped(events, self.handle.stop())))
    }

    async fn list_devices(
        &self,
        _request: Request<v1::ListDevicesRequest>,
    ) -> Result<Response<v1::ListDevicesResponse>, Status> {
        self.handle.query(Query::Devices).await.map(Response::new)
    }

    async fn list_workers(
        &self,
        _request: Request<v1::ListWorkersRequest>,
    ) -> Result<Response<v1::ListWorkersResponse>, Status> {
        self.handle.query(Query::Workers).await.map(Response::new)
    }

    async fn forget_worker(
        &self,
        request: Request<v1::ForgetWorkerRequest>,
    ) -> Result<Response<v1::ForgetWorkerResponse>, Status> {
        let request = request.into_inner();
        named(request.worker_id.clone(), "worker_id")?;
        match self.finish(Order::Forget(request)).await? {
            Answer::Forgotten(instance_ids) => Ok(Response::new(v1::ForgetWorkerResponse { instance_ids })),
            Answer::Model(_) => Err(confused()),
        }
    }

    async fn pin_model(
        &self,
        request: Request<v1::PinModelRequest>,
    ) -> Result<Response<v1::PinModelResponse>, Status> {
        let v1::PinModelRequest { model, while_loaded } = request.into_inner();
        let pin = if while_loaded {
            Pin::WHILE_LOADED
        } else {
            Pin::Always(true)
        };
        let model = Some(self.handle.pin(named(model, "model")?, pin).await?);
        Ok(Response::new(v1::PinModelResponse { model }))
    }

    async fn unpin_model(
        &self,
        request: Request<v1::UnpinModelRequest>,
    ) -> Result<Response<v1::UnpinModelResponse>, Status> {
        let id = named(request.into_inner().model, "model")?;
        let model = Some(self.handle.pin(id, Pin::Always(false)).await?);
        Ok(Response::new(v1::UnpinModelResponse { model }))
    }

    async fn explain_load(
        &self,
        request: Request<v1::ExplainLoadRequest>,
    ) -> Result<Response<v1::ExplainLoadResponse>, Status> {
        let request = request.into_inner();
        named(request.model.clone(), "model")?;
        let places = match request.max_places {
            0 => EXPLAINED_PLACES,
            given => usize::try_from(given).unwrap_or(usize::MAX),
        };
        let ask = |reply| Query::Explain(request, places, reply);
        let answer = self.handle.query(ask).await?;
        answer.map(Response::new).map_err(StatusExt::into_status)
    }

    async fn get_stats(
        &self,
        _request: Request<v1::GetStatsRequest>,
    ) -> Result<Response<v1::GetStatsResponse>, Status> {
        self.handle.query(Query::Stats).await.map(Response::new)
    }
}

impl ControlService {
    async fn finish(&self, order: Order) -> Result<Answer, Status> {
        let stop = self.handle.stop();
        let call = self.handle.call(order)?;
        tokio::select! {
            biased;
            () = stop.cancelled() => Err(stopping()),
            answer = call.finish() => answer,
        }
    }
}

fn named(text: String, field: &str) -> Result<String, Status> {
    if text.is_empty() {
        return Err(Code::InvalidRequest
            .error(format!("{field} is missing"))
            .with_param(field)
            .into_status());
    }
    Ok(text)
}

fn load_event(kind: load_model_event::Kind) -> v1::LoadModelEvent {
    v1::LoadModelEvent { kind: Some(kind) }
}

fn confused() -> Status {
    Code::Internal
        .error("the driver answered another question")
        .into_status()
}

/// An open `EnsureLoaded` stream with its time limit.
#[derive(Debug)]
struct Wait {
    ensure: Ensure,
    deadline: Option<Instant>,
    last: Option<ensure_loaded_event::Kind>,
    epoch: u64,
}

impl Wait {
    async fn next(mut self) -> Option<(Result<v1::EnsureLoadedEvent, Status>, Option<Self>)> {
        let deadline = self.deadline;
        let patience = async {
            match deadline {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let event = tokio::select! {
            biased;
            event = self.ensure.next() => event?,
            () = patience => return Some((Ok(self.gave_up()), None)),
        };
        self.last.clone_from(&event.kind);
        match &event.kind {
            Some(ensure_loaded_event::Kind::Failed(_)) => Some((Ok(event), None)),
            Some(ensure_loaded_event::Kind::Ready(_)) => {
                // The time limit is only for waiting. A ready model stays ready as long as the stream is open.
                self.deadline = None;
                Some((Ok(event), Some(self)))
            }
            Some(
                ensure_loaded_event::Kind::Queued(_)
                | ensure_loaded_event::Kind::Evicting(_)
                | ensure_loaded_event::Kind::Loading(_),
            )
            | None => Some((Ok(event), Some(self))),
        }
    }

    /// The time limit has passed: the error tells what the stream waited for last.
    fn gave_up(&self) -> v1::EnsureLoadedEvent {
        let no_worker = i32::from(v1::QueuedReason::NoWorker);
        let code = match &self.last {
            Some(ensure_loaded_event::Kind::Queued(queued)) if queued.reason == no_worker => Code::NoWorker,
            Some(ensure_loaded_event::Kind::Loading(_)) => Code::ModelLoading,
            Some(
                ensure_loaded_event::Kind::Queued(_)
                | ensure_loaded_event::Kind::Evicting(_)
                | ensure_loaded_event::Kind::Ready(_)
                | ensure_loaded_event::Kind::Failed(_),
            )
            | None => Code::EvictionTimeout,
        };
        let error = code.error("the model was not ready within the caller's wait budget");
        v1::EnsureLoadedEvent {
            epoch: self.epoch,
            kind: Some(ensure_loaded_event::Kind::Failed(error.into())),
        }
    }
}

/// An open `WatchRoutes` stream.
#[derive(Debug)]
struct Watch {
    handle: Handle,
    snapshot: VecDeque<v1::RouteUpdate>,
    steps: broadcast::Receiver<Step>,
    at: (u64, u64),
    /// Heartbeats are sent however much else is sent, since only they carry troubles.
    heartbeat_due: Instant,
}

impl Watch {
    async fn open(handle: Handle) -> Result<Self, Status> {
        let Subscription { snapshot, steps } = handle.query(Query::Routes).await?;
        Ok(Self {
            handle,
            snapshot: snapshot.into(),
            steps,
            at: (0, 0),
            heartbeat_due: Instant::now(),
        })
    }

    async fn next(&mut self) -> Result<v1::RouteUpdate, Status> {
        loop {
            if let Some(part) = self.snapshot.pop_front() {
                self.at = (part.epoch, part.version);
                return Ok(part);
            }
            match timeout_at(self.heartbeat_due, self.steps.recv()).await {
                Ok(Ok(Step::Delta(update))) => {
                    self.at = (update.epoch, update.version);
                    return Ok(v1::RouteUpdate::clone(&update));
                }
                // The watcher lagged, or the epoch changed: start again with a snapshot.
                Ok(Ok(Step::Anew) | Err(RecvError::Lagged(_))) => {
                    *self = Self::open(self.handle.clone()).await?
                }
                Ok(Err(RecvError::Closed)) => return Err(stopping()),
                Err(_) if !self.handle.alive() => {
                    return Err(Status::unavailable("the controller's driver stands still"));
                }
                Err(_) => {
                    let (epoch, version) = self.at;
                    self.heartbeat_due =
                        Instant::now() + self.handle.timing().heartbeat_every.min(BEAT_EVERY);
                    let troubles = self.handle.troubles();
                    let kind = Some(route_update::Kind::Heartbeat(v1::Heartbeat { troubles }));
                    return Ok(v1::RouteUpdate { epoch, version, kind });
                }
            }
        }
    }
}

async fn next_event(events: &mut broadcast::Receiver<v1::FleetEvent>, model: &str) -> Option<v1::FleetEvent> {
    loop {
        match events.recv().await {
            Ok(event) if model.is_empty() || event.model == model => return Some(event),
            Ok(_) => {}
            Err(RecvError::Lagged(lagged)) => {
                return Some(v1::FleetEvent {
                    lagged,
                    ..v1::FleetEvent::default()
                });
            }
            Err(RecvError::Closed) => return None,
        }
    }
}
