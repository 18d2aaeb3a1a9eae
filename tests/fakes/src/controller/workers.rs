//! A controller that does what a test says: it takes sessions, keeps the newest word on everything, and sends commands.

use std::{
    collections::HashMap,
    io::ErrorKind,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{Stream, StreamExt as _};
use muster_core::id;
use muster_proto::{
    net::Address,
    trust::{Door, DoorError, Keys},
    v1::{
        Command, ControllerMessage, DeviceSample, Goodbye, Hello, InstanceState, InstanceStatus, Outcome,
        Welcome, WorkerMessage, WorkerReport,
        command::Kind as Order,
        controller_message::Kind as Down,
        fleet_server::{Fleet, FleetServer},
        outcome::Kind as Answer,
        worker_message::Kind as Up,
    },
};
use tokio::{
    sync::{Notify, mpsc},
    task::JoinHandle,
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::LIMIT;

type Sent = Pin<Box<dyn Stream<Item = Result<ControllerMessage, Status>> + Send>>;

/// Takes sessions at an address until it is dropped.
pub struct Controller {
    pub address: Address,
    sessions: mpsc::Receiver<Session>,
    server: JoinHandle<()>,
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.server.abort();
    }
}

struct Service {
    epoch: u64,
    sessions: mpsc::Sender<Session>,
}

/// What a session has been told so far.
#[derive(Default)]
pub struct View {
    pub instances: HashMap<String, InstanceStatus>,
    pub samples: HashMap<String, DeviceSample>,
    pub outcomes: HashMap<String, Outcome>,
    /// States of each instance, in order, as reported.
    pub history: Vec<(String, InstanceState)>,
    pub reports: usize,
    pub draining: bool,
    pub goodbye: Option<Goodbye>,
    pub ended: bool,
}

/// One session with a worker. Dropping it closes the stream.
pub struct Session {
    pub hello: Hello,
    epoch: u64,
    seq: AtomicU64,
    down: mpsc::Sender<Result<ControllerMessage, Status>>,
    view: Arc<(Mutex<View>, Notify)>,
}

#[tonic::async_trait]
impl Fleet for Service {
    type JoinStream = Sent;

    async fn join(&self, request: Request<Streaming<WorkerMessage>>) -> Result<Response<Sent>, Status> {
        let mut up = request.into_inner();
        let Some(WorkerMessage {
            kind: Some(Up::Hello(hello)),
            ..
        }) = up.message().await?
        else {
            return Err(Status::invalid_argument("no hello"));
        };
        let (down, messages) = mpsc::channel(64);
        let view = Arc::new((Mutex::new(View::default()), Notify::new()));
        if let Some(full) = &hello.full {
            view.0.lock().unwrap().report(full.clone());
        }
        let session = Session {
            hello,
            epoch: self.epoch,
            seq: AtomicU64::new(0),
            down,
            view: Arc::clone(&view),
        };
        let session_id = id::fresh().to_string();
        session
            .send(Down::Welcome(Welcome {
                session_id: session_id.clone(),
                protocol: 1,
                heartbeat_every: prost_types::Duration::try_from(Duration::from_millis(200)).ok(),
                lost_after: prost_types::Duration::try_from(Duration::from_secs(10)).ok(),
                ..Welcome::default()
            }))
            .await;
        self.sessions
            .send(session)
            .await
            .map_err(|_| Status::unavailable("nobody waits"))?;
        tokio::spawn(async move {
            let mut seq = 1;
            while let Ok(Some(message)) = up.message().await {
                assert_eq!(message.session_id, session_id);
                seq += 1;
                assert_eq!(message.seq, seq);
                view.0.lock().unwrap().take(message);
                view.1.notify_waiters();
            }
            view.0.lock().unwrap().ended = true;
            view.1.notify_waiters();
        });
        Ok(Response::new(ReceiverStream::new(messages).boxed()))
    }
}

impl View {
    fn report(&mut self, report: WorkerReport) {
        self.reports += 1;
        self.draining = report.draining.unwrap_or(self.draining);
        for status in report.instances {
            self.history.push((status.instance_id.clone(), status.state()));
            self.instances.insert(status.instance_id.clone(), status);
        }
        for touch in report.touches {
            if let Some(status) = self.instances.get_mut(&touch.instance_id) {
                status.touch = Some(touch);
            }
        }
        for sample in report.devices {
            self.samples.insert(sample.device_id.clone(), sample);
        }
    }

    fn take(&mut self, message: WorkerMessage) {
        match message.kind {
            Some(Up::Report(report)) => self.report(report),
            Some(Up::Outcome(outcome)) => {
                self.outcomes.insert(outcome.command_id.clone(), outcome);
            }
            Some(Up::Goodbye(goodbye)) => self.goodbye = Some(goodbye),
            Some(Up::Hello(_) | Up::Heartbeat(_) | Up::Files(_)) | None => {}
        }
    }
}

impl Controller {
    pub async fn start(address: &Address, epoch: u64) -> Self {
        // The one before it at the same address may take a moment to go.
        let door = timeout(LIMIT, async {
            loop {
                match Door::parts(address, None, &Keys::default()).await {
                    Err(DoorError::Bind { source, .. }) if source.kind() == ErrorKind::AddrInUse => {
                        tokio::task::yield_now().await;
                    }
                    bound => return bound.unwrap(),
                }
            }
        });
        let door = door.await.expect("the address stays taken");
        let address = door.address().clone();
        let (sender, sessions) = mpsc::channel(8);
        let service = FleetServer::new(Service {
            epoch,
            sessions: sender,
        });
        let (mut server, listener) = door.open();
        let server = server.add_service(service).serve_with_incoming(listener);
        let server = tokio::spawn(async move { server.await.unwrap() });
        Self {
            address,
            sessions,
            server,
        }
    }

    /// The next session a worker opens.
    pub async fn session(&mut self) -> Session {
        timeout(LIMIT, self.sessions.recv())
            .await
            .expect("no worker joined")
            .unwrap()
    }
}

impl Session {
    pub async fn send(&self, kind: Down) {
        let message = ControllerMessage {
            epoch: self.epoch,
            seq: self.seq.fetch_add(1, Ordering::Relaxed) + 1,
            acked_worker_seq: 0,
            kind: Some(kind),
        };
        self.down.send(Ok(message)).await.unwrap();
    }

    /// Waits until the view shows something.
    pub async fn until<T>(&self, what: &str, mut look: impl FnMut(&View) -> Option<T>) -> T {
        let found = async {
            loop {
                let changed = self.view.1.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if let Some(found) = look(&self.view.0.lock().unwrap()) {
                    return found;
                }
                changed.await;
            }
        };
        match timeout(LIMIT, found).await {
            Ok(found) => found,
            Err(_) => panic!("{what}: not seen; {:#?}", self.view.0.lock().unwrap().history),
        }
    }

    pub fn look<T>(&self, look: impl FnOnce(&View) -> T) -> T {
        look(&self.view.0.lock().unwrap())
    }

    /// Sends a command with this id and waits for its outcome.
    pub async fn command_as(&self, command_id: &str, instance: &str, order: Order) -> Answer {
        self.look_mut(|view| view.outcomes.remove(command_id));
        self.send(Down::Command(Command {
            command_id: command_id.to_owned(),
            instance_id: instance.to_owned(),
            kind: Some(order),
        }))
        .await;
        let outcome = self
            .until("an outcome", |view| view.outcomes.get(command_id).cloned())
            .await;
        outcome.kind.unwrap()
    }

    fn look_mut<T>(&self, look: impl FnOnce(&mut View) -> T) -> T {
        look(&mut self.view.0.lock().unwrap())
    }

    /// Sends a command and waits for its outcome.
    pub async fn command(&self, instance: &str, order: Order) -> Answer {
        self.command_as(&id::fresh(), instance, order).await
    }

    /// Waits until an instance is in a state.
    pub async fn state(&self, instance: &str, state: InstanceState) -> InstanceStatus {
        self.until(state.as_str_name(), |view| {
            view.instances
                .get(instance)
                .filter(|status| status.state() == state)
                .cloned()
        })
        .await
    }
}
