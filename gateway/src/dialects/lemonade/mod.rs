//! Lemonade's own routes (seed 000). An error's body has Lemonade's form and OpenAI's together (gateway/README.md, Lemonade).

mod aliases;
mod answers;
mod beyond;
mod delete;
mod downloads;
mod error;
mod health;
mod info;
mod internal;
mod load;
pub(crate) mod metrics;
mod options;
mod pull;
mod recipes;
mod register;
mod requests;
mod stats;
mod system;
mod updates;

use crate::web::route::{Dialect, Named};

/// The routes of Lemonade's API.
pub(super) static DIALECT: Dialect = Dialect {
    name: "Lemonade",
    errors: &error::FORM,
    error: Named::of::<error::LemonadeError<'_>>(),
    routes: || {
        [
            health::routes(),
            stats::routes(),
            system::routes(),
            load::routes(),
            pull::routes(),
            downloads::routes(),
            updates::routes(),
            delete::routes(),
            register::routes(),
            options::routes(),
            aliases::routes(),
            internal::routes(),
            beyond::routes(),
        ]
        .concat()
    },
};
