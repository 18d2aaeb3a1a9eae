//! How much memory a load takes, and the ways to host a model that follow from it (controller/gguf/README.md, VRAM estimate).
//!
//! ```text
//! configured (memory_mib) > observed (engines, kept on disk) > computed (headers of the files) > artifact (size of the files) > unavailable
//! ```
//! Headers are read where the disk may be slow, beside the driver ([`Details`]); everything here is computed from what was read.

mod artifact;
mod details;
mod observed;
mod settings;
mod vllm;

use muster_core::{Bytes, DeviceKind};
use muster_gguf::memory::{self, Demand, Place};
use muster_policy::{DeviceChoice, EstimateSource, Need, NeedPart, Share};
use muster_proto::v1::ModelSettings;

use details::Headers;
pub(crate) use details::{Details, Reader};
pub(crate) use observed::{Observed, Way};

use crate::{catalogue::Entry, convert};

/// Memory that an engine may take in addition to twice its estimate.
const MORE: Bytes = Bytes::mib(1024);
/// Memory of the `stub` runtime itself.
const STUB: Bytes = Bytes::mib(16);

/// Largest number of devices that share a model.
const MOST_DEVICES: usize = 8;

/// The ways to host `entry`, the preferred one first. For each kind of device that it may run on: whole on one device, shared evenly by as
/// few as possible, and split between one device and host memory if the configuration allows it.
pub(crate) fn needs(entry: &Entry, device: &DeviceChoice, observed: &Observed) -> Vec<Need> {
    let mut needs = Vec::new();
    for kind in convert::model::kinds(entry, device) {
        needs.push(whole(entry, *kind, observed));
        needs
            .extend((2..=MOST_DEVICES).filter_map(|devices| shared(entry, *kind, devices, device, observed)));
        needs.extend(split(entry, *kind, observed));
    }
    needs
}

/// Memory for the whole of `entry` on a device of `kind`, or on all the devices it wants of them, and where the figure came from. For an
/// engine that takes a share of its device: the least it can start with.
pub(crate) fn estimate(entry: &Entry, kind: DeviceKind, observed: &Observed) -> (Bytes, EstimateSource) {
    if let Some(bytes) = entry.memory() {
        return (bytes, EstimateSource::Configured);
    }
    if let Some(stub) = &entry.settings().stub {
        let bytes = match stub.memory_mib {
            0 => STUB,
            mib => Bytes::mib(mib.into()),
        };
        return (bytes, EstimateSource::Configured);
    }
    let guess = match computed(entry, kind) {
        Some(bytes) => (bytes, EstimateSource::Computed),
        None => match entry.files().size {
            0 => (Bytes::ZERO, EstimateSource::Unavailable),
            size => (
                artifact::from_size(size, entry.settings().ctx_size),
                EstimateSource::Artifact,
            ),
        },
    };
    let Greed { share: None, devices } = greed(entry, kind) else {
        // Such an engine takes what there is: its use of a large device tells nothing about a small one.
        return guess;
    };
    let way = Way {
        layers: entry.settings().gpu_layers,
        devices,
    };
    match observed.get(entry.spec_hash().as_str(), way, kind) {
        Some(seen) => (believed(times(seen, devices), guess.0), EstimateSource::Observed),
        None => guess,
    }
}

/// How many devices an engine wants, and what share of each it takes beyond its need.
#[derive(Debug, Clone, Copy)]
struct Greed {
    share: Option<Share>,
    devices: usize,
}

fn greed(entry: &Entry, kind: DeviceKind) -> Greed {
    let device = match kind {
        DeviceKind::Gpu | DeviceKind::Sim => true,
        DeviceKind::Cpu | DeviceKind::Npu => false,
    };
    let vllm = vllm::read(entry.runtime(), entry.settings()).filter(|_| device);
    let share = vllm.and_then(|vllm| vllm.share).map(Share::thousandths);
    Greed {
        // The operator's figure decides.
        share: share.filter(|_| entry.memory().is_none()),
        devices: vllm.map_or(1, |vllm| vllm.devices()),
    }
}

