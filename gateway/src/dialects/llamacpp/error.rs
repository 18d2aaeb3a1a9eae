//! Errors as llama.cpp writes them: `{"error": {code, message, type}}`, where `code` is the status (seed 004, API errors).

use axum::response::Response;
use http::StatusCode;
use muster_core::Code;
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    render::{
        error::{ErrorForm, number},
        json::value,
    },
    web::reply,
};

pub(in crate::dialects) static FORM: ErrorForm = ErrorForm {
    object: |out, error| {
        let body = LlamaCppErrorBody {
            code: status(error.code),
            message: &error.message,
            r#type: word(error.code),
            n_prompt_tokens: number(error, "prompt_tokens"),
            n_ctx: number(error, "context_length"),
        };
        value(out, &LlamaCppError { error: body });
    },
    status: |code| StatusCode::from_u16(status(code)).unwrap_or_default(),
};

/// llama.cpp's form of an error.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::dialects) struct LlamaCppError<'a> {
    /// What is wrong.
    error: LlamaCppErrorBody<'a>,
}

/// What is wrong.
#[derive(Debug, Serialize, ToSchema)]
struct LlamaCppErrorBody<'a> {
    /// The HTTP status.
    code: u16,
    /// One sentence for a person.
    message: &'a str,
    /// llama.cpp's class of errors.
    r#type: &'static str,
    /// Tokens of a prompt that is too long.
    #[serde(skip_serializing_if = "Option::is_none")]
    n_prompt_tokens: Option<u64>,
    /// Tokens that there is room for.
    #[serde(skip_serializing_if = "Option::is_none")]
    n_ctx: Option<u64>,
}

/// llama.cpp's answer while it cannot serve.
pub(in crate::dialects) fn unavailable(message: &str) -> Response {
    let body = LlamaCppErrorBody {
        code: 503,
        message,
        r#type: "unavailable_error",
        n_prompt_tokens: None,
        n_ctx: None,
    };
    reply::value(StatusCode::SERVICE_UNAVAILABLE, &LlamaCppError { error: body })
}

/// llama.cpp answers 501 where it cannot do what was asked.
fn status(code: Code) -> u16 {
    if code == Code::UnsupportedByRuntime {
        501
    } else {
        code.http()
    }
}

/// llama.cpp's words for errors.
fn word(code: Code) -> &'static str {
    if code == Code::ContextLengthExceeded {
        return "exceed_context_size_error";
    }
    match status(code) {
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
    use muster_core::Error;
    use serde_json::{Value, json};

    use super::*;

    fn body(error: &Error) -> Value {
        serde_json::from_slice(&FORM.body(error)).unwrap()
    }

    #[test]
    fn an_error_has_llama_cpps_form() {
        let error = Code::UnknownModel.error("no \"x\"").with_param("model");
        assert_eq!(
            body(&error)["error"],
            json!({"code": 404, "message": "no \"x\"", "type": "not_found_error"})
        );
    }

    #[test]
    fn what_a_runtime_cannot_do_is_501() {
        let error = Code::UnsupportedByRuntime.error("no slots here");
        assert_eq!(body(&error)["error"]["code"], 501);
        let error = Code::ContextLengthExceeded.error("too long");
        let error = error
            .with_detail("prompt_tokens", 9)
            .with_detail("context_length", 8);
        assert_eq!(
            body(&error)["error"],
            json!({"code": 400, "message": "too long", "type": "exceed_context_size_error", "n_prompt_tokens": 9, "n_ctx": 8})
        );
    }
}
