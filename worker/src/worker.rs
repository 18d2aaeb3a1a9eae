//! The worker process: starts its parts and ends them in order.
//!
//! ```text
//!   leftovers ended ─► devices, runtimes ─► listening ─► first attempt to join ─► ready
//!   SIGTERM ─► not serving ─► no loads, refuse as stale ─► what runs finishes (drain timeout: cancelled) ─► engines gone
//!           ─► Goodbye ─► sessions closed ─► exit          (PROTOCOL.md 23)
//! ```

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use muster_core::{BootId, HostId, WorkerId};
use muster_proto::{
    life::Life,
    net::Address,
    process::{notify_ready, notify_stopping, show_life, shutdown_signal},
    trust::{Credentials, Door, Keys},
    v1::{
        Unload, UnloadMode,
        command::Kind as Order,
        host_server::{self, HostServer},
        inference_server::{self, InferenceServer},
        uploads_server,
    },
};
use tokio::{sync::watch, task::JoinHandle, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic_health::server::HealthReporter;

use crate::{
    board::Board,
    config::WorkerArgs,
    devices::Devices,
    engine::{self, EngineConfig},
    fleet::Fleet,
    grpc,
    hub::{HubConfig, desk::Desk},
    instance::{
        actor::{Ground, Service, Surroundings},
        registry::{Identity, Registry},
    },
    keeper, monitor, procfs,
    session::Sessions,
};

/// File name of a worker's socket in its own directory.
const SOCKET: &str = "worker.sock";
/// Time between TERM and KILL when an engine is ended.
const ENGINE_GRACE: Duration = Duration::from_secs(5);
/// Longest wait for killed engines, for the goodbye, and for sessions to be read to their end.
const LAST_WAIT: Duration = Duration::from_secs(2);

type Health = HealthReporter;

/// Runs a worker until it is asked to end.
///
/// # Errors
/// It cannot start because the run directory, a device or the address is not available; or its server failed.
pub(crate) async fn run(args: WorkerArgs) -> anyhow::Result<()> {
    let name = args.name();
    let shared_dir = args.run_dir();
    // Sockets are in this directory, and their paths must be short.
    let own_dir = shared_dir.join(name.replace('/', "_"));
    let sweep_dir = own_dir.clone();
    let _lock = tokio::task::spawn_blocking(move || keeper::sweep(&sweep_dir))
        .await?
        .with_context(|| format!("the run directory {} cannot be used", own_dir.display()))?;
    let engines = engine_config(&args, &shared_dir, own_dir.clone())?;
    let devices = Devices::open(&args.devices(), &shared_dir.join("sim"), &engines.muster_llama)
        .context("a device cannot be used")?;
    let ground = Arc::new(Ground {
        board: Arc::new(Board::new()),
        devices,
        runtimes: engine::runtimes(&engines),
        patience: args.patience(),
        files: Desk::new(HubConfig::read(|name| std::env::var(name).ok()).limited(args.download_limit)),
        around: watch::Sender::new(Surroundings::default()),
    });
    let identity = Identity {
        worker: WorkerId::new(name)?,
        boot: BootId::fresh(),
        host: HostId::new(procfs::host_id())?,
    };
    let instances = TaskTracker::new();
    let registry = Arc::new(Registry::new(identity, Arc::clone(&ground), instances.clone()));

    let token = args.token.read()?;
    let wanted = args
        .listen
        .clone()
        .unwrap_or_else(|| Address::Unix(own_dir.join(SOCKET)));
    // Operators use the controller: no key opens this listener.
    let door = Door::parts(&wanted, token.as_ref(), &Keys::default()).await?;
    let address = door.address().clone();
    let addresses = if args.advertise.is_empty() {
        vec![address.clone()]
    } else {
        args.advertise.clone()
    };
    let sessions = Sessions::default();
    let stop = CancellationToken::new();
    let (health, mut server) = serve(&registry, &sessions, &addresses, door, stop.clone()).await?;

    let (tried, leave) = (CancellationToken::new(), CancellationToken::new());
    let fleet = Fleet {
        controller: args.controller.clone(),
        credentials: Credentials::from(token.as_ref()),
        addresses,
        registry: Arc::clone(&registry),
        tried: tried.clone(),
        leave: leave.clone(),
    };
    // Both end with the runtime, and neither has anything to clean up.
    let life = Life::default();
    let monitor = tokio::spawn(life.part("monitor").run(monitor::run(Arc::clone(&ground))));
    let fleet = tokio::spawn(life.part("fleet").run(fleet.run()));
    tokio::select! {
        () = tried.cancelled() => notify_ready(&address),
        ended = &mut server => return ended?.context("the server failed"),
        part = life.ended() => anyhow::bail!("a part of the worker ended by itself: {part}"),
    }
    tokio::spawn(show_life(life.clone()));
    tracing::info!(%address, "ready");
    tokio::select! {
        signal = shutdown_signal() => signal?,
        ended = &mut server => return ended?.context("the server failed"),
        part = life.ended() => anyhow::bail!("a part of the worker ended by itself: {part}"),
    }
    life.leaving();
    notify_stopping();
    tracing::info!("draining");
    health
        .set_not_serving::<InferenceServer<grpc::inference::Service>>()
        .await;
    drain(&registry, &instances, args.drain_timeout).await;
    leave.cancel();
    drop(timeout(LAST_WAIT, fleet).await);
    drop(timeout(LAST_WAIT, sessions.close()).await);
    monitor.abort();
    stop.cancel();
    if timeout(LAST_WAIT / 4, &mut server).await.is_err() {
        server.abort();
    }
    tracing::info!("ended");
    Ok(())
}

fn engine_config(args: &WorkerArgs, shared_dir: &Path, run_dir: PathBuf) -> anyhow::Result<EngineConfig> {
    let worker = std::env::current_exe().context("this program's own path is unknown")?;
    let muster_llama = args
        .engines
        .muster_llama()
        .context("this program's own path is unknown")?;
    Ok(EngineConfig {
        run_dir,
        cores: shared_dir.join("cores"),
        worker,
        muster_llama,
        llama_server: args.engines.llama_server.clone(),
        grace: ENGINE_GRACE,
    })
}

async fn serve(
    registry: &Arc<Registry>,
    sessions: &Sessions,
    addresses: &[Address],
    door: Door,
    stop: CancellationToken,
) -> anyhow::Result<(Health, JoinHandle<anyhow::Result<()>>)> {
    let (health, health_service) = tonic_health::server::health_reporter();
    health
        .set_serving::<InferenceServer<grpc::inference::Service>>()
        .await;
    health.set_serving::<HostServer<grpc::host::HostService>>().await;
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(muster_proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            // Only services that are served here, not all in the files.
            .with_service_name(host_server::SERVICE_NAME)
            .with_service_name(inference_server::SERVICE_NAME)
            .with_service_name(uploads_server::SERVICE_NAME)
            .with_service_name(tonic_health::pb::health_server::SERVICE_NAME)
    };
    let (mut server, listener) = door.open();
    let router = server
        .add_service(grpc::inference::server(Arc::clone(registry), sessions.clone()))
        .add_service(grpc::host::server(
            Arc::clone(registry),
            addresses.iter().map(ToString::to_string).collect(),
        ))
        .add_service(grpc::uploads::server(registry.ground().files.cache().clone()))
        .add_service(health_service)
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?);
    let serving = async move {
        router
            .serve_with_incoming_shutdown(listener, stop.cancelled_owned())
            .await?;
        Ok(())
    };
    Ok((health, tokio::spawn(serving)))
}

/// Lets requests finish, cancels them after the time limit, and returns when no engine is left.
async fn drain(registry: &Arc<Registry>, instances: &TaskTracker, limit: Duration) {
    registry
        .ground()
        .around
        .send_modify(|around| around.service = Service::Leaving);
    registry.ground().board.draining();
    instances.close();
    if timeout(limit, instances.wait()).await.is_ok() {
        return;
    }
    tracing::warn!(?limit, "what still runs is cancelled");
    for instance in registry.all() {
        let unload = Unload {
            mode: UnloadMode::Force.into(),
            ..Unload::default()
        };
        instance.order(Order::Unload(unload)).await;
    }
    if timeout(ENGINE_GRACE, instances.wait()).await.is_err() {
        // Their keepers end them when this process has ended.
        tracing::error!("engines are left behind for their keepers");
    }
}
