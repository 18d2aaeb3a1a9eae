//! OpenAI's requests. Fields that pass through to engines untouched are not listed; objects take more than they show.

use muster_core::{Code, Error};
use utoipa::openapi::{RefOr, Schema, schema::Type};

use super::translate::messages::Messages;
use crate::translate::{
    ModelName,
    object::{Field, Kind},
    output::{Constraints, Limits, ResponseFormat, Switches, Viewing},
    read::{At, Int, Read, Uint, body, plain, words},
    sampling::Samplers,
    tools::ToolUse,
};

body! {
    /// Whom is asked, and who asks.
    pub(in crate::dialects) struct Asking as OpenAiAsking {
        /// Id in the catalogue.
        model: ModelName,
        /// Name of the end user; waiting requests of several users take turns.
        user: Option<String>,
    }

    /// OpenAI's chat request, with llama.cpp's samplers.
    #[example {"model": "tiny", "messages": [{"role": "user", "content": "Hello!"}], "stream": true}]
    pub(super) struct ChatBody<'a> as ChatRequest {
        ..asking: Asking,
        ..viewing: Viewing,
        ..tools: ToolUse<'a>,
        ..template: Template<'a>,
        ..sampling: Samplers,
        ..constraints: Constraints,
        ..limits: Limits,
        ..switches: Switches,
        /// Turns, oldest first.
        messages: Messages,
        /// Show probabilities of the tokens.
        logprobs: Option<bool>,
        /// Alternatives per token, 0 to 20; needs `logprobs`.
        top_logprobs: Option<Int<0, 20>>,
        /// llama.cpp's: alternatives per token.
        n_probs: Option<Uint<0>>,
        /// llama.cpp's: `none`, `auto`, `deepseek` or `deepseek-legacy`.
        reasoning_format: Option<ReasoningFormat>,
    }

    /// What goes to the chat template.
    pub(super) struct Template<'a> as ChatTemplate {
        /// Chat template, instead of the model's own.
        chat_template: Option<String>,
        /// The last turn is the beginning of the answer.
        continue_final_message: Option<bool>,
        /// Whether the model reasons first.
        enable_thinking: Option<bool>,
        /// `none` switches reasoning off; other values go to the chat template.
        reasoning_effort: Option<String>,
        /// Further arguments of the chat template.
        chat_template_kwargs: Option<Arguments<'a>>,
        /// `default`, `enabled` or `disabled`.
        thinking: Option<Thinking>,
    }

    /// OpenAI's request for a completion, with llama.cpp's samplers.
    #[example {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 16}]
    pub(super) struct CompletionBody<'a> as CompletionRequest {
        ..asking: Asking,
        ..viewing: Viewing,
        ..sampling: Samplers,
        ..constraints: Constraints,
        ..limits: Limits,
        ..switches: Switches,
        /// Text, token ids, or several of these.
        prompt: Field<'a>,
        /// Text after the gap that is to be filled.
        suffix: Option<String>,
        /// Show the prompt before the output.
        echo: Option<bool>,
        /// Alternatives per token, or whether to show probabilities of the output at all. A number excludes `echo`.
        logprobs: Option<Field<'a>>,
        /// llama.cpp's: alternatives per token.
        n_probs: Option<Uint<0>>,
    }

    /// OpenAI's request for vectors.
    #[example {"model": "tiny-embed", "input": ["one", "two"]}]
    pub(super) struct EmbeddingBody<'a> as EmbeddingRequest {
        ..asking: Asking,
        /// Text, token ids, or several of these.
        input | content: Field<'a>,
        /// `float` or `base64`.
        encoding_format: Option<Encoding>,
        /// Shorten vectors to this length.
        dimensions: Option<Uint<1>>,
        /// llama.cpp's: -1 as they are, 0 by the largest, 1 taxicab, 2 Euclidean.
        embd_normalize: Option<Int<-1, 2>>,
    }

    /// A request for scores.
    #[example {"model": "tiny-rerank", "query": "capital of France", "documents": ["Paris", "Berlin"]}]
    pub(in crate::dialects) struct RerankBody<'a> as RerankRequest {
        ..asking: Asking,
        /// The query that documents are scored against.
        query: String,
        /// Texts, or objects with `text`.
        documents | texts: At<'a, Vec<Field<'a>>>,
        /// Return this many documents, highest score first; without it, all documents in input order.
        top_n: Option<Uint<1>>,
        /// Show each result's document.
        return_documents: Option<bool>,
    }

    /// OpenAI's request to a model of type audio or image. Other fields go to the engine unchanged.
    pub(super) struct MediaBody as MediaRequest {
        /// Id in the catalogue.
        model: ModelName,
    }

    /// OpenAI's request for a response; nothing is stored.
    #[example {"model": "tiny", "input": "Hello!", "stream": true}]
    pub(super) struct ResponseBody<'a> as ResponseRequest {
        ..asking: Asking,
        ..tools: ToolUse<'a>,
        ..template: Template<'a>,
        ..sampling: Samplers,
        ..switches: Switches,
        /// Text, or items: messages, reasoning, function calls and their outputs.
        input: Option<Field<'a>>,
        /// Turns as in a chat, instead of `input`.
        messages: Option<Messages>,
        /// Instructions that come before all turns.
        instructions: Option<String>,
        /// Most tokens to generate.
        max_output_tokens | max_tokens | n_predict: Option<Int<-1>>,
        /// Answer with server-sent events instead of one body.
        stream: Option<bool>,
        /// The form of the text.
        text: Option<Text>,
        /// How much the model reasons.
        reasoning: Option<Reasoning>,
        /// Alternatives per token, 0 to 20; probabilities come with them.
        top_logprobs: Option<Int<0, 20>>,
        /// `message.output_text.logprobs` shows probabilities; `reasoning.encrypted_content` changes nothing.
        include: Option<Include>,
        /// Only `disabled` is accepted.
        truncation: Option<Truncation>,
        /// Most calls of built-in tools; there are none, so it changes nothing.
        max_tool_calls: Option<Uint<0>>,
    }

    /// The form of a response's text.
    pub(super) struct Text as ResponseForm {
        /// `text`, `json_object` or `json_schema`, with the schema beside it.
        format: Option<ResponseFormat>,
    }

    /// How much the model reasons.
    pub(super) struct Reasoning as ResponseReasoning {
        /// As `reasoning_effort`.
        effort: Option<String>,
    }
}

