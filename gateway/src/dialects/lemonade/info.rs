//! The answer of `system-info`: seed 000's keys, today's `recipes`, and in addition `hosts` and what `verbose` adds.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use super::recipes::Recipe;

/// The machine that the gateway runs on, and every host of the fleet.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeSystemInfo)]
pub(super) struct Info<'a> {
    /// Name and release of the kernel that the gateway runs on.
    #[serde(rename = "OS Version")]
    pub(super) os: &'a str,
    /// Processor of the gateway's machine: its model name, else its architecture.
    #[serde(rename = "Processor")]
    pub(super) processor: &'a str,
    /// Memory of the gateway's machine in GiB, with seed 000's unit, for example `32.0 GB`.
    #[serde(rename = "Physical Memory")]
    pub(super) memory: String,
    /// Devices: `cpu` of the gateway's machine, the others of the whole fleet.
    pub(super) devices: Devices<'a>,
    /// Lemonade's recipes by name, with what is here for each.
    pub(super) recipes: BTreeMap<&'static str, Recipe<'a>>,
    /// All hosts of the fleet in the order of their names.
    pub(super) hosts: Vec<Host<'a>>,
    /// Version of this gateway; only with `verbose`.
    #[serde(rename = "Muster Version", skip_serializing_if = "Option::is_none")]
    pub(super) version: Option<&'static str>,
    /// All workers that the controller knows; only with `verbose`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) workers: Option<Vec<Worker<'a>>>,
}

/// Devices by seed 000's kinds.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeDevices)]
pub(super) struct Devices<'a> {
    /// Processor of the gateway's machine.
    pub(super) cpu: Cpu<'a>,
    /// Always unavailable: integrated GPUs of AMD's are listed under `amd_dgpu`.
    pub(super) amd_igpu: Integrated,
    /// AMD's GPUs.
    pub(super) amd_dgpu: Vec<Gpu<'a>>,
    /// GPUs of all other makers.
    pub(super) nvidia_dgpu: Vec<Gpu<'a>>,
    /// The first NPU.
    pub(super) npu: Npu<'a>,
}

/// A processor.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeCpu)]
pub(super) struct Cpu<'a> {
    /// Model name of the processor, else its architecture.
    pub(super) name: &'a str,
    /// Number of cores in all sockets.
    pub(super) cores: usize,
    /// Number of threads of all cores.
    pub(super) threads: usize,
    /// Always true.
    pub(super) available: bool,
}

/// An integrated GPU. Muster reports none.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = LemonadeIntegratedGpu)]
pub(super) struct Integrated {
    /// Always null.
    pub(super) name: Option<String>,
    /// Always null.
    pub(super) memory_mb: Option<u64>,
    /// Always null.
    pub(super) driver_version: Option<String>,
    /// Always false.
    pub(super) available: bool,
}

/// A GPU.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeGpu)]
pub(super) struct Gpu<'a> {
    /// Name of the GPU as its driver reports it.
    pub(super) name: &'a str,
    /// Total memory in MiB.
    pub(super) memory_mb: u64,
    /// Version of its driver; null if its worker does not know it.
    pub(super) driver_version: Option<&'a str>,
    /// Always true.
    pub(super) available: bool,
}

/// An NPU.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeNpu)]
pub(super) struct Npu<'a> {
    /// Name of the NPU as its driver reports it; null if there is none.
    pub(super) name: Option<&'a str>,
    /// Version of its driver; null if there is no NPU or its worker does not know it.
    pub(super) driver_version: Option<&'a str>,
    /// Always null: no driver tells it.
    pub(super) power_mode: Option<String>,
    /// Whether there is an NPU.
    pub(super) available: bool,
}

/// A host of the fleet.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeHost)]
pub(super) struct Host<'a> {
    /// Id of the host.
    pub(super) host: &'a str,
    /// Devices that its workers manage.
    pub(super) devices: Vec<HostDevice<'a>>,
}

/// A device of a host.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeHostDevice)]
pub(super) struct HostDevice<'a> {
    /// Id of the device, unique on its host, for example `cpu` or a GPU's UUID.
    pub(super) id: &'a str,
    /// `cpu`, `gpu`, `npu`, `sim` or `unknown`.
    pub(super) kind: &'static str,
    /// Name of the device as its driver reports it.
    pub(super) name: &'a str,
    /// Total memory in MiB.
    pub(super) memory_mb: u64,
}

/// A worker.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeWorker)]
pub(super) struct Worker<'a> {
    /// Id of the worker.
    pub(super) id: &'a str,
    /// Id of its host.
    pub(super) host: &'a str,
    /// Whether the controller hears from it.
    pub(super) connected: bool,
    /// Version of Muster that the worker was built from.
    pub(super) version: &'a str,
    /// Runtimes that can host models there.
    pub(super) runtimes: Vec<Runtime<'a>>,
}

/// Software that hosts models.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeRuntime)]
pub(super) struct Runtime<'a> {
    /// Name of the runtime, for example `llama_cpp`.
    pub(super) name: &'a str,
    /// Version of the runtime; empty if unknown.
    pub(super) version: &'a str,
}
