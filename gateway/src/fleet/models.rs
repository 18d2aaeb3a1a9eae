//! Calls to the controller that change the catalogue or the files of its models.
//!
//! A download or a deletion goes on if its call is dropped here (gateway/README.md, Runtime Admin API).

use muster_core::Error;
use muster_proto::{
    MAX_MESSAGE_BYTES,
    net::Channel,
    v1::{
        Alias, CheckUpdatesRequest, ControlDownloadRequest, DeleteAliasRequest, DeleteModelRequest,
        DeleteModelResponse, Download, DownloadAction, HubListing, ListAliasesRequest, ListDownloadsRequest,
        ListVariantsRequest, Model, ModelDefinition, ModelUpdate, PullModelEvent, PullModelRequest,
        RegisterModelRequest, SetAliasRequest, SetModelOptionsRequest, models_client::ModelsClient,
        pull_model_event::Kind,
    },
};
use tonic::Streaming;

use super::control::{away, error, shown};

/// A client of the controller's Models service.
#[derive(Clone, Debug)]
pub(crate) struct Models(ModelsClient<Channel>);

/// A download in progress.
#[derive(Debug)]
pub(crate) struct Pull(Streaming<PullModelEvent>);

impl Pull {
    /// The next event; the last one is [`Kind::Done`].
    ///
    /// # Errors
    /// Why the download failed.
    pub(crate) async fn next(&mut self) -> Result<Kind, Error> {
        let event = self.0.message().await.map_err(|status| error(&status))?;
        event
            .and_then(|event| event.kind)
            .ok_or_else(|| away("its stream ended before the download did"))
    }

    /// Waits for the end and returns the model.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub(crate) async fn done(mut self) -> Result<Model, Error> {
        loop {
            if let Kind::Done(model) = self.next().await? {
                return Ok(model);
            }
        }
    }
}

impl Models {
    pub(super) fn new(channel: Channel) -> Self {
        let client = ModelsClient::new(channel)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        Self(client)
    }

    /// Begins to download a model's files.
    ///
    /// # Errors
    /// An immediate refusal. This holds for all calls.
    pub(crate) async fn pull(mut self, request: PullModelRequest) -> Result<Pull, Error> {
        let answer = self.0.pull_model(request).await;
        Ok(Pull(answer.map_err(|status| error(&status))?.into_inner()))
    }

    /// All downloads.
    pub(crate) async fn downloads(mut self) -> Result<Vec<Download>, Error> {
        let answer = self.0.list_downloads(ListDownloadsRequest {}).await;
        Ok(answer.map_err(|status| error(&status))?.into_inner().downloads)
    }

    /// Whether the hub has newer files of these models, or of all that were downloaded.
    pub(crate) async fn check_updates(mut self, models: Vec<String>) -> Result<Vec<ModelUpdate>, Error> {
        let answer = self.0.check_updates(CheckUpdatesRequest { models }).await;
        Ok(answer.map_err(|status| error(&status))?.into_inner().updates)
    }

    /// Pauses, resumes or cancels a model's download.
    pub(crate) async fn control_download(
        mut self,
        model: &str,
        action: DownloadAction,
    ) -> Result<Download, Error> {
        let request = ControlDownloadRequest {
            model: model.to_owned(),
            action: action.into(),
        };
        let answer = self.0.control_download(request).await;
        let answer = answer.map_err(|status| error(&status))?.into_inner();
        Ok(answer.download.unwrap_or_default())
    }

    /// Deletes a model's files, and the model if a user registered it.
    pub(crate) async fn delete(mut self, model: &str) -> Result<DeleteModelResponse, Error> {
        let model = model.to_owned();
        let answer = self.0.delete_model(DeleteModelRequest { model }).await;
        Ok(answer.map_err(|status| error(&status))?.into_inner())
    }

    /// Registers a model, or changes it.
    pub(crate) async fn register(mut self, definition: ModelDefinition) -> Result<Model, Error> {
        let definition = Some(definition);
        let answer = self.0.register_model(RegisterModelRequest { definition }).await;
        shown(answer.map_err(|status| error(&status))?.into_inner().model)
    }

    /// Saves options for a model's loads, in place of those saved before.
    pub(crate) async fn set_options(mut self, model: &str, options_json: String) -> Result<Model, Error> {
        let request = SetModelOptionsRequest {
            model: model.to_owned(),
            options_json,
        };
        let answer = self.0.set_model_options(request).await;
        shown(answer.map_err(|status| error(&status))?.into_inner().model)
    }

    /// The variants of a repository on the hub.
    pub(crate) async fn variants(mut self, repo: &str) -> Result<HubListing, Error> {
        let repo = repo.to_owned();
        let answer = self.0.list_variants(ListVariantsRequest { repo }).await;
        let answer = answer.map_err(|status| error(&status))?.into_inner();
        Ok(answer.listing.unwrap_or_default())
    }

    /// All aliases.
    pub(crate) async fn aliases(mut self) -> Result<Vec<Alias>, Error> {
        let answer = self.0.list_aliases(ListAliasesRequest {}).await;
        Ok(answer.map_err(|status| error(&status))?.into_inner().aliases)
    }

    /// Gives a model a further name.
    pub(crate) async fn set_alias(mut self, alias: Alias) -> Result<(), Error> {
        let alias = Some(alias);
        let answer = self.0.set_alias(SetAliasRequest { alias }).await;
        answer.map(drop).map_err(|status| error(&status))
    }

    /// Removes a further name.
    pub(crate) async fn delete_alias(mut self, alias: &str) -> Result<(), Error> {
        let alias = alias.to_owned();
        let answer = self.0.delete_alias(DeleteAliasRequest { alias }).await;
        answer.map(drop).map_err(|status| error(&status))
    }
}
