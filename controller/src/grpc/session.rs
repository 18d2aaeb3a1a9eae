//! A worker's session from its hello to its end (PROTOCOL.md 3, 5). Each session has a task; the driver only sees sessions in force.
//!
//! ```text
//! hello ─► join ─► accepted ─► running ─► ended (stream closed · silence · ended by the driver · controller ends)
//!            │  ▲
//!   occupied ▼  │ closed, or silent for a ping
//!          waiting ─► rejected: the other process lives
//! ```
//!
//! Invariant: the driver learns of the end of every session that it was asked to open, whatever happens to this task.

use std::time::Duration;

use futures::{Stream, TryStreamExt as _};
use muster_core::{Code, Error, SessionId};
use muster_proto::{
    FEATURES, PROTOCOL_VERSION,
    v1::{
        ControllerMessage, Heartbeat, Hello, Welcome, WorkerMessage, controller_message::Kind as Down,
        worker_message::Kind as Up,
    },
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::{
    convert::span,
    driver::{
        handle::{Handle, Joining, Unheard},
        inbox::{Join, JoinAnswer, Said},
        pulse::Pulse,
    },
};

/// Number of commands that the driver may be ahead of this task. The driver never waits: if it is reached, the driver ends the session.
const COMMANDS: usize = 1024;
/// How long a stream may be open without a hello.
const HELLO_WAIT: Duration = Duration::from_secs(5);

/// A session of a worker.
#[derive(Debug)]
pub(crate) struct Session<S> {
    handle: Handle,
    joining: Option<Joining>,
    id: SessionId,
    incoming: S,
    out: mpsc::Sender<Box<ControllerMessage>>,
    pulse: Pulse,
    end: CancellationToken,
    epoch: Option<watch::Receiver<u64>>,
    sent: u64,
    received: u64,
}

/// Why a session ended; only for the log.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("the stream was closed")]
    Closed,
    #[error("the stream broke: {0}")]
    Broken(Status),
    #[error("nothing was heard for {0:?}")]
    Silent(Duration),
    #[error("the worker does not read")]
    Stuck,
    #[error("the driver ended it: goodbye, replaced or to be resynchronised")]
    Replaced,
    #[error("the controller is shutting down")]
    Stopping,
    #[error("it was refused: {0}")]
    Refused(Error),
}

impl<S: Stream<Item = Result<WorkerMessage, Status>> + Unpin> Session<S> {
    pub(crate) fn new(handle: Handle, incoming: S, out: mpsc::Sender<Box<ControllerMessage>>) -> Self {
        Self {
            joining: Some(handle.joining()),
            handle,
            id: SessionId::fresh(),
            incoming,
            out,
            pulse: Pulse::new(),
            end: CancellationToken::new(),
            epoch: None,
            sent: 0,
            received: 0,
        }
    }

    pub(crate) async fn run(mut self) {
        let stop = self.handle.stop();
        let work = async {
            let hello = self.hello().await?;
            let worker = hello.worker_id.clone();
            let guard = match self.handle.session(self.id.clone()) {
                Ok(guard) => guard,
                Err(Some(full)) => return Err(Ended::Refused(full)),
                Err(None) => return Err(Ended::Stopping),
            };
            let ended = self.joined(hello).await;
            drop(guard);
            tracing::info!(worker, session = %self.id, "session over");
            ended
        };
        let ended = tokio::select! {
            biased;
            () = stop.cancelled() => Ended::Stopping,
            ended = work => match ended {
                Ok(()) => Ended::Closed,
                Err(ended) => ended,
            },
        };
        tracing::info!(session = %self.id, reason = %ended, "session ended");
        if let Ended::Refused(error) = ended {
            self.refuse(error).await;
        }
    }

    async fn hello(&mut self) -> Result<Hello, Ended> {
        let first = match timeout(HELLO_WAIT, self.incoming.try_next()).await {
            Err(_) => return Err(Ended::Silent(HELLO_WAIT)),
            Ok(Err(status)) => return Err(Ended::Broken(status)),
            Ok(Ok(None)) => return Err(Ended::Closed),
            Ok(Ok(Some(message))) => message,
        };
        self.received = first.seq;
        match first.kind {
            Some(Up::Hello(hello)) => Ok(hello),
            Some(Up::Report(_) | Up::Outcome(_) | Up::Heartbeat(_) | Up::Goodbye(_) | Up::Files(_))
            | None => Err(Ended::Refused(
                Code::InvalidRequest.error("the first message of a session must be hello"),
            )),
        }
    }

    async fn joined(&mut self, hello: Hello) -> Result<(), Ended> {
        let (commands, mut orders) = mpsc::channel(COMMANDS);
        let spoken = |feature: &&String| FEATURES.contains(&feature.as_str());
        let features = hello.features.iter().filter(spoken).cloned().collect();
        let (epoch, mailbox) = self.admitted(hello, commands).await?;
        self.epoch = Some(epoch);
        // The driver's delay is not the worker's silence.
        self.pulse.beat();
        let timing = self.handle.timing();
        let welcome = Welcome {
            session_id: self.id.to_string(),
            protocol: PROTOCOL_VERSION,
            features,
            heartbeat_every: Some(span(timing.heartbeat_every)),
            lost_after: Some(span(timing.lost_after)),
        };
        self.send(Down::Welcome(welcome)).await?;
        self.talk(&mut orders, &mailbox).await
    }

