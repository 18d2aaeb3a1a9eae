//! Starts a worker and loads stubs into it.

use std::{
    net::Shutdown,
    os::unix::net::UnixDatagram,
    path::Path,
    process::{Child, Command, ExitStatus},
    time::Duration,
};

use muster_core::id;
use muster_proto::{
    net::Address,
    v1::{
        DeviceKind, EstimateSource, Hold, InstanceRef, InstanceSpec, InstanceState, Load, ModelSettings,
        ModelType, Origin, Reservation, StubSettings, command::Kind as Order, outcome::Kind as Answer,
    },
};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use muster_fakes::{
    LIMIT,
    controller::workers::{Controller, Session},
};

/// A worker process; killed when dropped.
pub(crate) struct Worker {
    child: Child,
    pub(crate) address: Address,
}

/// A worker that has joined.
pub(crate) struct Rig {
    pub(crate) dir: TempDir,
    pub(crate) worker: Worker,
    pub(crate) controller: Controller,
    pub(crate) session: Session,
}

impl Worker {
    /// Starts a worker and waits until it is ready.
    pub(crate) async fn start(dir: &Path, controller: &Address, flags: &[&str]) -> Self {
        let notify_path = dir.join(format!("notify-{}", id::fresh()));
        let notify = UnixDatagram::bind(&notify_path).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_muster-worker"))
            .arg("--controller")
            .arg(controller.to_string())
            .arg("--run-dir")
            .arg(dir.join("run"))
            .args(["--name", "w"])
            .args(flags)
            .env("NOTIFY_SOCKET", &notify_path)
            .env(
                "RUST_LOG",
                std::env::var("RUST_LOG").unwrap_or_else(|_| "warn".to_owned()),
            )
            .spawn()
            .unwrap();
        let address = tokio::task::spawn_blocking(move || {
            notify.set_read_timeout(Some(LIMIT)).unwrap();
            let mut buffer = [0; 4096];
            loop {
                let read = notify.recv(&mut buffer).expect("the worker did not become ready");
                let text = std::str::from_utf8(&buffer[..read]).unwrap();
                if let Some(address) = text.lines().find_map(|line| line.strip_prefix("MUSTER_ADDRESS=")) {
                    let address = address.parse().unwrap();
                    drop(notify.shutdown(Shutdown::Both));
                    return address;
                }
            }
        });
        let address = address.await.unwrap();
        Self { child, address }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(pid(self.child.id()), signal).unwrap();
    }

    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the worker's end", LIMIT, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        status.unwrap()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

pub(crate) fn pid(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}

/// A process that is there and no zombie.
pub(crate) fn alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| !rest.starts_with('Z'))
    })
}

pub(crate) async fn wait_until(what: &str, limit: Duration, mut met: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !met() {
        assert!(Instant::now() < deadline, "{what}: not within {limit:?}");
        sleep(Duration::from_millis(5)).await;
    }
}

impl Rig {
    pub(crate) async fn start(flags: &[&str]) -> Self {
        let dir = tempfile::Builder::new().prefix("mstr").tempdir().unwrap();
        let mut controller = Controller::start(&Address::Unix(dir.path().join("controller.sock")), 1).await;
        let worker = Worker::start(dir.path(), &controller.address, flags).await;
        let session = controller.session().await;
        Self {
            dir,
            worker,
            controller,
            session,
        }
    }

    /// Loads a stub and waits until it is ready.
    pub(crate) async fn load(&self, spec: InstanceSpec) -> InstanceRef {
        let instance = self.begin_load(spec, &[]).await;
        self.session
            .state(&instance.instance_id, InstanceState::Ready)
            .await;
        instance
    }

    /// The spec as this worker can host it: where the tests' own memory is limited, the processor has another name.
    pub(crate) fn here(&self, mut spec: InstanceSpec) -> InstanceSpec {
        let devices = &self.session.hello.devices;
        if let Some(cpu) = devices.iter().find(|device| device.kind() == DeviceKind::Cpu) {
            let named = spec
                .reservations
                .iter_mut()
                .filter(|part| part.device_id == "cpu");
            named.for_each(|part| part.device_id.clone_from(&cpu.device_id));
        }
        spec
    }

    pub(crate) async fn begin_load(&self, spec: InstanceSpec, holds: &[&str]) -> InstanceRef {
        let instance_id = id::fresh().to_string();
        let hold = |id: &&str| Hold {
            hold_id: (*id).to_owned(),
            ttl: None,
            gateway_id: String::new(),
        };
        let load = Load {
            spec: Some(self.here(spec)),
            holds: holds.iter().map(hold).collect(),
        };
        let answer = self.session.command(&instance_id, Order::Load(load)).await;
        assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
        InstanceRef {
            instance_id,
            worker_id: self.session.hello.worker_id.clone(),
            worker_boot_id: self.session.hello.boot_id.clone(),
        }
    }
}

/// A spec of a stub.
pub(crate) fn stub(model: &str, change: impl FnOnce(&mut ModelSettings, &mut StubSettings)) -> InstanceSpec {
    let mut settings = ModelSettings::default();
    let mut behaviour = StubSettings::default();
    change(&mut settings, &mut behaviour);
    settings.stub = Some(behaviour);
    InstanceSpec {
        model_id: model.to_owned(),
        r#type: ModelType::Llm.into(),
        runtime: "stub".to_owned(),
        settings: Some(settings),
        spec_hash: "hash".to_owned(),
        reservations: vec![Reservation {
            device_id: "cpu".to_owned(),
            bytes: 1 << 20,
        }],
        source: EstimateSource::Configured.into(),
        origin: Origin::Admin.into(),
        attempt: 1,
        ..InstanceSpec::default()
    }
}
