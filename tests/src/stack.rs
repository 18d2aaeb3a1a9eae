//! A whole Muster of real processes, and the handles that tests need on it.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use muster_proto::{
    MAX_MESSAGE_BYTES,
    net::{self, Address, Channel},
    trust::Credentials,
    v1::{
        DescribeRequest, DescribeResponse, GetModelRequest, GetStatsRequest, GetStatsResponse,
        InstanceStatus, Model, ModelStatus, control_client::ControlClient, host_client::HostClient,
        inference_client::InferenceClient,
    },
};
use tempfile::TempDir;

use crate::{binaries, http::Http, processes::Running, wait::eventually};

/// Which process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// muster-controller.
    Controller,
    /// muster-worker, by number from 0.
    Worker(usize),
    /// muster-gateway.
    Gateway,
}

/// What a stack is made of.
#[derive(Debug)]
pub struct StackBuilder {
    config: String,
    devices: Vec<String>,
    gateway_args: Vec<String>,
    worker_env: Vec<(String, String)>,
    log_level: &'static str,
}

impl StackBuilder {
    /// Environment of the workers.
    #[must_use]
    pub fn worker_env(mut self, pairs: &[(&str, &str)]) -> Self {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        self.worker_env.extend(pairs.iter().map(owned));
        self
    }

    /// One worker for each of these instead of one for the CPU; `A,B` = a worker that owns both.
    #[must_use]
    pub fn devices(mut self, devices: &[&str]) -> Self {
        self.devices = devices.iter().map(|device| (*device).to_owned()).collect();
        self
    }

    /// Further arguments of the gateway.
    #[must_use]
    pub fn gateway_args(mut self, args: &[&str]) -> Self {
        self.gateway_args = args.iter().map(|arg| (*arg).to_owned()).collect();
        self
    }

    /// What the processes log, instead of everything.
    #[must_use]
    pub fn log_level(mut self, level: &'static str) -> Self {
        self.log_level = level;
        self
    }

    /// Starts everything and waits until it is ready.
    ///
    /// # Panics
    /// Something does not start.
    pub async fn start(self) -> Stack {
        let directory = tempfile::Builder::new()
            .prefix("mt")
            .tempdir()
            .expect("a temporary directory");
        std::fs::write(directory.path().join("muster.toml"), &self.config)
            .expect("the configuration can be written");
        let any: Address = "127.0.0.1:0".parse().expect("an address");
        let mut stack = Stack {
            workers: Vec::new(),
            gateway: None,
            controller: None,
            controller_address: any.clone(),
            gateway_address: any,
            worker_addresses: Vec::new(),
            devices: self.devices,
            gateway_args: self.gateway_args,
            worker_env: self.worker_env,
            log_level: self.log_level,
            directory,
        };
        stack.start_process(Role::Controller).await;
        for number in 0..stack.devices.len() {
            stack.start_process(Role::Worker(number)).await;
        }
        stack.start_process(Role::Gateway).await;
        stack
    }
}

/// Running processes. They end with it: the gateway first, so that nothing complains about what went before.
#[derive(Debug)]
pub struct Stack {
    gateway: Option<Running>,
    workers: Vec<Option<Running>>,
    controller: Option<Running>,
    controller_address: Address,
    gateway_address: Address,
    worker_addresses: Vec<Address>,
    devices: Vec<String>,
    gateway_args: Vec<String>,
    worker_env: Vec<(String, String)>,
    log_level: &'static str,
    directory: TempDir,
}

impl Stack {
    /// A stack with this configuration (TOML) and one worker for the CPU.
    #[must_use]
    pub fn with(config: impl Into<String>) -> StackBuilder {
        StackBuilder {
            config: config.into(),
            devices: vec!["cpu".to_owned()],
            gateway_args: Vec::new(),
            worker_env: Vec::new(),
            log_level: "debug",
        }
    }

    /// Starts a process that is not running; controller and gateway come back at their old address.
    ///
    /// # Panics
    /// It does not become ready.
    pub async fn start_process(&mut self, role: Role) {
        let mut running = Running::start(&name(role), self.command(role), self.directory.path());
        let address = running.ready().await;
        match role {
            Role::Controller => {
                self.controller = Some(running);
                self.controller_address = address;
            }
            Role::Gateway => {
                self.gateway = Some(running);
                self.gateway_address = address;
            }
            Role::Worker(number) => {
                if self.workers.len() <= number {
                    self.workers.resize_with(number + 1, || None);
                    self.worker_addresses.resize(number + 1, address.clone());
                }
                self.workers[number] = Some(running);
                self.worker_addresses[number] = address;
            }
        }
    }

    fn command(&self, role: Role) -> Command {
        let base = self.directory.path();
        let mut command = match role {
            Role::Controller => {
                let mut command = Command::new(binaries::find("muster-controller"));
                command.args(["--listen", &self.socket().to_string()]);
                command.args(["--operators", &self.controller_address.to_string()]);
                command.arg("--config").arg(base.join("muster.toml"));
                command.arg("--state-dir").arg(base.join("state"));
                command
            }
            Role::Worker(number) => {
                let mut command = Command::new(binaries::find("muster-worker"));
                command.args(["--name", &format!("w{number}")]);
                for device in self.devices[number].split(',') {
                    command.args(["--device", device]);
                }
                command.args(["--controller", &self.socket().to_string()]);
                command.arg("--run-dir").arg(base.join("run"));
                // Never the cache, the hub or the account of whoever runs the tests.
                command
                    .env("HF_HUB_CACHE", base.join("hub"))
                    .env("HF_TOKEN", "none");
                command
                    .env("HF_ENDPOINT", "http://127.0.0.1:1")
                    .env("NO_PROXY", "127.0.0.1");
                command.envs(self.worker_env.clone());
                if let Some(path) = std::env::var_os("MUSTER_TEST_LLAMA_SERVER") {
                    command.arg("--llama-server").arg(path);
                }
                command
            }
            Role::Gateway => {
                let mut command = Command::new(binaries::find("muster-gateway"));
                command.args(["--listen", &self.gateway_address.to_string()]);
                command.args(["--controller", &self.socket().to_string()]);
                command.args(&self.gateway_args);
                command
            }
        };
        command.args(["--log-level", self.log_level]);
        command
    }

