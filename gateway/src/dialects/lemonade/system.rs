//! `GET system-info` (seed 000): the machine that the gateway runs on, and every host of the fleet.
//!
//! `/proc/cpuinfo` is read here: `procfs-core`, which the worker uses, counts threads but no cores.

use std::{collections::BTreeMap, collections::BTreeSet, fs, sync::Arc};

use axum::{
    extract::{Query, State, rejection::QueryRejection},
    response::Response,
};
use http::StatusCode;
use muster_proto::v1::{Device, DeviceKind, DeviceStatus, WorkerStatus};
use serde::Deserialize;

use super::{
    info::{self, Cpu, Devices, Gpu, Host, HostDevice, Info, Integrated, Npu, Runtime},
    recipes,
};
use crate::web::{
    App,
    access::Access,
    reply::{self, Refusal},
    route::Route,
};

#[derive(Debug, Default, Deserialize)]
pub(super) struct Show {
    verbose: Option<String>,
}

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/v1/system-info", Access::User, info)
            .summary("The machine and every host of the fleet")
            .query::<bool>("verbose", "Workers and runtimes too.")
            .answers::<Info>("As far as it is known.")
            .change_errors(),
    ]
}

async fn info(
    State(app): State<Arc<App>>,
    show: Result<Query<Show>, QueryRejection>,
) -> Result<Response, Refusal> {
    let verbose = show.ok().and_then(|Query(show)| show.verbose);
    let verbose = verbose.is_some_and(|value| matches!(value.as_str(), "" | "1" | "true" | "True"));
    let control = || app.dispatcher.fleet.control();
    let (devices, workers) = tokio::try_join!(control().devices(), control().workers())?;
    let machine = Machine::read();
    Ok(reply::value(
        StatusCode::OK,
        &body(&machine, &devices, &workers, verbose),
    ))
}

/// What the operating system tells about this machine.
#[derive(Clone, Debug, Default)]
struct Machine {
    os: String,
    processor: String,
    memory_kib: u64,
    cores: usize,
    threads: usize,
}

impl Machine {
    /// Reads it from `/proc` and `/sys`. What cannot be read stays empty.
    fn read() -> Self {
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        let mut machine = Self::parse(&text("/proc/cpuinfo"), &text("/proc/meminfo"));
        machine.os = format!("Linux-{}", text("/proc/sys/kernel/osrelease").trim());
        if machine.processor.is_empty() {
            // Some architectures do not name their processors there.
            std::env::consts::ARCH.clone_into(&mut machine.processor);
        }
        machine
    }

    fn parse(cpuinfo: &str, meminfo: &str) -> Self {
        let mut machine = Self::default();
        let mut cores = BTreeSet::new();
        for processor in cpuinfo.split("\n\n").filter(|block| !block.trim().is_empty()) {
            let field = |name: &str| {
                let mut fields = processor.lines().filter_map(|line| line.split_once(':'));
                let found = fields.find(|(key, _)| key.trim() == name);
                found.map(|(_, value)| value.trim().to_owned())
            };
            machine.threads += usize::from(field("processor").is_some());
            // Machines without a topology count one core per thread.
            let core = field("core id").unwrap_or_else(|| field("processor").unwrap_or_default());
            cores.insert((field("physical id").unwrap_or_default(), core));
            if let Some(name) = field("model name") {
                machine.processor = name;
            }
        }
        machine.cores = cores.len();
        let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
        let kib = total.and_then(|total| total.split_whitespace().next());
        machine.memory_kib = kib.and_then(|kib| kib.parse().ok()).unwrap_or_default();
        machine
    }

    #[allow(clippy::cast_precision_loss, reason = "a figure for people")]
    fn memory(&self) -> String {
        format!("{:.1} GB", self.memory_kib as f64 / f64::from(1 << 20))
    }
}

fn body<'a>(
    machine: &'a Machine,
    devices: &'a [DeviceStatus],
    workers: &'a [WorkerStatus],
    verbose: bool,
) -> Info<'a> {
    let of = |wanted: fn(&Device) -> bool| -> Vec<Gpu<'a>> {
        let mut seen = BTreeSet::new();
        let gpus = devices.iter().filter_map(|status| status.device.as_ref());
        let gpus = gpus.filter(|device| device.kind() == DeviceKind::Gpu && wanted(device));
        let once = gpus.filter(|device| seen.insert(&device.device_id));
        let shown = |gpu: &'a Device| Gpu {
            name: &gpu.name,
            memory_mb: gpu.capacity_bytes >> 20,
            driver_version: driver(gpu),
            available: true,
        };
        once.map(shown).collect()
    };
    let npu = devices.iter().filter_map(|status| status.device.as_ref());
    let npu = npu.into_iter().find(|device| device.kind() == DeviceKind::Npu);
    Info {
        os: &machine.os,
        processor: &machine.processor,
        memory: machine.memory(),
        devices: Devices {
            cpu: Cpu {
                name: &machine.processor,
                cores: machine.cores,
                threads: machine.threads,
                available: true,
            },
            amd_igpu: Integrated::default(),
            amd_dgpu: of(is_amd),
            nvidia_dgpu: of(is_nvidia),
            npu: Npu {
                name: npu.map(|npu| npu.name.as_str()),
                driver_version: npu.and_then(driver),
                power_mode: None,
                available: npu.is_some(),
            },
        },
        recipes: recipes::of(devices, workers),
        hosts: hosts(devices, workers),
        version: verbose.then_some(muster_proto::VERSION),
        workers: verbose.then(|| workers.iter().map(worker).collect()),
    }
}

