//! Scripted workers: each with a connection of its own and the manners of a real one, with instances that are only names.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use muster_proto::{
    PROTOCOL_VERSION,
    net::{self, Address},
    trust::Credentials,
    v1::{
        self, Command, Hello, WorkerMessage, WorkerReport, command::Kind as Order,
        controller_message::Kind as Down, fleet_client::FleetClient, outcome::Kind as Out,
        worker_message::Kind as Up,
    },
};
use tokio::{
    runtime::Runtime,
    sync::{Notify, mpsc, watch},
    time::{Instant, MissedTickBehavior, interval_at, sleep, sleep_until, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::{fresh, host};

/// Pauses between attempts to join: a real worker's.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// How long a scripted load takes.
const LOAD: Duration = Duration::from_millis(50);
const CAPACITY: u64 = 80 << 30;
const RESERVED: u64 = 64 << 20;
const WELCOME: Duration = Duration::from_secs(30);

/// The model that a worker hosts from the start.
pub(super) fn model(number: usize) -> String {
    format!("m{number}")
}

/// All workers, on a thread of their own.
pub(super) struct Workers {
    cuts: Vec<Arc<Notify>>,
    joined: watch::Receiver<usize>,
    runtime: Option<Runtime>,
}

impl Workers {
    pub(super) fn start(count: usize, controller: &Address) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let (sender, joined) = watch::channel(0);
        let sender = Arc::new(sender);
        let mut cuts = Vec::new();
        for number in 0..count {
            let cut = Arc::new(Notify::new());
            let worker = Worker::new(number, controller, Arc::clone(&cut), Arc::clone(&sender));
            runtime.spawn(worker.run());
            cuts.push(cut);
        }
        Ok(Self {
            cuts,
            joined,
            runtime: Some(runtime),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.cuts.len()
    }

    /// Waits until all have a session.
    pub(super) async fn all_joined(&self, limit: Duration) -> anyhow::Result<()> {
        let mut joined = self.joined.clone();
        let all = self.len();
        match timeout(limit, joined.wait_for(|joined| *joined == all)).await {
            Ok(done) => done.map(drop).context("the workers go on"),
            Err(_) => bail!(
                "{} of {all} workers joined within {limit:?}",
                *self.joined.borrow()
            ),
        }
    }

    /// Breaks a worker's connection, for each of these.
    pub(super) fn cuts(&self) -> Vec<Arc<Notify>> {
        self.cuts.clone()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

struct Worker {
    number: usize,
    controller: Address,
    cut: Arc<Notify>,
    joined: Arc<watch::Sender<usize>>,
    boot: String,
    epoch: u64,
    free: u64,
    instances: BTreeMap<String, v1::InstanceStatus>,
    loads: Vec<(Instant, String)>,
}

struct Session {
    id: String,
    up: mpsc::Sender<WorkerMessage>,
    seq: u64,
    beat_every: Duration,
    said: Instant,
}

impl Session {
    async fn say(&mut self, kind: Up) -> anyhow::Result<()> {
        self.seq += 1;
        self.said = Instant::now();
        let message = WorkerMessage {
            session_id: self.id.clone(),
            seq: self.seq,
            kind: Some(kind),
            ..WorkerMessage::default()
        };
        self.up.send(message).await.context("the session is open")
    }
}

impl Worker {
    fn new(number: usize, controller: &Address, cut: Arc<Notify>, joined: Arc<watch::Sender<usize>>) -> Self {
        let mut worker = Self {
            number,
            controller: controller.clone(),
            cut,
            joined,
            boot: fresh(),
            epoch: 0,
            free: CAPACITY - RESERVED,
            instances: BTreeMap::new(),
            loads: Vec::new(),
        };
        let id = fresh();
        let mut status = v1::InstanceStatus {
            instance_id: id.clone(),
            spec: Some(worker.spec()),
            revision: 1,
            touch: Some(touch(&id, 1)),
            ..v1::InstanceStatus::default()
        };
        become_ready(&mut status);
        worker.instances.insert(id, status);
        worker
    }

    fn name(&self) -> String {
        format!("w{}", self.number)
    }

    fn device(&self) -> String {
        format!("GPU-{}", self.number)
    }

    fn spec(&self) -> v1::InstanceSpec {
        v1::InstanceSpec {
            model_id: model(self.number),
            r#type: v1::ModelType::Llm.into(),
            runtime: "stub".to_owned(),
            settings: Some(v1::ModelSettings::default()),
            spec_hash: "bench".to_owned(),
            reservations: vec![v1::Reservation {
                device_id: self.device(),
                bytes: RESERVED,
            }],
            source: v1::EstimateSource::Configured.into(),
            origin: v1::Origin::Admin.into(),
            attempt: 1,
            ..v1::InstanceSpec::default()
        }
    }

    fn hello(&self) -> Hello {
        let device = v1::Device {
            device_id: self.device(),
            kind: v1::DeviceKind::Gpu.into(),
            name: "Scripted".to_owned(),
            capacity_bytes: CAPACITY,
            ..v1::Device::default()
        };
        Hello {
            worker_id: self.name(),
            boot_id: self.boot.clone(),
            host_id: host(self.number),
            protocol_min: PROTOCOL_VERSION,
            protocol_max: PROTOCOL_VERSION,
            highest_epoch_seen: self.epoch,
            addresses: vec![format!("unix:/run/muster/{}.sock", self.name())],
            runtimes: vec![v1::RuntimeInfo {
                name: "stub".to_owned(),
                version: "1".to_owned(),
                device_ids: vec![self.device()],
            }],
            devices: vec![device],
            full: Some(WorkerReport {
                instances: self.instances.values().cloned().collect(),
                devices: vec![self.sample()],
                ..WorkerReport::default()
            }),
            version: "0".to_owned(),
            pid_namespace: "pid:[1]".to_owned(),
            ..Hello::default()
        }
    }

    fn sample(&self) -> v1::DeviceSample {
        v1::DeviceSample {
            device_id: self.device(),
            capacity_bytes: CAPACITY,
            free_bytes: self.free,
            age: Some(prost_types::Duration::default()),
            lifecycle_seq: 0,
        }
    }

    async fn run(mut self) {
        let mut pause = BACKOFF.0;
        loop {
            if let Ok((mut session, down)) = self.join().await {
                pause = BACKOFF.0;
                self.joined.send_modify(|joined| *joined += 1);
                // Ended by the controller or by the script: either way it comes back.
                drop(self.serve(&mut session, down).await);
                self.joined.send_modify(|joined| *joined -= 1);
            }
            sleep(pause).await;
            pause = (pause * 2).min(BACKOFF.1);
        }
    }

    async fn join(&mut self) -> anyhow::Result<(Session, Streaming<v1::ControllerMessage>)> {
        let channel = net::channel(&self.controller, &Credentials::none()).await?;
        let (up, messages) = mpsc::channel(64);
        let hello = WorkerMessage {
            seq: 1,
            kind: Some(Up::Hello(self.hello())),
            ..WorkerMessage::default()
        };
        up.send(hello).await?;
        let joining = async {
            let mut client = FleetClient::new(channel);
            let mut down = client.join(ReceiverStream::new(messages)).await?.into_inner();
            let first = down.message().await?.context("the controller answers")?;
            anyhow::Ok((down, first))
        };
        let (down, first) = timeout(WELCOME, joining).await??;
        let Some(Down::Welcome(welcome)) = first.kind else {
            bail!("{first:?}")
        };
        self.epoch = first.epoch;
        let beat_every = welcome.heartbeat_every.context("a welcome tells it")?;
        let session = Session {
            id: welcome.session_id,
            up,
            seq: 1,
            beat_every: beat_every.try_into()?,
            said: Instant::now(),
        };
        Ok((session, down))
    }

    async fn serve(
        &mut self,
        session: &mut Session,
        mut down: Streaming<v1::ControllerMessage>,
    ) -> anyhow::Result<()> {
        // Spread over the second.
        let offset = REPORT_EVERY.mul_f64((self.number % 1000) as f64 / 1000.0);
        let mut reports = interval_at(Instant::now() + offset, REPORT_EVERY);
        reports.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let cut = Arc::clone(&self.cut);
        loop {
            let loaded = self.loads.first().map(|(at, _)| *at);
            tokio::select! {
                biased;
                message = down.message() => match message?.and_then(|message| message.kind) {
                    Some(Down::Command(command)) => self.obey(session, command).await?,
                    Some(Down::Heartbeat(_)) => {}
                    other => bail!("{other:?}"),
                },
                _ = reports.tick() => self.report(session).await?,
                () = sleep_until(session.said + session.beat_every) => session.say(Up::Heartbeat(v1::Heartbeat::default())).await?,
                () = sleep_until(loaded.unwrap_or_else(Instant::now)), if loaded.is_some() => self.loaded(session).await?,
                () = cut.notified() => return Ok(()),
            }
        }
    }

    /// The report of each second: memory in use has changed, and the model was used.
    async fn report(&mut self, session: &mut Session) -> anyhow::Result<()> {
        self.free ^= 1 << 20;
        let touches = self.instances.values_mut().filter_map(|status| {
            let touch = status.touch.as_mut()?;
            touch.touch_seq += 1;
            Some(touch.clone())
        });
        let report = WorkerReport {
            touches: touches.collect(),
            devices: vec![self.sample()],
            ..WorkerReport::default()
        };
        session.say(Up::Report(report)).await
    }

    async fn tell(&mut self, session: &mut Session, status: v1::InstanceStatus) -> anyhow::Result<()> {
        let report = WorkerReport {
            instances: vec![status],
            devices: vec![self.sample()],
            ..WorkerReport::default()
        };
        session.say(Up::Report(report)).await
    }

    async fn loaded(&mut self, session: &mut Session) -> anyhow::Result<()> {
        let (_, id) = self.loads.remove(0);
        let Some(status) = self.instances.get_mut(&id) else {
            return Ok(());
        };
        become_ready(status);
        let status = status.clone();
        self.tell(session, status).await
    }

    async fn obey(&mut self, session: &mut Session, command: Command) -> anyhow::Result<()> {
        let id = command.instance_id;
        let kind = match command.kind.context("a command has a kind")? {
            Order::Load(load) => {
                let mut status = v1::InstanceStatus {
                    instance_id: id.clone(),
                    spec: load.spec,
                    revision: 1,
                    hold_ids: load.holds.into_iter().map(|hold| hold.hold_id).collect(),
                    touch: Some(touch(&id, 1)),
                    ..v1::InstanceStatus::default()
                };
                status.set_state(v1::InstanceState::Loading);
                self.instances.insert(id.clone(), status);
                self.loads.push((Instant::now() + LOAD, id.clone()));
                self.answer(session, &id).await?
            }
            Order::PlaceHold(hold) => {
                self.change(&id, |status| status.hold_ids.push(hold.hold_id));
                self.answer(session, &id).await?
            }
            Order::ReleaseHoldId(hold) => {
                self.change(&id, |status| status.hold_ids.retain(|known| *known != hold));
                self.answer(session, &id).await?
            }
            Order::Quiesce(_) => {
                self.change(&id, |status| go(status, v1::InstanceState::Quiesced));
                self.answer(session, &id).await?
            }
            Order::Resume(_) => {
                self.change(&id, |status| go(status, v1::InstanceState::Ready));
                self.answer(session, &id).await?
            }
            Order::Set(_) => self.answer(session, &id).await?,
            Order::Cancel(_) | Order::Unload(_) => {
                self.change(&id, |status| go(status, v1::InstanceState::Gone));
                self.answer(session, &id).await?
            }
            Order::Ack(_) => {
                self.instances.remove(&id);
                done(v1::InstanceState::Gone, 0)
            }
            Order::LookAt(_) => Out::Refused(v1::Refused {
                reason: v1::RefusedReason::Busy.into(),
                ..v1::Refused::default()
            }),
        };
        let outcome = v1::Outcome {
            command_id: command.command_id,
            kind: Some(kind),
        };
        session.say(Up::Outcome(outcome)).await
    }

    fn change(&mut self, id: &str, change: impl FnOnce(&mut v1::InstanceStatus)) {
        if let Some(status) = self.instances.get_mut(id) {
            change(status);
        }
    }

    /// What a command changed is told before its outcome.
    async fn answer(&mut self, session: &mut Session, id: &str) -> anyhow::Result<Out> {
        let Some(status) = self.instances.get(id).cloned() else {
            return Ok(done(v1::InstanceState::Gone, 0));
        };
        let seq = status.touch.as_ref().map_or(0, |touch| touch.touch_seq);
        let state = status.state();
        self.tell(session, status).await?;
        Ok(done(state, seq))
    }
}

fn touch(id: &str, touch_seq: u64) -> v1::Touch {
    v1::Touch {
        instance_id: id.to_owned(),
        touch_seq,
        age: Some(prost_types::Duration::default()),
    }
}

fn go(status: &mut v1::InstanceStatus, state: v1::InstanceState) {
    status.set_state(state);
    status.revision += 1;
}

fn become_ready(status: &mut v1::InstanceStatus) {
    go(status, v1::InstanceState::Ready);
    status.capabilities = Some(v1::Capabilities {
        generate: true,
        context_length: 4096,
        ..v1::Capabilities::default()
    });
    status.load_time = Some(prost_types::Duration::default());
    (status.target_inflight, status.queue_limit) = (4, 128);
    status.backend_url = format!("unix:/run/muster/{}.sock", status.instance_id);
    if let Some(touch) = &mut status.touch {
        touch.touch_seq += 1;
    }
}

fn done(state: v1::InstanceState, touch_seq: u64) -> Out {
    Out::Done(v1::Done {
        state: state.into(),
        touch_seq,
    })
}
