//! `recipes` of `system-info`: which of Lemonade's recipes a worker can host, per backend, as today's Lemonade tells it.
//!
//! A backend is what an engine computes with: `cpu`, a GPU's interface (`cuda`, `vulkan`) or `npu`. One that some worker has is `installed`,
//! any other `unsupported`: Muster installs none.

use std::collections::{BTreeMap, BTreeSet};

use muster_core::runtime::{RECIPES, Runtime};
use muster_proto::v1::{Device, DeviceKind, DeviceStatus, RuntimeInfo, WorkerStatus};
use serde::Serialize;
use utoipa::ToSchema;

/// Interfaces of GPUs, the preferred one first (`Device.api`).
const GPU_BACKENDS: [&str; 2] = ["cuda", "vulkan"];
const NPU_BACKEND: &str = "npu";
const CPU_BACKEND: &str = "cpu";

/// A recipe of Lemonade's.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeRecipe)]
pub(super) struct Recipe<'a> {
    /// The preferred backend of those that are installed; absent if none is.
    #[serde(skip_serializing_if = "Option::is_none")]
    default_backend: Option<&'a str>,
    /// Its backends by name.
    backends: BTreeMap<&'a str, Backend<'a>>,
}

/// What an engine computes with.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeBackend)]
struct Backend<'a> {
    /// Kinds of devices of the fleet that it can use, named as in `devices`: `cpu`, `amd_dgpu`, `nvidia_dgpu`, `npu`; GPUs of other makers are
    /// `gpu`.
    devices: BTreeSet<&'static str>,
    /// `installed` if a connected worker can host models with it, else `unsupported`.
    state: State,
    /// Why it is not installed; empty if it is.
    message: &'static str,
    /// Always empty: Muster installs no backends.
    action: &'static str,
    /// Version of the runtime; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<&'a str>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = LemonadeBackendState)]
enum State {
    Installed,
    Unsupported,
}

/// All recipes by name.
pub(super) fn of<'a>(
    devices: &'a [DeviceStatus],
    workers: &'a [WorkerStatus],
) -> BTreeMap<&'static str, Recipe<'a>> {
    let recipe = |runtimes: &[Runtime]| {
        let mut backends: BTreeMap<&str, Backend<'a>> =
            names(runtimes).map(|name| (name, absent())).collect();
        for (runtime, host) in offered(workers, runtimes) {
            for device in devices_of(runtime, host, devices) {
                let Some((backend, kind)) = placed(device) else {
                    continue;
                };
                let entry = backends.entry(backend).or_insert_with(absent);
                entry.state = State::Installed;
                entry.message = "";
                entry.devices.insert(kind);
                let version = Some(runtime.version.as_str()).filter(|version| !version.is_empty());
                entry.version = entry.version.or(version);
            }
        }
        let is_installed = |name: &&str| {
            matches!(
                backends.get(name),
                Some(Backend {
                    state: State::Installed,
                    ..
                })
            )
        };
        let preferred = [&[NPU_BACKEND], &GPU_BACKENDS[..], &[CPU_BACKEND]].concat();
        Recipe {
            default_backend: preferred.into_iter().find(is_installed),
            backends,
        }
    };
    let rows = RECIPES.iter();
    rows.map(|(name, runtimes)| (*name, recipe(runtimes))).collect()
}

fn absent<'a>() -> Backend<'a> {
    Backend {
        devices: BTreeSet::new(),
        state: State::Unsupported,
        message: "no connected worker has an engine and a device for it",
        action: "",
        version: None,
    }
}

/// Backends that runtimes could have.
fn names(runtimes: &[Runtime]) -> impl Iterator<Item = &'static str> {
    let kinds = runtimes.iter().flat_map(|runtime| runtime.facts().devices);
    kinds
        .flat_map(|kind| match kind {
            muster_core::DeviceKind::Cpu => &[CPU_BACKEND][..],
            muster_core::DeviceKind::Gpu => &GPU_BACKENDS,
            muster_core::DeviceKind::Npu => &[NPU_BACKEND],
            muster_core::DeviceKind::Sim => &[],
        })
        .copied()
}

/// What connected workers offer of some runtimes, with their hosts.
fn offered<'a>(
    workers: &'a [WorkerStatus],
    runtimes: &[Runtime],
) -> impl Iterator<Item = (&'a RuntimeInfo, &'a str)> {
    let connected = workers.iter().filter(|worker| worker.connected);
    let all = connected.flat_map(|worker| {
        let host = worker.host_id.as_str();
        worker.runtimes.iter().map(move |runtime| (runtime, host))
    });
    all.filter(|(offer, _)| runtimes.iter().any(|runtime| runtime.name() == offer.name))
}

