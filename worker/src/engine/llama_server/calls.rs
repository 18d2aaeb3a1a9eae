//! llama-server's answers to calls outside of requests: descriptions, tokens, templates, its own HTTP.

use std::sync::Arc;

use bytes::Bytes;
use futures::{
    FutureExt as _, StreamExt as _, TryStreamExt as _,
    future::{BoxFuture, ready},
    stream::{self, BoxStream},
};
use muster_core::{Code, Error, runtime::Family};
use muster_proto::{
    engine_http, llamacpp,
    parameters::SAMPLING,
    v1::{
        ApplyTemplateCall, ApplyTemplateResult, Capabilities, DetokenizeCall, DetokenizeResult,
        EngineDescription, EngineHttpCall, EngineHttpChunk, ModelSettings, ModelType, SequencePhase,
        SequenceState, SlotActionCall, SlotActionResult, TokenizeCall, TokenizeResult,
    },
};
use reqwest::{Method, Response, header::CONTENT_TYPE};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    args,
    client::{Http, broken},
    request::{conversation, prompt_value},
};
use crate::engine::EngineCalls;

/// The calls of one engine.
#[derive(Debug)]
pub(super) struct Calls {
    pub(super) http: Http,
    /// The description after the load. Only its sequences are asked for again.
    pub(super) description: EngineDescription,
}

type Answer<T> = BoxFuture<'static, Result<T, Error>>;

impl EngineCalls for Calls {
    fn tokenize(&self, call: TokenizeCall) -> Answer<TokenizeResult> {
        let http = self.http.clone();
        async move {
            let body = json!({
                "content": prompt_value(&call.content.unwrap_or_default()),
                "add_special": call.add_special,
                "parse_special": call.parse_special,
                "with_pieces": true,
            });
            let Tokens { tokens } = http.post("/tokenize", &body).await?;
            Ok(TokenizeResult {
                tokens: tokens.iter().map(|token| token.id).collect(),
                pieces: tokens.into_iter().map(|token| token.piece.into()).collect(),
            })
        }
        .boxed()
    }

    fn detokenize(&self, call: DetokenizeCall) -> Answer<DetokenizeResult> {
        let http = self.http.clone();
        let vocabulary = self
            .description
            .capabilities
            .as_ref()
            .map_or(0, |capabilities| capabilities.vocabulary);
        async move {
            let outside =
                |token: &&i32| u32::try_from(**token).map_or(true, |id| vocabulary > 0 && id >= vocabulary);
            if let Some(token) = call.tokens.iter().find(outside) {
                let message = format!("token {token} is not in the vocabulary of {vocabulary}");
                return Err(Code::InvalidRequest.error(message).with_param("tokens"));
            }
            let Text { content } = http.post("/detokenize", &json!({"tokens": call.tokens})).await?;
            Ok(DetokenizeResult { text: content })
        }
        .boxed()
    }

    fn apply_template(&self, call: ApplyTemplateCall) -> Answer<ApplyTemplateResult> {
        let http = self.http.clone();
        async move {
            let mut body = Map::new();
            conversation(&call.chat.unwrap_or_default(), &mut body)?;
            let Prompt { prompt } = http.post("/apply-template", &Value::Object(body)).await?;
            Ok(ApplyTemplateResult { prompt })
        }
        .boxed()
    }

    fn slot_action(&self, _: SlotActionCall) -> Answer<SlotActionResult> {
        let error = Code::UnsupportedByRuntime.error("a llama-server does this over its own HTTP");
        ready(Err(error)).boxed()
    }

    fn describe(&self) -> Answer<EngineDescription> {
        let http = self.http.clone();
        let mut description = self.description.clone();
        async move {
            let slots: Vec<Slot> = http.get("/slots").await?;
            description.sequences = slots.into_iter().map(Into::into).collect();
            Ok(description)
        }
        .boxed()
    }

    fn engine_http(
        &self,
        call: EngineHttpCall,
    ) -> Answer<BoxStream<'static, Result<EngineHttpChunk, Error>>> {
        let http = self.http.clone();
        async move {
            let wrong = |param: &str| {
                Code::InvalidRequest
                    .error(format!("`{param}` is wrong"))
                    .with_param(param)
            };
            let method = Method::from_bytes(call.method.as_bytes()).map_err(|_| wrong("method"))?;
            if !engine_http::allows(Family::LlamaServer, &call.method, &call.path) {
                let message = format!("{} {} of llama_server is not passed on", call.method, call.path);
                return Err(Code::UnsupportedByRuntime.error(message));
            }
            let mut request = http.request(method, &call.path).body(call.body);
            if !call.content_type.is_empty() {
                request = request.header(CONTENT_TYPE, call.content_type);
            }
            Ok(chunks(request.send().await.map_err(|error| broken(&error))?))
        }
        .boxed()
    }
}

