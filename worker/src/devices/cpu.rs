//! The processor. Its memory is the host's, or that of a cgroup with a lower limit.
//!
//! Workers whose memory is limited together share a device; otherwise each limit has its own: `cpu` is the host's memory, `cpu:NUMBER` that
//! of a cgroup (proto/README.md, idea 6). A reservation counts on one of them only, but the free memory takes all limits around it into
//! account. A limit that is first set while a worker runs counts after its restart.

use std::{fs, io};

use muster_core::{Bytes, InstanceId};
use muster_proto::v1::{Device, DeviceKind, ProcessId};

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
        let pool = procfs::memory()?;
        let device = Device {
            device_id: match pool.cgroup {
                None => "cpu".to_owned(),
                Some(number) => format!("cpu:{number}"),
            },
            kind: DeviceKind::Cpu.into(),
            name: name.unwrap_or_else(|| "CPU".to_owned()),
            capacity_bytes: pool.memory.capacity.get(),
            exclusive: false,
            index: None,
            driver_version: String::new(),
            api: String::new(),
        };
        Ok(Self { device })
    }
}

impl Driver for Cpu {
    fn device(&self) -> Device {
        self.device.clone()
    }

    fn sample(&self) -> io::Result<Memory> {
        Ok(procfs::memory()?.memory)
    }

    fn used_by(&self, tree: &[ProcessId], _instance: &InstanceId) -> Option<Bytes> {
        Some(procfs::pss(tree))
    }
}
