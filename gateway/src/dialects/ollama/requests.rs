//! The bodies of Ollama's requests.

use muster_core::Error;
use muster_proto::v1::generate_request::Constraint;
use utoipa::openapi::{RefOr, Schema};

use crate::translate::{
    ModelName,
    object::{Field, Kind},
    output::{Stop, schema},
    read::{Int, Read, Strings, Uint, body, words},
    sampling::Samplers,
    tools::Tools,
};

body! {
    /// The fields that chats and generation share.
    pub(super) struct Generation<'a> as OllamaGeneration {
        /// Id in the catalogue; `:latest` may be added.
        model: ModelName,
        /// Answer with lines as they are generated (default), or with one body.
        stream: Option<bool>,
        /// `json` or a JSON schema.
        format: Option<Format>,
        /// Whether the model reasons before it answers: true, false, or how much: `low`, `medium`, `high`.
        think: Option<Field<'a>>,
        /// Options of the generation, and of the load that it needs.
        options: Option<Options>,
        /// Report the probability of each token.
        logprobs: Option<bool>,
        /// Number of the most probable tokens to report in each place.
        top_logprobs: Option<Int<0, 20>>,
        /// 0 unloads the model if the request has no prompt; other values are ignored.
        keep_alive: Option<Field<'a>>,
    }

    /// Ollama's chat request.
    #[example {"model": "tiny", "messages": [{"role": "user", "content": "Hello!"}], "stream": false}]
    pub(super) struct ChatBody<'a> as OllamaChatRequest {
        ..common: Generation<'a>,
        ..tools: Tools,
        /// Turns of the chat, oldest first; none = only load the model.
        messages: Option<Vec<Turn<'a>>>,
    }

    /// A turn of a chat.
    pub(super) struct Turn<'a> as OllamaTurn {
        /// `system`, `user`, `assistant` or `tool`.
        role: Role,
        /// The text.
        content: Option<String>,
        /// Reasoning; only in an assistant's turn.
        thinking: Option<String>,
        /// Id of the call that this turn answers; only in a tool's turn.
        tool_call_id: Option<String>,
        /// Name of the function whose result this is; only in a tool's turn.
        tool_name: Option<String>,
        /// Images as base64.
        images: Option<Strings>,
        /// Function calls; only in an assistant's turn.
        tool_calls: Option<Vec<Call<'a>>>,
    }

    /// A function call of an assistant's turn.
    pub(super) struct Call<'a> as OllamaAskedCall {
        /// Id of the call; the tool's answer names it.
        id: Option<String>,
        /// The function and its arguments.
        function: Called<'a>,
    }

    /// A function with its arguments.
    pub(super) struct Called<'a> as OllamaAskedFunction {
        /// Name of the function.
        name: String,
        /// The arguments as an object.
        arguments: Option<Field<'a>>,
    }

    /// Options of a load. Others (`num_gpu`, `main_gpu`, `numa`, `low_vram`, …) are ignored: which devices a model takes is the configuration's
    /// and policy's.
    pub(super) struct LoadOptions as OllamaLoadOptions {
        /// Tokens of context that the request needs. A model that has fewer is loaded anew if it is idle and nobody set its context otherwise.
        num_ctx: Option<Uint<1>>,
        /// Tokens per call of the engine. Like what follows, one that the model has not is a load anew, if it is idle and nobody set it
        /// otherwise; else the request is refused.
        num_batch: Option<Int<-1>>,
        /// Threads that generate; 0 = the engine's choice.
        num_thread: Option<Int<-1>>,
        /// Whether the model's file is mapped into memory.
        use_mmap: Option<bool>,
        /// Whether the model is kept from being swapped out.
        use_mlock: Option<bool>,
    }

    /// Options of a generation.
    pub(super) struct Options as OllamaOptions {
        ..sampling: Samplers,
        ..load: LoadOptions,
        /// Largest number of tokens to generate; -1 = until the context is full.
        num_predict: Option<Int<-2>>,
        /// Strings that end the output.
        stop: Option<Stop>,
    }

    /// Ollama's request to continue a text.
    #[example {"model": "tiny", "prompt": "Hello!", "stream": false}]
    pub(super) struct GenerateBody<'a> as OllamaGenerateRequest {
        ..common: Generation<'a>,
        /// The user's text; none = only load the model.
        prompt: Option<String>,
        /// Text after the gap to fill.
        suffix: Option<String>,
        /// System prompt; it comes before the user's text.
        system: Option<String>,
        /// Chat template for this request, instead of the model's own.
        template: Option<String>,
        /// Use the prompt as it is, without a chat template.
        raw: Option<bool>,
        /// Images as base64.
        images: Option<Strings>,
    }

    /// Ollama's request for embeddings.
    pub(super) struct EmbedBody<'a> as OllamaEmbedRequest {
        /// Id in the catalogue; `:latest` may be added.
        model: ModelName,
        /// A text, or a list of texts.
        input: Field<'a>,
        /// Length to which vectors are cut.
        dimensions: Option<Uint<0>>,
        /// Cut inputs that are too long, unless false: then they are refused.
        truncate: Option<bool>,
        /// Only those of a load mean something.
        options: Option<Options>,
    }

    /// Ollama's older request for one embedding.
    pub(super) struct EmbeddingsBody<'a> as OllamaEmbeddingsRequest {
        /// Id in the catalogue; `:latest` may be added.
        model: ModelName,
        /// The text, or its token ids.
        prompt: Field<'a>,
        /// Shorten the vector to this length.
        dimensions: Option<Uint<0>>,
        /// Only those of a load mean something.
        options: Option<Options>,
    }

    /// Ollama's request for a download.
    #[example {"model": "hf.co/unsloth/Phi-4-mini-instruct-GGUF:Q4_K_M"}]
    pub(super) struct PullBody as OllamaPullRequest {
        /// Id in the catalogue, or `hf.co/ORG/NAME:VARIANT`, which becomes a user's model: `user.` stands before the name.
        model | name: ModelName,
        /// Lines of JSON as it goes on, unless false.
        stream: Option<bool>,
    }

    /// Ollama's request for a further name.
    #[example {"source": "tiny", "destination": "mine"}]
    pub(super) struct CopyBody as OllamaCopyRequest {
        /// A model's name.
        source: ModelName,
        /// The name that it gets too.
        destination: ModelName,
    }

    /// Ollama's request to make a model from another one.
    #[example {"model": "mario", "from": "tiny", "system": "You are Mario.", "parameters": {"temperature": 0.5}}]
    pub(super) struct CreateBody<'a> as OllamaCreateRequest {
        /// Name of the new model; `user.` stands before it in the catalogue.
        model | name: ModelName,
        /// Name of the model that it is made from: it has that one's files and settings. `@DIGEST` is an uploaded file.
        from: Option<String>,
        /// Options of all its requests, and of its loads.
        parameters: Option<Options>,
        /// System prompt of chats that have none.
        system: Option<String>,
        /// Chat template in Jinja. Ollama's own, in Go's form, are not understood.
        template: Option<String>,
        /// The same as a Modelfile, as clients sent it formerly.
        modelfile: Option<String>,
        /// Instead of `from`, digests of uploaded files by their names: a GGUF, and one more if its name says `mmproj`.
        files: Option<Field<'a>>,
        /// Uploaded adapters: refused.
        adapters: Option<Field<'a>>,
        /// Turns before each chat: refused.
        messages: Option<Field<'a>>,
        /// Quantisation of the files: refused.
        quantize | quantization: Option<String>,
        /// Lines of JSON as it goes on, unless false.
        stream: Option<bool>,
    }

    /// Names a model.
    pub(super) struct ShowBody as OllamaShowRequest {
        /// Id in the catalogue; `:latest` may be added.
        model | name: ModelName,
    }
}

words! {
    /// Who speaks in a turn.
    pub(super) struct Role: "system", "user", "assistant", "tool" => "`system`, `user`, `assistant` or `tool`"
}

/// The word `json`, or a schema; an empty string counts as absent.
#[derive(Debug)]
pub(super) struct Format(pub(super) Option<Constraint>);

impl Read<'_> for Format {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        if field.kind() != Kind::String {
            return Ok(Self(Some(Constraint::JsonSchema(schema(field)?))));
        }
        match field.string()?.as_str() {
            "" => Ok(Self(None)),
            "json" => Ok(Self(Some(Constraint::JsonObject(true)))),
            _ => Err(field.wrong("must be `json` or a JSON schema")),
        }
    }

    fn schema() -> RefOr<Schema> {
        Field::schema()
    }
}
