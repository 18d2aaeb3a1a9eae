//! What requests and answers look like, for the document only: requests are read by hand (`translate`), which names every fault.
//!
//! Fields that pass through to engines untouched are not listed; objects take more than they show.

#![allow(dead_code, reason = "read by the derive only")]

use std::collections::HashMap;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::answers::ChatCall;
use crate::translate::parameters::SamplingAsked;

/// A string or several that end the output.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(in crate::dialects) enum Stop {
    One(String),
    Several(Vec<String>),
}

/// A turn of a chat.
#[derive(ToSchema)]
pub(in crate::dialects) struct ChatTurn {
    /// `system`, `developer`, `user`, `assistant` or `tool`.
    role: String,
    /// The text; an assistant's turn of tool calls alone may leave it out.
    content: Option<ChatContent>,
    /// Reasoning of an assistant's turn.
    reasoning_content: Option<String>,
    /// Function calls of an assistant's turn.
    tool_calls: Option<Vec<ChatCall>>,
    /// The call that a tool's turn answers.
    tool_call_id: Option<String>,
    /// Name of the speaker.
    name: Option<String>,
}

/// Content of a turn.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(in crate::dialects) enum ChatContent {
    Text(String),
    Parts(Vec<ChatPart>),
}

/// A part of a turn's content.
#[derive(Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(in crate::dialects) enum ChatPart {
    Text {
        /// Text.
        text: String,
    },
    ImageUrl {
        /// An image; only for models that take images.
        image_url: ChatImage,
    },
    InputAudio {
        /// Sound; only for models that take sound.
        input_audio: ChatSound,
    },
}

/// An image; only for models that take images.
#[derive(Serialize, ToSchema)]
pub(in crate::dialects) struct ChatImage {
    /// The image as a `data:` URL.
    url: String,
}

/// Sound; only for models that take sound.
#[derive(Serialize, ToSchema)]
pub(in crate::dialects) struct ChatSound {
    /// The sound, in Base64.
    data: String,
    /// `wav` or `mp3`.
    format: String,
}

/// A tool that the model may use.
#[derive(ToSchema)]
pub(in crate::dialects) struct ChatTool {
    /// `function`.
    r#type: String,
    /// The function.
    function: ChatFunction,
}

/// A function that the model may call.
#[derive(ToSchema)]
pub(in crate::dialects) struct ChatFunction {
    /// Name by which the model calls the function.
    name: String,
    /// What the function does, told to the model.
    description: Option<String>,
    /// JSON schema of the arguments.
    parameters: Option<Value>,
    /// The arguments must follow `parameters` exactly.
    strict: Option<bool>,
}

/// `auto`, `none`, `required`, or one function.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(in crate::dialects) enum ChatToolChoice {
    Mode(String),
    One {
        /// `function`.
        r#type: String,
        /// The function to call.
        function: ChatNamed,
    },
}

/// A function's name.
#[derive(Serialize, ToSchema)]
pub(in crate::dialects) struct ChatNamed {
    /// Name of a function in `tools`.
    name: String,
}

/// Format of the output.
#[derive(ToSchema)]
pub(in crate::dialects) struct ResponseFormat {
    /// `text`, `json_object` or `json_schema`.
    r#type: String,
    /// Object with `name` and `schema`; for `json_schema`.
    json_schema: Option<Value>,
}

/// Options of a stream.
#[derive(ToSchema)]
pub(in crate::dialects) struct StreamOptions {
    /// Send a last chunk with token counts.
    include_usage: Option<bool>,
}

/// OpenAI's chat request, with llama.cpp's samplers.
#[derive(ToSchema)]
#[schema(example = json!({"model": "tiny", "messages": [{"role": "user", "content": "Hello!"}], "stream": true}))]
pub(in crate::dialects) struct ChatRequest {
    /// Id in the catalogue.
    model: String,
    /// Turns, oldest first.
    messages: Vec<ChatTurn>,
    /// Answer with server-sent events instead of one body.
    stream: Option<bool>,
    /// Options of the stream.
    stream_options: Option<StreamOptions>,
    /// Functions the model may call.
    tools: Option<Vec<ChatTool>>,
    /// Whether the model may, must or must not call functions.
    tool_choice: Option<ChatToolChoice>,
    /// Let the model make several calls in one answer.
    parallel_tool_calls: Option<bool>,
    /// Format of the output.
    response_format: Option<ResponseFormat>,
    /// A JSON schema that the output must follow, as with vLLM.
    guided_json: Option<Value>,
    /// llama.cpp's: a JSON schema that the output must follow.
    json_schema: Option<Value>,
    /// llama.cpp's: a grammar that the output must follow.
    grammar: Option<String>,
    /// Most tokens to generate; excludes `max_completion_tokens`.
    max_tokens: Option<i64>,
    /// Most tokens to generate; excludes `max_tokens`.
    max_completion_tokens: Option<i64>,
    /// Strings that end the output.
    stop: Option<Stop>,
    /// Number of choices, 1 to 128.
    n: Option<i64>,
    /// Show probabilities of the tokens.
    logprobs: Option<bool>,
    /// Alternatives per token, 0 to 20; needs `logprobs`.
    top_logprobs: Option<i64>,
    /// How tokens are chosen.
    sampling: SamplingAsked,
    /// Bias by token id or text.
    logit_bias: Option<HashMap<String, f64>>,
    /// `none` switches reasoning off; other values go to the chat template.
    reasoning_effort: Option<String>,
    /// `default`, `enabled` or `disabled`.
    thinking: Option<Value>,
    /// Further arguments of the chat template.
    chat_template_kwargs: Option<HashMap<String, Value>>,
    /// Name of the end user; waiting requests of several users take turns.
    user: Option<String>,
}

