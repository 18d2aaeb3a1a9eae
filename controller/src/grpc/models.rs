//! `muster.v1.Models`: the catalogue as something that changes.
//!
//! ```text
//!   PullModel    files are fetched ─► definition given: the old model unloaded, the new one registered ─► done
//!   DeleteModel  unloaded ─► files removed on all workers ─► a user's model leaves the catalogue ─► done
//! ```
//!
//! Both go on in tasks of their own if their callers leave.

use futures::stream;
use muster_core::{Code, Error};
use muster_proto::{
    StatusExt,
    hub::Revision,
    v1::{self, models_server::Models, pull_model_event},
};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};

use super::{Boxed, until_stopped, updates};
use crate::{
    convert::stage::unknown_model,
    driver::{
        handle::Handle,
        inbox::{Models as Change, Order, PullState, Query, Removed, stopping},
    },
};

/// The service.
#[derive(Debug, Clone)]
pub(crate) struct ModelsService {
    handle: Handle,
    tasks: TaskTracker,
}

/// How a pull stands, for its caller.
#[derive(Debug, Clone)]
enum Told {
    Nothing,
    Progress(v1::FetchProgress),
    Done(Box<Result<v1::Model, Error>>),
}

impl ModelsService {
    /// Answers from `handle`; `tasks` tracks what goes on without its caller.
    pub(crate) fn new(handle: Handle, tasks: TaskTracker) -> Self {
        Self { handle, tasks }
    }

    /// Runs `work` to its end, also without a caller; not beyond the controller's.
    async fn detached<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Status> {
        let stop = self.handle.stop();
        let running = self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => Err(Error::from_status(&stopping())),
                result = work => result,
            }
        });
        let ended = running.await.map_err(|_| stopping())?;
        ended.map_err(StatusExt::into_status)
    }
}

#[tonic::async_trait]
impl Models for ModelsService {
    type PullModelStream = Boxed<v1::PullModelEvent>;

