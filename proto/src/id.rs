//! Newtypes of identities (PROTOCOL.md 4): cheap to clone, compared by value, never mixed up.

use std::{fmt, sync::Arc};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The identity as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// An empty identity stands for "none" on the wire.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.0.is_empty()
            }
        }

        impl<T: Into<Arc<str>>> From<T> for $name {
            fn from(text: T) -> Self {
                Self(text.into())
            }
        }

        impl From<&$name> for String {
            fn from(id: &$name) -> Self {
                id.0.as_ref().to_owned()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0.as_ref().to_owned()
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

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    )*};
}

ids! {
    /// A catalogue entry.
    ModelId
    /// One load attempt: a UUIDv7, never reused.
    InstanceId
    /// A worker's stable name.
    WorkerId
    /// One worker process.
    BootId
    /// A machine: kernel boot id and node name.
    HostId
    /// A physical or declared device, unique within a host.
    DeviceId
    /// One request, constant over retries.
    RequestId
    /// One wish for a model; names the hold.
    EnsureId
    /// One gateway process.
    GatewayId
    /// One session between a worker and the controller.
    SessionId
}

/// A fresh UUIDv7 as text: for instances, requests, ensures, boots and sessions.
#[must_use]
pub fn fresh() -> Arc<str> {
    let mut buffer = uuid::Uuid::encode_buffer();
    Arc::from(&*uuid::Uuid::now_v7().hyphenated().encode_lower(&mut buffer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_ids_differ_and_sort_by_time() {
        let ids: Vec<InstanceId> = (0..100).map(|_| InstanceId::from(fresh())).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