    /// Asks the driver for the worker's place until it is free, or is found to be in use.
    async fn admitted(
        &mut self,
        hello: Hello,
        commands: mpsc::Sender<Box<Down>>,
    ) -> Result<(watch::Receiver<u64>, mpsc::Sender<Said>), Ended> {
        let mut silent = None;
        let mut joining = self.joining.take();
        loop {
            let (reply, answer) = oneshot::channel();
            let join = Join {
                session: self.id.clone(),
                joining: joining.take(),
                hello: hello.clone(),
                commands: commands.clone(),
                end: self.end.clone(),
                pulse: self.pulse.clone(),
                silent: silent.take(),
                reply,
            };
            if !self.handle.join(join).await {
                return Err(Ended::Stopping);
            }
            match answer.await.map_err(|_| Ended::Stopping)? {
                JoinAnswer::Accepted { epoch, mailbox } => return Ok((epoch, mailbox)),
                JoinAnswer::Rejected(error) => return Err(Ended::Refused(error)),
                JoinAnswer::Occupied { session, pulse } => {
                    let wait = self.handle.timing().ping_wait;
                    if lives(&pulse, wait).await {
                        let text = format!("worker '{}' is connected from another process", hello.worker_id);
                        return Err(Ended::Refused(
                            Code::InvalidRequest.error(text).with_retry_after(wait),
                        ));
                    }
                    silent = Some(session);
                }
            }
        }
    }

    async fn talk(
        &mut self,
        orders: &mut mpsc::Receiver<Box<Down>>,
        mailbox: &mpsc::Sender<Said>,
    ) -> Result<(), Ended> {
        let timing = self.handle.timing();
        let mut beats = interval(timing.heartbeat_every);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (pulse, end) = (self.pulse.clone(), self.end.clone());
        loop {
            let silent_at: Instant = pulse.last() + timing.lost_after;
            tokio::select! {
                biased;
                () = end.cancelled() => return Err(Ended::Replaced),
                Some(order) = orders.recv() => self.send(*order).await?,
                message = self.incoming.try_next() => match message {
                    Ok(Some(message)) => self.heard(message, mailbox).await?,
                    Ok(None) => return Ok(()),
                    Err(status) => return Err(Ended::Broken(status)),
                },
                () = pulse.pinged() => self.send(Down::Heartbeat(Heartbeat::default())).await?,
                _ = beats.tick() => self.send(Down::Heartbeat(Heartbeat::default())).await?,
                () = sleep_until(silent_at) => return Err(Ended::Silent(timing.lost_after)),
            }
        }
    }

    async fn heard(&mut self, message: WorkerMessage, mailbox: &mpsc::Sender<Said>) -> Result<(), Ended> {
        self.pulse.beat();
        if message.session_id != self.id.as_str() {
            tracing::warn!(session = %self.id, other = message.session_id, "a message of another session is ignored");
            return Ok(());
        }
        self.received = self.received.max(message.seq);
        let kind = match message.kind {
            Some(kind @ (Up::Report(_) | Up::Outcome(_) | Up::Goodbye(_) | Up::Files(_))) => kind,
            Some(Up::Heartbeat(_) | Up::Hello(_)) | None => return Ok(()),
        };
        let heard = self.handle.say(&self.id, mailbox, kind).await;
        heard.map_err(|Unheard| Ended::Replaced)
    }

    async fn send(&mut self, kind: Down) -> Result<(), Ended> {
        self.sent += 1;
        let message = ControllerMessage {
            epoch: self
                .epoch
                .as_ref()
                .map_or_else(|| self.handle.epoch(), |epoch| *epoch.borrow()),
            seq: self.sent,
            acked_worker_seq: self.received,
            kind: Some(kind),
        };
        let sent = timeout(self.handle.timing().lost_after, self.out.send(Box::new(message)));
        tokio::select! {
            biased;
            // Whoever ended the session does not wait for a worker that does not read.
            () = self.end.cancelled() => Err(Ended::Replaced),
            sent = sent => match sent {
                Ok(Ok(())) => Ok(()),
                Ok(Err(_)) => Err(Ended::Closed),
                Err(_) => Err(Ended::Stuck),
            },
        }
    }

    async fn refuse(&mut self, error: Error) {
        // A worker that has left need not hear it.
        drop(self.send(Down::Rejected(error.into())).await);
    }
}

/// Whether a session gives a sign of life within `wait` (PROTOCOL.md 5).
async fn lives(pulse: &Pulse, wait: Duration) -> bool {
    pulse.ping();
    tokio::select! {
        () = pulse.next_beat() => true,
        () = sleep(wait) => false,
    }
}
