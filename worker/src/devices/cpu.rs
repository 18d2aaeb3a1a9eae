//! The processor: its memory is the host's, or the cgroup's where that is less.

use std::{fs, io};

use muster_proto::{
    id::InstanceId,
    units::Bytes,
    v1::{Device, DeviceKind, ProcessId},
};

use super::Driver;
use crate::procfs::{self, Memory};

#[derive(Debug)]
pub(super) struct Cpu {
    device: Device,
}

impl Cpu {
    pub(super) fn new() -> io::Result<Self> {
        let name = fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        });
        let device = Device {
            device_id: "cpu".to_owned(),
            kind: DeviceKind::Cpu.into(),
            name: name.unwrap_or_else(|| "CPU".to_owned()),
            capacity_bytes: procfs::memory()?.capacity.0,
            exclusive: false,
            index: None,
        };
        Ok(Self { device })
    }
}

impl Driver for Cpu {
    fn device(&self) -> Device {
        self.device.clone()
    }

    fn sample(&self) -> io::Result<Memory> {
        procfs::memory()
    }

    fn used_by(&self, tree: &[ProcessId], _instance: &InstanceId) -> Option<Bytes> {
        Some(procfs::pss(tree))
    }
}