/// The head of an HTTP answer, then its body as it arrives.
fn chunks(answer: Response) -> BoxStream<'static, Result<EngineHttpChunk, Error>> {
    let content_type = answer
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let head = EngineHttpChunk {
        status: answer.status().as_u16().into(),
        content_type: content_type.to_owned(),
        body: Bytes::new(),
    };
    let body = answer
        .bytes_stream()
        .map_ok(|body| EngineHttpChunk {
            body,
            ..EngineHttpChunk::default()
        })
        .map_err(|error| broken(&error));
    stream::iter([Ok(head)]).chain(body).boxed()
}

/// Asks a server that has just loaded its model what it can do, and what stands for media in its prompts.
///
/// # Errors
/// As [`Http::get`].
pub(super) async fn description(
    http: &Http,
    model_id: &str,
    settings: &ModelSettings,
) -> Result<(EngineDescription, Arc<str>), Error> {
    let props: Props = http.get("/props").await?;
    let models: Models = http.get("/v1/models").await?;
    let meta = models.data.into_iter().next().unwrap_or_default().meta;
    let kind = settings.r#type();
    let embed = kind == ModelType::Embedding;
    let generate = !embed && kind != ModelType::Reranking;
    let capabilities = Capabilities {
        generate,
        embed,
        rerank: kind == ModelType::Reranking,
        tools: generate && props.chat_template_caps.supports_tools,
        thinking: generate && props.chat_template.contains("enable_thinking"),
        vision: props.modalities.vision,
        audio: props.modalities.audio,
        context_length: props.default_generation_settings.n_ctx,
        train_context_length: meta.n_ctx_train,
        sequences: args::sequences(settings),
        embedding_length: if embed { meta.n_embd } else { 0 },
        parameters: meta.n_params,
        vocabulary: meta.n_vocab,
        hidden_length: meta.n_embd,
        vocabulary_type: meta.vocab_type,
        file_type: props.model_ftype.clone(),
        speculation: args::drafts(settings).to_owned(),
    };
    let mut effective = settings.clone();
    effective.ctx_size = props.default_generation_settings.n_ctx;
    effective.sequences = args::sequences(settings);
    if llamacpp::splits_cache(&settings.args) {
        // It tells the part of each sequence.
        effective.ctx_size = effective.ctx_size.saturating_mul(effective.sequences);
    }
    // Servers of before have the name that llama.cpp's library has.
    let marker = match props.media_marker.as_str() {
        "" => "<__media__>",
        own => own,
    };
    let marker = marker.into();
    let description = EngineDescription {
        engine: format!("llama-server {}", props.build_info),
        model_id: model_id.to_owned(),
        capabilities: Some(capabilities),
        settings: Some(effective),
        metadata: [("general.file_type".to_owned(), props.model_ftype)].into(),
        chat_template: props.chat_template,
        sampling: generate.then(|| SAMPLING.read(&props.default_generation_settings.params)),
        ..EngineDescription::default()
    };
    Ok((description, marker))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Props {
    default_generation_settings: DefaultSettings,
    modalities: Modalities,
    media_marker: String,
    chat_template: String,
    chat_template_caps: TemplateCaps,
    build_info: String,
    model_ftype: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DefaultSettings {
    n_ctx: u32,
    params: Map<String, Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Modalities {
    vision: bool,
    audio: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TemplateCaps {
    supports_tools: bool,
}

#[derive(Debug, Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Model {
    meta: Meta,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Meta {
    vocab_type: Option<u32>,
    n_vocab: u32,
    n_ctx_train: u32,
    n_embd: u32,
    n_params: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Slot {
    id: u32,
    is_processing: bool,
    n_prompt_tokens: u32,
    n_prompt_tokens_processed: u32,
    n_prompt_tokens_cache: u32,
    next_token: Vec<NextToken>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NextToken {
    n_decoded: u32,
}

impl From<Slot> for SequenceState {
    fn from(slot: Slot) -> Self {
        let generated = slot.next_token.first().map_or(0, |next| next.n_decoded);
        let phase = match (slot.is_processing, generated) {
            (false, _) => SequencePhase::Idle,
            (true, 0) => SequencePhase::Prefill,
            (true, _) => SequencePhase::Decode,
        };
        Self {
            id: slot.id,
            phase: phase.into(),
            cached_tokens: slot.n_prompt_tokens_cache + slot.n_prompt_tokens_processed + generated,
            prompt_tokens: slot.n_prompt_tokens,
            generated,
            handle: 0,
            // Its own `/slots` answer is passed on unchanged.
            request: None,
            // The server does not know callers.
            owner: String::new(),
        }
    }
}

#[derive(Debug, Deserialize)]
struct Tokens {
    tokens: Vec<Token>,
}

#[derive(Debug, Deserialize)]
struct Token {
    id: i32,
    piece: Piece,
}

/// A token's text that is not UTF-8 is a list of numbers.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Piece {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<Piece> for Bytes {
    fn from(piece: Piece) -> Self {
        match piece {
            Piece::Text(text) => text.into(),
            Piece::Bytes(bytes) => bytes.into(),
        }
    }
}

#[derive(Debug, Deserialize)]
struct Text {
    content: String,
}

#[derive(Debug, Deserialize)]
struct Prompt {
    prompt: String,
}
