//! Names that only policy gives: devices across hosts, and its commands.

use std::fmt;

use muster_core::{DeviceId, HostId, InstanceId};

/// A device of one host.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceKey {
    /// The machine.
    pub host: HostId,
    /// The device on it.
    pub device: DeviceId,
}

impl fmt::Display for DeviceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.device, self.host)
    }
}

impl fmt::Debug for DeviceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host, self.device)
    }
}

/// Names one command to a worker; counts up in the life of a [`Fleet`](crate::Fleet). The driver adds its epoch on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u64);

/// Where new instance ids come from: outside, since policy has no randomness and no clock.
pub trait IdSource {
    /// A fresh id, never returned before.
    fn next_instance_id(&mut self) -> InstanceId;
}

impl<F: FnMut() -> InstanceId> IdSource for F {
    fn next_instance_id(&mut self) -> InstanceId {
        self()
    }
}
