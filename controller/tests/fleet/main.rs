//! The whole controller, in this process, on a real socket, with scripted workers.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking"
)]

mod catalogue;
mod estimates;
mod evict;
mod explain;
mod files;
mod load;
mod lost;
mod overrides;
mod pins;
mod sessions;
mod slow;
#[path = "../../gguf/tests/support/mod.rs"]
mod support;

use std::{path::PathBuf, time::Duration};

use muster_controller::{Controller, Doors, ServerError, StateError, config::Config};
use muster_core::{Error, id};
use muster_fakes::{LIMIT, worker::controllers as worker};
use muster_proto::{
    net::{Address, Channel, channel},
    trust::{Credentials, Door, Keys},
    v1::{
        self, EnsureLoadedEvent, EnsureLoadedRequest, RouteUpdate, control_client::ControlClient,
        ensure_loaded_event::Kind as Stage, route_update,
    },
};
use tokio::time::timeout;
use tonic::Streaming;

/// Two stub models, and short times.
pub(crate) const TWO_MODELS: &str = "
[sessions]
heartbeat_every = '50ms'
lost_after = '400ms'
ping_wait = '150ms'
[policy]
settle = '300ms'
worker_wait = '600ms'
[models.a]
runtime = 'stub'
[models.b]
runtime = 'stub'
";

/// A controller that can end and come back with the same state.
pub(crate) struct Rig {
    dir: tempfile::TempDir,
    controller: Option<Controller>,
}

