//! A scripted worker: speaks `Fleet.Join` as a real one does, with instances that are only names.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use muster_core::{Error, id};
use muster_proto::{
    net::{Address, channel},
    trust::Credentials,
    v1::{
        self, Command, ControllerMessage, Hello, WorkerMessage, WorkerReport, command::Kind as Order,
        controller_message::Kind as Down, fleet_client::FleetClient, outcome::Kind as Out,
        worker_message::Kind as Up,
    },
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;

use crate::LIMIT;

pub const DEVICE: &str = "cpu";

/// What a worker keeps over its sessions, as a real process does.
#[derive(Debug, Default)]
pub struct Memory {
    pub instances: BTreeMap<String, v1::InstanceStatus>,
    pub commands: Vec<Command>,
    pub highest_epoch: u64,
    /// Policy unloads that find the instance just touched.
    pub touch_before_unload: u32,
    /// What becomes of loads.
    pub loads: Loads,
    /// Whether it sees the engines of other workers run.
    pub sees_engines: bool,
    /// Commands that get lost on their way, once each: they are neither obeyed nor answered.
    pub loses: Vec<&'static str>,
    /// Commands that are obeyed and whose answers get lost, once each.
    pub answers_lost: Vec<&'static str>,
    /// Orders about files.
    pub orders: Vec<v1::FilesOrder>,
    /// What its cache has.
    pub has: Vec<v1::HubCheckpoint>,
    /// What becomes of downloads.
    pub fetches: Fetches,
}

#[derive(Debug, Default, Clone)]
pub enum Fetches {
    #[default]
    Done,
    /// They tell that they began, and go on until the script ends them.
    Stay,
    /// They fail.
    Fail(Error),
}

#[derive(Debug, Default, Clone)]
pub enum Loads {
    #[default]
    Ready,
    /// They stay loading until the script goes on.
    Stay,
    /// They fail.
    Fail(Error),
}

/// A worker process: its memory, and at most one session.
#[derive(Debug)]
pub struct Worker {
    pub name: String,
    pub boot: String,
    pub host: String,
    pub memory: Arc<Mutex<Memory>>,
    /// All of them can be used by all of its runtimes.
    pub devices: Vec<v1::Device>,
    pub runtimes: Vec<&'static str>,
    pub features: Vec<String>,
    changed: watch::Sender<u64>,
    session: Option<Session>,
}

#[derive(Debug)]
struct Session {
    out: mpsc::Sender<WorkerMessage>,
    id: String,
    task: JoinHandle<()>,
}

impl Worker {
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            boot: id::fresh().to_string(),
            host: "host".to_owned(),
            memory: Arc::default(),
            devices: vec![device(DEVICE, v1::DeviceKind::Cpu, 1 << 30)],
            runtimes: vec!["stub", "llama_cpp"],
            features: Vec::new(),
            changed: watch::Sender::new(0),
            session: None,
        }
    }

    fn hello(&self) -> Hello {
        let memory = self.memory.lock().unwrap();
        Hello {
            worker_id: self.name.clone(),
            boot_id: self.boot.clone(),
            host_id: self.host.clone(),
            protocol_min: 1,
            protocol_max: 1,
            highest_epoch_seen: memory.highest_epoch,
            addresses: vec![format!("unix:/{}", self.name)],
            devices: self.devices.clone(),
            runtimes: self
                .runtimes
                .iter()
                .map(|name| v1::RuntimeInfo {
                    name: (*name).to_owned(),
                    version: "1".to_owned(),
                    device_ids: self
                        .devices
                        .iter()
                        .map(|device| device.device_id.clone())
                        .collect(),
                })
                .collect(),
            full: Some(WorkerReport {
                instances: memory.instances.values().cloned().collect(),
                devices: self.devices.iter().map(sample).collect(),
                ..WorkerReport::default()
            }),
            features: self.features.clone(),
            version: "0".to_owned(),
            pid_namespace: "pid:[1]".to_owned(),
            ..Hello::default()
        }
    }

    /// Opens a session's call, and says hello in it only once told to.
    pub async fn begin_to_join(&self, address: &Address) -> impl AsyncFnOnce() -> ControllerMessage + use<> {
        let mut client = FleetClient::new(channel(address, &Credentials::none()).await.unwrap());
        let (out, messages) = mpsc::channel(64);
        let mut incoming = client
            .join(ReceiverStream::new(messages))
            .await
            .unwrap()
            .into_inner();
        let hello = WorkerMessage {
            seq: 1,
            kind: Some(Up::Hello(self.hello())),
            ..WorkerMessage::default()
        };
        async move || {
            out.send(hello).await.unwrap();
            let first = timeout(LIMIT, incoming.message()).await.unwrap();
            // The session goes on for as long as the test.
            std::mem::forget((out, incoming));
            first.unwrap().unwrap()
        }
    }

    /// Opens a session; the first answer that is not a welcome is the error.
    pub async fn try_join(&mut self, address: &Address) -> Result<(), ControllerMessage> {
        let mut client = FleetClient::new(channel(address, &Credentials::none()).await.unwrap());
        let (out, messages) = mpsc::channel(64);
        let hello = WorkerMessage {
            seq: 1,
            kind: Some(Up::Hello(self.hello())),
            ..WorkerMessage::default()
        };
        out.send(hello).await.unwrap();
        let mut incoming = client
            .join(ReceiverStream::new(messages))
            .await
            .unwrap()
            .into_inner();
        let first = timeout(LIMIT, incoming.message())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        let Some(Down::Welcome(welcome)) = &first.kind else {
            return Err(first);
        };
        let id = welcome.session_id.clone();
        let memory = Arc::clone(&self.memory);
        memory.lock().unwrap().highest_epoch = first.epoch;
        let changed = self.changed.clone();
        let actor = Actor {
            memory,
            devices: self.devices.clone(),
            out: out.clone(),
            session: id.clone(),
            changed,
        };
        let task = tokio::spawn(actor.run(incoming));
        self.session = Some(Session { out, id, task });
        Ok(())
    }

    pub async fn join(&mut self, address: &Address) {
        self.try_join(address).await.unwrap();
    }

    /// The session breaks; the worker lives on.
    pub async fn cut(&mut self) {
        let session = self.session.take().unwrap();
        session.task.abort();
        drop(session.task.await);
        self.changed.send_modify(|count| *count += 1);
    }

    /// A session that still counts at the controller but says nothing any more.
    pub fn fall_silent(&mut self) -> impl Sized + use<> {
        let session = self.session.take().unwrap();
        session.task.abort();
        session.out
    }

    pub fn session(&self) -> String {
        self.session.as_ref().unwrap().id.clone()
    }

    /// Sends a message as some session, this worker's own or not.
    pub async fn send_as(&self, session: &str, kind: Up) {
        let message = WorkerMessage {
            session_id: session.to_owned(),
            seq: 99,
            kind: Some(kind),
            ..WorkerMessage::default()
        };
        self.session.as_ref().unwrap().out.send(message).await.unwrap();
    }

    /// Resolves when the controller has ended the session.
    pub async fn ended(&mut self) {
        let session = self.session.take().unwrap();
        timeout(LIMIT, session.task).await.unwrap().unwrap();
    }

    /// Waits until the memory looks as wanted.
    pub async fn until(&self, what: &str, wanted: impl Fn(&Memory) -> bool) {
        let mut changed = self.changed.subscribe();
        let look = async {
            while !wanted(&self.memory.lock().unwrap()) {
                changed.changed().await.unwrap();
            }
        };
        if timeout(LIMIT, look).await.is_err() {
            panic!("{what}: {:#?}", self.memory.lock().unwrap());
        }
    }

    /// Changes an instance and reports it.
    pub async fn change(&self, id: &str, change: impl FnOnce(&mut v1::InstanceStatus)) {
        let status = {
            let mut memory = self.memory.lock().unwrap();
            let status = memory.instances.get_mut(id).unwrap();
            status.revision += 1;
            change(status);
            status.clone()
        };
        self.report(status).await;
    }

    async fn report(&self, status: v1::InstanceStatus) {
        let session = self.session.as_ref().unwrap();
        let report = WorkerReport {
            instances: vec![status],
            devices: self.devices.iter().map(sample).collect(),
            ..WorkerReport::default()
        };
        self.send_as(&session.id.clone(), Up::Report(report)).await;
    }

    pub fn kinds(&self) -> Vec<&'static str> {
        self.memory
            .lock()
            .unwrap()
            .commands
            .iter()
            .map(|command| word(command.kind.as_ref().unwrap()))
            .collect()
    }

    pub fn count(&self, kind: &str) -> usize {
        self.kinds().iter().filter(|known| **known == kind).count()
    }

    /// The one live instance of a model.
    pub fn instance(&self, model: &str) -> String {
        let memory = self.memory.lock().unwrap();
        let of_model = |status: &&v1::InstanceStatus| status.spec.as_ref().unwrap().model_id == model;
        memory
            .instances
            .values()
            .find(of_model)
            .unwrap()
            .instance_id
            .clone()
    }
}

