//! Which models run where: a pure function of events.
//!
//! [`Fleet::step`] takes one [`Event`] and the time and returns the [`Effect`]s it calls for. A driver owns the [`Fleet`]; an executor
//! carries effects out and feeds what came of them back as events.
//!
//! Architecture invariant: this crate reads no clock, no randomness, no environment and does no I/O; `now` and new ids are handed in.
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
