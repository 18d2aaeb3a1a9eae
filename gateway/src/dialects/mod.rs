//! The dialects. Each has its routes, reads its requests (`translate`) and writes its answers (`render`) and errors (`error`). What several
//! share is in [`crate::translate`] and [`crate::render`].
//!
//! Architecture invariant: a dialect may use another's readers, never its routes.

mod admin;
pub(crate) mod anthropic;
mod gateway;
mod lemonade;
pub(crate) mod llamacpp;
pub(crate) mod ollama;
pub(crate) mod openai;

use crate::{
    render::error::{self, ErrorForm},
    web::route::{Dialect, PREFIXES, Route},
};

/// All dialects, in the order in which the document shows them.
const DIALECTS: [&Dialect; 7] = [
    &openai::DIALECT,
    &anthropic::DIALECT,
    &ollama::DIALECT,
    &lemonade::DIALECT,
    &admin::DIALECT,
    &llamacpp::DIALECT,
    &gateway::DIALECT,
];

/// All routes with their dialects.
pub(crate) fn routes() -> impl Iterator<Item = (&'static Dialect, Route)> {
    let of = |dialect: &'static Dialect| (dialect.routes)().into_iter().map(move |route| (dialect, route));
    DIALECTS.into_iter().flat_map(of)
}

/// The form of errors at a path without a route: Ollama's below `/api`, else OpenAI's.
pub(crate) fn form_at(path: &str) -> &'static ErrorForm {
    let under = |prefix: &str| {
        path.strip_prefix(prefix)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    if under("/api") && !PREFIXES.iter().any(|prefix| under(prefix)) {
        ollama::DIALECT.errors
    } else {
        &error::OPENAI
    }
}
