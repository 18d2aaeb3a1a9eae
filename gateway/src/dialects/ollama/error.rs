//! Errors as Ollama writes them: `{"error": "…"}`.

use serde::Serialize;
use utoipa::ToSchema;

use crate::render::{
    error::{ErrorForm, http_status},
    json::value,
};

pub(super) static FORM: ErrorForm = ErrorForm {
    object: |out, error| {
        let error = &error.message;
        value(out, &OllamaError { error });
    },
    status: http_status,
};

/// An error in Ollama's form.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct OllamaError<'a> {
    /// One sentence for people.
    pub(super) error: &'a str,
}

#[cfg(test)]
mod tests {
    use muster_core::Code;

    use super::*;

    #[test]
    fn an_error_is_its_message() {
        let error = Code::UnknownModel.error("no \"x\"").with_param("model");
        assert_eq!(&*FORM.body(&error), br#"{"error":"no \"x\""}"#);
    }
}
