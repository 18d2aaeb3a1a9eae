//! Ids. Each kind has a type of its own, so that a worker's id cannot be used for a device. They are cheap to clone, compared by value, and
//! never empty.
//!
//! An id is made once: from a message, from a configuration, or anew (`fresh`).

use std::{borrow::Borrow, fmt, sync::Arc};

/// A required id is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {0} is missing")]
pub struct Missing(pub &'static str);

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $words:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Makes an id from a text.
            ///
            /// # Errors
            /// The text is empty.
            pub fn new(text: impl Into<Arc<str>>) -> Result<Self, Missing> {
                let text = text.into();
                if text.is_empty() { Err(Missing($words)) } else { Ok(Self(text)) }
            }

            /// The smallest id, for the beginning of a range.
            #[must_use]
            pub fn first() -> Self {
                Self(Arc::from("\0"))
            }

            /// A new id (a UUIDv7). It differs from all others and sorts after earlier ones.
            #[cfg(feature = "fresh")]
            #[must_use]
            pub fn fresh() -> Self {
                Self(fresh())
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        /// For tests, which use literals as ids.
        #[cfg(feature = "literals")]
        impl From<&str> for $name {
            #[allow(clippy::expect_used, reason = "a test with an empty id is wrong")]
            fn from(text: &str) -> Self {
                Self::new(text).expect("an id")
            }
        }

        impl From<&$name> for String {
            fn from(id: &$name) -> Self {
                id.as_str().to_owned()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                Self::from(&id)
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

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    )*};
}

ids! {
    /// Id of a model in the catalogue.
    ModelId = "model id";
    /// Id of a load attempt: a UUIDv7, never used again (PROTOCOL.md 4).
    InstanceId = "instance id";
    /// Name of a worker; the same over its restarts.
    WorkerId = "worker id";
    /// Id of a worker's process.
    BootId = "boot id";
    /// Id of a machine: kernel boot id and node name. Type limits and load slots count per host.
    HostId = "host id";
    /// Id of a device; unique only within its host.
    DeviceId = "device id";
    /// Hash of effective settings. Loads with equal hashes are the same.
    SpecHash = "spec hash";
    /// Id of a group of replicas that were loaded together.
    GroupId = "group id";
    /// Id of an open `EnsureLoaded` stream and of its hold (`hold_id = ensure_id`, PROTOCOL.md 9).
    HoldId = "hold id";
    /// Id of a request; the same for all its retries.
    RequestId = "request id";
    /// Id of a gateway's process.
    GatewayId = "gateway id";
    /// Id of a session between a worker and the controller.
    SessionId = "session id";
}

/// A group has the id of the instance that was started first.
impl From<&InstanceId> for GroupId {
    fn from(first: &InstanceId) -> Self {
        Self(Arc::clone(&first.0))
    }
}

impl SpecHash {
    /// A hash as hexadecimal digits.
    #[must_use]
    pub fn of(hash: u128) -> Self {
        Self(format!("{hash:032x}").into())
    }
}

/// A new UUIDv7 as text.
#[cfg(feature = "fresh")]
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
        let ids: Vec<InstanceId> = (0..100).map(|_| InstanceId::fresh()).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn an_id_is_never_empty_and_the_first_comes_before_all_others() {
        assert_eq!(ModelId::new(""), Err(Missing("model id")));
        assert_eq!(Missing("model id").to_string(), "the model id is missing");
        let first = DeviceId::first();
        assert!(
            ["\0\0", " ", "0", "cpu"]
                .iter()
                .all(|text| first < DeviceId::from(*text))
        );
    }
}
