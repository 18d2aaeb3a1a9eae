//! One session: commands in, ticks out. Its end cancels everything that runs.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use muster_core::Code;
use muster_proto::v1::{SessionCommand, Start, session_command};
use tokio::sync::mpsc::error::TrySendError;
use tokio_stream::StreamExt as _;
use tonic::Streaming;

use super::{load::Loaded, prepare::Raw};
use crate::{control::Control, request::Command};

/// How many ended requests may stay in the map before it is swept.
const SWEEP: usize = 1024;

/// Reads commands until the stream ends or `closed` resolves (the caller dropped the answer stream), then cancels what is left.
///
/// Reading never waits for the engine's own threads, however much they have to do: behind a start that there is no place for may come the very cancels and
/// credits that make one. Such a start is answered `no_room` (only the worker queues, PROTOCOL.md 17).
pub(super) async fn run(
    loaded: Arc<Loaded>,
    session: u64,
    mut commands: Streaming<SessionCommand>,
    closed: impl Future<Output = ()>,
) {
    let mut requests: HashMap<u64, Arc<Control>> = HashMap::new();
    let mut refused: VecDeque<Command> = VecDeque::new();
    tokio::pin!(closed);
    loop {
        let next = tokio::select! {
            next = commands.next() => next,
            () = &mut closed => break,
            place = loaded.commands.reserve(), if !refused.is_empty() => {
                let (Ok(place), Some(command)) = (place, refused.pop_front()) else { break };
                place.send(command);
                continue;
            }
        };
        match next {
            Some(Ok(command)) => match handle(&loaded, session, &mut requests, command) {
                Handled::Done => {}
                Handled::Refused(command) => refused.push_back(command),
                Handled::Gone => break,
            },
            Some(Err(status)) => {
                tracing::debug!(%status, "the session broke");
                break;
            }
            None => break,
        }
        if requests.len() > SWEEP {
            // a request that ended is held by nobody else
            requests.retain(|_, control| Arc::strong_count(control) > 1);
        }
    }
    for control in requests.values() {
        control.cancel();
    }
    loaded.alive.follow(None);
    drop(loaded.commands.send(Command::Detach).await);
}

/// What became of a command.
enum Handled {
    Done,
    /// A start that there was no place for, and what the loop is to be told of it.
    Refused(Command),
    /// The engine is gone.
    Gone,
}

fn handle(
    loaded: &Loaded,
    session: u64,
    requests: &mut HashMap<u64, Arc<Control>>,
    command: SessionCommand,
) -> Handled {
    match command.kind {
        None => Handled::Done,
        Some(session_command::Kind::Start(start)) => begin(loaded, session, requests, start),
        Some(session_command::Kind::Cancel(cancel)) => {
            if let Some(control) = requests.remove(&cancel.handle) {
                control.cancel();
                loaded.waker.wake();
            }
            Handled::Done
        }
        Some(session_command::Kind::Credit(credit)) => {
            if let Some(control) = requests.get(&credit.handle) {
                control.grant(credit.events);
                loaded.waker.wake();
            }
            Handled::Done
        }
    }
}

fn begin(loaded: &Loaded, session: u64, requests: &mut HashMap<u64, Arc<Control>>, start: Start) -> Handled {
    let control = Arc::new(Control::new(start.credit));
    let handle = start.handle;
    let raw = Raw {
        session,
        start,
        control: Arc::clone(&control),
    };
    match loaded.prepare.hand_in(raw) {
        Ok(()) => {
            requests.insert(handle, control);
            Handled::Done
        }
        Err(TrySendError::Full(_)) => Handled::Refused(Command::Refused {
            session,
            handle,
            error: Code::NoRoom.error("too many requests are being prepared"),
        }),
        Err(TrySendError::Closed(_)) => Handled::Gone,
    }
}
