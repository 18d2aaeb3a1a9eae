//! Anthropic's requests.

use muster_core::{Code, Error};
use utoipa::openapi::{RefOr, Schema};

use crate::translate::{
    ModelName,
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
        /// Most tokens to generate.
        max_tokens: Option<MaxTokens>,
        /// Strings that end the output.
        stop_sequences: Option<Stop>,
        /// Answer with server-sent events instead of one body.
        stream: Option<bool>,
        /// Format of the output, and how much the model reasons.
        output_config: Option<OutputConfig>,
        /// Format of the output, if there is no `output_config`.
        output_format: Option<Field<'a>>,
    }

    /// What the prompt is made of. Fields of a request for a message beside these mean nothing.
    #[example {"model": "tiny", "messages": [{"role": "user", "content": "Hello!"}]}]
    pub(super) struct Conversation<'a> as MessageCount {
        /// Id in the catalogue.
        model: ModelName,
        /// Turns, `user` and `assistant`.
        messages: Vec<Turn<'a>>,
        /// System prompt; comes before all turns.
        system: Option<Content<'a>>,
        /// Functions the model may call.
        tools: Option<Vec<ToolBody<'a>>>,
        /// Whether the model may, must or must not call functions.
        tool_choice: Option<Choice<'a>>,
        /// Whether the model reasons first.
        thinking: Option<Thinking>,
        /// Who asks.
        metadata: Option<Metadata>,
    }

    /// A turn of a conversation.
    pub(super) struct Turn<'a> as MessageTurn {
        /// `user` or `assistant`.
        role: Role,
        /// Text, or blocks: `text`, `image`, `document`, `thinking`, `tool_use`, `tool_result`.
        content: Content<'a>,
    }

    /// A function that the model may call.
    pub(super) struct ToolBody<'a> as MessageTool {
        /// `custom`, which may be left out.
        r#type: Option<Custom>,
        /// Name by which the model calls the function.
        name: String,
        /// What the function does, told to the model.
        description: Option<String>,
        /// JSON schema of the arguments.
        input_schema: Field<'a>,
        /// The arguments must follow `input_schema` exactly.
        strict: Option<bool>,
    }

    /// Whether the model may, must or must not call functions.
    pub(super) struct Choice<'a> as MessageToolChoice {
        /// `auto`, `any`, `tool` or `none`.
        r#type: At<'a, String>,
        /// The function to call, for `tool`.
        name: Option<At<'a, String>>,
        /// Let the model make one call at most.
        disable_parallel_tool_use: Option<bool>,
    }

    /// Whether the model reasons first.
    pub(super) struct Thinking as MessageThinking {
        /// `enabled`, `adaptive` or `disabled`.
        r#type: ThinkingMode,
    }

    /// Who asks.
    pub(super) struct Metadata as MessageMetadata {
        /// Name of the end user; waiting requests of several users take turns.
        user_id: Option<String>,
    }

    /// Format of the output, and how much the model reasons.
    pub(super) struct OutputConfig as MessageOutput {
        /// How much the model reasons; goes to the chat template.
        effort: Option<String>,
        /// Format of the output.
        format: Option<ResponseFormat>,
    }
}

words! {
    /// Whose turn it is.
    pub(super) struct Role: "user", "assistant", "system" => "`user` or `assistant`"
}

words! {
    /// Whether the model reasons first.
    pub(super) struct ThinkingMode: "enabled", "adaptive", "disabled" => "`enabled`, `adaptive` or `disabled`"
}

/// Text, or blocks of it and other media.
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

/// Most tokens to generate.
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

/// The type of tools that are the client's own.
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