fn times(bytes: Bytes, devices: usize) -> Bytes {
    let devices = u64::try_from(devices).unwrap_or(u64::MAX);
    Bytes::new(bytes.get().saturating_mul(devices))
}

/// The measured memory, but at most twice the expected plus 1 GiB, if a figure was expected. Our estimates are never wronger than that, and
/// a wrong measurement would keep a model out for good, since it could never be measured again.
fn believed(seen: Bytes, expected: Bytes) -> Bytes {
    if expected == Bytes::ZERO {
        return seen;
    }
    seen.min(expected + expected + MORE)
}

fn whole(entry: &Entry, kind: DeviceKind, observed: &Observed) -> Need {
    let (bytes, source) = estimate(entry, kind, observed);
    let Greed { share, devices } = greed(entry, kind);
    // More devices than any host has are not listed one by one.
    let devices = devices.min(MOST_DEVICES + 1);
    let each = bytes.get().div_ceil(u64::try_from(devices).unwrap_or(u64::MAX));
    let bytes = Bytes::new(each);
    Need {
        parts: vec![NeedPart { kind, bytes, share }; devices],
        source,
        settings: convert::settings(entry.settings()),
    }
}

/// `entry` on several devices of a kind; none if its runtime cannot, or if the configuration says what goes where.
fn shared(
    entry: &Entry,
    kind: DeviceKind,
    devices: usize,
    choice: &DeviceChoice,
    observed: &Observed,
) -> Option<Need> {
    let can = entry.runtime().facts().spreads;
    // A configured number of layers is meant for one device.
    let counted = entry.runtime().facts().offloads && entry.settings().gpu_layers.is_some();
    let several = match kind {
        DeviceKind::Gpu | DeviceKind::Sim => true,
        // A host has one memory, and an NPU's runtimes use one NPU.
        DeviceKind::Cpu | DeviceKind::Npu => false,
    };
    let named = matches!(choice, DeviceChoice::Device(_));
    if !can || counted || !several || named {
        return None;
    }
    let way = Way {
        layers: None,
        devices,
    };
    let (mut bytes, mut source) = match computed_shares(entry, kind, devices) {
        Some(bytes) => (bytes, EstimateSource::Computed),
        None => {
            let (bytes, source) = estimate(entry, kind, observed);
            let share = bytes.get().div_ceil(u64::try_from(devices).ok()?);
            (vec![Bytes::new(share); devices], source)
        }
    };
    if source != EstimateSource::Configured
        && let Some(seen) = observed.get(entry.spec_hash().as_str(), way, kind)
    {
        let expected = bytes.iter().copied().max().unwrap_or(Bytes::ZERO);
        bytes = vec![believed(seen, expected); devices];
        source = EstimateSource::Observed;
    }
    let part = |bytes| NeedPart {
        kind,
        bytes,
        share: None,
    };
    Some(Need {
        parts: bytes.into_iter().map(part).collect(),
        source,
        settings: convert::settings(entry.settings()),
    })
}

/// The memory on each of several GPUs, if it can be computed.
fn computed_shares(entry: &Entry, kind: DeviceKind, devices: usize) -> Option<Vec<Bytes>> {
    let possible = kind == DeviceKind::Gpu && entry.memory().is_none();
    let Some(Details::Gguf(details)) = entry.details().filter(|_| possible) else {
        return None;
    };
    let settings = settings::read(entry.runtime(), entry.settings(), details.model())?;
    // A draft is shared too, but is small; projector and adapters go where the first layers are.
    let draft = details.draft().map_or(0, |draft| {
        memory::demand(draft, &settings::of_draft(&settings.memory), u64::MAX)
            .device
            .total()
    });
    let places = memory::spread(details.model(), &settings.memory, devices)?;
    let more = std::iter::once(details.extra()).chain(std::iter::repeat(0));
    let total = |(place, extra): (Place, u64)| {
        let sum = place.total().saturating_add(draft).saturating_add(extra);
        Bytes::new(sum)
    };
    Some(places.into_iter().zip(more).map(total).collect())
}

