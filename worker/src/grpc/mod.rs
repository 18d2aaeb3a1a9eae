//! The gRPC services of a worker: wire types end here.

pub(crate) mod host;
pub(crate) mod inference;