    /// A running process.
    ///
    /// # Panics
    /// It is not running.
    pub fn process(&mut self, role: Role) -> &mut Running {
        let running = match role {
            Role::Controller => self.controller.as_mut(),
            Role::Worker(number) => self.workers[number].as_mut(),
            Role::Gateway => self.gateway.as_mut(),
        };
        running.unwrap_or_else(|| panic!("{} is not running", name(role)))
    }

    /// Hands a process out, so that another can be started in its place beside it.
    ///
    /// # Panics
    /// It is not running.
    pub fn detach(&mut self, role: Role) -> Running {
        let running = match role {
            Role::Controller => self.controller.take(),
            Role::Worker(number) => self.workers[number].take(),
            Role::Gateway => self.gateway.take(),
        };
        running.unwrap_or_else(|| panic!("{} is not running", name(role)))
    }

    /// `kill -9`.
    pub fn kill(&mut self, role: Role) {
        self.process(role).kill();
    }

    /// SIGTERM, and waits for the end.
    ///
    /// # Panics
    /// It does not end in time, or not well.
    pub async fn stop(&mut self, role: Role, limit: Duration) {
        self.process(role).terminate();
        let status = self.process(role).ended(limit).await;
        assert!(status.success(), "{} ended with {status}", name(role));
    }

    /// HTTP of the gateway.
    #[must_use]
    pub fn http(&self) -> Http {
        Http::new(&self.gateway_address)
    }

    /// Where the controller's operators come in.
    #[must_use]
    pub fn controller_address(&self) -> &Address {
        &self.controller_address
    }

    /// Where the controller listens for workers and gateways.
    #[must_use]
    pub fn socket(&self) -> Address {
        Address::Unix(self.path("controller.sock"))
    }

    /// Where the gateway listens.
    #[must_use]
    pub fn gateway_address(&self) -> &Address {
        &self.gateway_address
    }

    /// Where a worker listens.
    #[must_use]
    pub fn worker_address(&self, number: usize) -> &Address {
        &self.worker_addresses[number]
    }

    /// The directory of everything.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A file in the stack's directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The controller's operator API.
    #[must_use]
    pub fn control(&self) -> ControlClient<Channel> {
        ControlClient::new(net::channel_lazy(&self.socket(), &Credentials::none()))
    }

    /// A worker's operator API.
    #[must_use]
    pub fn host(&self, number: usize) -> HostClient<Channel> {
        HostClient::new(net::channel_lazy(
            &self.worker_addresses[number],
            &Credentials::none(),
        ))
    }

    /// A worker's inference API.
    #[must_use]
    pub fn inference(&self, number: usize) -> InferenceClient<Channel> {
        InferenceClient::new(net::channel_lazy(
            &self.worker_addresses[number],
            &Credentials::none(),
        ))
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// A model as the controller sees it.
    ///
    /// # Panics
    /// The controller does not answer.
    pub async fn model(&self, id: &str) -> Model {
        let request = GetModelRequest { model: id.to_owned() };
        let response = self
            .control()
            .get_model(request)
            .await
            .expect("the controller knows the model");
        response.into_inner().model.expect("the answer has the model")
    }

    /// Waits until a model has a status.
    pub async fn model_is(&self, id: &str, status: ModelStatus, limit: Duration) -> Model {
        let what = format!("{id} is {}", status.as_str_name());
        let probe = async || {
            let request = GetModelRequest { model: id.to_owned() };
            let response = self
                .control()
                .get_model(request)
                .await
                .map_err(|status| status.to_string())?;
            let model = response.into_inner().model.unwrap_or_default();
            if model.status() == status {
                Ok(model)
            } else {
                Err(format!("{:?} {:?}", model.status(), model.last_error))
            }
        };
        eventually(&what, limit, probe).await.0
    }

    /// The controller's counters.
    ///
    /// # Panics
    /// It does not answer.
    pub async fn stats(&self) -> GetStatsResponse {
        self.control()
            .get_stats(GetStatsRequest {})
            .await
            .expect("the controller answers")
            .into_inner()
    }

    /// A worker's own word.
    ///
    /// # Panics
    /// It does not answer.
    pub async fn describe(&self, worker: usize) -> DescribeResponse {
        let request = DescribeRequest { engines: true };
        self.host(worker)
            .describe(request)
            .await
            .expect("the worker answers")
            .into_inner()
    }

    /// A worker's live instance of a model.
    ///
    /// # Panics
    /// There is none.
    pub async fn instance(&self, worker: usize, model: &str) -> InstanceStatus {
        let found = self
            .describe(worker)
            .await
            .instances
            .into_iter()
            .filter_map(|instance| instance.status)
            .find(|status| {
                status.spec.as_ref().is_some_and(|spec| spec.model_id == model) && status.failure.is_none()
            });
        found.unwrap_or_else(|| panic!("worker {worker} hosts no {model}"))
    }
}

fn name(role: Role) -> String {
    match role {
        Role::Controller => "controller".to_owned(),
        Role::Worker(number) => format!("worker{number}"),
        Role::Gateway => "gateway".to_owned(),
    }
}