    async fn pull_model(
        &self,
        request: Request<v1::PullModelRequest>,
    ) -> Result<Response<Self::PullModelStream>, Status> {
        let mut request = request.into_inner();
        if let Some(definition) = &mut request.definition
            && definition.model.is_empty()
        {
            definition.model.clone_from(&request.model);
        }
        named(&request.model, "model")?;
        let states = self.handle.pull(request.clone())?;
        let (told, mut receiver) = watch::channel(Told::Nothing);
        let (handle, stop) = (self.handle.clone(), self.handle.stop());
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = follow(&handle, request, states, &told) => {}
            }
        });
        // What is refused at once fails the call itself.
        let first = next(&mut receiver).await?;
        let events = stream::unfold(Some((receiver, Some(first))), |state| async {
            let (mut receiver, waiting) = state?;
            let event = match waiting {
                Some(event) => Ok(event),
                None => next(&mut receiver).await,
            };
            match event {
                Ok(event) => {
                    let last = matches!(event.kind, Some(pull_model_event::Kind::Done(_)));
                    Some((Ok(event), (!last).then_some((receiver, None))))
                }
                Err(status) => Some((Err(status), None)),
            }
        });
        Ok(Response::new(until_stopped(events, self.handle.stop())))
    }

    async fn list_downloads(
        &self,
        _request: Request<v1::ListDownloadsRequest>,
    ) -> Result<Response<v1::ListDownloadsResponse>, Status> {
        let listed = self.handle.models(Change::ListDownloads).await;
        let downloads = listed.map_err(StatusExt::into_status)?;
        Ok(Response::new(v1::ListDownloadsResponse { downloads }))
    }

    async fn control_download(
        &self,
        request: Request<v1::ControlDownloadRequest>,
    ) -> Result<Response<v1::ControlDownloadResponse>, Status> {
        let request = request.into_inner();
        named(&request.model, "model")?;
        let controlled = self
            .handle
            .models(|reply| Change::ControlDownload(request, reply))
            .await;
        let (download, saving) = controlled.map_err(StatusExt::into_status)?;
        self.handle.kept(saving).await.map_err(StatusExt::into_status)?;
        let download = Some(download);
        Ok(Response::new(v1::ControlDownloadResponse { download }))
    }

    async fn delete_model(
        &self,
        request: Request<v1::DeleteModelRequest>,
    ) -> Result<Response<v1::DeleteModelResponse>, Status> {
        let id = request.into_inner().model;
        named(&id, "model")?;
        let handle = self.handle.clone();
        self.detached(async move { delete(&handle, id).await })
            .await
            .map(Response::new)
    }

    async fn register_model(
        &self,
        request: Request<v1::RegisterModelRequest>,
    ) -> Result<Response<v1::RegisterModelResponse>, Status> {
        let definition = request.into_inner().definition.unwrap_or_default();
        named(&definition.model, "definition.model")?;
        let handle = self.handle.clone();
        let model = self
            .detached(async move { register(&handle, definition).await })
            .await?;
        Ok(Response::new(v1::RegisterModelResponse { model: Some(model) }))
    }

    async fn set_model_options(
        &self,
        request: Request<v1::SetModelOptionsRequest>,
    ) -> Result<Response<v1::SetModelOptionsResponse>, Status> {
        let request = request.into_inner();
        named(&request.model, "model")?;
        let set = self.handle.models(|reply| Change::SetOptions(request, reply));
        let (model, saving) = set.await.map_err(StatusExt::into_status)?;
        self.handle.kept(saving).await.map_err(StatusExt::into_status)?;
        Ok(Response::new(v1::SetModelOptionsResponse { model: Some(model) }))
    }

    async fn list_variants(
        &self,
        request: Request<v1::ListVariantsRequest>,
    ) -> Result<Response<v1::ListVariantsResponse>, Status> {
        let repo = request.into_inner().repo;
        named(&repo, "repo")?;
        let listed = self
            .handle
            .models(|reply| Change::ListVariants(repo, reply))
            .await;
        let listing = Some(listed.map_err(StatusExt::into_status)?);
        Ok(Response::new(v1::ListVariantsResponse { listing }))
    }

    async fn check_updates(
        &self,
        request: Request<v1::CheckUpdatesRequest>,
    ) -> Result<Response<v1::CheckUpdatesResponse>, Status> {
        let checked = updates::check(&self.handle, request.into_inner().models).await;
        let updates = checked.map_err(StatusExt::into_status)?;
        Ok(Response::new(v1::CheckUpdatesResponse { updates }))
    }

    async fn set_alias(
        &self,
        request: Request<v1::SetAliasRequest>,
    ) -> Result<Response<v1::SetAliasResponse>, Status> {
        let alias = request.into_inner().alias.unwrap_or_default();
        let set = self.handle.models(|reply| Change::SetAlias(alias, reply)).await;
        self.handle
            .kept(set.map_err(StatusExt::into_status)?)
            .await
            .map_err(StatusExt::into_status)?;
        Ok(Response::new(v1::SetAliasResponse {}))
    }

    async fn delete_alias(
        &self,
        request: Request<v1::DeleteAliasRequest>,
    ) -> Result<Response<v1::DeleteAliasResponse>, Status> {
        let alias = request.into_inner().alias;
        let deleted = self
            .handle
            .models(|reply| Change::DeleteAlias(alias, reply))
            .await;
        self.handle
            .kept(deleted.map_err(StatusExt::into_status)?)
            .await
            .map_err(StatusExt::into_status)?;
        Ok(Response::new(v1::DeleteAliasResponse {}))
    }

    async fn list_aliases(
        &self,
        _request: Request<v1::ListAliasesRequest>,
    ) -> Result<Response<v1::ListAliasesResponse>, Status> {
        let listed = self.handle.models(Change::ListAliases).await;
        let aliases = listed.map_err(StatusExt::into_status)?;
        Ok(Response::new(v1::ListAliasesResponse { aliases }))
    }
}

