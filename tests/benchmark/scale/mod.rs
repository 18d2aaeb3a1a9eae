//! The controller alone, as a real process, with thousands of scripted workers and a few scripted gateways over real gRPC.
//!
//! ```text
//!   thread: scripted workers ──Join──┐
//!                                    ├─► muster-controller (what is measured)
//!   here: scripted gateways ─────────┘
//! ```
//!
//! Every worker has a connection of its own, as real ones do, and hosts one loaded model. Rows: all join, the controller is killed and started again,
//! nothing happens but a report per worker and second, and then churn: models are loaded and unloaded, workers are lost and come back.

mod gateway;
mod meter;
mod worker;

use std::{
    process::Command,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use muster_core::id;
use muster_proto::{net::Address, process};
use muster_tests::processes::Running;

use self::{
    gateway::{Churn, Watcher},
    meter::{Meter, Used},
    worker::Workers,
};
use crate::{Arguments, client::quantile, millis, say, stack};

/// Workers of one host.
const HOST: usize = 8;
/// Gateways that watch routes.
const WATCHERS: usize = 4;
/// Models that come and go.
pub(crate) const CHURNED: usize = 32;
/// Longest wait for all workers to join.
const JOINING: Duration = Duration::from_secs(120);
/// Files that the bench needs besides one for each worker.
const SPARE_FILES: usize = 200;

/// Measures the rows and prints them.
pub(crate) async fn measure(arguments: &Arguments) -> anyhow::Result<()> {
    process::raise_file_limit();
    say(
        "\n| workers | all joined s (CPU s) | after a restart s (CPU s) | routes dropped by it | CPU at a report per worker and second % of a core | calls of EnsureLoaded in churn | p50 ms | p99 ms | worst ms | CPU in churn % | RSS per worker KiB |",
    );
    say("|---|---|---|---|---|---|---|---|---|---|---|");
    for &workers in &arguments.workers {
        row(workers, Duration::from_secs(arguments.seconds)).await?;
    }
    Ok(())
}

async fn row(wanted: usize, span: Duration) -> anyhow::Result<()> {
    // An internal door takes at most half of the files that a process may open.
    let limit = usize::try_from(process::file_limit() / 2)?.saturating_sub(SPARE_FILES);
    let count = wanted.min(limit);
    let files = tempfile::tempdir()?;
    let mut controller = Process::new(files.path(), count)?;
    let begun = Instant::now();
    controller.start().await?;
    let empty = controller.meter()?.rss_kib()?;
    let workers = Workers::start(count, &controller.address)?;
    workers.all_joined(JOINING).await?;
    let (first, first_cpu) = (begun.elapsed(), controller.meter()?.cpu());
    let watchers: Vec<Watcher> = (0..WATCHERS)
        .map(|number| Watcher::start(&controller.address, number))
        .collect();
    for watcher in &watchers {
        watcher.has(count, JOINING).await?;
    }

    controller.knows(count).await?;
    let begun = Instant::now();
    controller.kill();
    controller.start().await?;
    workers.all_joined(JOINING).await?;
    let (again, again_cpu) = (begun.elapsed(), controller.meter()?.cpu());
    for watcher in &watchers {
        watcher.settled(JOINING).await?;
    }
    let dropped: u64 = watchers.iter().map(Watcher::dropped).sum();

    let calm = controller.during(tokio::time::sleep(span)).await?;
    let rss = controller.meter()?.rss_kib()?.saturating_sub(empty);
    let churn = Churn::start(&controller.address, &workers);
    let asked = gateway::ensure_loaded(&controller.address, count / 2..count, span);
    let mut used = None;
    let mut times = {
        let before = controller.meter()?.used();
        let times = asked.await?;
        used.replace(controller.meter()?.used().since(before));
        times
    };
    churn.end().await?;
    let busy: Used = used.context("it was measured")?;
    times.sort_unstable();
    say(&format!(
        "| {count} | {:.2} ({:.2}) | {:.2} ({:.2}) | {dropped} | {:.1} | {} | {:.2} | {:.2} | {:.1} | {:.1} | {:.1} |",
        first.as_secs_f64(),
        first_cpu.as_secs_f64(),
        again.as_secs_f64(),
        again_cpu.as_secs_f64(),
        calm.percent(),
        times.len(),
        millis(quantile(&times, 0.5)),
        millis(quantile(&times, 0.99)),
        times.last().copied().map_or(0.0, millis),
        busy.percent(),
        rss as f64 / count as f64,
    ));
    Ok(())
}

/// The controller's process.
struct Process {
    address: Address,
    directory: std::path::PathBuf,
    running: Option<Running>,
}

impl Process {
    fn new(directory: &std::path::Path, workers: usize) -> anyhow::Result<Self> {
        let loaded = (0..workers).map(worker::model);
        let churned = (0..CHURNED).map(gateway::churned);
        let entry =
            |id: String| format!("[models.{id}]\nruntime = \"stub\"\n[models.{id}.stub]\nmemory_mib = 64\n");
        let models: String = loaded.chain(churned).map(entry).collect();
        let config = format!("[policy]\nmax_loaded_models = -1\n{models}");
        std::fs::write(directory.join("bench.toml"), config)?;
        Ok(Self {
            address: Address::Unix(directory.join("controller.sock")),
            directory: directory.to_owned(),
            running: None,
        })
    }

    async fn start(&mut self) -> anyhow::Result<()> {
        let mut command = Command::new(stack::binaries()?.join("muster-controller"));
        command
            .args(["--listen", &self.address.to_string()])
            .args(["--log-level", "warning"])
            .arg("--config")
            .arg(self.directory.join("bench.toml"))
            .arg("--state-dir")
            .arg(self.directory.join("state"));
        let mut running = Running::start("controller", command, &self.directory);
        running.ready().await;
        self.running = Some(running);
        Ok(())
    }

    /// Waits until all workers are in its roster on disk: it is not killed among their first joins.
    async fn knows(&self, workers: usize) -> anyhow::Result<()> {
        let roster = self.directory.join("state").join("roster.json");
        let probe = async || {
            let text = std::fs::read_to_string(&roster).unwrap_or_default();
            let known = text.matches("\"worker\":").count();
            if known == workers { Ok(()) } else { Err(known) }
        };
        muster_tests::eventually("the roster is on disk", JOINING, probe).await;
        Ok(())
    }

    fn kill(&mut self) {
        self.running = None;
    }

    fn meter(&self) -> anyhow::Result<Meter> {
        let running = self.running.as_ref().context("the controller runs")?;
        Ok(Meter::of(running.pid()))
    }

    /// What it used while something else went on.
    async fn during(&self, other: impl Future<Output = ()>) -> anyhow::Result<Used> {
        let before = self.meter()?.used();
        other.await;
        Ok(self.meter()?.used().since(before))
    }
}

/// The host of a worker.
fn host(number: usize) -> String {
    format!("host-{}", number / HOST)
}

/// A name that is used once.
fn fresh() -> String {
    id::fresh().to_string()
}
