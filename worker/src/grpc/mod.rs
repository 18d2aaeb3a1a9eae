//! The worker's gRPC services. Wire types are not used beyond this module.

pub(crate) mod host;
pub(crate) mod inference;
pub(crate) mod uploads;
