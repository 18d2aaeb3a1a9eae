//! Muster's control plane: the catalogue, the driver of policy, the sessions of workers, and the gRPC services on top.
//!
//! ```text
//!             gateways, CLI                      workers
//!                  │ Control                        │ Fleet.Join
//!             ┌────▼────────────── grpc ────────────▼────┐
//!             │                  Handle                  │
//!             └────────────────────┬─────────────────────┘
//!    config ─► catalogue ─► driver (owns muster_policy::Fleet) ─► state (epoch, roster, observed memory)
//!                              └─ convert: wire ⇄ policy
//! ```
#![forbid(unsafe_code)]

mod aside;
mod catalogue;
pub mod config;
mod convert;
mod driver;
mod estimate;
mod grpc;
mod reload;
mod replace;
mod routes;
mod server;
mod state;

pub use server::{Controller, Doors, ServerError};
pub use state::StateError;
