//! Errors as Anthropic writes them: `{"type": "error", "error": {type, message}}`.

use muster_core::Code;
use serde::Serialize;
use utoipa::ToSchema;

use crate::render::{
    error::{ErrorForm, http_status},
    json::value,
};

pub(super) static FORM: ErrorForm = ErrorForm {
    object: |out, error| {
        let body = MessageErrorBody {
            r#type: word(error.code),
            message: &error.message,
        };
        let r#type = "error";
        value(out, &MessageError { r#type, error: body });
    },
    status: http_status,
};

/// Anthropic's form of an error.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct MessageError<'a> {
    /// The word `error`.
    r#type: &'static str,
    /// The failure's class and message.
    error: MessageErrorBody<'a>,
}

/// The class and message of a failure.
#[derive(Debug, Serialize, ToSchema)]
struct MessageErrorBody<'a> {
    /// Anthropic's class of the error, for example `invalid_request_error`.
    r#type: &'static str,
    /// One sentence for people.
    message: &'a str,
}

/// Anthropic's class of an error.
fn word(code: Code) -> &'static str {
    match code.http() {
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

#[cfg(test)]
mod tests {
    use muster_core::Error;
    use serde_json::{Value, json};

    use super::*;

    fn body(error: &Error) -> Value {
        serde_json::from_slice(&FORM.body(error)).unwrap()
    }

    #[test]
    fn an_error_has_anthropics_form() {
        let error = Code::UnknownModel.error("no \"x\"").with_param("model");
        assert_eq!(
            body(&error),
            json!({"type": "error", "error": {"type": "not_found_error", "message": "no \"x\""}})
        );
    }
}
