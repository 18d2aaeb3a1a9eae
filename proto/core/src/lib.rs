//! Types that all parts of Muster share, each defined once.
//!
//! * [`id`]: ids, parsed once and never empty. [`units`]: bytes.
//! * [`address`]: addresses of processes, workers and instances.
//! * [`error`]: the error catalogue.
//! * [`kind`]: types of models, kinds of devices. [`name`]: spellings of model names. [`runtime`]: runtimes and what each can do.
//!
//! Architecture invariant: no wire format, no I/O, no clock, and no other crate of Muster's below it. Wire types become these types where
//! they arrive (`muster-proto`'s conversions, each part's `convert` and `grpc` modules).
#![forbid(unsafe_code)]

pub mod address;
pub mod error;
pub mod id;
pub mod kind;
pub mod name;
pub mod runtime;
pub mod units;

pub use address::{Address, InstanceAddress, WorkerAddress};
pub use error::{Code, Error};
pub use id::{
    BootId, DeviceId, GatewayId, GroupId, HoldId, HostId, InstanceId, Missing, ModelId, RequestId, SessionId,
    SpecHash, WorkerId,
};
pub use kind::{DeviceKind, ModelType};
pub use runtime::Runtime;
pub use units::Bytes;
