//! The network between a worker and the controller: one session's two directions.
//!
//! ```text
//!   open ── cut ──────────► both ends know
//!    ├─ half-open ────────► the controller hears nothing, and finds out by the silence; what it says gets lost
//!    └─ deaf ─────────────► the worker reads nothing (it stands still): the controller's places fill up
//! ```

use futures::stream;
use muster_policy::CommandId;
use muster_proto::v1::{self, ControllerMessage, WorkerMessage, worker_message::Kind as Up};
use tokio::{
    sync::mpsc::{self, error::TryRecvError},
    task::JoinSet,
};
use tonic::Status;

use crate::{driver::handle::Handle, grpc::session::Session};

/// Messages that are on their way, per direction.
const ON_THE_WAY: usize = 1024;
/// Messages that a session has for a worker that does not read.
const OUT: usize = 4;

/// One session.
pub(super) struct Link {
    up: mpsc::Sender<Result<WorkerMessage, Status>>,
    down: mpsc::Receiver<Box<ControllerMessage>>,
    pub(super) condition: Condition,
    /// Its name, once the controller has accepted it.
    session: Option<String>,
    /// What this controller's commands are named after.
    run: String,
    /// No acknowledgement of an end has got lost.
    pub(super) acknowledged: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    Open,
    HalfOpen,
    Deaf,
}

/// What came down a link.
pub(super) enum Arrived {
    Message(Box<ControllerMessage>),
    Nothing,
    /// The controller has ended it.
    End,
}

impl Link {
    /// Opens a session and introduces its worker.
    pub(super) fn open_with(handle: &Handle, sessions: &mut JoinSet<()>, hello: v1::Hello) -> Self {
        let (up, incoming) = mpsc::channel(ON_THE_WAY);
        let (out, down) = mpsc::channel(OUT);
        let incoming = stream::unfold(incoming, async |mut incoming| {
            incoming.recv().await.map(|message| (message, incoming))
        });
        sessions.spawn(Session::new(handle.clone(), Box::pin(incoming), out).run());
        let link = Self {
            up,
            down,
            condition: Condition::Open,
            session: None,
            run: String::new(),
            acknowledged: true,
        };
        link.say(Up::Hello(hello));
        link
    }

    /// It works, and both ends know each other.
    pub(super) fn open(&self) -> bool {
        self.condition == Condition::Open && self.session.is_some()
    }

    pub(super) fn say(&self, kind: Up) {
        let message = WorkerMessage {
            session_id: self.session.clone().unwrap_or_default(),
            kind: Some(kind),
            ..WorkerMessage::default()
        };
        if self.condition != Condition::HalfOpen {
            // A session that has ended hears nothing.
            drop(self.up.try_send(Ok(message)));
        }
    }

    /// Answers a command.
    pub(super) fn answer(&self, id: CommandId, kind: Option<v1::outcome::Kind>) {
        let command_id = format!("{}-{}", self.run, id.0);
        self.say(Up::Outcome(v1::Outcome { command_id, kind }));
    }

    /// The number of a command of policy's.
    pub(super) fn number(&mut self, command: &v1::Command) -> CommandId {
        let (run, number) = command.command_id.rsplit_once('-').unwrap();
        run.clone_into(&mut self.run);
        CommandId(number.parse().unwrap())
    }

    pub(super) fn welcomed(&mut self, welcome: v1::Welcome) {
        self.session = Some(welcome.session_id);
    }

    pub(super) fn next(&mut self) -> Arrived {
        if self.condition == Condition::Deaf {
            return Arrived::Nothing;
        }
        match self.down.try_recv() {
            Ok(_) if self.condition == Condition::HalfOpen => Arrived::Nothing,
            Ok(message) => Arrived::Message(message),
            Err(TryRecvError::Empty) => Arrived::Nothing,
            Err(TryRecvError::Disconnected) => Arrived::End,
        }
    }

    /// The controller has ended it, whether or not the worker reads.
    pub(super) fn ended(&self) -> bool {
        self.up.is_closed()
    }
}
