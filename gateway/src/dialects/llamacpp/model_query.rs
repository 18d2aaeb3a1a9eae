//! Which model a native request means: the body's `model`, else the query's, else the only one that is loaded (gateway/README.md, llama.cpp native).

use muster_proto::v1::ErrorInfo;
use serde::Deserialize;

pub(super) use crate::web::extract::Query;
use crate::{
    fleet::table::{Table, is_loaded},
    translate::object::{self, Object},
};

/// The query of a native request.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct ModelQuery {
    pub(super) model: Option<String>,
}

impl ModelQuery {
    /// The model's id; it need not be known.
    ///
    /// # Errors
    /// `invalid_request`: none is named and not exactly one is loaded.
    pub(super) fn model(self, table: &Table, body: Option<&mut Object<'_>>) -> Result<String, ErrorInfo> {
        let named = body.and_then(|body| body.take("model"));
        let named = named
            .map(|field| field.string())
            .transpose()?
            .filter(|name| !name.is_empty());
        if let Some(name) = named.or(self.model.filter(|name| !name.is_empty())) {
            return Ok(name);
        }
        let mut loaded = table.models().filter(|summary| is_loaded(summary));
        match (loaded.next(), loaded.next()) {
            (Some(only), None) => Ok(only.id.clone()),
            (None, _) => Err(object::invalid("model", "is required: no model is loaded")),
            (Some(_), Some(_)) => Err(object::invalid("model", "is required: several models are loaded")),
        }
    }
}
