//! What `system-info` answers (seed 000): the seed's keys, `hosts` and what `verbose` adds beside them.

use serde::Serialize;
use utoipa::ToSchema;

/// The machine that the gateway runs on, and every host of the fleet.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeSystemInfo)]
pub(super) struct Info<'a> {
    /// Name and release of the gateway's kernel.
    #[serde(rename = "OS Version")]
    pub(super) os: &'a str,
    /// Of the gateway's machine: the model's name, else its architecture.
    #[serde(rename = "Processor")]
    pub(super) processor: &'a str,
    /// Of the gateway's machine, in GiB with the seed's unit, for example `32.0 GB`.
    #[serde(rename = "Physical Memory")]
    pub(super) memory: String,
    /// Of the gateway's machine (`cpu`) and of the whole fleet (the others).
    pub(super) devices: Devices<'a>,
    /// Every host of the fleet, by name.
    pub(super) hosts: Vec<Host<'a>>,
    /// With `verbose`: the version of this gateway.
    #[serde(rename = "Muster Version", skip_serializing_if = "Option::is_none")]
    pub(super) version: Option<&'static str>,
    /// With `verbose`: every worker that the controller knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) workers: Option<Vec<Worker<'a>>>,
}

/// Devices by the seed's kinds.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeDevices)]
pub(super) struct Devices<'a> {
    /// The gateway's processor.
    pub(super) cpu: Cpu<'a>,
    /// Never found: AMD's integrated GPUs stand under `amd_dgpu`.
    pub(super) amd_igpu: Integrated,
    /// AMD's GPUs.
    pub(super) amd_dgpu: Vec<Gpu<'a>>,
    /// All other GPUs.
    pub(super) nvidia_dgpu: Vec<Gpu<'a>>,
    /// The first NPU.
    pub(super) npu: Npu<'a>,
}

/// A processor.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeCpu)]
pub(super) struct Cpu<'a> {
    /// The model's name, else its architecture.
    pub(super) name: &'a str,
    /// Of all sockets.
    pub(super) cores: usize,
    /// Of all cores.
    pub(super) threads: usize,
    /// True.
    pub(super) available: bool,
}

/// An integrated GPU, of which none is ever told.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = LemonadeIntegratedGpu)]
pub(super) struct Integrated {
    /// Null.
    pub(super) name: Option<String>,
    /// Null.
    pub(super) memory_mb: Option<u64>,
    /// Null.
    pub(super) driver_version: Option<String>,
    /// False.
    pub(super) available: bool,
}

/// A GPU.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeGpu)]
pub(super) struct Gpu<'a> {
    /// As its driver names it.
    pub(super) name: &'a str,
    /// All of its memory, in MiB.
    pub(super) memory_mb: u64,
    /// Null where its worker does not know it.
    pub(super) driver_version: Option<&'a str>,
    /// True.
    pub(super) available: bool,
}

/// An NPU.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeNpu)]
pub(super) struct Npu<'a> {
    /// As its driver names it; null where there is none.
    pub(super) name: Option<&'a str>,
    /// Null where there is none, or its worker does not know it.
    pub(super) driver_version: Option<&'a str>,
    /// Null: no driver of ours tells it.
    pub(super) power_mode: Option<String>,
    /// There is one.
    pub(super) available: bool,
}

/// A host of the fleet.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeHost)]
pub(super) struct Host<'a> {
    /// Its id.
    pub(super) host: &'a str,
    /// What its workers manage.
    pub(super) devices: Vec<HostDevice<'a>>,
}

/// A device of a host.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeHostDevice)]
pub(super) struct HostDevice<'a> {
    /// Unique on its host, for example `cpu` or a GPU's UUID.
    pub(super) id: &'a str,
    /// `cpu`, `gpu`, `npu`, `sim` or `unknown`.
    pub(super) kind: &'static str,
    /// As its driver names it.
    pub(super) name: &'a str,
    /// All of its memory, in MiB.
    pub(super) memory_mb: u64,
}

/// A worker.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeWorker)]
pub(super) struct Worker<'a> {
    /// Its id.
    pub(super) id: &'a str,
    /// Its host's id.
    pub(super) host: &'a str,
    /// The controller hears from it.
    pub(super) connected: bool,
    /// Muster's, that the worker is built from.
    pub(super) version: &'a str,
    /// What can host models there.
    pub(super) runtimes: Vec<Runtime<'a>>,
}

/// Software that hosts models.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeRuntime)]
pub(super) struct Runtime<'a> {
    /// For example `llama_cpp`.
    pub(super) name: &'a str,
    /// Its own version; empty if it tells none.
    pub(super) version: &'a str,
}
