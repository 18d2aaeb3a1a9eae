//! Errors in the form of each dialect, made from the error catalogue. This module has what the forms share; each dialect has its own in
//! `error.rs`.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use muster_core::{Code, Error};
use serde::Serialize;
use utoipa::ToSchema;

use super::json::value;

/// The form of a dialect's errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ErrorForm {
    /// Writes the error's object.
    pub(crate) object: fn(&mut BytesMut, &Error),
    /// The HTTP status of a code.
    pub(crate) status: fn(Code) -> StatusCode,
}

impl ErrorForm {
    /// The error as a complete body.
    pub(crate) fn body(&self, error: &Error) -> Bytes {
        let mut out = BytesMut::with_capacity(192);
        self.write(&mut out, error);
        out.freeze()
    }

    /// Writes the error's object.
    pub(crate) fn write(&self, out: &mut BytesMut, error: &Error) {
        (self.object)(out, error);
    }
}

/// OpenAI's form; also used at paths that belong to no dialect.
pub(crate) static OPENAI: ErrorForm = ErrorForm {
    object: |out, error| value(out, &OpenAiError::of(error, error.code.openai_type())),
    status: http_status,
};

/// A fact of an error that is a number.
pub(crate) fn number(error: &Error, detail: &str) -> Option<u64> {
    error.details.get(detail)?.parse().ok()
}

/// A code's HTTP status.
pub(crate) fn http_status(code: Code) -> StatusCode {
    StatusCode::from_u16(code.http()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// An error in OpenAI's form.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Error)]
pub(crate) struct OpenAiError<'a> {
    /// Message, class and code.
    error: OpenAiErrorBody<'a>,
}

impl<'a> OpenAiError<'a> {
    /// The error with OpenAI's class `kind`.
    pub(crate) fn of(error: &'a Error, kind: &'a str) -> Self {
        Self {
            error: OpenAiErrorBody::of(error, kind),
        }
    }
}

/// Message, class and code of an error.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ErrorBody)]
pub(crate) struct OpenAiErrorBody<'a> {
    /// One sentence for people.
    message: &'a str,
    /// OpenAI's class of the error, for example `invalid_request_error`.
    r#type: &'a str,
    /// Path of the field at fault; null if none.
    param: Option<&'a str>,
    /// Code of the error catalogue, for example `unknown_model`.
    code: &'a str,
    /// Tokens of a prompt that is too long, as llama.cpp says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    n_prompt_tokens: Option<u64>,
    /// Tokens that there is room for.
    #[serde(skip_serializing_if = "Option::is_none")]
    n_ctx: Option<u64>,
    /// More facts by name, for example `wanted_bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<BTreeMap<&'a str, &'a str>>,
}

impl<'a> OpenAiErrorBody<'a> {
    /// The error with OpenAI's class `kind`.
    pub(crate) fn of(error: &'a Error, kind: &'a str) -> Self {
        let details = error
            .details
            .iter()
            .map(|(key, text)| (key.as_str(), text.as_str()));
        Self {
            message: &error.message,
            r#type: kind,
            param: error.param.as_deref(),
            code: error.code.as_str(),
            n_prompt_tokens: number(error, "prompt_tokens"),
            n_ctx: number(error, "context_length"),
            details: (!error.details.is_empty()).then(|| details.collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn body(error: &Error) -> Value {
        serde_json::from_slice(&OPENAI.body(error)).unwrap()
    }

    #[test]
    fn openais_form_names_the_field_and_the_code() {
        let error = Code::UnknownModel.error("no \"x\"").with_param("model");
        assert_eq!(
            body(&error),
            json!({"error": {"message": "no \"x\"", "type": "not_found_error", "param": "model", "code": "unknown_model"}})
        );
    }

    #[test]
    fn numbers_of_the_catalogue_are_shown() {
        let error = Code::InsufficientMemory.error("x").with_detail("wanted_bytes", 3);
        assert_eq!(body(&error)["error"]["details"]["wanted_bytes"], "3");
    }
}
