//! The crate's inputs and outputs. Types that all parts share are in `muster-core`.
//!
//! Architecture invariant: nothing here knows the wire (`muster-proto`), tokio or a clock. The controller's `convert` module translates
//! from and to the wire.

mod decision;
mod effect;
mod event;
mod explain;
mod facts;
mod failure;
mod ids;
mod spec;
mod units;

pub use decision::{Decision, DecisionKind, EvictionRule, Quiesce};
pub use effect::{Command, Effect, ModelState, RouteState, Stage, UnloadMode, WaitReason};
pub use event::{DoneState, Event, Outcome, Refusal, UnloadHow};
pub use explain::{Explanation, Obstruction, PartView, PlaceView, Verdict, VictimStanding, VictimView};
pub use facts::{
    DeviceFacts, DeviceSample, Exclusivity, InstanceStatus, Progress, Report, ReportedState, Touch,
    WorkerFacts,
};
pub use failure::{FailureClass, LoadError, WorkerFailure};
pub use ids::{CommandId, DeviceKey, IdSource};
pub use spec::{
    DeviceChoice, EstimateSource, Group, IdleTtl, InstanceSpec, ModelSpec, Need, NeedPart, Origin,
    Reservation, Settings,
};
pub use units::{Moment, Share};