words! {
    /// How vectors are written.
    pub(super) struct Encoding: "float", "base64" => "`float` or `base64`"
}

words! {
    /// Where reasoning is shown.
    pub(super) struct ReasoningFormat: "none", "auto", "deepseek", "deepseek-legacy" =>
        "`none`, `auto`, `deepseek` or `deepseek-legacy`"
}

/// Arguments of a template: an object.
#[derive(Debug)]
pub(super) struct Arguments<'a>(pub(super) Field<'a>);

impl<'x: 'a, 'a> Read<'x> for Arguments<'a> {
    fn read(field: &Field<'x>) -> Result<Self, Error> {
        field.object()?;
        Ok(Self(field.clone()))
    }

    fn schema() -> RefOr<Schema> {
        plain(Type::Object)
    }
}

/// Seed 001's `thinking`: `default`, `enabled` or `disabled`; also Anthropic-style `{"type": …}`, which some clients send.
#[derive(Debug)]
pub(super) struct Thinking(pub(super) Option<bool>);

impl Read<'_> for Thinking {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        let field = match field.kind() {
            Kind::Object => field.object()?.need("type")?,
            Kind::Null | Kind::Bool | Kind::Number | Kind::String | Kind::Array => field.clone(),
        };
        match field.string()?.as_str() {
            "default" => Ok(Self(None)),
            "enabled" => Ok(Self(Some(true))),
            "disabled" => Ok(Self(Some(false))),
            _ => Err(field.wrong("must be `default`, `enabled` or `disabled`")),
        }
    }

    fn schema() -> RefOr<Schema> {
        Field::schema()
    }
}

/// What else is to be in the answer; true if that is the probabilities of its tokens.
#[derive(Debug)]
pub(super) struct Include(pub(super) bool);

impl Read<'_> for Include {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        let mut logprobs = false;
        for wanted in field.list()? {
            match wanted.string()?.as_str() {
                "message.output_text.logprobs" => logprobs = true,
                // Nothing is encrypted: reasoning stands in the answer, and is read back from there.
                "reasoning.encrypted_content" => {}
                _ => return Err(unsupported(&wanted, "there is no such thing to include here")),
            }
        }
        Ok(Self(logprobs))
    }

    fn schema() -> RefOr<Schema> {
        Vec::<String>::schema()
    }
}

/// What happens to a conversation that is too long: nothing.
#[derive(Debug)]
pub(super) struct Truncation;

impl Read<'_> for Truncation {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        match field.string()?.as_str() {
            "disabled" => Ok(Self),
            "auto" => Err(unsupported(field, "no turns are dropped here, leave some out")),
            _ => Err(field.wrong("must be `disabled` or `auto`")),
        }
    }

    fn schema() -> RefOr<Schema> {
        String::schema()
    }
}

/// An error about a feature of OpenAI's platform that is not here.
pub(super) fn unsupported(field: &Field<'_>, why: &str) -> Error {
    let message = format!("`{}` cannot be honoured: {why}", field.path());
    Code::UnsupportedByRuntime.error(message).with_param(field.path())
}