fn computed(entry: &Entry, kind: DeviceKind) -> Option<Bytes> {
    let details = match entry.details()? {
        Details::Gguf(headers) => headers,
        Details::Folder(checkpoint) => {
            let vllm = vllm::read(entry.runtime(), entry.settings()).filter(|_| kind == DeviceKind::Gpu)?;
            let each = muster_gguf::vllm::demand(checkpoint, &vllm.memory);
            return Some(times(Bytes::new(each), vllm.devices()));
        }
    };
    let settings = settings::read(entry.runtime(), entry.settings(), details.model())?;
    let layers = settings.gpu_layers.unwrap_or(u64::MAX);
    let demand = match kind {
        DeviceKind::Gpu => whole_demand(details, &settings.memory, layers).device,
        // Without a GPU everything is on the host; a declared device counts as one.
        DeviceKind::Cpu | DeviceKind::Sim => whole_demand(details, &settings.memory, 0).host,
        DeviceKind::Npu => return None,
    };
    Some(Bytes::new(demand.total()))
}

/// The model with its draft, projector and adapters, with `layers` of it on a GPU.
fn whole_demand(details: &Headers, settings: &memory::Settings, layers: u64) -> Demand {
    let mut demand = memory::demand(details.model(), settings, layers);
    let extra = if layers > 0 {
        &mut demand.device
    } else {
        &mut demand.host
    };
    extra.weights = extra.weights.saturating_add(details.extra());
    if let Some(draft) = details.draft() {
        let draft = memory::demand(draft, &settings::of_draft(settings), layers);
        add(&mut demand.device, &draft.device);
        add(&mut demand.host, &draft.host);
    }
    demand
}

/// Adds the draft, which shares the process with its model.
fn add(place: &mut Place, draft: &Place) {
    place.weights = place.weights.saturating_add(draft.weights);
    place.cache = place.cache.saturating_add(draft.cache);
    place.compute = place.compute.saturating_add(draft.compute);
    place.output = place.output.saturating_add(draft.output);
    place.growth = place.growth.saturating_add(draft.growth);
}

/// All ways to split `entry` between a device of `kind` and host memory, the largest part on the device first; none unless the
/// configuration allows it.
fn split(entry: &Entry, kind: DeviceKind, observed: &Observed) -> Vec<Need> {
    let possible = entry.model().partial_offload && entry.memory().is_none();
    let device = match kind {
        DeviceKind::Gpu | DeviceKind::Sim => kind,
        DeviceKind::Cpu | DeviceKind::Npu => return Vec::new(),
    };
    let Some(Details::Gguf(details)) = entry.details().filter(|_| possible) else {
        return Vec::new();
    };
    let Some(settings) = settings::read(entry.runtime(), entry.settings(), details.model()) else {
        return Vec::new();
    };
    let splits = memory::splits(details.model(), &settings.memory);
    // The first one is the whole model, which is a way of its own.
    let parts = splits.iter().skip(1).map(|split| {
        let demand = whole_demand(details, &settings.memory, split.layers);
        part(entry, device, split.layers, &demand, observed)
    });
    parts.collect()
}

fn part(entry: &Entry, device: DeviceKind, layers: u64, demand: &Demand, observed: &Observed) -> Need {
    let layers = i32::try_from(layers).ok();
    let known = |kind, computed: u64| {
        observed
            .get(entry.spec_hash().as_str(), Way::on_one(layers), kind)
            .map_or((Bytes::new(computed), EstimateSource::Computed), |seen| {
                (believed(seen, Bytes::new(computed)), EstimateSource::Observed)
            })
    };
    let (on_device, source) = known(device, demand.device.total());
    let (on_host, _) = known(DeviceKind::Cpu, demand.host.total());
    Need {
        parts: vec![
            NeedPart {
                kind: device,
                bytes: on_device,
                share: None,
            },
            NeedPart {
                kind: DeviceKind::Cpu,
                bytes: on_host,
                share: None,
            },
        ],
        source,
        settings: convert::settings(&ModelSettings {
            gpu_layers: layers,
            ..entry.settings().clone()
        }),
    }
}

#[cfg(test)]
mod tests;
