//! A scripted catalogue: what it answers depends on the model's name only.

use std::pin::Pin;

use muster_core::Code;
use muster_proto::{
    StatusExt as _,
    v1::{self, models_server::Models, pull_model_event::Kind},
};
use tokio::sync::watch;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::gateways::Heard;

type Events = Pin<Box<dyn Stream<Item = Result<v1::PullModelEvent, Status>> + Send>>;

/// The catalogue: there is no model `nobody`, and the download of `broken` breaks off.
#[derive(Debug)]
pub(super) struct Catalogue(watch::Sender<Heard>);

impl Catalogue {
    /// One that writes down what it hears.
    pub(super) fn new(heard: watch::Sender<Heard>) -> Self {
        Self(heard)
    }
}

fn known(id: &str) -> Result<v1::Model, Status> {
    if id == "nobody" {
        let error = Code::UnknownModel.error("no such model").with_detail("model", id);
        return Err(error.into_status());
    }
    Ok(v1::Model {
        id: id.to_owned(),
        ..v1::Model::default()
    })
}

#[tonic::async_trait]
impl Models for Catalogue {
    type PullModelStream = Events;

    async fn pull_model(&self, request: Request<v1::PullModelRequest>) -> Result<Response<Events>, Status> {
        let model = known(&request.into_inner().model)?;
        let progress = |bytes_downloaded| {
            let progress = v1::FetchProgress {
                file: "model.gguf".to_owned(),
                file_index: 1,
                total_files: 1,
                bytes_downloaded,
                bytes_total: 200,
                ..v1::FetchProgress::default()
            };
            Ok(Kind::Progress(progress))
        };
        let last = if model.id == "broken" {
            Err(Code::HubUnavailable.error("the line is cut").into_status())
        } else {
            Ok(Kind::Done(model))
        };
        let events = [progress(50), progress(200), last]
            .map(|kind| kind.map(|kind| v1::PullModelEvent { kind: Some(kind) }));
        Ok(Response::new(Box::pin(tokio_stream::iter(events))))
    }

    async fn delete_model(
        &self,
        request: Request<v1::DeleteModelRequest>,
    ) -> Result<Response<v1::DeleteModelResponse>, Status> {
        known(&request.into_inner().model)?;
        Ok(Response::new(v1::DeleteModelResponse::default()))
    }

    async fn register_model(
        &self,
        request: Request<v1::RegisterModelRequest>,
    ) -> Result<Response<v1::RegisterModelResponse>, Status> {
        let definition = request.into_inner().definition.unwrap_or_default();
        let model = v1::Model {
            checkpoint: definition.checkpoint,
            recipe: definition.recipe,
            ..known(&definition.model)?
        };
        Ok(Response::new(v1::RegisterModelResponse { model: Some(model) }))
    }

    async fn set_model_options(
        &self,
        request: Request<v1::SetModelOptionsRequest>,
    ) -> Result<Response<v1::SetModelOptionsResponse>, Status> {
        let v1::SetModelOptionsRequest { model, options_json } = request.into_inner();
        let known = v1::Model {
            options_json: options_json.clone(),
            ..known(&model)?
        };
        self.0
            .send_modify(|heard| heard.options.push((model, options_json)));
        Ok(Response::new(v1::SetModelOptionsResponse { model: Some(known) }))
    }

    async fn check_updates(
        &self,
        _: Request<v1::CheckUpdatesRequest>,
    ) -> Result<Response<v1::CheckUpdatesResponse>, Status> {
        Ok(Response::new(v1::CheckUpdatesResponse::default()))
    }

    async fn list_variants(
        &self,
        request: Request<v1::ListVariantsRequest>,
    ) -> Result<Response<v1::ListVariantsResponse>, Status> {
        let listing = v1::HubListing {
            repo: request.into_inner().repo,
            mmproj_files: vec!["mmproj.gguf".to_owned()],
            variants: vec![v1::HubVariant {
                name: "Q4_0".to_owned(),
                files: vec!["1-of-2.gguf".to_owned(), "2-of-2.gguf".to_owned()],
                size_bytes: 382_000_000,
            }],
        };
        Ok(Response::new(v1::ListVariantsResponse {
            listing: Some(listing),
        }))
    }

    async fn set_alias(
        &self,
        request: Request<v1::SetAliasRequest>,
    ) -> Result<Response<v1::SetAliasResponse>, Status> {
        known(&request.into_inner().alias.unwrap_or_default().model)?;
        Ok(Response::new(v1::SetAliasResponse {}))
    }

    async fn delete_alias(
        &self,
        request: Request<v1::DeleteAliasRequest>,
    ) -> Result<Response<v1::DeleteAliasResponse>, Status> {
        known(&request.into_inner().alias)?;
        Ok(Response::new(v1::DeleteAliasResponse {}))
    }

    async fn list_downloads(
        &self,
        _: Request<v1::ListDownloadsRequest>,
    ) -> Result<Response<v1::ListDownloadsResponse>, Status> {
        let running = download("m", v1::DownloadState::Running);
        let failed = v1::Download {
            time_left: None,
            error: Some(Code::HubUnavailable.error("the hub is away").into()),
            ..download("broken", v1::DownloadState::Failed)
        };
        Ok(Response::new(v1::ListDownloadsResponse {
            downloads: vec![running, failed],
        }))
    }

    async fn control_download(
        &self,
        request: Request<v1::ControlDownloadRequest>,
    ) -> Result<Response<v1::ControlDownloadResponse>, Status> {
        let request = request.into_inner();
        known(&request.model)?;
        let state = match request.action() {
            v1::DownloadAction::Unspecified => return crate::absent(),
            v1::DownloadAction::Pause => v1::DownloadState::Paused,
            v1::DownloadAction::Resume => v1::DownloadState::Running,
            v1::DownloadAction::Cancel => v1::DownloadState::Cancelled,
        };
        Ok(Response::new(v1::ControlDownloadResponse {
            download: Some(download(&request.model, state)),
        }))
    }

    async fn list_aliases(
        &self,
        _: Request<v1::ListAliasesRequest>,
    ) -> Result<Response<v1::ListAliasesResponse>, Status> {
        let alias = v1::Alias {
            alias: "gpt-4o".to_owned(),
            model: "m".to_owned(),
        };
        Ok(Response::new(v1::ListAliasesResponse { aliases: vec![alias] }))
    }
}

/// A download that is half done.
fn download(model: &str, state: v1::DownloadState) -> v1::Download {
    v1::Download {
        model: model.to_owned(),
        checkpoint: "o/n:Q4_0".to_owned(),
        state: state.into(),
        progress: Some(v1::FetchProgress {
            file: "n-Q4_0.gguf".to_owned(),
            file_index: 1,
            total_files: 2,
            bytes_downloaded: 100,
            bytes_total: 100,
            all_downloaded: 100,
            all_total: 200,
            bytes_per_second: 10,
        }),
        time_left: Some(prost_types::Duration {
            seconds: 10,
            nanos: 0,
        }),
        ..v1::Download::default()
    }
}