impl Rig {
    pub(crate) async fn start(config: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.toml"), config).unwrap();
        let mut rig = Self {
            dir,
            controller: None,
        };
        rig.restart().await;
        rig
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Ends the controller, if one runs, and starts another on the same state.
    pub(crate) async fn restart(&mut self) {
        self.stop().await;
        let deadline = tokio::time::Instant::now() + LIMIT;
        // A program that another test starts has the lock for a moment too, between fork and exec.
        while let Err(error) = self.try_start().await {
            let in_use = matches!(&error, ServerError::State(StateError::InUse { .. }));
            assert!(in_use && tokio::time::Instant::now() < deadline, "{error:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn try_start(&mut self) -> Result<(), ServerError> {
        let config = Config::load(
            &[self.path("config.toml")],
            None,
            &muster_controller::config::Defaults::default(),
        )
        .unwrap();
        let socket = Address::Unix(self.path("controller.sock"));
        let parts = Door::parts(&socket, None, &Keys::default()).await.unwrap();
        let doors = Doors {
            parts,
            operators: None,
        };
        self.controller = Some(Controller::start(config, &self.path("state"), doors).await?);
        Ok(())
    }

    pub(crate) async fn stop(&mut self) {
        if let Some(controller) = self.controller.take() {
            timeout(LIMIT, controller.shutdown()).await.unwrap().unwrap();
        }
    }

    pub(crate) fn address(&self) -> Address {
        self.controller.as_ref().unwrap().address().clone()
    }

    pub(crate) async fn client(&self) -> Client {
        Client(ControlClient::new(
            channel(&self.address(), &Credentials::none()).await.unwrap(),
        ))
    }
}

/// A gateway or an operator.
#[derive(Clone)]
pub(crate) struct Client(pub(crate) ControlClient<Channel>);

impl Client {
    pub(crate) async fn ensure_as(&mut self, ensure_id: &str, model: &str) -> Ensure {
        let request = EnsureLoadedRequest {
            ensure_id: ensure_id.to_owned(),
            gateway_id: "gateway".to_owned(),
            model_id: model.to_owned(),
            ..EnsureLoadedRequest::default()
        };
        Ensure(self.0.ensure_loaded(request).await.unwrap().into_inner())
    }

    pub(crate) async fn ensure(&mut self, model: &str) -> Ensure {
        self.ensure_as(&id::fresh(), model).await
    }

    pub(crate) async fn model(&mut self, model: &str) -> v1::Model {
        let request = v1::GetModelRequest {
            model: model.to_owned(),
        };
        self.0
            .get_model(request)
            .await
            .unwrap()
            .into_inner()
            .model
            .unwrap()
    }

    /// Waits until a model has a status.
    pub(crate) async fn until(&mut self, model: &str, status: v1::ModelStatus) -> v1::Model {
        let mut routes = self.routes().await;
        loop {
            let shown = self.model(model).await;
            if shown.status() == status {
                return shown;
            }
            routes.next().await;
        }
    }

    /// Loads, and returns the words on the way and the final state.
    pub(crate) async fn load(&mut self, model: &str) -> Result<v1::Model, tonic::Status> {
        self.load_as(Self::load_of(model)).await
    }

    /// A bare load.
    pub(crate) fn load_of(model: &str) -> v1::LoadModelRequest {
        v1::LoadModelRequest {
            model: model.to_owned(),
            ..v1::LoadModelRequest::default()
        }
    }

    pub(crate) async fn load_as(
        &mut self,
        request: v1::LoadModelRequest,
    ) -> Result<v1::Model, tonic::Status> {
        let mut events = self.0.load_model(request).await?.into_inner();
        loop {
            let event = timeout(LIMIT, events.message()).await.unwrap()?;
            match event.expect("an end without a last word").kind.unwrap() {
                v1::load_model_event::Kind::Loaded(model) => return Ok(model),
                v1::load_model_event::Kind::Queued(_)
                | v1::load_model_event::Kind::Evicting(_)
                | v1::load_model_event::Kind::Loading(_) => {}
            }
        }
    }

    pub(crate) async fn unload(&mut self, model: &str, force: bool) -> Result<v1::Model, tonic::Status> {
        let request = v1::UnloadModelRequest {
            model: model.to_owned(),
            force,
            ..v1::UnloadModelRequest::default()
        };
        let response = timeout(LIMIT, self.0.unload_model(request)).await.unwrap()?;
        Ok(response.into_inner().model.unwrap())
    }

    pub(crate) async fn routes(&mut self) -> Routes {
        let request = v1::WatchRoutesRequest {
            gateway_id: "gateway".to_owned(),
        };
        Routes(self.0.watch_routes(request).await.unwrap().into_inner())
    }

    pub(crate) async fn stats(&mut self) -> v1::GetStatsResponse {
        self.0
            .get_stats(v1::GetStatsRequest {})
            .await
            .unwrap()
            .into_inner()
    }
}

/// An `EnsureLoaded` stream.
pub(crate) struct Ensure(pub(crate) Streaming<EnsureLoadedEvent>);

impl Ensure {
    /// The next word.
    pub(crate) async fn next(&mut self) -> Option<Stage> {
        timeout(LIMIT, self.0.message())
            .await
            .unwrap()
            .unwrap()
            .map(|event| event.kind.unwrap())
    }

    /// Waits for the route.
    pub(crate) async fn ready(&mut self) -> v1::Route {
        loop {
            match self.next().await {
                Some(Stage::Ready(ready)) => return ready.route.unwrap(),
                Some(Stage::Failed(error)) => panic!("{error:?}"),
                Some(Stage::Queued(_) | Stage::Evicting(_) | Stage::Loading(_)) => {}
                None => panic!("the stream ended"),
            }
        }
    }

    /// Waits for the failure, which ends the stream.
    pub(crate) async fn failed(&mut self) -> Error {
        loop {
            match self.next().await {
                Some(Stage::Failed(error)) => {
                    assert!(self.next().await.is_none());
                    return error.into();
                }
                Some(Stage::Ready(ready)) => panic!("{ready:?}"),
                Some(Stage::Queued(_) | Stage::Evicting(_) | Stage::Loading(_)) => {}
                None => panic!("the stream ended"),
            }
        }
    }
}

/// A `WatchRoutes` stream.
pub(crate) struct Routes(Streaming<RouteUpdate>);

impl Routes {
    pub(crate) async fn next(&mut self) -> RouteUpdate {
        timeout(LIMIT, self.0.message())
            .await
            .unwrap()
            .unwrap()
            .expect("the stream ended")
    }

    /// Follows updates until `wanted` holds of the instance's route (none: it is not there).
    pub(crate) async fn until(&mut self, instance: &str, wanted: impl Fn(Option<&v1::Route>) -> bool) {
        let mut route: Option<v1::Route> = None;
        loop {
            let find = |routes: Vec<v1::Route>| {
                routes
                    .into_iter()
                    .find(|route| route.instance.as_ref().unwrap().instance_id == instance)
            };
            match self.next().await.kind.unwrap() {
                route_update::Kind::Snapshot(part) => {
                    route = find(part.routes);
                    assert!(part.last, "more than one part");
                }
                route_update::Kind::Delta(delta) => {
                    if delta.removed_instances.iter().any(|id| id == instance) {
                        route = None;
                    }
                    route = find(delta.upserted).or(route);
                }
                route_update::Kind::Heartbeat(_) => continue,
            }
            if wanted(route.as_ref()) {
                return;
            }
        }
    }
}
