//! Extractors for the path and the query. Their errors are those of the catalogue; axum's own are plain text, which no client expects.
//!
//! Architecture invariant: handlers use these, never axum's `Path` and `Query` with their own rejections.

use axum::extract::{self, FromRequestParts};
use http::request::Parts;
use serde::de::DeserializeOwned;

use super::reply::Refusal;
use crate::translate::object;

/// Values from the path.
#[derive(Clone, Debug)]
pub(crate) struct Path<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        match extract::Path::from_request_parts(parts, state).await {
            Ok(extract::Path(path)) => Ok(Self(path)),
            Err(error) => Err(object::invalid("path", error.body_text()).into()),
        }
    }
}

/// Values from the query.
#[derive(Clone, Debug)]
pub(crate) struct Query<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        match extract::Query::try_from_uri(&parts.uri) {
            Ok(extract::Query(query)) => Ok(Self(query)),
            Err(error) => Err(object::invalid("query", error.body_text()).into()),
        }
    }
}
