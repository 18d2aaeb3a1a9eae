//! Short calls to a loaded instance: tokens, templates, an engine's own HTTP. They load nothing (gateway/README.md, Autoload) and do not
//! count as a use.

use std::sync::Arc;

use futures::{Stream, StreamExt as _};
use muster_core::{Code, Error};
use muster_proto::{
    StatusExt as _,
    net::Channel,
    v1::{
        ApplyTemplateCall, ApplyTemplateResult, Chat, DescribeCall, DetokenizeCall, DetokenizeResult,
        EngineDescription, EngineHttpCall, EngineHttpChunk, InstanceRef, Prompt, PromptPiece,
        RequestDefaults, SlotActionCall, SlotActionResult, TokenizeCall, TokenizeResult,
        inference_client::InferenceClient, prompt_piece,
    },
};
use tonic::{Response, Status};

use super::{Dispatcher, media::MediaHosts, pick, unknown_model};
use crate::fleet::{route::Route, table::state_error};

/// A client for one loaded instance.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    /// The instance to name in each call.
    pub(crate) instance: Option<InstanceRef>,
    client: InferenceClient<Channel>,
    media: Arc<MediaHosts>,
    /// What requests to the model get where they say nothing themselves.
    defaults: Option<RequestDefaults>,
}

impl Dispatcher {
    /// A loaded instance of `model`.
    ///
    /// # Errors
    /// `unknown_model`, or why it is not loaded.
    pub(crate) fn loaded(&self, model: &str) -> Result<Loaded, Error> {
        self.reach(model, |_| true)
    }

    /// The loaded instance of `model` with this id, or its only one; for calls whose answer differs between replicas.
    ///
    /// # Errors
    /// As [`loaded`](Self::loaded); `ambiguous_instance`, with their ids, if there are several and none was chosen.
    pub(crate) fn loaded_instance(&self, model: &str, instance: Option<&str>) -> Result<Loaded, Error> {
        if let Some(instance) = instance {
            return self.reach(model, |id| id == instance);
        }
        let table = self.fleet.table();
        let ids: Vec<&str> = table
            .targets(model)
            .iter()
            .map(|target| target.instance_id().as_str())
            .collect();
        if ids.len() > 1 {
            let message = format!(
                "model {model} has several instances: say ?instance= and one of {}",
                ids.join(", ")
            );
            return Err(Code::AmbiguousInstance.error(message).with_param("instance"));
        }
        self.reach(model, |_| true)
    }

    fn reach(&self, model: &str, wanted: impl Fn(&str) -> bool) -> Result<Loaded, Error> {
        let table = self.fleet.table();
        let summary = table.model(model).ok_or_else(|| unknown_model(model))?;
        let target = pick::pick(
            table.targets(model),
            None,
            |target| !wanted(target.instance_id().as_str()),
            |_| false,
            |_| 0,
        )
        .ok_or_else(|| state_error(summary))?;
        Ok(self.at(&target.route))
    }

    /// A client for the instance of a route.
    pub(super) fn at(&self, route: &Route) -> Loaded {
        Loaded {
            instance: Some(route.instance()),
            client: self.pool.client(&route.to.at),
            media: Arc::clone(&self.media),
            defaults: {
                let table = self.fleet.table();
                let summary = table.model(route.model.as_str());
                summary.and_then(|summary| summary.defaults.clone())
            },
        }
    }
}

impl Loaded {
    /// Renders a conversation into the prompt that the model would get. `llama-server` reads the conversation's images for that.
    ///
    /// # Errors
    /// `media_url_refused`, or the worker's error.
    pub(crate) async fn apply_template(
        &mut self,
        mut call: ApplyTemplateCall,
    ) -> Result<ApplyTemplateResult, Error> {
        if let (Some(defaults), Some(chat)) = (&self.defaults, &mut call.chat) {
            defaults.fill_chat(chat);
        }
        if let Some(chat) = &call.chat {
            self.media.check_chat(chat)?;
        }
        answer(self.client.apply_template(call).await)
    }

    /// The number of tokens of the prompt that a conversation makes.
    ///
    /// # Errors
    /// As [`apply_template`](Self::apply_template).
    pub(crate) async fn prompt_tokens(&mut self, chat: Chat) -> Result<usize, Error> {
        let template = ApplyTemplateCall {
            instance: self.instance.clone(),
            chat: Some(chat),
            ..ApplyTemplateCall::default()
        };
        let prompt = self.apply_template(template).await?.prompt;
        let text = PromptPiece {
            kind: Some(prompt_piece::Kind::Text(prompt)),
        };
        let tokenize = TokenizeCall {
            instance: self.instance.clone(),
            content: Some(Prompt {
                pieces: vec![text],
                add_special: None,
            }),
            add_special: true,
            parse_special: true,
            ..TokenizeCall::default()
        };
        Ok(self.tokenize(tokenize).await?.tokens.len())
    }

    /// Turns text into tokens.
    ///
    /// # Errors
    /// The worker's error.
    pub(crate) async fn tokenize(&mut self, call: TokenizeCall) -> Result<TokenizeResult, Error> {
        answer(self.client.tokenize(call).await)
    }
}

impl Loaded {
    /// Turns tokens into text.
    ///
    /// # Errors
    /// The worker's error.
    pub(crate) async fn detokenize(&mut self, call: DetokenizeCall) -> Result<DetokenizeResult, Error> {
        answer(self.client.detokenize(call).await)
    }

    /// Does something with a sequence's cache.
    ///
    /// # Errors
    /// The worker's error.
    pub(crate) async fn slot_action(&mut self, call: SlotActionCall) -> Result<SlotActionResult, Error> {
        answer(self.client.slot_action(call).await)
    }

    /// The engine's description of the instance.
    ///
    /// # Errors
    /// The worker's error.
    pub(crate) async fn describe(&mut self, model: String) -> Result<EngineDescription, Error> {
        let call = DescribeCall {
            instance: self.instance.clone(),
            model,
        };
        let mut description = answer(self.client.describe(call).await)?;
        if let Some(defaults) = &self.defaults {
            description.sampling = defaults.sampling_over(description.sampling.take());
        }
        Ok(description)
    }

    /// Forwards an HTTP request to the engine. The answer comes in pieces.
    ///
    /// # Errors
    /// The worker's error.
    pub(crate) async fn engine_http(
        &mut self,
        call: EngineHttpCall,
    ) -> Result<impl Stream<Item = Result<EngineHttpChunk, Error>> + Unpin + Send + 'static, Error> {
        let chunks = answer(self.client.engine_http(call).await)?;
        Ok(chunks.map(|chunk| chunk.map_err(|status| Error::from_status(&status))))
    }
}

fn answer<T>(result: Result<Response<T>, Status>) -> Result<T, Error> {
    match result {
        Ok(response) => Ok(response.into_inner()),
        // An error without typed details comes from the connection.
        Err(status) if status.details().is_empty() => {
            Err(Code::WorkerLost.error(format!("the worker did not answer: {}", status.message())))
        }
        Err(status) => Err(Error::from_status(&status)),
    }
}
