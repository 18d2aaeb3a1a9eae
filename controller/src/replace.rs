//! `Control.ReplaceLoad`: a load of a model that may be loaded already.
//!
//! ```text
//!  not loaded ──► load
//!  loaded ─┬─ as wanted ──► nothing to do
//!          └─ otherwise ──► could it be loaded so? ── no ──► refused, nothing has changed
//!                              │ yes
//!                              ▼
//!                     drained and unloaded ──► load ── failed ──► loaded again as it was; the answer says why, and that
//! ```
//!
//! The answer is known before anything is unloaded, as far as it depends on the model's runtime and settings, the workers' devices and the
//! other loaded models. An engine may still fail for another reason.
//!
//! It runs in a task of the controller: if the caller leaves or dies, nothing stays unloaded.

use muster_core::{Code, Error};
use muster_proto::{
    StatusExt as _,
    v1::{self, ModelStatus, load_model_event::Kind},
};
use tokio::sync::{
    broadcast::{self, error::RecvError},
    mpsc,
};
use tonic::Status;

use crate::{
    convert::stage::unknown_model,
    driver::{
        handle::{Handle, Word},
        inbox::{Answer, Order, Query, stopping},
        replace::Replacement,
    },
    state::Pin,
};

/// Number of progress messages kept for a slow reader; further ones are left out.
const PROGRESS: usize = 16;

/// Begins the replacement. The messages end with the loaded model or an error.
pub(crate) fn begin(
    handle: Handle,
    request: v1::LoadModelRequest,
) -> mpsc::Receiver<Result<v1::LoadModelEvent, Status>> {
    let (said, heard) = mpsc::channel(PROGRESS);
    tokio::spawn(async move {
        let stop = handle.stop();
        let task = Task {
            events: handle.events(),
            handle,
            said: said.clone(),
        };
        let ended = tokio::select! {
            biased;
            () = stop.cancelled() => Err(Error::from_status(&stopping())),
            ended = task.run(request) => ended,
        };
        let last = ended
            .map(|model| event(Kind::Loaded(model)))
            .map_err(|error| error.into_status());
        // If the caller has left, that is no failure.
        drop(said.send(last).await);
    });
    heard
}

fn event(kind: Kind) -> v1::LoadModelEvent {
    v1::LoadModelEvent { kind: Some(kind) }
}

struct Task {
    handle: Handle,
    /// Subscribed to before any question, so that no change is missed.
    events: broadcast::Receiver<v1::FleetEvent>,
    said: mpsc::Sender<Result<v1::LoadModelEvent, Status>>,
}

impl Task {
    async fn run(mut self, request: v1::LoadModelRequest) -> Result<v1::Model, Error> {
        let question = |reply| Query::Replacement(request.clone(), reply);
        let answer = self.handle.query(question).await;
        let former = match answer.map_err(|status| Error::from_status(&status))?? {
            Replacement::Load => return self.load(request).await,
            Replacement::AsWanted(model) => return Ok(*model),
            Replacement::Otherwise(former) => *former,
        };
        let id = former.model.clone();
        let pinned = self.pinned(&id).await;
        self.unload(&id).await?;
        let loaded = match self.load(request).await {
            Ok(model) => Ok(model),
            Err(error) => Err(self.restore(former, error).await),
        };
        // A pin for as long as it is loaded went with what it replaces.
        if pinned && !self.pinned(&id).await {
            let again = self.handle.pin(id, Pin::WHILE_LOADED).await;
            let again = again.map_err(|status| Error::from_status(&status));
            return loaded.and(again);
        }
        loaded
    }

    async fn pinned(&self, model: &str) -> bool {
        let question = |reply| Query::Model(model.to_owned(), reply);
        let model = self.handle.query(question).await;
        model.is_ok_and(|model| model.is_some_and(|model| model.pinned))
    }

    async fn unload(&mut self, model: &str) -> Result<(), Error> {
        let request = v1::UnloadModelRequest {
            model: model.to_owned(),
            force: false,
            cancel_load: true,
        };
        let unloaded = self.done(Order::Unload(request)).await?;
        self.left(ModelStatus::Unloading, unloaded).await.map(drop)
    }

    async fn load(&mut self, request: v1::LoadModelRequest) -> Result<v1::Model, Error> {
        let model = self.done(Order::Load(request)).await?;
        let model = self.left(ModelStatus::Loading, model).await?;
        match (model.status(), &model.last_error) {
            (ModelStatus::Loaded, _) => Ok(model),
            (_, Some(error)) => Err(error.clone().into()),
            (_, None) => Err(Code::LoadCancelled.error("somebody ended the load")),
        }
    }

    /// Loads a model as it was before. Returns the error that made this necessary, with the result added.
    async fn restore(&mut self, former: v1::LoadModelRequest, error: Error) -> Error {
        let id = former.model.clone();
        let now = self.model(&id).await;
        // Somebody has cancelled the load, or loads the model himself; then nothing is restored.
        let ours = |now: v1::Model| matches!(now.status(), ModelStatus::Unloaded | ModelStatus::Failed);
        if error.code == Code::LoadCancelled || !now.is_ok_and(ours) {
            return error;
        }
        let restored = self.load(former).await;
        let message = match &restored {
            Ok(_) => format!("{}; {id} is loaded again as it was before", error.message),
            Err(again) => format!(
                "{}; {id} could not be loaded again as it was before: {}",
                error.message, again.message
            ),
        };
        Error { message, ..error }.with_detail("restored", restored.is_ok().to_string())
    }

    /// Carries out an order and returns the model afterwards.
    async fn done(&self, order: Order) -> Result<v1::Model, Error> {
        let from_status = |status: Status| Error::from_status(&status);
        let mut call = self.handle.call(order).map_err(from_status)?;
        loop {
            match call.next().await.map_err(from_status)? {
                Word::Progress(kind) => drop(self.said.try_send(Ok(event(*kind)))),
                Word::Done(Answer::Model(model)) => return Ok(*model),
                Word::Done(Answer::Forgotten(_)) => {
                    return Err(Code::Internal.error("the driver answered another question"));
                }
            }
        }
    }

    /// Waits until the model leaves a state that somebody else caused: a call that joins a load or an unload is answered at once.
    async fn left(&mut self, state: ModelStatus, mut model: v1::Model) -> Result<v1::Model, Error> {
        while model.status() == state {
            self.changed(&model.id).await?;
            model = self.model(&model.id).await?;
        }
        Ok(model)
    }

    /// Waits for the next event that may concern the model.
    async fn changed(&mut self, model: &str) -> Result<(), Error> {
        loop {
            match self.events.recv().await {
                // Events about a worker name no model and may concern all of its models.
                Ok(event) if event.model == model || event.model.is_empty() => return Ok(()),
                Ok(_) => {}
                Err(RecvError::Lagged(_)) => return Ok(()),
                Err(RecvError::Closed) => return Err(Error::from_status(&stopping())),
            }
        }
    }

    async fn model(&self, id: &str) -> Result<v1::Model, Error> {
        let found = self
            .handle
            .query(|reply| Query::Model(id.to_owned(), reply))
            .await;
        found
            .map_err(|status| Error::from_status(&status))?
            .ok_or_else(|| unknown_model(id))
    }
}
