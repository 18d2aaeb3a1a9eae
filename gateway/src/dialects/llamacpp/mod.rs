//! llama.cpp's own routes (seed 004), without a prefix. Errors are in its form, with the status as `code`.

mod beyond;
pub(super) mod counters;
pub(super) mod error;
mod generate;
mod passthrough;
mod prefixed;
mod props;
mod queries;
pub(crate) mod render;
mod requests;
mod router;
mod schema;
mod translate;

use crate::web::route::{Dialect, Named};

/// llama.cpp's API.
pub(super) static DIALECT: Dialect = Dialect {
    name: "llama.cpp",
    errors: &error::FORM,
    error: Named::of::<error::LlamaCppError<'_>>(),
    routes: || {
        [
            generate::routes(),
            queries::routes(),
            props::routes(),
            passthrough::routes(),
            prefixed::routes(),
            router::routes(),
            beyond::routes(),
        ]
        .concat()
    },
};
