//! Errors as Lemonade writes them, with OpenAI's `error` beside `status` and `message` (gateway/README.md, Lemonade).

use serde::Serialize;
use utoipa::ToSchema;

use crate::render::{
    error::{ErrorForm, OpenAiErrorBody, http_status},
    json::value,
};

pub(super) static FORM: ErrorForm = ErrorForm {
    object: |out, error| {
        let body = LemonadeError {
            status: "error",
            message: &error.message,
            error: OpenAiErrorBody::of(error, error.code.openai_type()),
        };
        value(out, &body);
    },
    status: http_status,
};

/// An error in Lemonade's form, which includes OpenAI's.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LemonadeError<'a> {
    /// The word `error`.
    status: &'static str,
    /// One sentence for people; the same as in `error`.
    message: &'a str,
    /// The error in OpenAI's form.
    error: OpenAiErrorBody<'a>,
}

#[cfg(test)]
mod tests {
    use muster_core::Code;
    use muster_core::Error;
    use serde_json::{Value, json};

    use super::*;

    fn body(error: &Error) -> Value {
        serde_json::from_slice(&FORM.body(error)).unwrap()
    }

    #[test]
    fn an_error_has_both_shapes() {
        let error = Code::UnknownModel.error("no \"x\"").with_param("model");
        let body = body(&error);
        assert_eq!(
            (&body["status"], &body["message"], &body["error"]["code"]),
            (&json!("error"), &json!("no \"x\""), &json!("unknown_model"))
        );
    }
}
