//! NVIDIA GPUs, through the driver's library. Without library or GPU there is no error, unless a GPU was named.

use std::{collections::BTreeMap, io, sync::Arc};

use muster_core::{Bytes, InstanceId};
use muster_proto::v1::{Device, DeviceKind, ProcessId};
use nvml_wrapper::{
    Nvml, enums::device::UsedGpuMemory, error::NvmlError, struct_wrappers::device::ProcessInfo,
};

use super::Driver;
use crate::{config::GpuChoice, engine::gpus::CUDA, procfs::Memory};

/// A GPU. It is looked up by UUID each time, since the indexes change when a GPU falls off the bus.
#[derive(Debug)]
struct Gpu {
    nvml: Arc<Nvml>,
    uuid: String,
    device: Device,
}

/// Finds the chosen GPUs.
///
/// # Errors
/// A named GPU does not exist; `all` may find none.
pub(super) fn find(choice: &GpuChoice) -> io::Result<Vec<Box<dyn Driver>>> {
    let nvml = match Nvml::init() {
        Ok(nvml) => Arc::new(nvml),
        Err(error) => {
            return match choice {
                GpuChoice::All => {
                    tracing::info!(%error, "no NVIDIA driver here, so no GPUs");
                    Ok(Vec::new())
                }
                GpuChoice::Index(_) | GpuChoice::Id(_) => Err(io::Error::other(error)),
            };
        }
    };
    let uuids: Result<Vec<String>, NvmlError> = match choice {
        GpuChoice::All => nvml.device_count().and_then(|count| {
            let uuid = |index| nvml.device_by_index(index)?.uuid();
            (0..count).map(uuid).collect()
        }),
        GpuChoice::Index(index) => nvml.device_by_index(*index).and_then(|gpu| Ok(vec![gpu.uuid()?])),
        GpuChoice::Id(uuid) => nvml
            .device_by_uuid(uuid.as_str())
            .and_then(|gpu| Ok(vec![gpu.uuid()?])),
    };
    let gpus = uuids.and_then(|uuids| {
        let open = |uuid| Gpu::open(&nvml, uuid);
        uuids.into_iter().map(open).collect::<Result<Vec<_>, _>>()
    });
    Ok(gpus
        .map_err(io::Error::other)?
        .into_iter()
        .map(|gpu| Box::new(gpu) as Box<dyn Driver>)
        .collect())
}

/// All GPUs with their PCI addresses, as Vulkan's drivers write them; none if there is no driver.
pub(super) fn addressed() -> Vec<(Device, String)> {
    let Ok(nvml) = Nvml::init().map(Arc::new) else {
        return Vec::new();
    };
    let gpu = |index| {
        let found = nvml.device_by_index(index)?;
        let at = found.pci_info()?;
        let address = format!("{:04x}:{:02x}:{:02x}.0", at.domain, at.bus, at.device);
        Ok::<_, NvmlError>((Gpu::open(&nvml, found.uuid()?)?.device, address))
    };
    let count = nvml.device_count().unwrap_or_default();
    (0..count).filter_map(|index| gpu(index).ok()).collect()
}

impl Gpu {
    fn open(nvml: &Arc<Nvml>, uuid: String) -> Result<Self, NvmlError> {
        let found = nvml.device_by_uuid(uuid.as_str())?;
        let device = Device {
            device_id: uuid.clone(),
            kind: DeviceKind::Gpu.into(),
            name: found.name()?,
            capacity_bytes: found.memory_info()?.total,
            exclusive: false,
            index: Some(found.index()?),
            // Only for people: a missing version is no reason to do without the GPU.
            driver_version: nvml.sys_driver_version().unwrap_or_default(),
            api: CUDA.to_owned(),
        };
        let nvml = Arc::clone(nvml);
        Ok(Self { nvml, uuid, device })
    }
}

impl Driver for Gpu {
    fn device(&self) -> Device {
        self.device.clone()
    }

    fn sample(&self) -> io::Result<Memory> {
        let gpu = self
            .nvml
            .device_by_uuid(self.uuid.as_str())
            .map_err(io::Error::other)?;
        let memory = gpu.memory_info().map_err(io::Error::other)?;
        Ok(Memory {
            capacity: Bytes::new(memory.total),
            free: Bytes::new(memory.free),
        })
    }

    fn used_by(&self, tree: &[ProcessId], _instance: &InstanceId) -> Option<Bytes> {
        let gpu = self.nvml.device_by_uuid(self.uuid.as_str()).ok()?;
        // Vulkan engines are listed as graphics, and a process that does both is in both lists. If one list fails, the other may work.
        let lists = [gpu.running_compute_processes(), gpu.running_graphics_processes()];
        used_by(tree, lists.into_iter().flatten().flatten())
    }
}

/// Memory that the processes of `tree` use. Each pid counts once, since either list gives all of a process's memory. In a container the
/// driver may use other pids; then the result is unknown, not zero.
fn used_by(tree: &[ProcessId], processes: impl Iterator<Item = ProcessInfo>) -> Option<Bytes> {
    let mut used: BTreeMap<u32, u64> = BTreeMap::new();
    for process in processes.filter(|process| tree.iter().any(|own| own.pid == process.pid)) {
        if let UsedGpuMemory::Used(bytes) = process.used_gpu_memory {
            let known = used.entry(process.pid).or_default();
            *known = bytes.max(*known);
        }
    }
    (!used.is_empty()).then(|| used.into_values().map(Bytes::new).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(pid: u32, used_gpu_memory: UsedGpuMemory) -> ProcessInfo {
        ProcessInfo {
            pid,
            used_gpu_memory,
            gpu_instance_id: None,
            compute_instance_id: None,
        }
    }

    fn sum(pids: &[u32], processes: Vec<ProcessInfo>) -> Option<Bytes> {
        let tree: Vec<_> = pids
            .iter()
            .map(|pid| ProcessId {
                pid: *pid,
                ..ProcessId::default()
            })
            .collect();
        used_by(&tree, processes.into_iter())
    }

    #[test]
    fn compute_and_graphics_count_and_each_process_once() {
        let compute = [(1, 100), (2, 10), (9, 5000)];
        let graphics = [(2, 10), (3, 1)];
        let lists = compute
            .into_iter()
            .chain(graphics)
            .map(|(pid, bytes)| listed(pid, UsedGpuMemory::Used(bytes)));
        assert_eq!(sum(&[1, 2, 3, 4], lists.collect()), Some(Bytes::new(111)));
    }

    #[test]
    fn what_the_driver_does_not_say_is_not_zero() {
        assert_eq!(sum(&[1], Vec::new()), None);
        assert_eq!(sum(&[1], vec![listed(1, UsedGpuMemory::Unavailable)]), None);
        let both = vec![
            listed(1, UsedGpuMemory::Unavailable),
            listed(1, UsedGpuMemory::Used(7)),
        ];
        assert_eq!(sum(&[1], both), Some(Bytes::new(7)));
    }
}
