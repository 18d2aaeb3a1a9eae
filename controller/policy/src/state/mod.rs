//! What policy remembers: plain data. Changes happen in `transitions` and `plan`.

mod command;
mod device;
mod instance;
mod load;
mod model;
mod usage;
mod waiter;
mod worker;

pub(crate) use command::{Asked, Pending};
pub(crate) use device::{Device, Free};
pub(crate) use instance::{Before, Condemned, Exit, Instance, InstanceState, Was};
pub(crate) use load::{Claim, Delay, Goal, Load, LoadId, Standing};
pub(crate) use model::{Failure, Model, WaitingCall};
pub(crate) use waiter::{Place, Waiter};
pub(crate) use worker::{Presence, Worker};
