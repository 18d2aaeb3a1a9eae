//! Ids that policy makes or combines: devices across hosts, and commands.

use std::fmt;

use muster_core::{DeviceId, HostId, InstanceId};

/// A device of a host: device ids are unique only within their host.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceKey {
    pub host: HostId,
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

/// Identifies a command to a worker. Counts up for the life of a [`Fleet`](crate::Fleet); the driver adds its epoch on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u64);

/// Source of new instance ids. Policy has no randomness and no clock, so its caller supplies them.
pub trait IdSource {
    /// A new id, never returned before.
    fn next_instance_id(&mut self) -> InstanceId;
}

impl<F: FnMut() -> InstanceId> IdSource for F {
    fn next_instance_id(&mut self) -> InstanceId {
        self()
    }
}
