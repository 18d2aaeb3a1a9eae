//! What all parts of Muster speak about, each thing defined once.
//!
//! * [`id`]: identities, parsed once and never empty. [`units`]: bytes.
//! * [`address`]: where processes, workers and instances are reached.
//! * [`error`]: why something failed, one catalogue of codes.
//! * [`kind`]: types of models, kinds of devices. [`name`]: how clients spell models. [`runtime`]: what hosts models, and what each of them can do.
//!
//! Architecture invariant: no wire format, no I/O, no clock, and no crate of ours below it. Wire types become these where they arrive
//! (`muster-proto`'s conversions, each part's `convert` and `grpc` modules).
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