pub fn word(order: &Order) -> &'static str {
    match order {
        Order::Load(_) => "load",
        Order::Cancel(_) => "cancel",
        Order::Quiesce(_) => "quiesce",
        Order::Resume(_) => "resume",
        Order::Unload(unload) => match unload.mode() {
            v1::UnloadMode::Unspecified => "unload ?",
            v1::UnloadMode::IfIdle => "unload if idle",
            v1::UnloadMode::Drain => "unload drain",
            v1::UnloadMode::Force => "unload force",
        },
        Order::PlaceHold(_) => "hold",
        Order::ReleaseHoldId(_) => "release",
        Order::Set(_) => "set",
        Order::Ack(_) => "ack",
        Order::LookAt(_) => "look",
    }
}

/// What a cache that has a checkpoint, or has not, says of it.
pub fn cached(complete: bool) -> v1::CachedFiles {
    v1::CachedFiles {
        complete,
        path: if complete { "/cache/f.gguf" } else { "" }.to_owned(),
        size_bytes: if complete { 100 } else { 0 },
        ..v1::CachedFiles::default()
    }
}

/// A device of a worker.
pub fn device(id: &str, kind: v1::DeviceKind, capacity_bytes: u64) -> v1::Device {
    v1::Device {
        device_id: id.to_owned(),
        kind: kind.into(),
        name: "Test".to_owned(),
        capacity_bytes,
        exclusive: false,
        index: None,
        driver_version: String::new(),
        api: String::new(),
    }
}

