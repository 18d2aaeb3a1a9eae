//! Errors in each dialect's form, out of the one catalogue.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use muster_proto::{Code, ErrorExt as _, v1::ErrorInfo};

use super::json::{member, raw, value};

/// How a dialect writes an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Form {
    /// `{"error": {message, type, param, code}}`, with `details` where the catalogue has numbers to give.
    #[default]
    OpenAi,
    /// `{"type": "error", "error": {type, message}}`.
    Anthropic,
    /// `{"error": "…"}`.
    Ollama,
    /// `status` and `message` beside OpenAI's `error` (gateway/README.md, Lemonade).
    Lemonade,
    /// llama.cpp's `{"error": {code, message, type}}`, where `code` is the status (seed 004, API errors).
    Native,
}

impl Form {
    /// The error's HTTP status.
    pub(crate) fn status(self, error: &ErrorInfo) -> StatusCode {
        match self {
            Self::Native => StatusCode::from_u16(native_status(error.kind())).unwrap_or_default(),
            Self::OpenAi | Self::Anthropic | Self::Ollama | Self::Lemonade => error.kind().http(),
        }
    }

    /// The error as a body.
    pub(crate) fn body(self, error: &ErrorInfo) -> Bytes {
        let mut out = BytesMut::with_capacity(192);
        self.write(&mut out, error);
        out.freeze()
    }

    /// Writes the error's object.
    pub(crate) fn write(self, out: &mut BytesMut, error: &ErrorInfo) {
        match self {
            Self::OpenAi => openai(out, error, error.kind().openai_type()),
            Self::Anthropic => {
                raw(out, "{\"type\":\"error\",\"error\":{\"type\":");
                value(out, anthropic_type(error.kind()));
                member(out, "message", &error.message);
                raw(out, "}}");
            }
            Self::Ollama => {
                raw(out, "{\"error\":");
                value(out, &error.message);
                raw(out, "}");
            }
            Self::Lemonade => {
                raw(out, "{\"status\":\"error\",\"message\":");
                value(out, &error.message);
                raw(out, ",\"error\":{");
                openai_inner(out, error, error.kind().openai_type());
            }
            Self::Native => {
                raw(out, "{\"error\":{\"code\":");
                value(out, &native_status(error.kind()));
                member(out, "message", &error.message);
                member(out, "type", native_type(error.kind()));
                // llama.cpp's numbers of a prompt that is too long.
                for (key, detail) in [("n_prompt_tokens", "prompt_tokens"), ("n_ctx", "context_length")] {
                    let number = error.details.get(detail);
                    if let Some(number) = number.and_then(|text| text.parse::<u64>().ok()) {
                        member(out, key, &number);
                    }
                }
                raw(out, "}}");
            }
        }
    }
}

/// OpenAI's form under another `type`.
pub(crate) fn openai_of(error: &ErrorInfo, kind: &str) -> Bytes {
    let mut out = BytesMut::with_capacity(192);
    openai(&mut out, error, kind);
    out.freeze()
}

/// OpenAI's form as the last event of a stream that already began.
pub(crate) fn event(out: &mut BytesMut, error: &ErrorInfo) {
    raw(out, "event: error\ndata: ");
    Form::OpenAi.write(out, error);
    raw(out, "\n\n");
}

fn openai(out: &mut BytesMut, error: &ErrorInfo, kind: &str) {
    raw(out, "{\"error\":{");
    openai_inner(out, error, kind);
}

/// Writes the error's members, and closes it and what it stands in.
fn openai_inner(out: &mut BytesMut, error: &ErrorInfo, kind: &str) {
    raw(out, "\"message\":");
    value(out, &error.message);
    member(out, "type", kind);
    member(
        out,
        "param",
        &Some(&error.param).filter(|param| !param.is_empty()),
    );
    member(out, "code", &error.code);
    if !error.details.is_empty() {
        member(out, "details", &error.details.iter().collect::<BTreeMap<_, _>>());
    }
    raw(out, "}}");
}

/// Anthropic's words for errors.
fn anthropic_type(code: Code) -> &'static str {
    match code.http_number() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    }
}

/// llama.cpp answers 501 where it cannot do what was asked.
fn native_status(code: Code) -> u16 {
    if code == Code::UnsupportedByRuntime {
        501
    } else {
        code.http_number()
    }
}

/// llama.cpp's words for errors.
fn native_type(code: Code) -> &'static str {
    if code == Code::ContextLengthExceeded {
        return "exceed_context_size_error";
    }
    match native_status(code) {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        501 => "not_supported_error",
        503 => "unavailable_error",
        400..=499 => "invalid_request_error",
        _ => "server_error",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn body(form: Form, error: &ErrorInfo) -> Value {
        serde_json::from_slice(&form.body(error)).unwrap()
    }

    #[test]
    fn each_dialect_has_its_own_form() {
        let error = Code::UnknownModel.error("no \"x\"").with_param("model");
        assert_eq!(
            body(Form::OpenAi, &error),
            json!({"error": {"message": "no \"x\"", "type": "not_found_error", "param": "model", "code": "unknown_model"}})
        );
        assert_eq!(
            body(Form::Anthropic, &error),
            json!({"type": "error", "error": {"type": "not_found_error", "message": "no \"x\""}})
        );
        assert_eq!(body(Form::Ollama, &error), json!({"error": "no \"x\""}));
        let both = body(Form::Lemonade, &error);
        assert_eq!(
            (&both["status"], &both["error"]["code"]),
            (&json!("error"), &json!("unknown_model"))
        );
        assert_eq!(
            body(Form::Native, &error)["error"],
            json!({"code": 404, "message": "no \"x\"", "type": "not_found_error"})
        );
    }

    #[test]
    fn what_a_runtime_cannot_do_is_501_natively() {
        let error = Code::UnsupportedByRuntime.error("no slots here");
        assert_eq!(body(Form::Native, &error)["error"]["code"], 501);
        let error = Code::ContextLengthExceeded.error("too long");
        let error = error
            .with_detail("prompt_tokens", 9)
            .with_detail("context_length", 8);
        assert_eq!(
            body(Form::Native, &error)["error"],
            json!({"code": 400, "message": "too long", "type": "exceed_context_size_error", "n_prompt_tokens": 9, "n_ctx": 8})
        );
    }

    #[test]
    fn numbers_of_the_catalogue_are_shown() {
        let error = Code::InsufficientMemory.error("x").with_detail("wanted_bytes", 3);
        assert_eq!(
            body(Form::OpenAi, &error)["error"]["details"]["wanted_bytes"],
            "3"
        );
    }
}
