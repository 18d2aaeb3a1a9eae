//! One session: commands in, ticks out. Its end cancels everything that runs.

use std::{collections::HashMap, sync::Arc};

use muster_proto::v1::{SessionCommand, Start, session_command};
use tokio_stream::StreamExt as _;
use tonic::Streaming;

use super::{load::Loaded, prepare::Raw};
use crate::{control::Control, request::Command};

/// How many ended requests may stay in the map before it is swept.
const SWEEP: usize = 1024;

/// Reads commands until the stream ends or `closed` resolves (the caller dropped the answer stream), then cancels what is left.
pub(super) async fn run(
    loaded: Arc<Loaded>,
    session: u64,
    mut commands: Streaming<SessionCommand>,
    closed: impl Future<Output = ()>,
) {
    let mut requests: HashMap<u64, Arc<Control>> = HashMap::new();
    tokio::pin!(closed);
    loop {
        let next = tokio::select! {
            next = commands.next() => next,
            () = &mut closed => break,
        };
        match next {
            Some(Ok(command)) => {
                if !handle(&loaded, session, &mut requests, command).await {
                    break;
                }
            }
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

/// False if the engine is gone.
async fn handle(
    loaded: &Loaded,
    session: u64,
    requests: &mut HashMap<u64, Arc<Control>>,
    command: SessionCommand,
) -> bool {
    match command.kind {
        None => true,
        Some(session_command::Kind::Start(start)) => begin(loaded, session, requests, start).await,
        Some(session_command::Kind::Cancel(cancel)) => {
            if let Some(control) = requests.remove(&cancel.handle) {
                control.cancel();
                loaded.waker.wake();
            }
            true
        }
        Some(session_command::Kind::Credit(credit)) => {
            if let Some(control) = requests.get(&credit.handle) {
                control.grant(credit.events);
                loaded.waker.wake();
            }
            true
        }
    }
}

async fn begin(
    loaded: &Loaded,
    session: u64,
    requests: &mut HashMap<u64, Arc<Control>>,
    start: Start,
) -> bool {
    let control = Arc::new(Control::new(start.credit));
    requests.insert(start.handle, Arc::clone(&control));
    loaded
        .prepare
        .send(Raw {
            session,
            start,
            control,
        })
        .await
        .is_ok()
}