fn sample(device: &v1::Device) -> v1::DeviceSample {
    v1::DeviceSample {
        device_id: device.device_id.clone(),
        capacity_bytes: device.capacity_bytes,
        free_bytes: device.capacity_bytes,
        age: Some(prost_types::Duration::default()),
        lifecycle_seq: 0,
    }
}

/// Answers commands in one session.
struct Actor {
    memory: Arc<Mutex<Memory>>,
    devices: Vec<v1::Device>,
    out: mpsc::Sender<WorkerMessage>,
    session: String,
    changed: watch::Sender<u64>,
}

impl Actor {
    async fn run(self, mut incoming: tonic::Streaming<ControllerMessage>) {
        let mut beats = tokio::time::interval(Duration::from_millis(50));
        loop {
            let message = tokio::select! {
                _ = beats.tick() => {
                    self.send(Up::Heartbeat(v1::Heartbeat::default())).await;
                    continue;
                }
                message = incoming.message() => message,
            };
            let Ok(Some(message)) = message else { return };
            match message.kind {
                Some(Down::Command(command)) => self.obey(command).await,
                Some(Down::Files(order)) => self.fetch(order).await,
                Some(Down::Welcome(_) | Down::Heartbeat(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    async fn send(&self, kind: Up) {
        let message = WorkerMessage {
            session_id: self.session.clone(),
            seq: 2,
            kind: Some(kind),
            ..WorkerMessage::default()
        };
        drop(self.out.send(message).await);
    }

    async fn fetch(&self, order: v1::FilesOrder) {
        let kind = {
            let mut memory = self.memory.lock().unwrap();
            memory.orders.push(order.clone());
            memory.files(&order)
        };
        let news = v1::FilesNews {
            order_id: order.order_id,
            kind: Some(kind),
        };
        self.send(Up::Files(news)).await;
        self.changed.send_modify(|count| *count += 1);
    }

    async fn obey(&self, command: Command) {
        let (outcome, reports) = {
            let mut memory = self.memory.lock().unwrap();
            memory.commands.push(command.clone());
            if taken(&mut memory.loses, &command) {
                drop(memory);
                self.changed.send_modify(|count| *count += 1);
                return;
            }
            let lost = taken(&mut memory.answers_lost, &command);
            let (outcome, reports) = memory.obey(&command);
            ((!lost).then_some(outcome), reports)
        };
        if let Some(outcome) = outcome {
            let outcome = v1::Outcome {
                command_id: command.command_id,
                kind: Some(outcome),
            };
            self.send(Up::Outcome(outcome)).await;
        }
        for status in reports {
            let report = WorkerReport {
                instances: vec![status],
                devices: self.devices.iter().map(sample).collect(),
                ..WorkerReport::default()
            };
            self.send(Up::Report(report)).await;
        }
        self.changed.send_modify(|count| *count += 1);
    }
}

fn taken(words: &mut Vec<&'static str>, command: &Command) -> bool {
    let word = word(command.kind.as_ref().unwrap());
    let place = words.iter().position(|known| *known == word);
    place.map(|place| words.remove(place)).is_some()
}

impl Memory {
    fn files(&mut self, order: &v1::FilesOrder) -> v1::files_news::Kind {
        use v1::{files_news::Kind as News, files_order::Kind};
        let checkpoint = order.checkpoint.clone().unwrap();
        let mut freed_bytes = 0;
        match order.kind.as_ref().unwrap() {
            Kind::Look(_) | Kind::Cancel(_) => {}
            Kind::Fetch(_) => match self.fetches.clone() {
                Fetches::Done => self.has.push(checkpoint.clone()),
                Fetches::Stay => {
                    return News::Progress(v1::FetchProgress {
                        file: "f.gguf".to_owned(),
                        file_index: 1,
                        total_files: 1,
                        all_total: 100,
                        ..v1::FetchProgress::default()
                    });
                }
                Fetches::Fail(error) => return News::Failed(error.into()),
            },
            Kind::Remove(_) => {
                self.has.retain(|known| *known != checkpoint);
                freed_bytes = 10;
            }
            Kind::List(_) => return News::Listing(v1::HubListing::default()),
            Kind::Check(_) => return News::Checked(v1::FilesCheck::default()),
        }
        News::Cached(v1::CachedFiles {
            freed_bytes,
            ..cached(self.has.contains(&checkpoint))
        })
    }

    fn obey(&mut self, command: &Command) -> (Out, Vec<v1::InstanceStatus>) {
        use v1::InstanceState::{Failed, Gone, Loading, Quiesced, Ready, Unloading};
        let id = &command.instance_id;
        let order = command.kind.as_ref().unwrap();
        if let Order::Load(load) = order {
            return self.load(id, load);
        }
        if let Order::LookAt(look) = order {
            assert!(!look.processes.is_empty());
            let answer = if self.sees_engines {
                refused(v1::RefusedReason::Busy, 0)
            } else {
                done(Gone, 0)
            };
            return (answer, Vec::new());
        }
        let Some(status) = self.instances.get_mut(id) else {
            return (done(Gone, 0), Vec::new());
        };
        let seq = status.touch.as_ref().unwrap().touch_seq;
        match order {
            Order::Load(_) | Order::LookAt(_) => unreachable!(),
            Order::Quiesce(_) => go(status, Quiesced),
            Order::Resume(_) => go(status, Ready),
            Order::Cancel(_) => go(status, Gone),
            Order::Unload(unload) if unload.mode() == v1::UnloadMode::IfIdle => {
                if self.touch_before_unload > 0 {
                    self.touch_before_unload -= 1;
                    let touch = status.touch.as_mut().unwrap();
                    touch.touch_seq += 1;
                    touch.age = Some(prost_types::Duration::default());
                    return (refused(v1::RefusedReason::Touched, seq + 1), vec![status.clone()]);
                }
                if !status.hold_ids.is_empty() {
                    return (refused(v1::RefusedReason::Held, seq), Vec::new());
                }
                if status.running + status.queued > 0 {
                    return (refused(v1::RefusedReason::Busy, seq), Vec::new());
                }
                if unload.if_touch_seq < seq {
                    return (refused(v1::RefusedReason::Touched, seq), Vec::new());
                }
                go(status, Gone)
            }
            Order::Unload(_) => {
                let (_, mut reports) = go(status, Unloading);
                let (outcome, more) = go(status, Gone);
                reports.extend(more);
                (outcome, reports)
            }
            Order::Set(set) => {
                let spec = status.spec.as_mut().unwrap();
                spec.pinned = set.pinned.unwrap_or(spec.pinned);
                spec.idle_ttl = set
                    .idle_ttl
                    .filter(|ttl| *ttl != prost_types::Duration::default());
                (done(status.state(), seq), vec![status.clone()])
            }
            Order::PlaceHold(hold) => {
                status.hold_ids.push(hold.hold_id.clone());
                (done(status.state(), seq), vec![status.clone()])
            }
            Order::ReleaseHoldId(hold) => {
                status.hold_ids.retain(|known| known != hold);
                (done(status.state(), seq), vec![status.clone()])
            }
            Order::Ack(_) => {
                let state = status.state();
                assert!(
                    matches!(state, Gone | Failed),
                    "acked while {state:?} (or {Loading:?})"
                );
                self.instances.remove(id);
                (done(Gone, seq), Vec::new())
            }
        }
    }

    fn load(&mut self, id: &str, load: &v1::Load) -> (Out, Vec<v1::InstanceStatus>) {
        let mut status = v1::InstanceStatus {
            instance_id: id.to_owned(),
            spec: load.spec.clone(),
            revision: 1,
            hold_ids: load.holds.iter().map(|hold| hold.hold_id.clone()).collect(),
            touch: Some(v1::Touch {
                instance_id: id.to_owned(),
                touch_seq: 1,
                age: None,
            }),
            target_inflight: 4,
            queue_limit: 128,
            ..v1::InstanceStatus::default()
        };
        status.set_state(v1::InstanceState::Loading);
        let mut reports = vec![status.clone()];
        match self.loads.clone() {
            Loads::Stay => {}
            Loads::Ready => {
                become_ready(&mut status);
                status.revision += 1;
                reports.push(status.clone());
            }
            Loads::Fail(error) => {
                status.set_state(v1::InstanceState::Failed);
                status.failure = Some(error.into());
                status.revision += 1;
                reports.push(status.clone());
            }
        }
        self.instances.insert(id.to_owned(), status);
        (done(v1::InstanceState::Loading, 1), reports)
    }
}

pub fn become_ready(status: &mut v1::InstanceStatus) {
    status.set_state(v1::InstanceState::Ready);
    status.load_time = Some(prost_types::Duration::default());
    status.capabilities = Some(v1::Capabilities {
        generate: true,
        context_length: 512,
        ..v1::Capabilities::default()
    });
    let touch = status.touch.as_mut().unwrap();
    touch.touch_seq += 1;
}

fn go(status: &mut v1::InstanceStatus, state: v1::InstanceState) -> (Out, Vec<v1::InstanceStatus>) {
    status.set_state(state);
    status.revision += 1;
    let seq = status.touch.as_ref().unwrap().touch_seq;
    (done(state, seq), vec![status.clone()])
}

fn done(state: v1::InstanceState, touch_seq: u64) -> Out {
    Out::Done(v1::Done {
        state: state.into(),
        touch_seq,
    })
}

fn refused(reason: v1::RefusedReason, touch_seq: u64) -> Out {
    Out::Refused(v1::Refused {
        reason: reason.into(),
        touch_seq,
        message: String::new(),
    })
}
