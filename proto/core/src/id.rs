//! Identities: one type each, so that a worker is never taken for a device; cheap to clone, compared by value, never empty.
//!
//! An id is made from what came over the wire, from a configuration, or anew (`fresh`); each of them once, where it comes in.

use std::{borrow::Borrow, fmt, sync::Arc};

/// An identity that must be there is not: its text is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {0} is missing")]
pub struct Missing(pub &'static str);

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $words:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Takes a text as an id.
            ///
            /// # Errors
            /// It is empty.
            pub fn new(text: impl Into<Arc<str>>) -> Result<Self, Missing> {
                let text = text.into();
                if text.is_empty() { Err(Missing($words)) } else { Ok(Self(text)) }
            }

            /// The id before all others, where a range of them begins.
            #[must_use]
            pub fn first() -> Self {
                Self(Arc::from("\0"))
            }

            /// A new one (a UUIDv7): it differs from all others and comes after those made before.
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

        /// For tests, whose ids are literals.
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
    /// A catalogue entry.
    ModelId = "model id";
    /// One load attempt: a UUIDv7, never reused (PROTOCOL.md 4).
    InstanceId = "instance id";
    /// A worker's name, stable over its restarts.
    WorkerId = "worker id";
    /// One process of a worker.
    BootId = "boot id";
    /// One machine: kernel boot id and node name. The scope of type limits and of load serialisation.
    HostId = "host id";
    /// A device, unique within its host only.
    DeviceId = "device id";
    /// Hash of effective settings; equal hashes are the same load.
    SpecHash = "spec hash";
    /// Replicas that were loaded together.
    GroupId = "group id";
    /// An open `EnsureLoaded` stream, and the hold that it is (`hold_id = ensure_id`, PROTOCOL.md 9).
    HoldId = "hold id";
    /// One request, constant over retries.
    RequestId = "request id";
    /// One gateway process.
    GatewayId = "gateway id";
    /// One session between a worker and the controller.
    SessionId = "session id";
}

/// A group is named after the instance that was started first.
impl From<&InstanceId> for GroupId {
    fn from(first: &InstanceId) -> Self {
        Self(Arc::clone(&first.0))
    }
}

impl SpecHash {
    /// A hash as text: hexadecimal digits.
    #[must_use]
    pub fn of(hash: u128) -> Self {
        Self(format!("{hash:032x}").into())
    }
}

/// A fresh UUIDv7 as text.
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
