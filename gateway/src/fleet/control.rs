//! Calls to the controller for operators: questions and orders.
//!
//! A load or an unload goes on if its call is dropped here (gateway/README.md, Runtime Admin API).

use muster_core::{Code, Error};
use muster_proto::{
    MAX_MESSAGE_BYTES, StatusExt as _,
    net::Channel,
    v1::{
        AdjustRequest, DeviceStatus, GetModelRequest, GetStatsRequest, ListDevicesRequest, ListModelsRequest,
        ListWorkersRequest, LoadModelEvent, LoadModelRequest, Model, PinModelRequest, ReloadRequest,
        ReloadResponse, UnloadModelRequest, UnpinModelRequest, WorkerStatus, control_client::ControlClient,
        load_model_event::Kind,
    },
};
use serde_json::{Map, Value};
use tonic::{Response, Status, Streaming};

use crate::translate::LONGEST_NAME;

/// A client of the controller's Control service.
#[derive(Clone, Debug)]
pub(crate) struct Control(ControlClient<Channel>);

/// The result of a successful load.
#[derive(Clone, Debug)]
pub(crate) struct LoadDone {
    pub(crate) model: Model,
    /// Models that were unloaded to make room, as far as this call saw.
    pub(crate) evicted: Vec<String>,
}

/// Whether policy may evict a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pin {
    Not,
    WhileLoaded,
    Always,
}

impl Control {
    pub(super) fn new(channel: Channel) -> Self {
        let client = ControlClient::new(channel)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        Self(client)
    }

    /// All models.
    ///
    /// # Errors
    /// The controller's error, or `controller_unavailable`. This holds for all calls.
    pub(crate) async fn models(mut self) -> Result<Vec<Model>, Error> {
        let answer = self.0.list_models(ListModelsRequest::default()).await;
        Ok(answer.map_err(|status| error(&status))?.into_inner().models)
    }

    /// Models that are not unloaded.
    pub(crate) async fn not_unloaded(mut self) -> Result<Vec<Model>, Error> {
        let request = ListModelsRequest {
            loaded_only: true,
            ..ListModelsRequest::default()
        };
        let answer = self.0.list_models(request).await;
        Ok(answer.map_err(|status| error(&status))?.into_inner().models)
    }

    /// Built-in models that are not in the catalogue.
    pub(crate) async fn suggestions(mut self) -> Result<Vec<Model>, Error> {
        let request = ListModelsRequest {
            suggested: true,
            ..ListModelsRequest::default()
        };
        let answer = self.0.list_models(request).await;
        Ok(answer.map_err(|status| error(&status))?.into_inner().models)
    }

    /// Models of each type that may be loaded at once on a host, in the order of [`ModelType::ALL`](muster_core::ModelType::ALL); -1 = no limit.
    pub(crate) async fn limits(mut self) -> Result<Vec<i32>, Error> {
        let answer = self.0.get_stats(GetStatsRequest {}).await;
        let stats = answer.map_err(|status| error(&status))?.into_inner();
        Ok(stats.max_loaded_models)
    }

    /// The model with this id.
    ///
    /// # Errors
    /// `unknown_model`.
    pub(crate) async fn model(mut self, id: &str) -> Result<Model, Error> {
        nameable(id)?;
        let request = GetModelRequest { model: id.to_owned() };
        let answer = self.0.get_model(request).await;
        shown(answer.map_err(|status| error(&status))?.into_inner().model)
    }

    /// Changes settings over the configuration, as a JSON object; those in force afterwards.
    ///
    /// # Errors
    /// `invalid_request`, `invalid_configuration`; then none is changed.
    pub(crate) async fn adjust(mut self, changes: Map<String, Value>) -> Result<Map<String, Value>, Error> {
        let settings_json = if changes.is_empty() {
            String::new()
        } else {
            Value::Object(changes).to_string()
        };
        let answer = self.0.adjust(AdjustRequest { settings_json }).await;
        let shown = answer.map_err(|status| error(&status))?.into_inner();
        serde_json::from_str(&shown.settings_json).map_err(|error| Code::Internal.error(error.to_string()))
    }

    /// Has the configuration read again.
    ///
    /// # Errors
    /// `invalid_configuration`.
    pub(crate) async fn reload(mut self) -> Result<ReloadResponse, Error> {
        let answer = self.0.reload(ReloadRequest {}).await;
        Ok(answer.map_err(|status| error(&status))?.into_inner())
    }

