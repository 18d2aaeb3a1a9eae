//! Names of things: one newtype each, so that a worker is never taken for a device.
//!
//! Ids are opaque to policy: it compares and orders them (ties break by id, I9) and never looks inside.

use std::fmt;
use std::sync::Arc;

macro_rules! text_id {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Wraps a name as it is.
            #[must_use]
            pub fn new(text: impl Into<Arc<str>>) -> Self {
                Self(text.into())
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self::new(text)
            }
        }
    )*};
}

text_id! {
    /// A catalogue entry.
    ModelId;
    /// One load attempt (UUIDv7, minted outside, never reused).
    InstanceId;
    /// A worker, stable over its restarts.
    WorkerId;
    /// One process of a worker.
    BootId;
    /// One machine: kernel boot id and node name. The scope of type limits and of load serialisation.
    HostId;
    /// A device, unique within its host only; see [`DeviceKey`].
    DeviceId;
    /// A runtime: `llama_cpp`, `llama_server`, `stub`, ….
    RuntimeName;
    /// Hash of effective settings; equal hashes are the same load.
    SpecHash;
    /// Replicas that were loaded together.
    GroupId;
    /// An open `EnsureLoaded` stream, and the hold it stands for (`hold_id = ensure_id`).
    HoldId;
    /// An operator's call that waits for an answer; minted by the driver.
    RequestId;
}

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