/// OpenAI's request for a completion, with llama.cpp's samplers.
#[derive(ToSchema)]
#[schema(example = json!({"model": "tiny", "prompt": "Once upon a time", "max_tokens": 16}))]
pub(in crate::dialects) struct CompletionRequest {
    /// Id in the catalogue.
    model: String,
    /// Text, token ids, or several of these.
    prompt: Value,
    /// Text after the gap that is to be filled.
    suffix: Option<String>,
    /// Show the prompt before the output.
    echo: Option<bool>,
    /// Answer with server-sent events instead of one body.
    stream: Option<bool>,
    /// Most tokens to generate.
    max_tokens: Option<i64>,
    /// Alternatives per token, or whether to show probabilities of the output at all. A number excludes `echo`.
    logprobs: Option<Value>,
    /// Number of choices per prompt.
    n: Option<i64>,
    /// Strings that end the output.
    stop: Option<Stop>,
    /// How tokens are chosen.
    sampling: SamplingAsked,
    /// Bias by token id or text.
    logit_bias: Option<HashMap<String, f64>>,
}

/// OpenAI's request for vectors.
#[derive(ToSchema)]
#[schema(example = json!({"model": "tiny-embed", "input": ["one", "two"]}))]
pub(in crate::dialects) struct EmbeddingRequest {
    /// Id in the catalogue.
    model: String,
    /// Text, token ids, or several of these.
    input: Value,
    /// `float` or `base64`.
    encoding_format: Option<String>,
    /// Shorten vectors to this length.
    dimensions: Option<i64>,
}

/// A request for scores.
#[derive(ToSchema)]
#[schema(example = json!({"model": "tiny-rerank", "query": "capital of France", "documents": ["Paris", "Berlin"]}))]
pub(in crate::dialects) struct RerankRequest {
    /// Id in the catalogue.
    model: String,
    /// The query that documents are scored against.
    query: String,
    /// Texts, or objects with `text`.
    documents: Vec<Value>,
    /// Return this many documents, highest score first; without it, all documents in input order.
    top_n: Option<i64>,
    /// Show each result's document.
    return_documents: Option<bool>,
}

/// OpenAI's request to a model of type audio or image. Other fields go to the engine unchanged.
#[derive(ToSchema)]
pub(in crate::dialects) struct MediaRequest {
    /// Id in the catalogue.
    model: String,
}

/// OpenAI's request for a response; nothing is stored.
#[derive(ToSchema)]
#[schema(example = json!({"model": "tiny", "input": "Hello!", "stream": true}))]
pub(in crate::dialects) struct ResponseRequest {
    /// Id in the catalogue.
    model: String,
    /// Text, or items: messages, reasoning, function calls and their outputs.
    input: Option<Value>,
    /// Turns as in a chat, instead of `input`.
    messages: Option<Vec<ChatTurn>>,
    /// Instructions that come before all turns.
    instructions: Option<String>,
    /// Most tokens to generate.
    max_output_tokens: Option<i64>,
    /// Answer with server-sent events instead of one body.
    stream: Option<bool>,
    /// Functions the model may call.
    tools: Option<Vec<Value>>,
    /// `auto`, `none`, `required`, or one function.
    tool_choice: Option<Value>,
    /// `format`: `text`, `json_object` or `json_schema`.
    text: Option<Value>,
    /// Object with `effort`.
    reasoning: Option<Value>,
    /// `default`, `enabled` or `disabled`.
    thinking: Option<Value>,
    /// Alternatives per token, 0 to 20; probabilities come with them.
    top_logprobs: Option<i64>,
    /// `message.output_text.logprobs` shows probabilities; `reasoning.encrypted_content` changes nothing.
    include: Option<Vec<String>>,
    /// Only `disabled` is accepted.
    truncation: Option<String>,
    /// Most calls of built-in tools; there are none, so it changes nothing.
    max_tool_calls: Option<i64>,
    /// How tokens are chosen.
    sampling: SamplingAsked,
}
