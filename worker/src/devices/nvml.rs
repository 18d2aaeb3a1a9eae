//! NVIDIA GPUs, through the driver's own library. No library, or no GPU, is no error unless a GPU was asked for by name.

use std::{io, sync::Arc};

use muster_proto::{
    id::InstanceId,
    units::Bytes,
    v1::{Device, DeviceKind, ProcessId},
};
use nvml_wrapper::{Nvml, enums::device::UsedGpuMemory, error::NvmlError};

use super::Driver;
use crate::{config::CudaChoice, procfs::Memory};

/// One GPU. Devices are looked up by UUID each time: an index may move when a GPU falls off the bus.
#[derive(Debug)]
struct Gpu {
    nvml: Arc<Nvml>,
    uuid: String,
    device: Device,
}

/// Finds the chosen GPUs.
///
/// # Errors
/// A GPU that was named is not there; `all` may be none.
pub(super) fn find(choice: &CudaChoice) -> io::Result<Vec<Box<dyn Driver>>> {
    let nvml = match Nvml::init() {
        Ok(nvml) => Arc::new(nvml),
        Err(error) => {
            return match choice {
                CudaChoice::All => {
                    tracing::info!(%error, "no NVIDIA driver here, so no GPUs");
                    Ok(Vec::new())
                }
                CudaChoice::Index(_) | CudaChoice::Uuid(_) => Err(io::Error::other(error)),
            };
        }
    };
    let uuids: Result<Vec<String>, NvmlError> = match choice {
        CudaChoice::All => nvml.device_count().and_then(|count| {
            let uuid = |index| nvml.device_by_index(index)?.uuid();
            (0..count).map(uuid).collect()
        }),
        CudaChoice::Index(index) => nvml.device_by_index(*index).and_then(|gpu| Ok(vec![gpu.uuid()?])),
        CudaChoice::Uuid(uuid) => nvml
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
            capacity: Bytes(memory.total),
            free: Bytes(memory.free),
        })
    }

    fn used_by(&self, tree: &[ProcessId], _instance: &InstanceId) -> Option<Bytes> {
        let gpu = self.nvml.device_by_uuid(self.uuid.as_str()).ok()?;
        let processes = gpu.running_compute_processes().ok()?;
        let own = processes
            .iter()
            .filter(|process| tree.iter().any(|own| own.pid == process.pid));
        let used: Vec<Bytes> = own
            .filter_map(|process| match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(Bytes(bytes)),
                UsedGpuMemory::Unavailable => None,
            })
            .collect();
        // In a container the driver may speak of other pids: then nothing is known, rather than nothing used.
        (!used.is_empty()).then(|| used.into_iter().sum())
    }
}
