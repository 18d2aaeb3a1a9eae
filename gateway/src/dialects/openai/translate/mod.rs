//! Reads OpenAI's requests, with llama.cpp's (seed 004) and Lemonade's (seed 000) further fields.
//!
//! Fields of OpenAI's own platform (`store`, `metadata`, …) are accepted and dropped, since no engine could act on them.

mod chat;
mod completion;
mod embedding;
pub(crate) mod messages;
mod rerank;
mod response;

use muster_core::Error;
use muster_proto::v1::{GenerateRequest, Prompt};

pub(in crate::dialects) use self::chat::chat_prompt;
pub(super) use self::response::response_prompt;
pub(crate) use self::{
    chat::chat,
    completion::completions,
    embedding::{MAX_INPUTS, embeddings},
    rerank::{RerankCall, rerank},
    response::{Echo, responses},
};
use super::requests::Asking;
use crate::translate::{
    Asked, View,
    object::{self, Object},
};

/// A chat request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChatCall {
    pub(crate) asked: Asked,
    pub(crate) view: View,
    pub(crate) work: GenerateRequest,
}

/// A completion request; each prompt is a piece of work of its own.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CompletionCall {
    pub(crate) asked: Asked,
    pub(crate) view: View,
    pub(crate) work: Vec<GenerateRequest>,
    /// With `echo`: what to show before each prompt's output.
    pub(crate) echo: Option<Vec<Prompt>>,
}

/// Fields of OpenAI's own platform that no engine can use. They are ignored, since some clients always send them.
const PLATFORM: [&str; 8] = [
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prediction",
    "verbosity",
];

/// Parses a body and drops the fields of OpenAI's own platform.
fn opened(body: &[u8]) -> Result<Object<'_>, Error> {
    let mut body = Object::body(object::text(body)?)?;
    body.discard(&PLATFORM);
    Ok(body)
}

fn asked(asking: Asking) -> Asked {
    Asked {
        model: asking.model,
        user: asking.user.unwrap_or_default(),
        thinking: false,
    }
}

#[cfg(test)]
mod tests;
