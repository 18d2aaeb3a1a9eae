//! The bodies of OpenAI's requests. Fields that engines get unchanged are not listed: the objects accept more fields than shown here.

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
    /// The model and the user of a request.
    pub(in crate::dialects) struct Asking as OpenAiAsking {
        /// Id in the catalogue, or another name of the model. It may be left out where one model is loaded, or there is only one.
        model: Option<String>,
        /// Name of the end user. Waiting requests of different users take turns.
        user: Option<String>,
    }

    /// OpenAI's chat request, with llama.cpp's sampling parameters.
    #[example {"model": "tiny", "messages": [{"role": "user", "content": "Hello!"}], "stream": true}]
    pub(super) struct ChatBody<'a> as ChatRequest {
        ..prompt: ChatPrompt<'a>,
        ..viewing: Viewing,
        ..sampling: Samplers,
        ..constraints: Constraints,
        ..limits: Limits,
        ..switches: Switches,
        /// Report the probability of each token.
        logprobs: Option<bool>,
        /// Number of alternatives to report per token, 0 to 20; needs `logprobs`.
        top_logprobs: Option<Int<0, 20>>,
        /// Number of alternatives to report per token (llama.cpp).
        n_probs: Option<Uint<0>>,
        /// Where reasoning is shown (llama.cpp): `none`, `auto`, `deepseek` or `deepseek-legacy`.
        reasoning_format: Option<ReasoningFormat>,
    }

    /// The fields of a chat request that make its prompt.
    #[example {"model": "tiny", "messages": [{"role": "user", "content": "Hello!"}]}]
    pub(in crate::dialects) struct ChatPrompt<'a> as ChatPrompt {
        ..asking: Asking,
        ..tools: ToolUse<'a>,
        ..template: Template<'a>,
        /// Turns of the conversation, oldest first. An answer that ends them is continued.
        messages: Messages,
    }

    /// Fields for the chat template.
    pub(in crate::dialects) struct Template<'a> as ChatTemplate {
        /// Chat template for this request, instead of the model's own.
        chat_template: Option<String>,
        /// Continue the last turn instead of beginning a new one. By default an assistant's last turn is continued, as llama.cpp does.
        continue_final_message: Option<bool>,
        /// End the prompt with the beginning of an answer, which it has by default. True excludes `continue_final_message`.
        add_generation_prompt: Option<bool>,
        /// Whether the model reasons before it answers.
        enable_thinking: Option<bool>,
        /// How much the model reasons. `none` switches reasoning off; other values are passed to the chat template.
        reasoning_effort: Option<String>,
        /// More arguments for the chat template.
        chat_template_kwargs: Option<Arguments<'a>>,
        /// Whether the model reasons before it answers: `default`, `enabled` or `disabled`.
        thinking: Option<Thinking>,
    }

    /// OpenAI's completion request, with llama.cpp's sampling parameters.
    #[example {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 16}]
    pub(super) struct CompletionBody<'a> as CompletionRequest {
        ..asking: Asking,
        ..viewing: Viewing,
        ..sampling: Samplers,
        ..constraints: Constraints,
        ..limits: Limits,
        ..switches: Switches,
        /// Text, token ids, or a list of these.
        prompt: Field<'a>,
        /// Text after the gap to fill.
        suffix: Option<String>,
        /// Show the prompt before the output.
        echo: Option<bool>,
        /// Number of alternatives to report per token, or whether to report probabilities of the output at all. A number cannot be combined
        /// with `echo`.
        logprobs: Option<Field<'a>>,
        /// Number of alternatives to report per token (llama.cpp).
        n_probs: Option<Uint<0>>,
    }

    /// OpenAI's request for embeddings.
    #[example {"model": "tiny-embed", "input": ["one", "two"]}]
    pub(super) struct EmbeddingBody<'a> as EmbeddingRequest {
        ..asking: Asking,
        /// Text, token ids, or a list of these.
        input | content: Field<'a>,
        /// `float` or `base64`.
        encoding_format: Option<Encoding>,
        /// Length to which vectors are cut.
        dimensions: Option<Uint<1>>,
        /// Normalisation (llama.cpp): -1 = none, 0 = by the largest absolute value, 1 = taxicab, 2 = Euclidean.
        embd_normalize: Option<Int<-1, 2>>,
    }

    /// A request to score documents against a query.
    #[example {"model": "tiny-rerank", "query": "capital of France", "documents": ["Paris", "Berlin"]}]
    pub(in crate::dialects) struct RerankBody<'a> as RerankRequest {
        ..asking: Asking,
        /// The query that documents are scored against.
        query: String,
        /// Texts, or objects with `text`.
        documents: Option<At<'a, Vec<Field<'a>>>>,
        /// The documents as Hugging Face's TEI names them, whose form the answer then has.
        texts: Option<At<'a, Vec<Field<'a>>>>,
        /// Number of documents to return, those with the highest scores first; absent = all, in input order.
        top_n: Option<Uint<1>>,
        /// Show the document in each result.
        return_documents: Option<bool>,
        /// As `return_documents`, in TEI\'s form.
        return_text: Option<bool>,
    }

    /// OpenAI's request to an audio or image model. The engine gets all other fields unchanged.
    pub(super) struct MediaBody as MediaRequest {
        /// Id of the model in the catalogue.
        model: ModelName,
    }

    /// OpenAI's request for a response. Nothing is stored.
    #[example {"model": "tiny", "input": "Hello!", "stream": true}]
    pub(super) struct ResponseBody<'a> as ResponseRequest {
        ..prompt: ResponsePrompt<'a>,
        ..sampling: Samplers,
        ..switches: Switches,
        /// Largest number of tokens to generate.
        max_output_tokens | max_tokens | n_predict: Option<Int<-1>>,
        /// Answer with server-sent events instead of one body.
        stream: Option<bool>,
        /// Form of the text.
        text: Option<Text>,
        /// Number of alternatives to report per token, 0 to 20; above 0 probabilities are reported.
        top_logprobs: Option<Int<0, 20>>,
        /// `message.output_text.logprobs` reports probabilities; `reasoning.encrypted_content` has no effect.
        include: Option<Include>,
        /// Only `disabled` is accepted.
        truncation: Option<Truncation>,
        /// Largest number of calls of built-in tools. It has no effect, since there are none.
        max_tool_calls: Option<Uint<0>>,
    }

    /// The fields of a request for a response that make its prompt.
    #[example {"model": "tiny", "input": "Hello!"}]
    pub(super) struct ResponsePrompt<'a> as ResponsePrompt {
        ..asking: Asking,
        ..tools: ToolUse<'a>,
        ..template: Template<'a>,
        /// Text, or items: messages, reasoning, function calls and their outputs.
        input: Option<Field<'a>>,
        /// Turns as in a chat; instead of `input`.
        messages: Option<Messages>,
        /// Instructions, placed before all turns.
        instructions: Option<String>,
        /// How much the model reasons.
        reasoning: Option<Reasoning>,
    }

    /// Form of a response's text.
    pub(super) struct Text as ResponseForm {
        /// `text`, `json_object` or `json_schema`; the last with its schema.
        format: Option<ResponseFormat>,
    }

    /// How much the model reasons.
    pub(super) struct Reasoning as ResponseReasoning {
        /// As `reasoning_effort` of a chat.
        effort: Option<String>,
    }
}

