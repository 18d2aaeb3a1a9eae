//! The `Engine` service: the only modules that know both the wire and the engine's own types.

pub(crate) mod convert;
mod images;
mod infill;
mod load;
mod prepare;
mod service;
mod session;
mod settings;
mod slots;
mod tuning;
mod warm;

pub(crate) use service::EngineService;
