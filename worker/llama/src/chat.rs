//! Chats: rendered by the model's template, and answers read back by llama.cpp's parser.
#![expect(unsafe_code, reason = "calls into the shim")]

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    ffi::{self, ErrorText, NativeError, RawChat, RawParser, append, sink_of},
    model::{Model, c_string, collect},
};

/// A chat to render. All fields but the messages also decide how the answer is parsed, and the shim caches that between chats.
/// `tools` are raw JSON so that the keys of their schemas keep their order.
#[derive(Debug, Serialize)]
pub(crate) struct ChatSpec {
    #[serde(skip)]
    pub(crate) messages: serde_json::Value,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tools: Vec<Box<RawValue>>,
    pub(crate) tool_choice: &'static str,
    pub(crate) grammar: String,
    pub(crate) json_schema: String,
    pub(crate) reasoning_format: String,
    pub(crate) enable_thinking: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) parallel_tool_calls: Option<bool>,
    pub(crate) continue_final_message: bool,
    pub(crate) add_generation_prompt: bool,
    pub(crate) kwargs: Box<RawValue>,
}

/// Facts about a rendered chat.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ChatInfo {
    pub(crate) additional_stops: Vec<String>,
    /// The output is plain content and needs no parsing.
    pub(crate) plain: bool,
    /// After content has begun, the rest of the output is content too.
    pub(crate) tail_plain: bool,
    pub(crate) has_grammar: bool,
}

/// A rendered chat.
pub(crate) struct Chat {
    raw: *mut RawChat,
    info: ChatInfo,
}

// SAFETY: plain data behind the pointer, never changed after it was made.
unsafe impl Send for Chat {}
// SAFETY: as above.
unsafe impl Sync for Chat {}

impl Drop for Chat {
    fn drop(&mut self) {
        // SAFETY: made by ms_chat_apply, freed once.
        unsafe { ffi::ms_chat_free(self.raw) }
    }
}

impl std::fmt::Debug for Chat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chat")
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

impl Chat {
    /// Renders a chat; the prompt comes with it.
    ///
    /// # Errors
    /// The model has no template, or the template refuses the chat.
    pub(crate) fn apply(model: &Model, spec: &ChatSpec) -> Result<(Self, String), NativeError> {
        let invalid = |error: serde_json::Error| NativeError::Invalid(error.to_string());
        let messages = c_string(&serde_json::to_string(&spec.messages).map_err(invalid)?)?;
        let options = c_string(&serde_json::to_string(spec).map_err(invalid)?)?;
        let mut raw = std::ptr::null_mut();
        let mut prompt = Vec::new();
        let mut error = ErrorText::new();
        // SAFETY: all pointers live during the call.
        let code = unsafe {
            ffi::ms_chat_apply(
                model.raw(),
                messages.as_ptr(),
                options.as_ptr(),
                &raw mut raw,
                append,
                sink_of(&mut prompt),
                error.as_mut_ptr(),
            )
        };
        error.check(code)?;
        let prompt = String::from_utf8_lossy(&prompt).into_owned();
        // SAFETY: `raw` was just made.
        let info =
            collect(|user, error| unsafe { ffi::ms_chat_info(raw, append, user, error) }).and_then(|json| {
                serde_json::from_slice(&json).map_err(|error| NativeError::Failed(error.to_string()))
            });
        match info {
            Ok(info) => Ok((Self { raw, info }, prompt)),
            Err(error) => {
                // SAFETY: just made, nobody else has it.
                unsafe { ffi::ms_chat_free(raw) };
                Err(error)
            }
        }
    }

    pub(crate) const fn raw(&self) -> *const RawChat {
        self.raw
    }

    pub(crate) const fn info(&self) -> &ChatInfo {
        &self.info
    }

    /// Makes a parser for one choice of this chat's answer.
    ///
    /// # Errors
    /// llama.cpp fails.
    pub(crate) fn parser(&self) -> Result<Parser, NativeError> {
        let mut raw = std::ptr::null_mut();
        let mut error = ErrorText::new();
        // SAFETY: the chat lives; the parser copies what it needs.
        let code = unsafe { ffi::ms_parser_new(self.raw, &raw mut raw, error.as_mut_ptr()) };
        error.check(code)?;
        Ok(Parser { raw })
    }
}

/// One new piece of a parsed answer.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(crate) struct Diff {
    pub(crate) content: String,
    pub(crate) reasoning: String,
    /// Index of the tool call to which the fields below belong.
    pub(crate) index: Option<u32>,
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: String,
}

/// The result of parsing the text so far.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Parsed {
    pub(crate) diffs: Vec<Diff>,
    /// Length of the content so far, in bytes.
    pub(crate) content_len: usize,
    /// Number of tool calls so far.
    pub(crate) tool_calls: usize,
    /// The text ends inside the content.
    pub(crate) tail_is_content: bool,
}

/// Parses one choice's answer.
pub(crate) struct Parser {
    raw: *mut RawParser,
}

// SAFETY: plain data behind the pointer; not `Sync`.
unsafe impl Send for Parser {}

impl Drop for Parser {
    fn drop(&mut self) {
        // SAFETY: made by ms_parser_new, freed once.
        unsafe { ffi::ms_parser_free(self.raw) }
    }
}

impl std::fmt::Debug for Parser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parser").finish_non_exhaustive()
    }
}

impl Parser {
    /// Parses the whole text so far and returns what is new. `partial`: more text may come, or the text was cut off.
    ///
    /// # Errors
    /// The text does not fit the format, or contradicts an earlier result.
    pub(crate) fn update(&mut self, text: &str, partial: bool) -> Result<Parsed, NativeError> {
        // SAFETY: `text` is readable for its length; the parser is ours.
        let json = collect(|user, error| unsafe {
            ffi::ms_parser_update(
                self.raw,
                text.as_ptr().cast(),
                text.len(),
                i32::from(partial),
                append,
                user,
                error,
            )
        })?;
        serde_json::from_slice(&json).map_err(|error| NativeError::Failed(error.to_string()))
    }
}
