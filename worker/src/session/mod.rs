//! Sessions: one bidirectional stream per I/O thread of a gateway carries all its requests (PROTOCOL.md 16).
//!
//! ```text
//!   gateway ──Start, Cancel, Credit──► [`serve_commands`] ──► instances
//!           ◄──────── Tick ──────────── [`Ticks`] ◄── outbox ◄──┘
//! ```
//!
//! Invariants: `seq` counts from 1 without gaps. A session that breaks cancels its requests; one that was closed in order ends after its
//! last request.
//!
//! Architecture invariant: knows no engine and no queue; an instance answers through the outbox.

pub(crate) mod outbox;
pub(crate) mod single;

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures::Stream;
use muster_core::GatewayId;
use muster_proto::v1::{
    SessionCommand, SessionMessage, Start, Tick, session_command::Kind as Command,
    session_message::Kind as Message,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{Status, Streaming};

use crate::instance::{Request, actor::Surroundings, registry::Registry};
use outbox::{Outbox, Reply, Taken};

/// All sessions, and calls outside sessions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sessions {
    tasks: TaskTracker,
    closing: CancellationToken,
}

impl Sessions {
    /// Called when nothing runs any more: sessions end once their events are sent.
    pub(crate) async fn close(&self) {
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }
}

/// Counts a gateway's session while it lives.
#[derive(Debug)]
struct Presence {
    registry: Arc<Registry>,
    gateway: Option<GatewayId>,
}

impl Presence {
    fn new(registry: &Arc<Registry>, gateway: Option<GatewayId>) -> Self {
        let around = &registry.ground().around;
        around.send_modify(|around: &mut Surroundings| around.gateways.came(gateway.clone()));
        Self {
            registry: Arc::clone(registry),
            gateway,
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        let around = &self.registry.ground().around;
        around.send_modify(|around| around.gateways.left(&self.gateway));
    }
}

/// Opens a session of `gateway` (empty if it has no id). A task in `tasks` handles its commands; its answers are the returned stream.
pub(crate) fn open(
    registry: &Arc<Registry>,
    tasks: &Sessions,
    gateway: Option<GatewayId>,
    inbound: Streaming<SessionCommand>,
) -> Ticks {
    let outbox = Arc::new(Outbox::default());
    let gone = CancellationToken::new();
    let commands = Commands {
        registry: Arc::clone(registry),
        outbox: Arc::clone(&outbox),
        _presence: Presence::new(registry, gateway),
    };
    // Ends with the stream of commands or with the reader, whichever ends first, and cancels the session's requests.
    tasks.spawn(commands.run(inbound, gone.clone(), tasks.closing.clone()));
    Ticks { outbox, gone, seq: 0 }
}

/// The commands of a session.
#[derive(Debug)]
struct Commands {
    registry: Arc<Registry>,
    outbox: Arc<Outbox>,
    _presence: Presence,
}

impl Commands {
    async fn run(
        self,
        mut inbound: Streaming<SessionCommand>,
        gone: CancellationToken,
        closing: CancellationToken,
    ) {
        loop {
            let message = tokio::select! {
                message = inbound.message() => message,
                () = gone.cancelled() => break,
                // The worker ends, and nothing runs here any more.
                () = closing.cancelled() => Ok(None),
            };
            match message {
                Ok(Some(command)) => {
                    if !self.command(command).await {
                        tracing::warn!("a session used a handle twice and was ended");
                        break;
                    }
                }
                Ok(None) => {
                    self.outbox.close();
                    gone.cancelled().await;
                    break;
                }
                Err(status) => {
                    tracing::debug!(%status, "a session broke");
                    break;
                }
            }
        }
        for route in self.outbox.abandon() {
            route.instance.send(Request::Cancel(route.ticket)).await;
        }
    }

    async fn command(&self, command: SessionCommand) -> bool {
        match command.kind {
            Some(Command::Start(start)) => return self.start(start).await,
            Some(Command::Cancel(cancel)) => {
                if let Some(route) = self.outbox.route(cancel.handle) {
                    route.instance.send(Request::Cancel(route.ticket)).await;
                }
            }
            Some(Command::Credit(credit)) => {
                if let Some(route) = self.outbox.route(credit.handle) {
                    route
                        .instance
                        .send(Request::Credit(route.ticket, credit.events))
                        .await;
                }
            }
            None => {}
        }
        true
    }

    async fn start(&self, start: Start) -> bool {
        match self.registry.find(start.instance.as_ref(), "") {
            Ok(instance) => self.registry.start(&self.outbox, instance, start).await,
            Err(error) => {
                Reply::new(Arc::clone(&self.outbox), start.handle).fail(error);
                true
            }
        }
    }
}

/// The answers of a session. Each item has all events that are ready.
#[derive(Debug)]
pub(crate) struct Ticks {
    outbox: Arc<Outbox>,
    gone: CancellationToken,
    seq: u64,
}

impl Stream for Ticks {
    type Item = Result<SessionMessage, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let sequences = match std::task::ready!(this.outbox.poll_take(cx)) {
            Taken::Events(sequences) => sequences,
            Taken::End => return Poll::Ready(None),
        };
        this.seq += 1;
        let tick = Tick {
            seq: this.seq,
            sequences,
            free_sequences: 0,
            free_cells: 0,
        };
        Poll::Ready(Some(Ok(SessionMessage {
            kind: Some(Message::Tick(tick)),
        })))
    }
}

impl Drop for Ticks {
    fn drop(&mut self) {
        self.gone.cancel();
    }
}
