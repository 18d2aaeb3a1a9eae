//! GPUs as llama.cpp finds them, and how many bytes a model has on each.
//!
//! Architecture invariant: knows no request; which devices a model gets is said by whoever starts the process.
#![expect(unsafe_code, reason = "calls into the shim")]

use serde::{Deserialize, Serialize};

use crate::{
    ffi::{self, NativeError, append},
    model::collect,
};

/// What this build can use here.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Found {
    /// Backends that were compiled in, by ggml's names: `CPU`, `CUDA`, `Vulkan`, …
    pub(crate) backends: Vec<String>,
    pub(crate) devices: Vec<Gpu>,
}

/// A GPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Gpu {
    /// ggml's name of it in this process: `Vulkan0`.
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) backend: String,
    /// PCI address; empty if it has none.
    pub(crate) id: String,
    /// Its memory is the host's.
    pub(crate) integrated: bool,
    pub(crate) free_bytes: u64,
    pub(crate) total_bytes: u64,
}

/// Bytes that a model and its context take on a device.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Taken {
    /// As [`Gpu::name`]; `CPU` = the host's memory.
    pub(crate) device: String,
    pub(crate) weights_bytes: u64,
    pub(crate) cache_bytes: u64,
    pub(crate) compute_bytes: u64,
}

/// What there is now.
///
/// # Errors
/// A driver fails.
pub(crate) fn find() -> Result<Found, NativeError> {
    // SAFETY: the sink is called during the call only.
    let json = collect(|user, error| unsafe { ffi::ms_devices(append, user, error) })?;
    serde_json::from_slice(&json).map_err(|error| NativeError::Failed(error.to_string()))
}
