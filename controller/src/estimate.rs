//! How much memory a load will take: configured, else seen before, else guessed from the size of the files (DESIGN.md, VRAM estimate).
//!
//! What engines were seen to use is kept per model settings and kind of device, the largest figure ever reported: engines grow while they
//! work, and a reservation that is too small is worse than one that is too large.

use std::collections::BTreeMap;

use muster_policy::{Bytes, DeviceKind, EstimateSource};
use serde::{Deserialize, Serialize};

use crate::catalogue::Entry;

/// Memory seen in use, in bytes, by settings hash and kind of device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Observed(BTreeMap<String, BTreeMap<String, u64>>);

/// Growth below this share of what is known is not worth a new catalogue: 1/16.
const WORTH_TELLING: u64 = 16;
/// What an engine needs beside its model.
const ENGINE: Bytes = Bytes::mib(64);
/// What the `stub` runtime needs by itself.
const STUB: Bytes = Bytes::mib(16);

impl Observed {
    /// Notes what an engine uses; true if estimates change by it.
    pub(crate) fn learn(&mut self, spec_hash: &str, kind: DeviceKind, bytes: Bytes) -> bool {
        if bytes == Bytes::ZERO {
            return false;
        }
        let known = self
            .0
            .entry(spec_hash.to_owned())
            .or_default()
            .entry(name(kind).to_owned())
            .or_default();
        let grown = bytes.get() > known.saturating_add(*known / WORTH_TELLING);
        if grown {
            *known = bytes.get();
        }
        grown
    }

    fn get(&self, spec_hash: &str, kind: DeviceKind) -> Option<Bytes> {
        self.0.get(spec_hash)?.get(name(kind)).copied().map(Bytes::new)
    }
}

/// The name of a kind of device, in files and in `ModelSummary.device_kinds`.
pub(crate) const fn name(kind: DeviceKind) -> &'static str {
    match kind {
        DeviceKind::Cpu => "cpu",
        DeviceKind::Gpu => "gpu",
        DeviceKind::Npu => "npu",
        DeviceKind::Sim => "sim",
    }
}

/// Memory for one load of `entry` on a device of `kind`, and where the figure came from.
pub(crate) fn estimate(entry: &Entry, kind: DeviceKind, observed: &Observed) -> (Bytes, EstimateSource) {
    if let Some(bytes) = entry.memory() {
        return (bytes, EstimateSource::Configured);
    }
    if let Some(stub) = &entry.settings().stub {
        let bytes = if stub.memory_mib == 0 {
            STUB
        } else {
            Bytes::mib(stub.memory_mib.into())
        };
        return (bytes, EstimateSource::Configured);
    }
    if let Some(bytes) = observed.get(entry.spec_hash(), kind) {
        return (bytes, EstimateSource::Observed);
    }
    match entry.files().size {
        0 => (Bytes::ZERO, EstimateSource::Unavailable),
        size => (
            from_size(size, entry.settings().ctx_size),
            EstimateSource::Artifact,
        ),
    }
}

/// Files × 1.2 for weights and compute buffers, and a KV cache that grows with the model: of today's models, one cell takes about 1/65536
/// of the weights (an 8B model at f16: 128 KiB of 16 GiB with grouped-query attention, 2:1 more without).
fn from_size(size: u64, ctx_size: u32) -> Bytes {
    const DEFAULT_CELLS: u64 = 4096;
    const CELLS_PER_SIZE: u64 = 65536;
    let cells = if ctx_size == 0 {
        DEFAULT_CELLS
    } else {
        ctx_size.into()
    };
    let weights = size.saturating_add(size / 5);
    let cache = (size / CELLS_PER_SIZE).saturating_mul(cells);
    Bytes::new(weights) + Bytes::new(cache) + ENGINE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_growth_is_learned() {
        let mut observed = Observed::default();
        assert!(!observed.learn("h", DeviceKind::Cpu, Bytes::ZERO));
        assert!(observed.learn("h", DeviceKind::Cpu, Bytes::mib(100)));
        assert!(!observed.learn("h", DeviceKind::Cpu, Bytes::mib(101)));
        assert!(!observed.learn("h", DeviceKind::Cpu, Bytes::mib(50)));
        assert_eq!(observed.get("h", DeviceKind::Cpu), Some(Bytes::mib(100)));
        assert_eq!(observed.get("h", DeviceKind::Gpu), None);
        assert!(observed.learn("h", DeviceKind::Cpu, Bytes::mib(120)));
        let text = serde_json::to_string(&observed).unwrap();
        assert_eq!(serde_json::from_str::<Observed>(&text).unwrap(), observed);
    }

    #[test]
    fn the_guess_grows_with_files_and_context() {
        let gib = 1 << 30;
        assert!(from_size(gib, 8192) > from_size(gib, 0));
        assert_eq!(from_size(gib, 0), from_size(gib, 4096));
        assert!(from_size(0, 0) == ENGINE);
    }
}