    /// Loads a model and waits until it is loaded.
    ///
    /// # Errors
    /// Why it was not loaded.
    pub(crate) async fn load(mut self, request: LoadModelRequest) -> Result<LoadDone, Error> {
        nameable(&request.model)?;
        done(self.0.load_model(request).await).await
    }

    /// Loads a model in place of an instance with other settings, and waits until it is loaded.
    ///
    /// # Errors
    /// Why it was not loaded. The former instance is still loaded, or loaded again, unless the error's detail `restored` is `false`.
    pub(crate) async fn replace(mut self, request: LoadModelRequest) -> Result<LoadDone, Error> {
        nameable(&request.model)?;
        done(self.0.replace_load(request).await).await
    }

    /// Begins to load a model and does not wait for the end.
    ///
    /// # Errors
    /// Why the load was refused.
    pub(crate) async fn begin_load(mut self, request: LoadModelRequest) -> Result<(), Error> {
        nameable(&request.model)?;
        // An immediate refusal fails the call itself.
        let answer = self.0.load_model(request).await;
        answer.map(drop).map_err(|status| error(&status))
    }

    /// Unloads a model and waits until it is unloaded.
    ///
    /// # Errors
    /// `unknown_model`, `model_loading`.
    pub(crate) async fn unload(mut self, request: UnloadModelRequest) -> Result<Model, Error> {
        nameable(&request.model)?;
        let answer = self.0.unload_model(request).await;
        shown(answer.map_err(|status| error(&status))?.into_inner().model)
    }

    /// Pins or unpins a model.
    ///
    /// # Errors
    /// `unknown_model`.
    pub(crate) async fn pin(mut self, id: &str, pin: Pin) -> Result<Model, Error> {
        nameable(id)?;
        let model = id.to_owned();
        let answer = if pin == Pin::Not {
            let answer = self.0.unpin_model(UnpinModelRequest { model }).await;
            answer.map(|answer| answer.into_inner().model)
        } else {
            let while_loaded = pin == Pin::WhileLoaded;
            let request = PinModelRequest { model, while_loaded };
            let answer = self.0.pin_model(request).await;
            answer.map(|answer| answer.into_inner().model)
        };
        shown(answer.map_err(|status| error(&status))?)
    }

    /// All devices.
    ///
    /// # Errors
    /// As [`models`](Self::models).
    pub(crate) async fn devices(mut self) -> Result<Vec<DeviceStatus>, Error> {
        let answer = self.0.list_devices(ListDevicesRequest {}).await;
        Ok(answer.map_err(|status| error(&status))?.into_inner().devices)
    }

    /// All workers.
    ///
    /// # Errors
    /// As [`models`](Self::models).
    pub(crate) async fn workers(mut self) -> Result<Vec<WorkerStatus>, Error> {
        let answer = self.0.list_workers(ListWorkersRequest {}).await;
        Ok(answer.map_err(|status| error(&status))?.into_inner().workers)
    }
}

/// Reads the events of a load to its end.
async fn done(answer: Result<Response<Streaming<LoadModelEvent>>, Status>) -> Result<LoadDone, Error> {
    let mut events = answer.map_err(|status| error(&status))?.into_inner();
    let mut evicted = Vec::new();
    while let Some(event) = events.message().await.map_err(|status| error(&status))? {
        match event.kind {
            Some(Kind::Loaded(model)) => return Ok(LoadDone { model, evicted }),
            Some(Kind::Evicting(evicting)) => {
                evicted.extend(evicting.models);
                evicted.sort_unstable();
                evicted.dedup();
            }
            Some(Kind::Queued(_) | Kind::Loading(_)) | None => {}
        }
    }
    Err(away("its stream ended before the load did"))
}

/// Refuses a name that is too long for any model. The controller's error repeats the name, which would not fit the headers that carry
/// errors.
fn nameable(model: &str) -> Result<(), Error> {
    if model.len() <= LONGEST_NAME {
        return Ok(());
    }
    let message = format!("no model has a name of more than {LONGEST_NAME} bytes");
    Err(Code::UnknownModel.error(message).with_param("model"))
}

pub(super) fn shown(model: Option<Model>) -> Result<Model, Error> {
    model.ok_or_else(|| Code::Internal.error("the controller showed no model"))
}

/// The controller's own error if the status has typed details; otherwise the connection failed.
pub(super) fn error(status: &Status) -> Error {
    if status.details().is_empty() {
        return away(status.message());
    }
    Error::from_status(status)
}

pub(super) fn away(why: &str) -> Error {
    Code::ControllerUnavailable.error(format!("the controller did not answer: {why}"))
}