/// The devices that a runtime can use on its host.
fn devices_of<'a>(
    runtime: &RuntimeInfo,
    host: &str,
    devices: &'a [DeviceStatus],
) -> impl Iterator<Item = &'a Device> {
    let here = devices.iter().filter(move |status| status.host_id == host);
    let described = here.filter_map(|status| status.device.as_ref());
    described.filter(|device| runtime.device_ids.contains(&device.device_id))
}

/// The backend that uses a device, and the device's kind as `devices` names it; none of one without hardware.
fn placed(device: &Device) -> Option<(&str, &'static str)> {
    match device.kind() {
        DeviceKind::Cpu => Some((CPU_BACKEND, "cpu")),
        DeviceKind::Gpu => Some((device.api.as_str(), maker(device))),
        DeviceKind::Npu => Some((NPU_BACKEND, "npu")),
        DeviceKind::Sim | DeviceKind::Unspecified => None,
    }
    // An older worker does not say how a GPU is used.
    .filter(|(backend, _)| !backend.is_empty())
}

fn maker(gpu: &Device) -> &'static str {
    if super::system::is_amd(gpu) {
        "amd_dgpu"
    } else if super::system::is_nvidia(gpu) {
        "nvidia_dgpu"
    } else {
        "gpu"
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn device(id: &str, kind: DeviceKind, name: &str, api: &str) -> DeviceStatus {
        DeviceStatus {
            host_id: "h".into(),
            device: Some(Device {
                device_id: id.into(),
                kind: kind.into(),
                name: name.into(),
                api: api.into(),
                ..Device::default()
            }),
            ..DeviceStatus::default()
        }
    }

    fn worker(host: &str, connected: bool, runtimes: &[(&str, &str, &[&str])]) -> WorkerStatus {
        let info = |(name, version, devices): &(&str, &str, &[&str])| RuntimeInfo {
            name: (*name).into(),
            version: (*version).into(),
            device_ids: devices.iter().map(ToString::to_string).collect(),
        };
        WorkerStatus {
            host_id: host.into(),
            connected,
            runtimes: runtimes.iter().map(info).collect(),
            ..WorkerStatus::default()
        }
    }

    #[test]
    fn a_backend_is_installed_where_a_connected_worker_has_engine_and_device() {
        let devices = [
            device("cpu", DeviceKind::Cpu, "A CPU", ""),
            device("a", DeviceKind::Gpu, "AMD Radeon", "vulkan"),
            device("b", DeviceKind::Gpu, "NVIDIA H200", "cuda"),
            device("c", DeviceKind::Gpu, "Intel Arc", "vulkan"),
            device("npu", DeviceKind::Npu, "AMD NPU", ""),
            device("sim:0", DeviceKind::Sim, "sim", ""),
        ];
        let workers = [
            worker(
                "h",
                true,
                &[
                    ("llama_cpp", "b1", &["cpu", "a", "c", "sim:0"]),
                    ("stub", "", &["b"]),
                ],
            ),
            // It is gone, or on a host whose device of that name is another one.
            worker("h", false, &[("vllm", "", &["b"])]),
            worker("other", true, &[("flm", "", &["npu"])]),
        ];
        let shown = serde_json::to_value(of(&devices, &workers)).unwrap();
        let absent = |name: &str| {
            let backend = &shown[name]["backends"];
            assert!(shown[name].get("default_backend").is_none(), "{shown}");
            let states: Vec<&Value> = backend
                .as_object()
                .unwrap()
                .values()
                .map(|one| &one["state"])
                .collect();
            assert!(states.iter().all(|state| *state == "unsupported"), "{states:?}");
        };
        absent("vllm");
        absent("flm");
        assert_eq!(shown["flm"]["backends"]["npu"]["devices"], json!([]));
        let llama = &shown["llamacpp"];
        assert_eq!(llama["default_backend"], "vulkan");
        let vulkan = json!({"devices": ["amd_dgpu", "gpu"], "state": "installed", "message": "", "action": "", "version": "b1"});
        assert_eq!(llama["backends"]["vulkan"], vulkan);
        let cpu =
            json!({"devices": ["cpu"], "state": "installed", "message": "", "action": "", "version": "b1"});
        assert_eq!(llama["backends"]["cpu"], cpu);
        let cuda = &llama["backends"]["cuda"];
        assert_eq!(
            (&cuda["state"], &cuda["devices"]),
            (&json!("unsupported"), &json!([]))
        );
        assert_ne!(cuda["message"], "");
        assert_eq!(llama["backends"].as_object().unwrap().len(), 3);
    }
}
