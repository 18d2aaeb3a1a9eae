//! Commands that call the controller and print the answer.

pub(crate) mod downloads;
pub(crate) mod explain;
pub(crate) mod fleet;
pub(crate) mod load;
pub(crate) mod models;
pub(crate) mod pull;
pub(crate) mod updates;
