//! GPUs by llama.cpp's names, and what a build of it can use.

use std::{
    io,
    path::Path,
    process::{Command, Stdio},
};

use muster_proto::v1::{Device, DeviceKind};
use serde::Deserialize;

/// The interface of NVIDIA's GPUs, as `Device.api` names it.
pub(crate) const CUDA: &str = "cuda";
/// The interface of GPUs of any maker.
pub(crate) const VULKAN: &str = "vulkan";

/// What an engine's build can use here: a line of `muster-llama --list-devices`.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Listed {
    /// Backends by ggml's names.
    pub(crate) backends: Vec<String>,
    pub(crate) devices: Vec<Found>,
}

/// A GPU that it finds.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Found {
    /// ggml's name of it.
    pub(crate) name: String,
    pub(crate) description: String,
    backend: String,
    /// PCI address; empty if it has none.
    pub(crate) id: String,
    pub(crate) free_bytes: u64,
    pub(crate) total_bytes: u64,
}

impl Listed {
    /// Whether the build knows an interface.
    pub(crate) fn has(&self, api: &str) -> bool {
        self.backends
            .iter()
            .any(|backend| backend.eq_ignore_ascii_case(api))
    }
}

impl Found {
    /// Whether it is reached through an interface.
    pub(crate) fn is_of(&self, api: &str) -> bool {
        self.backend.eq_ignore_ascii_case(api)
    }
}

/// Asks an engine once.
///
/// # Errors
/// There is no such program, or it says something else.
pub(crate) fn list(engine: &Path) -> io::Result<Listed> {
    let output = listing(engine).stdin(Stdio::null()).output()?;
    let line = output
        .stdout
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    serde_json::from_slice(line).map_err(io::Error::other)
}

/// The command that lists what an engine can use.
pub(crate) fn listing(engine: &Path) -> Command {
    let mut command = Command::new(engine);
    // CUDA's devices are NVML's to tell: to ask them for their memory would take some of it.
    command
        .args(["--list-devices", "--log-level", "error"])
        .env("CUDA_VISIBLE_DEVICES", "");
    command
}

/// llama.cpp's names of devices in an engine that sees only these: CUDA counts the ones it is shown, Vulkan all that there are. `CPU` stands
/// for whatever is no GPU.
pub(crate) fn names_of(devices: &[Device]) -> Vec<String> {
    let mut cuda = 0..;
    let name = |device: &Device| match (device.kind(), device.api.as_str()) {
        (DeviceKind::Gpu, VULKAN) => engine_name(device),
        (DeviceKind::Gpu, _) => format!("CUDA{}", cuda.next().unwrap_or(0)),
        (DeviceKind::Cpu | DeviceKind::Npu | DeviceKind::Sim | DeviceKind::Unspecified, _) => {
            "CPU".to_owned()
        }
    };
    devices.iter().map(name).collect()
}

/// Arguments of llama.cpp's programs that say which devices a model may use.
pub(super) fn device_names(devices: &[Device]) -> Vec<String> {
    let names = names_of(devices).into_iter().zip(devices);
    let gpus = names.filter(|(_, device)| device.kind() == DeviceKind::Gpu);
    let gpus: Vec<String> = gpus.map(|(name, _)| name).collect();
    if gpus.is_empty() {
        vec!["none".to_owned()]
    } else {
        gpus
    }
}

/// llama.cpp's name of a GPU that it reaches through Vulkan.
pub(crate) fn engine_name(device: &Device) -> String {
    format!("Vulkan{}", device.index.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama_cpp_is_told_the_devices_that_were_reserved_and_no_others() {
        let device = |kind: DeviceKind, api: &str, index| Device {
            kind: kind.into(),
            api: api.to_owned(),
            index,
            ..Device::default()
        };
        let cpu = || device(DeviceKind::Cpu, "", None);
        let nvidia = |index| device(DeviceKind::Gpu, "cuda", Some(index));
        assert_eq!(device_names(&[cpu()]), ["none"]);
        assert_eq!(device_names(&[nvidia(3), cpu(), nvidia(5)]), ["CUDA0", "CUDA1"]);
        assert_eq!(
            device_names(&[device(DeviceKind::Gpu, VULKAN, Some(2)), cpu()]),
            ["Vulkan2"]
        );
        assert_eq!(names_of(&[cpu(), nvidia(3)]), ["CPU", "CUDA0"]);
    }
}
