//! The controller's process: starts and ends everything in order (PROTOCOL.md 23).
//!
//! Start: configuration → state directory → epoch written → driver → services. End: not serving → the driver stops (it releases and unloads
//! nothing, so the fleet goes on) → streams end → connections close → state is written.

use std::{path::Path, sync::Arc, time::Duration};

use muster_proto::{
    DESCRIPTORS, MAX_MESSAGE_BYTES,
    life::{BEAT_EVERY, Life},
    net::Address,
    trust::Door,
    v1::{
        control_server::{self, ControlServer},
        fleet_server::{self, FleetServer},
        models_server::{self, ModelsServer},
    },
};
use tokio::{
    task::{JoinHandle, JoinSet},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic_health::{ServingStatus, server::HealthReporter};

use crate::{
    config::{Config, ConfigError},
    driver::{Driver, Start, handle::Handle},
    grpc::{ControlService, FleetService, ModelsService},
    reload,
    state::{ADJUSTMENTS, StateDir, StateError},
};

/// The services that a controller offers, each to callers that may use it.
const SERVICES: [&str; 4] = [
    control_server::SERVICE_NAME,
    fleet_server::SERVICE_NAME,
    models_server::SERVICE_NAME,
    tonic_health::pb::health_server::SERVICE_NAME,
];

/// How long connections may take to close at the end.
const CLOSING: Duration = Duration::from_secs(5);

/// The listeners of a controller.
#[derive(Debug)]
pub struct Doors {
    /// For workers and gateways.
    pub parts: Door,
    /// A separate one for operators.
    pub operators: Option<Door>,
}

type Served = Result<(), tonic::transport::Error>;

/// A running controller. If it is dropped without [`Controller::shutdown`], it ends with the runtime.
#[derive(Debug)]
pub struct Controller {
    address: Address,
    operators: Option<Address>,
    handle: Handle,
    stop: CancellationToken,
    health: HealthReporter,
    life: Life,
    tasks: TaskTracker,
    driver: JoinHandle<()>,
    /// One server per listener.
    servers: JoinSet<Served>,
}

/// Why a controller does not start, or why it failed.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The state directory cannot be used.
    #[error("the state directory cannot be used")]
    State(#[from] StateError),
    /// The configuration changed since it was read, or what was adjusted does not fit it.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// gRPC reflection could not be set up.
    #[error("reflection cannot be served")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// A server failed.
    #[error("serving failed")]
    Serve(#[from] tonic::transport::Error),
    /// A part that the controller needs has ended.
    #[error("a part of the controller ended by itself: {0}")]
    Ended(String),
    /// A task panicked.
    #[error("a task failed")]
    Task(#[from] tokio::task::JoinError),
}

impl Controller {
    /// Starts a controller on bound sockets.
    ///
    /// # Errors
    /// The state directory cannot be used, or another controller uses it.
    pub async fn start(config: Config, state_dir: &Path, doors: Doors) -> Result<Self, ServerError> {
        let address = doors.parts.address().clone();
        let operators = doors.operators.as_ref().map(|door| door.address().clone());
        let life = Life::default();
        let stop = CancellationToken::new();
        let sources = config.sources.adjusted_by(state_dir.join(ADJUSTMENTS));
        let config = match sources.load() {
            Ok(config) => config,
            // What was set while it ran must not keep it from running: a folder that is gone, a damaged file.
            Err(error) if sources.is_adjusted() => {
                let aside = sources.set_aside();
                tracing::error!(%error, ?aside, "what was set while the controller ran does not fit any more: starting without it");
                sources.load()?
            }
            Err(error) => return Err(error.into()),
        };
        let start = Start::read(config, state_dir, stop.clone(), life.clone())?;
        tracing::info!(%address, operators = ?operators.as_ref().map(ToString::to_string), epoch = start.epoch, workers_expected = start.expected.len(), models = start.config.models.len(), "controller starts");
        let tasks = TaskTracker::new();
        let (sources, disk) = (start.config.sources.clone(), start.writer.disk());
        let (driver, handle) = Driver::new(start);
        let driver = tokio::spawn(driver.run());
        let health = HealthReporter::new();
        set_health(&health, true).await;
        tokio::spawn(
            life.part("health")
                .run(tell_health(health.clone(), life.clone(), stop.clone())),
        );
        tokio::spawn(
            life.part("reload")
                .run(reload::watch(handle.clone(), sources, Arc::clone(&disk))),
        );
        let mut servers = JoinSet::new();
        for door in [Some(doors.parts), doors.operators].into_iter().flatten() {
            servers.spawn(serve(
                door,
                handle.clone(),
                &disk,
                &health,
                tasks.clone(),
                stop.clone(),
            )?);
        }
        Ok(Self {
            address,
            operators,
            handle,
            stop,
            health,
            life,
            tasks,
            driver,
            servers,
        })
    }

    /// The address of the listener for workers and gateways.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The address of the separate listener for operators, if there is one.
    #[must_use]
    pub fn operators(&self) -> Option<&Address> {
        self.operators.as_ref()
    }

    /// The sign of life for its supervisor.
    #[must_use]
    pub fn life(&self) -> &Life {
        &self.life
    }

    /// Reads the configuration again and takes over what has changed. What is wrong with it is said in the log; then nothing changes.
    pub async fn reload(&self) {
        drop(reload::reload(&self.handle, self.handle.sources()).await);
    }

    /// Waits until a part of the controller ends by itself, which is a failure.
    ///
    /// # Errors
    /// Why it ended.
    pub async fn failed(&mut self) -> Result<(), ServerError> {
        tokio::select! {
            biased;
            Some(ended) = self.servers.join_next() => ended?.map_err(ServerError::from),
            name = self.life.ended() => Err(ServerError::Ended(name)),
        }
    }

    /// Ends the controller in order.
    ///
    /// # Errors
    /// A task had failed.
    pub async fn shutdown(mut self) -> Result<(), ServerError> {
        self.life.leaving();
        self.stop.cancel();
        set_health(&self.health, false).await;
        self.tasks.close();
        let tracked = async {
            if self.driver.is_finished() {
                Ok(())
            } else {
                self.driver.await
            }
        };
        let driver = tracked.await;
        self.tasks.wait().await;
        match timeout(CLOSING, all_served(&mut self.servers)).await {
            Ok(served) => served?,
            // They are aborted when the set is dropped.
            Err(_) => tracing::warn!("connections did not close in time"),
        }
        driver.map_err(ServerError::from)
    }
}

/// Keeps the health service up to date: while the driver is stuck, the controller is not serving.
async fn tell_health(health: HealthReporter, life: Life, stop: CancellationToken) {
    let mut told = true;
    while timeout(BEAT_EVERY, stop.cancelled()).await.is_err() {
        let alive = life.still().is_none();
        if alive != told {
            told = alive;
            set_health(&health, alive).await;
        }
    }
}

async fn set_health(health: &HealthReporter, serving: bool) {
    let status = if serving {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    };
    for service in [
        control_server::SERVICE_NAME,
        models_server::SERVICE_NAME,
        fleet_server::SERVICE_NAME,
        // The empty name is the server as a whole.
        "",
    ] {
        health.set_service_status(service, status).await;
    }
}

async fn all_served(servers: &mut JoinSet<Served>) -> Result<(), ServerError> {
    while let Some(served) = servers.join_next().await {
        served??;
    }
    Ok(())
}

/// A server's future. Everything that can fail is set up before it runs. The listener decides which services it offers.
fn serve(
    door: Door,
    handle: Handle,
    disk: &Arc<StateDir>,
    health: &HealthReporter,
    tasks: TaskTracker,
    stop: CancellationToken,
) -> Result<impl Future<Output = Served> + use<>, ServerError> {
    let reflection = || {
        let builder = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
        // Only services that are served here, not all in the files.
        let offered = SERVICES.into_iter().filter(|service| door.offers(service));
        offered.fold(builder, tonic_reflection::server::Builder::with_service_name)
    };
    let (v1, v1alpha) = (reflection().build_v1()?, reflection().build_v1alpha()?);
    let health_service = tonic_health::server::HealthService::from_health_reporter(health.clone());
    let control = ControlServer::new(ControlService::new(handle.clone(), Arc::clone(disk)))
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let models = ModelsServer::new(ModelsService::new(handle.clone(), tasks.clone()))
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let fleet = FleetServer::new(FleetService::new(handle, tasks))
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let (mut server, listener) = door.open();
    let router = server
        .add_service(tonic_health::pb::health_server::HealthServer::new(health_service))
        .add_service(v1)
        .add_service(v1alpha)
        .add_service(control)
        .add_service(models)
        .add_service(fleet);
    Ok(router.serve_with_incoming_shutdown(listener, async move { stop.cancelled().await }))
}
