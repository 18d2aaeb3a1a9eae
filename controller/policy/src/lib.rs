//! Which models run where: a pure function of events.
//!
//! [`Fleet::step`] takes the time and an [`Event`] and returns the [`Effect`]s to carry out. A driver owns the [`Fleet`]; an executor
//! carries the effects out and reports their results as events.
//!
//! Architecture invariant: this crate reads no clock, no randomness and no environment, and does no I/O. Callers pass `now` and new ids.
#![forbid(unsafe_code)]

mod announce;
mod api;
mod attend;
mod config;
mod expire;
mod fleet;
pub mod invariants;
mod ledger;
mod plan;
mod reconcile;
mod state;
mod strategy;
mod timers;
mod transitions;
mod view;

pub use api::*;
pub use config::{Backoff, Config, Limit, Limits, Placement};
pub use fleet::Fleet;
pub use strategy::Eviction;
pub use view::{DeviceView, InstanceView, ModelView, WorkerView};
