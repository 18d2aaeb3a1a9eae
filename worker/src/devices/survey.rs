//! What this machine has, and what of it a worker with the engines that are here can use: `muster-worker devices`.
//!
//! A GPU is used through CUDA where an engine was built for that, else through Vulkan; never through both.

use std::path::Path;

use muster_proto::v1::Device;
use serde::Serialize;

use super::{nvml, vulkan};
use crate::engine::gpus::{self, CUDA, Listed, VULKAN};

/// A device, as it is printed: a line of JSON each.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Surveyed {
    /// What `--device` calls it.
    pub(crate) device: String,
    name: String,
    capacity_bytes: u64,
    /// Why no worker should own it; absent if one can.
    #[serde(skip_serializing_if = "Option::is_none")]
    why_not: Option<String>,
}

/// Looks at the GPUs of this machine. `server`: there is a llama-server, whose build is not known.
pub(crate) fn gpus(engine: &Path, server: bool) -> Vec<Surveyed> {
    let listed = gpus::list(engine).unwrap_or_else(|error| {
        tracing::warn!(program = %engine.display(), %error, "it does not say what it was built for");
        Listed::default()
    });
    choose(nvml::addressed(), &listed, server)
}

/// `nvidia`: NVIDIA's GPUs with their PCI addresses.
fn choose(nvidia: Vec<(Device, String)>, listed: &Listed, server: bool) -> Vec<Surveyed> {
    let mut through_vulkan = vulkan::described(listed);
    let cuda = listed.has(CUDA) || server;
    let mut all = Vec::new();
    for (gpu, address) in nvidia {
        let twin = through_vulkan.iter().position(|other| other.device_id == address);
        let twin = twin.map(|twin| through_vulkan.remove(twin));
        all.push(match twin {
            Some(twin) if !cuda => usable(VULKAN, &twin),
            Some(_) | None if cuda => usable(CUDA, &gpu),
            Some(_) | None => Surveyed {
                why_not: Some(
                    "muster-llama was built without CUDA and Vulkan, and there is no llama-server".to_owned(),
                ),
                ..usable(CUDA, &gpu)
            },
        });
    }
    all.extend(through_vulkan.iter().map(|gpu| usable(VULKAN, gpu)));
    all
}

fn usable(api: &str, gpu: &Device) -> Surveyed {
    // One without an address is called by its interface already.
    let id = gpu
        .device_id
        .strip_prefix(&format!("{api}:"))
        .unwrap_or(&gpu.device_id);
    Surveyed {
        device: format!("{api}:{id}"),
        name: gpu.name.clone(),
        capacity_bytes: gpu.capacity_bytes,
        why_not: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"backends":["CPU","Vulkan"],"devices":[
        {"name":"Vulkan0","description":"NVIDIA","backend":"Vulkan","id":"0000:01:00.0","free_bytes":5,"total_bytes":8},
        {"name":"Vulkan1","description":"Radeon","backend":"Vulkan","id":"0000:02:00.0","free_bytes":5,"total_bytes":8},
        {"name":"Vulkan2","description":"llvmpipe","backend":"Vulkan","id":"","free_bytes":2,"total_bytes":2}]}"#;

    fn nvidia() -> Vec<(Device, String)> {
        let gpu = Device {
            device_id: "GPU-1f".into(),
            api: CUDA.into(),
            ..Device::default()
        };
        vec![(gpu, "0000:01:00.0".into())]
    }

    fn names(listed: &Listed, server: bool) -> Vec<String> {
        let all = choose(nvidia(), listed, server).into_iter();
        all.filter(|one| one.why_not.is_none())
            .map(|one| one.device)
            .collect()
    }

    #[test]
    fn each_gpu_is_used_once_and_through_cuda_where_an_engine_can() {
        let mut listed: Listed = serde_json::from_str(LINE).unwrap();
        let others = ["vulkan:0000:02:00.0", "vulkan:2"];
        assert_eq!(names(&listed, false)[0], "vulkan:0000:01:00.0");
        assert_eq!(names(&listed, false)[1..], others);
        assert_eq!(names(&listed, true)[0], "cuda:GPU-1f");
        listed.backends.push("CUDA".into());
        assert_eq!(names(&listed, false)[0], "cuda:GPU-1f");
        assert_eq!(names(&listed, false)[1..], others);
    }

    #[test]
    fn what_no_engine_can_use_is_left_out_with_the_reason() {
        let all = choose(nvidia(), &Listed::default(), false);
        assert_eq!(all.len(), 1);
        assert!(
            all[0]
                .why_not
                .as_ref()
                .is_some_and(|why| why.contains("without CUDA"))
        );
    }
}
