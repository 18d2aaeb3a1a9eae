//! The roster's shape on disk.

use muster_policy::{Bytes, DeviceFacts, DeviceId, DeviceKind, Exclusivity, WorkerFacts};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A known worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    worker: String,
    boot: String,
    host: String,
    devices: Vec<Device>,
    runtimes: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Device {
    id: String,
    kind: Kind,
    capacity_bytes: u64,
    exclusive: bool,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Cpu,
    Gpu,
    Npu,
    Sim,
}

impl From<&WorkerFacts> for Entry {
    fn from(facts: &WorkerFacts) -> Self {
        let runtimes = facts.runtimes.iter().map(|(name, devices)| {
            (
                name.to_string(),
                devices.iter().map(DeviceId::to_string).collect(),
            )
        });
        Self {
            worker: facts.id.to_string(),
            boot: facts.boot.to_string(),
            host: facts.host.to_string(),
            devices: facts.devices.iter().map(Device::from).collect(),
            runtimes: runtimes.collect(),
        }
    }
}

impl From<Entry> for WorkerFacts {
    fn from(entry: Entry) -> Self {
        let runtimes = entry.runtimes.into_iter().map(|(name, devices)| {
            (
                name.as_str().into(),
                devices.iter().map(|id| id.as_str().into()).collect(),
            )
        });
        Self {
            id: entry.worker.as_str().into(),
            boot: entry.boot.as_str().into(),
            host: entry.host.as_str().into(),
            devices: entry.devices.into_iter().map(DeviceFacts::from).collect(),
            runtimes: runtimes.collect(),
            draining: false,
        }
    }
}

impl From<&DeviceFacts> for Device {
    fn from(facts: &DeviceFacts) -> Self {
        Self {
            id: facts.id.to_string(),
            kind: match facts.kind {
                DeviceKind::Cpu => Kind::Cpu,
                DeviceKind::Gpu => Kind::Gpu,
                DeviceKind::Npu => Kind::Npu,
                DeviceKind::Sim => Kind::Sim,
            },
            capacity_bytes: facts.capacity.get(),
            exclusive: facts.exclusivity == Exclusivity::OneModel,
        }
    }
}

impl From<Device> for DeviceFacts {
    fn from(device: Device) -> Self {
        Self {
            id: device.id.as_str().into(),
            kind: match device.kind {
                Kind::Cpu => DeviceKind::Cpu,
                Kind::Gpu => DeviceKind::Gpu,
                Kind::Npu => DeviceKind::Npu,
                Kind::Sim => DeviceKind::Sim,
            },
            capacity: Bytes::new(device.capacity_bytes),
            exclusivity: if device.exclusive {
                Exclusivity::OneModel
            } else {
                Exclusivity::Shared
            },
        }
    }
}
