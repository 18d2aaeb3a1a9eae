//! `GET /v1/admin/gpu-memory`: all GPUs of all workers, and the memory of each model (seed 001).

use std::collections::BTreeSet;

use muster_proto::v1::{DeviceKind, DeviceStatus, Model, WorkerStatus};
use serde::Serialize;
use utoipa::ToSchema;

use super::row::{self, Row};

/// All GPUs, and the memory of each model.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct GpuMemory {
    /// All GPUs of all workers, each once.
    gpus: Vec<Gpu>,
    /// All models in the order of their names, with the memory that each takes or would take.
    models: Vec<row::Memory>,
    /// Why no GPU is listed; null if there are some.
    error: Option<&'static str>,
}

/// A GPU and its memory.
#[derive(Debug, Serialize, ToSchema)]
struct Gpu {
    /// The driver's index of the GPU; its place in this list if the driver gave none.
    index: u32,
    /// Name of the GPU as its driver reports it.
    name: String,
    /// Memory in use by all programs, in MiB.
    used_mib: u64,
    /// Total memory in MiB.
    total_mib: u64,
    /// Used and total memory as one text, for people.
    used_over_total: String,
    /// UUID of the GPU. Not in seed 001.
    uuid: String,
    /// Id of its host. Not in seed 001.
    host: String,
}

impl GpuMemory {
    pub(super) fn new(devices: &[DeviceStatus], models: &[Model], workers: &[WorkerStatus]) -> Self {
        let gpus = gpus(devices);
        let error = match (gpus.is_empty(), workers.iter().any(|worker| worker.connected)) {
            (false, _) => None,
            (true, true) => {
                Some("no worker reports a GPU: no NVIDIA driver (NVML) or no device it was given")
            }
            (true, false) => Some("no worker is connected"),
        };
        Self {
            gpus,
            models: models
                .iter()
                .map(|model| Row::new(model, Vec::new()).into())
                .collect(),
            error,
        }
    }
}

/// The GPUs of all workers, each once: several workers may list the same GPU, which its UUID tells.
fn gpus(devices: &[DeviceStatus]) -> Vec<Gpu> {
    let mut seen = BTreeSet::new();
    let mut gpus = Vec::new();
    for status in devices {
        let Some(device) = status
            .device
            .as_ref()
            .filter(|device| device.kind() == DeviceKind::Gpu)
        else {
            continue;
        };
        if !seen.insert(device.device_id.clone()) {
            continue;
        }
        let sample = status.sample.as_ref();
        let total = sample.map_or(device.capacity_bytes, |sample| sample.capacity_bytes);
        let free = sample.map_or(total, |sample| sample.free_bytes);
        let (used_mib, total_mib) = (total.saturating_sub(free) >> 20, total >> 20);
        gpus.push(Gpu {
            index: device
                .index
                .unwrap_or_else(|| u32::try_from(gpus.len()).unwrap_or(u32::MAX)),
            name: device.name.clone(),
            used_mib,
            total_mib,
            used_over_total: format!("{used_mib}MiB / {total_mib}MiB"),
            uuid: device.device_id.clone(),
            host: status.host_id.clone(),
        });
    }
    gpus.sort_by(|one, two| (&one.host, one.index).cmp(&(&two.host, two.index)));
    gpus
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::{Device, DeviceSample};
    use serde_json::{Value, json};

    use super::*;

    fn gpu(uuid: &str, host: &str, index: u32) -> DeviceStatus {
        DeviceStatus {
            device: Some(Device {
                device_id: uuid.into(),
                kind: DeviceKind::Gpu.into(),
                name: "NVIDIA RTX PRO 6000 Blackwell Workstation Edition".into(),
                capacity_bytes: 97_887 << 20,
                index: Some(index),
                ..Device::default()
            }),
            host_id: host.into(),
            sample: Some(DeviceSample {
                capacity_bytes: 97_887 << 20,
                free_bytes: (97_887 - 75_603) << 20,
                ..DeviceSample::default()
            }),
            ..DeviceStatus::default()
        }
    }

    fn shown(devices: &[DeviceStatus], workers: &[WorkerStatus]) -> Value {
        serde_json::to_value(GpuMemory::new(devices, &[], workers)).unwrap()
    }

    #[test]
    fn seed_001_example_of_gpu_memory() {
        let shown = shown(&[gpu("GPU-1", "h", 0)], &[]);
        let expected = json!({
            "index": 0,
            "name": "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
            "used_mib": 75603,
            "total_mib": 97887,
            "used_over_total": "75603MiB / 97887MiB",
            "uuid": "GPU-1",
            "host": "h",
        });
        assert_eq!(shown, json!({"gpus": [expected], "models": [], "error": null}));
    }

    #[test]
    fn each_gpu_is_shown_once_by_host_and_number() {
        let devices = [
            gpu("GPU-2", "h", 1),
            gpu("GPU-1", "h", 0),
            gpu("GPU-1", "h", 0),
            gpu("GPU-0", "g", 3),
        ];
        let shown = shown(&devices, &[]);
        let uuids: Vec<_> = shown["gpus"]
            .as_array()
            .unwrap()
            .iter()
            .map(|gpu| gpu["uuid"].clone())
            .collect();
        assert_eq!(uuids, ["GPU-0", "GPU-1", "GPU-2"]);
    }

    #[test]
    fn seed_001_without_gpus_the_error_says_why() {
        let cpu = DeviceStatus {
            device: Some(Device {
                kind: DeviceKind::Cpu.into(),
                ..Device::default()
            }),
            ..DeviceStatus::default()
        };
        let worker = WorkerStatus {
            connected: true,
            ..WorkerStatus::default()
        };
        let reason = |workers: &[WorkerStatus]| shown(std::slice::from_ref(&cpu), workers)["error"].clone();
        assert!(reason(&[worker]).as_str().unwrap().contains("NVML"));
        assert_eq!(reason(&[]), "no worker is connected");
    }
}
