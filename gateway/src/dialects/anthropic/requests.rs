//! The bodies of Anthropic's requests.

use muster_core::{Code, Error};
use utoipa::openapi::{RefOr, Schema};

use crate::translate::{
    object::{Field, Kind},
    output::{ResponseFormat, Stop},
    read::{At, Read, Uint, body, one_of, words},
    sampling::Samplers,
};

body! {
    /// Anthropic's request for a message.
    #[example {"model": "tiny", "max_tokens": 64, "messages": [{"role": "user", "content": "Hello!"}]}]
    pub(super) struct MessageBody<'a> as MessageRequest {
        ..conversation: Conversation<'a>,
        ..sampling: Samplers,
        /// Largest number of tokens to generate.
        max_tokens: Option<MaxTokens>,
        /// Strings that end the output.
        stop_sequences: Option<Stop>,
        /// Answer with server-sent events instead of one body.
        stream: Option<bool>,
        /// Form of the output, and how much the model reasons.
        output_config: Option<OutputConfig>,
        /// Form of the output; not together with `output_config`.
        output_format: Option<Field<'a>>,
    }

    /// The fields that make the prompt. When only tokens are counted, other fields are ignored.
    #[example {"model": "tiny", "messages": [{"role": "user", "content": "Hello!"}]}]
    pub(super) struct Conversation<'a> as MessageCount {
        /// Id in the catalogue, or another name of the model. It may be left out where one model is loaded, or there is only one.
        model: Option<String>,
        /// Turns of the conversation, oldest first.
        messages: Vec<Turn<'a>>,
        /// System prompt; it comes before all turns.
        system: Option<Content<'a>>,
        /// Functions that the model may call.
        tools: Option<Vec<ToolBody<'a>>>,
        /// Whether the model may, must or must not call functions.
        tool_choice: Option<Choice<'a>>,
        /// Whether the model reasons before it answers.
        thinking: Option<Thinking>,
        /// Data about the caller.
        metadata: Option<Metadata>,
    }

    /// A turn of a conversation.
    pub(super) struct Turn<'a> as MessageTurn {
        /// `user` or `assistant`.
        role: Role,
        /// Text, or blocks of type `text`, `image`, `document`, `thinking`, `tool_use` or `tool_result`.
        content: Content<'a>,
    }

    /// A function that the model may call.
    pub(super) struct ToolBody<'a> as MessageTool {
        /// `custom`; may be omitted.
        r#type: Option<Custom>,
        /// Name by which the model calls the function.
        name: String,
        /// What the function does, for the model.
        description: Option<String>,
        /// JSON schema of the arguments.
        input_schema: Field<'a>,
        /// Whether the arguments must follow `input_schema` exactly.
        strict: Option<bool>,
    }

    /// Whether the model may, must or must not call functions.
    pub(super) struct Choice<'a> as MessageToolChoice {
        /// `auto`, `any`, `tool` or `none`.
        r#type: At<'a, String>,
        /// Name of the function to call; only with `tool`.
        name: Option<At<'a, String>>,
        /// Allow at most one function call.
        disable_parallel_tool_use: Option<bool>,
    }

    /// Whether the model reasons before it answers.
    pub(super) struct Thinking as MessageThinking {
        /// `enabled`, `adaptive` or `disabled`.
        r#type: ThinkingMode,
    }

    /// Data about the caller.
    pub(super) struct Metadata as MessageMetadata {
        /// Name of the end user. Waiting requests of different users take turns.
        user_id: Option<String>,
    }

    /// Form of the output, and how much the model reasons.
    pub(super) struct OutputConfig as MessageOutput {
        /// How much the model reasons; passed to the chat template.
        effort: Option<String>,
        /// Form of the output.
        format: Option<ResponseFormat>,
    }
}

words! {
    /// Who speaks in a turn.
    pub(super) struct Role: "user", "assistant", "system" => "`user` or `assistant`"
}

words! {
    /// Whether the model reasons before it answers.
    pub(super) struct ThinkingMode: "enabled", "adaptive", "disabled" => "`enabled`, `adaptive` or `disabled`"
}

/// Text, or blocks of text and other media.
#[derive(Debug)]
pub(super) enum Content<'a> {
    Text(String),
    Blocks(Vec<Field<'a>>),
}

impl<'x: 'a, 'a> Read<'x> for Content<'a> {
    fn read(field: &Field<'x>) -> Result<Self, Error> {
        match field.kind() {
            Kind::String => field.string().map(Self::Text),
            Kind::Array => Ok(Self::Blocks(field.list()?)),
            Kind::Null | Kind::Bool | Kind::Number | Kind::Object => {
                Err(field.want("a string or an array of blocks"))
            }
        }
    }

    fn schema() -> RefOr<Schema> {
        one_of(vec![String::schema(), Vec::<Field<'_>>::schema()])
    }
}

/// Largest number of tokens to generate, at least 1.
#[derive(Debug)]
pub(super) struct MaxTokens(pub(super) i32);

impl Read<'_> for MaxTokens {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        match field.integer(0, i64::MAX)? {
            0 => Err(field.wrong("must be at least 1")),
            _ => field.i32(-1, i32::MAX).map(Self),
        }
    }

    fn schema() -> RefOr<Schema> {
        Uint::<1>::schema()
    }
}

/// The `type` of tools that the client runs itself.
#[derive(Debug)]
pub(super) struct Custom;

impl Read<'_> for Custom {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        if field.string()? == "custom" {
            return Ok(Self);
        }
        Err(unsupported(
            field,
            "tools that run at Anthropic's are not known here",
        ))
    }

    fn schema() -> RefOr<Schema> {
        String::schema()
    }
}

pub(super) fn unsupported(field: &Field<'_>, why: &str) -> Error {
    Code::UnsupportedByRuntime
        .error(format!("`{}` cannot be honoured: {why}", field.path()))
        .with_param(field.path())
}