/// Follows a pull to its end, and puts its definition in place.
async fn follow(
    handle: &Handle,
    request: v1::PullModelRequest,
    mut states: watch::Receiver<PullState>,
    told: &watch::Sender<Told>,
) {
    let result = loop {
        if states.changed().await.is_err() {
            break Err(Error::from_status(&stopping()));
        }
        match states.borrow_and_update().clone() {
            PullState::Waiting => {}
            PullState::Progress(progress) => drop(told.send_replace(Told::Progress(progress))),
            PullState::Done(result) => break result,
        }
    };
    let done = async {
        result?;
        match request.definition {
            Some(definition) => register(handle, definition).await,
            None => model(handle, &request.model).await,
        }
    };
    let done = done.await;
    told.send_replace(Told::Done(Box::new(done)));
}

/// Registers a model; one that is loaded from other files is unloaded first.
async fn register(handle: &Handle, definition: v1::ModelDefinition) -> Result<v1::Model, Error> {
    let id = definition.model.clone();
    match model(handle, &id).await {
        Ok(old) if old.user && other_files(&old, &definition) => unload(handle, &id).await?,
        Ok(_) => {}
        Err(error) if error.code == Code::UnknownModel => {}
        Err(error) => return Err(error),
    }
    let (_, saving) = handle.models(|reply| Change::Register(definition, reply)).await?;
    handle.kept(saving).await?;
    model(handle, &id).await
}

/// Whether a definition means other files than a model has; one that is wrong is refused later.
fn other_files(old: &v1::Model, definition: &v1::ModelDefinition) -> bool {
    let revision = definition
        .revision
        .parse()
        .unwrap_or_else(|_| Revision::default());
    let had = old.hub.as_ref().map_or("", |hub| hub.revision.as_str());
    old.checkpoint != definition.checkpoint || had != revision.message()
}

async fn delete(handle: &Handle, id: String) -> Result<v1::DeleteModelResponse, Error> {
    let known = model(handle, &id).await?;
    if known.id != id {
        let error = format!(
            "`{id}` is another name of {}: delete that, or the alias",
            known.id
        );
        return Err(Code::InvalidRequest.error(error).with_param("model_name"));
    }
    unload(handle, &id).await?;
    let removed = handle
        .models(|reply| Change::RemoveFiles(id.clone(), reply))
        .await;
    let Removed { freed } = match removed {
        // Nobody is here to look, but there is nothing to be removed either.
        Err(error) if error.code == Code::NoWorker && !known.downloaded => Removed { freed: 0 },
        removed => removed?,
    };
    let (model, saving) = handle.models(|reply| Change::Remove(id, reply)).await?;
    handle.kept(saving).await?;
    Ok(v1::DeleteModelResponse {
        model,
        freed_bytes: freed,
    })
}

async fn unload(handle: &Handle, id: &str) -> Result<(), Error> {
    let order = Order::Unload(v1::UnloadModelRequest {
        model: id.to_owned(),
        force: false,
        cancel_load: true,
    });
    let call = handle.call(order).map_err(|status| Error::from_status(&status))?;
    let ended = call.finish().await;
    ended.map(drop).map_err(|status| Error::from_status(&status))
}

async fn model(handle: &Handle, id: &str) -> Result<v1::Model, Error> {
    let asked = handle.query(|reply| Query::Model(id.to_owned(), reply)).await;
    let found = asked.map_err(|status| Error::from_status(&status))?;
    found.ok_or_else(|| unknown_model(id))
}

/// The next event of a pull.
async fn next(receiver: &mut watch::Receiver<Told>) -> Result<v1::PullModelEvent, Status> {
    loop {
        receiver.changed().await.map_err(|_| stopping())?;
        let kind = match receiver.borrow_and_update().clone() {
            Told::Nothing => continue,
            Told::Progress(progress) => pull_model_event::Kind::Progress(progress),
            Told::Done(done) => pull_model_event::Kind::Done((*done).map_err(StatusExt::into_status)?),
        };
        return Ok(v1::PullModelEvent { kind: Some(kind) });
    }
}

fn named(text: &str, field: &str) -> Result<(), Status> {
    if text.is_empty() {
        let error = Code::InvalidRequest.error(format!("{field} is missing"));
        return Err(error.with_param(field).into_status());
    }
    Ok(())
}
