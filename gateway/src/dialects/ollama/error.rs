//! Errors as Ollama writes them: `{"error": "…"}`.

use muster_proto::Code;
use serde::Serialize;
use utoipa::ToSchema;

use crate::render::{error::ErrorForm, json::value};

pub(super) static FORM: ErrorForm = ErrorForm {
    object: |out, error| {
        let error = &error.message;
        value(out, &OllamaError { error });
    },
    status: Code::http,
};

/// Ollama's form of an error.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct OllamaError<'a> {
    /// One sentence for a person.
    error: &'a str,
}

#[cfg(test)]
mod tests {
    use muster_proto::ErrorExt as _;

    use super::*;

    #[test]
    fn an_error_is_its_message() {
        let error = Code::UnknownModel.error("no \"x\"").with_param("model");
        assert_eq!(&*FORM.body(&error), br#"{"error":"no \"x\""}"#);
    }
}