/// Version of a device's driver; none if its worker does not know it.
fn driver(device: &Device) -> Option<&str> {
    Some(device.driver_version.as_str()).filter(|version| !version.is_empty())
}

/// Through other interfaces there are GPUs of other makers, and drivers that are none.
pub(super) fn is_nvidia(gpu: &Device) -> bool {
    gpu.name.contains("NVIDIA") || gpu.api == "cuda"
}

pub(super) fn is_amd(gpu: &Device) -> bool {
    gpu.name.contains("AMD") || gpu.name.contains("Radeon")
}

/// All devices, grouped by host.
fn hosts<'a>(devices: &'a [DeviceStatus], workers: &'a [WorkerStatus]) -> Vec<Host<'a>> {
    let mut hosts: BTreeMap<&str, Vec<HostDevice<'a>>> = BTreeMap::new();
    for worker in workers {
        hosts.entry(&worker.host_id).or_default();
    }
    for status in devices {
        let Some(device) = &status.device else { continue };
        let shown = HostDevice {
            id: &device.device_id,
            kind: match device.kind() {
                DeviceKind::Cpu => "cpu",
                DeviceKind::Gpu => "gpu",
                DeviceKind::Npu => "npu",
                DeviceKind::Sim => "sim",
                DeviceKind::Unspecified => "unknown",
            },
            name: &device.name,
            memory_mb: device.capacity_bytes >> 20,
        };
        hosts.entry(&status.host_id).or_default().push(shown);
    }
    let hosts = hosts.into_iter();
    hosts.map(|(host, devices)| Host { host, devices }).collect()
}

fn worker(worker: &WorkerStatus) -> info::Worker<'_> {
    let runtimes = worker.runtimes.iter().map(|runtime| Runtime {
        name: &runtime.name,
        version: &runtime.version,
    });
    info::Worker {
        id: &worker.worker_id,
        host: &worker.host_id,
        connected: worker.connected,
        version: &worker.version,
        runtimes: runtimes.collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const CPUINFO: &str = "processor\t: 0\nmodel name\t: A CPU\nphysical id\t: 0\ncore id\t: 0\n\n\
        processor\t: 1\nmodel name\t: A CPU\nphysical id\t: 0\ncore id\t: 0\n\n\
        processor\t: 2\nmodel name\t: A CPU\nphysical id\t: 0\ncore id\t: 1\n\n";

    fn machine() -> Machine {
        Machine {
            os: "Linux-6.1".into(),
            ..Machine::parse(CPUINFO, "MemTotal:       33554432 kB\nMemFree: 1 kB\n")
        }
    }

    fn shown(devices: &[DeviceStatus], workers: &[WorkerStatus], verbose: bool) -> Value {
        serde_json::to_value(body(&machine(), devices, workers, verbose)).unwrap()
    }

    fn gpu(id: &str, name: &str) -> DeviceStatus {
        DeviceStatus {
            host_id: "h".into(),
            device: Some(Device {
                device_id: id.into(),
                kind: DeviceKind::Gpu.into(),
                name: name.into(),
                capacity_bytes: 512 << 20,
                driver_version: "580.82".into(),
                api: String::new(),
                ..Device::default()
            }),
            ..DeviceStatus::default()
        }
    }

    #[test]
    fn seed_000_keys_of_system_info() {
        let devices = [
            gpu("a", "NVIDIA H100"),
            gpu("a", "NVIDIA H100"),
            gpu("b", "AMD Radeon"),
        ];
        let info = shown(&devices, &[], false);
        assert_eq!(info["OS Version"], "Linux-6.1");
        assert_eq!(info["Processor"], "A CPU");
        assert_eq!(info["Physical Memory"], "32.0 GB");
        let cpu = json!({"name": "A CPU", "cores": 2, "threads": 3, "available": true});
        assert_eq!(info["devices"]["cpu"], cpu);
        let gpu = |name: &str| json!([{"name": name, "memory_mb": 512, "driver_version": "580.82", "available": true}]);
        assert_eq!(info["devices"]["nvidia_dgpu"], gpu("NVIDIA H100"));
        assert_eq!(info["devices"]["amd_dgpu"], gpu("AMD Radeon"));
        assert_eq!(info["devices"]["amd_igpu"]["available"], false);
        let npu = json!({"name": null, "driver_version": null, "power_mode": null, "available": false});
        assert_eq!(info["devices"]["npu"], npu);
        assert_eq!(info["hosts"][0]["devices"].as_array().unwrap().len(), 3);
        assert!(info.get("workers").is_none());
    }

    #[test]
    fn verbose_tells_of_workers_and_runtimes() {
        let worker = WorkerStatus {
            worker_id: "w".into(),
            ..WorkerStatus::default()
        };
        let info = shown(&[], &[worker], true);
        assert_eq!(info["workers"][0]["id"], "w");
        assert!(info["Muster Version"].is_string());
    }
}