words! {
    /// How vectors are encoded.
    pub(super) struct Encoding: "float", "base64" => "`float` or `base64`"
}

words! {
    /// Where reasoning is shown.
    pub(super) struct ReasoningFormat: "none", "auto", "deepseek", "deepseek-legacy" =>
        "`none`, `auto`, `deepseek` or `deepseek-legacy`"
}

/// Arguments of a chat template: an object.
#[derive(Debug)]
pub(in crate::dialects) struct Arguments<'a>(pub(super) Field<'a>);

impl<'x: 'a, 'a> Read<'x> for Arguments<'a> {
    fn read(field: &Field<'x>) -> Result<Self, Error> {
        field.object()?;
        Ok(Self(field.clone()))
    }

    fn schema() -> RefOr<Schema> {
        plain(Type::Object)
    }
}

/// Seed 001's `thinking`: `default`, `enabled` or `disabled`; also Anthropic's `{"type": …}`, which some clients send.
#[derive(Debug)]
pub(in crate::dialects) struct Thinking(pub(super) Option<bool>);

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

/// The value of `include`; true if it asks for probabilities of the tokens.
#[derive(Debug)]
pub(super) struct Include(pub(super) bool);

impl Read<'_> for Include {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        let mut logprobs = false;
        for wanted in field.list()? {
            match wanted.string()?.as_str() {
                "message.output_text.logprobs" => logprobs = true,
                // Reasoning is not encrypted: the answer shows it and a later request can send it back.
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

/// The value of `truncation`: a conversation that is too long is never cut.
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

/// The error for a feature of OpenAI's platform that Muster does not have.
pub(super) fn unsupported(field: &Field<'_>, why: &str) -> Error {
    let message = format!("`{}` cannot be honoured: {why}", field.path());
    Code::UnsupportedByRuntime.error(message).with_param(field.path())
}
