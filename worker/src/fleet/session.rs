//! A session with the controller, from its Hello to its end.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use muster_core::{Error, SessionId};
use muster_proto::{
    FEATURES, PROTOCOL_VERSION, VERSION, net,
    v1::{
        Command, ControllerMessage, Goodbye, Heartbeat, Hello, Outcome, Refused, RefusedReason, Welcome,
        WorkerMessage, WorkerReport, controller_message::Kind as Down, fleet_client::FleetClient,
        outcome::Kind as Answer, worker_message::Kind as Up,
    },
};
use tokio::{
    sync::mpsc,
    time::{sleep_until, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming, transport};

use super::{Fleet, Result};
use crate::{board::Urgency, command::Handler, convert, instance::actor::Service, procfs};

/// Number of messages in the channel to the controller. If it is full because the controller does not read, changes wait on the board and
/// commands are not read.
const UP: usize = 64;
/// Longest wait for the controller's Welcome, and for it to take a message.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long touches wait to be reported together (PROTOCOL.md 19).
const LAZY: Duration = Duration::from_millis(100);
/// Shortest time between reports of instances that became idle.
const SOON: Duration = Duration::from_millis(5);
/// Interval of heartbeats if Welcome sets none.
const HEARTBEAT: Duration = Duration::from_millis(500);
const LOST: Duration = Duration::from_secs(3);

/// Why a session ended or did not begin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    #[error("the controller cannot be reached: {0}")]
    Unreachable(#[from] transport::Error),
    #[error("the controller refused the session: {0}")]
    Rejected(Error),
    #[error("the stream broke: {0}")]
    Broken(#[from] Status),
    #[error("the controller closed the session")]
    Closed,
    #[error("the controller was silent for {0:?}")]
    Silent(Duration),
    #[error("the controller took no message for {0:?}")]
    Stuck(Duration),
    #[error("the controller's epoch {got} is older than {seen}")]
    OldEpoch { got: u64, seen: u64 },
    #[error("the controller spoke before its Welcome")]
    NoWelcome,
}

impl SessionError {
    /// Whether the controller refused the credentials, or this is the wrong listener.
    pub(super) fn is_refusal(&self) -> bool {
        use tonic::Code::{PermissionDenied, Unauthenticated};
        matches!(self, Self::Broken(status) if matches!(status.code(), PermissionDenied | Unauthenticated))
    }
}

/// An attempt at a session.
#[derive(Debug)]
pub(super) struct Session<'a> {
    fleet: &'a Fleet,
    number: u64,
    handler: &'a mut Handler,
    highest_epoch: &'a mut u64,
}

struct Joined<'a> {
    fleet: &'a Fleet,
    handler: &'a mut Handler,
    highest_epoch: &'a mut u64,
    id: SessionId,
    up: mpsc::Sender<WorkerMessage>,
    down: Streaming<ControllerMessage>,
    seq: u64,
    acked: u64,
    heartbeat_every: Duration,
    lost_after: Duration,
    heard: Instant,
    said: Instant,
    reported: Instant,
    report_due: Option<Instant>,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        fleet: &'a Fleet,
        number: u64,
        handler: &'a mut Handler,
        highest_epoch: &'a mut u64,
    ) -> Self {
        Self {
            fleet,
            number,
            handler,
            highest_epoch,
        }
    }

    /// Runs the session to its end. Returns whether it ever joined, and the error; `Ok` means that Goodbye was sent.
    pub(super) async fn run(self) -> (bool, Result<()>) {
        let fleet = self.fleet;
        let number = self.number;
        let mut joined = match self.join().await {
            Ok(joined) => joined,
            Err(error) => return (false, Err(error)),
        };
        let around = &fleet.registry.ground().around;
        around.send_modify(|around| around.session = Some(number));
        fleet.registry.ground().files.begin();
        fleet.tried.cancel();
        tracing::info!(session = %joined.id, "joined");
        let result = joined.serve().await;
        around.send_modify(|around| around.session = None);
        (true, result)
    }

    async fn join(self) -> Result<Joined<'a>> {
        let channel = net::channel(&self.fleet.controller, &self.fleet.credentials).await?;
        let mut client = FleetClient::new(channel)
            .max_decoding_message_size(muster_proto::MAX_MESSAGE_BYTES)
            .max_encoding_message_size(muster_proto::MAX_MESSAGE_BYTES);
        let (up, up_stream) = mpsc::channel(UP);
        let hello = WorkerMessage {
            session_id: String::new(),
            seq: 1,
            acked_controller_seq: 0,
            kind: Some(Up::Hello(self.hello())),
        };
        // The channel is new, so it has room.
        drop(up.try_send(hello));
        let first = async {
            let mut down = client.join(ReceiverStream::new(up_stream)).await?.into_inner();
            let first = down.message().await?.ok_or(SessionError::Closed)?;
            Ok::<_, SessionError>((down, first))
        };
        let (down, first) = timeout(PATIENCE, first)
            .await
            .map_err(|_| SessionError::Silent(PATIENCE))??;
        check_epoch(self.highest_epoch, first.epoch)?;
        let welcome = match first.kind {
            Some(Down::Welcome(welcome)) => welcome,
            Some(Down::Rejected(error)) => return Err(SessionError::Rejected(error.into())),
            Some(Down::Command(_) | Down::Heartbeat(_) | Down::Files(_)) | None => {
                return Err(SessionError::NoWelcome);
            }
        };
        let Welcome {
            session_id,
            heartbeat_every,
            lost_after,
            ..
        } = welcome;
        let now = Instant::now();
        Ok(Joined {
            fleet: self.fleet,
            handler: self.handler,
            highest_epoch: self.highest_epoch,
            id: SessionId::new(session_id).map_err(|_| SessionError::NoWelcome)?,
            up,
            down,
            seq: 1,
            acked: first.seq,
            heartbeat_every: convert::span_from(heartbeat_every).unwrap_or(HEARTBEAT),
            lost_after: convert::span_from(lost_after).unwrap_or(LOST),
            heard: now,
            said: now,
            reported: now,
            report_due: None,
        })
    }

    fn hello(&self) -> Hello {
        let registry = &self.fleet.registry;
        let (identity, ground) = (registry.identity(), registry.ground());
        let devices = ground.devices.list();
        Hello {
            worker_id: (&identity.worker).into(),
            boot_id: (&identity.boot).into(),
            host_id: (&identity.host).into(),
            protocol_min: PROTOCOL_VERSION,
            protocol_max: PROTOCOL_VERSION,
            features: FEATURES.map(str::to_owned).to_vec(),
            highest_epoch_seen: *self.highest_epoch,
            addresses: self.fleet.addresses.iter().map(ToString::to_string).collect(),
            runtimes: ground
                .runtimes
                .iter()
                .filter_map(|runtime| runtime.info(&devices))
                .collect(),
            devices,
            full: Some(ground.board.snapshot(Instant::now(), true)),
            draining: ground.around.borrow().service != Service::Open,
            version: VERSION.to_owned(),
            pid_namespace: procfs::pid_namespace(),
        }
    }
}

fn check_epoch(seen: &mut u64, got: u64) -> Result<()> {
    if got < *seen {
        return Err(SessionError::OldEpoch { got, seen: *seen });
    }
    *seen = got;
    Ok(())
}

impl Joined<'_> {
    async fn serve(&mut self) -> Result<()> {
        let ground = Arc::clone(self.fleet.registry.ground());
        loop {
            let silence_ends = self.heard + self.lost_after;
            let heartbeat_due = self.said + self.heartbeat_every;
            let report_due = self.report_due;
            tokio::select! {
                message = self.down.message() => {
                    let message = message?.ok_or(SessionError::Closed)?;
                    self.heard = Instant::now();
                    self.message(message).await?;
                }
                () = ground.board.changed() => self.plan_report(ground.board.urgency()),
                () = ground.files.changed() => {
                    for news in ground.files.news() {
                        self.say(Up::Files(news)).await?;
                    }
                }
                () = sleep_until(report_due.unwrap_or(silence_ends).into()), if report_due.is_some() => self.report().await?,
                () = sleep_until(heartbeat_due.into()) => self.say(Up::Heartbeat(Heartbeat::default())).await?,
                () = sleep_until(silence_ends.into()) => return Err(SessionError::Silent(self.lost_after)),
                () = self.fleet.leave.cancelled() => return self.goodbye().await,
            }
        }
    }

    async fn message(&mut self, message: ControllerMessage) -> Result<()> {
        if let Some(Down::Command(command)) = &message.kind
            && message.epoch < *self.highest_epoch
        {
            let outcome = bad_epoch(command);
            self.say(Up::Outcome(outcome)).await?;
        }
        check_epoch(self.highest_epoch, message.epoch)?;
        self.acked = self.acked.max(message.seq);
        match message.kind {
            Some(Down::Command(command)) => {
                let outcome = self.handler.obey(command).await;
                // Report what the command changed before its outcome.
                self.report().await?;
                self.say(Up::Outcome(outcome)).await
            }
            Some(Down::Rejected(error)) => Err(SessionError::Rejected(error.into())),
            Some(Down::Files(order)) => {
                self.fleet.registry.ground().files.obey(order);
                Ok(())
            }
            Some(Down::Heartbeat(_) | Down::Welcome(_)) | None => Ok(()),
        }
    }

    fn plan_report(&mut self, urgency: Urgency) {
        let now = Instant::now();
        let due = match urgency {
            Urgency::None => return,
            Urgency::Lazy => now + LAZY,
            Urgency::Soon => now.max(self.reported + SOON),
            Urgency::Now => now,
        };
        self.report_due = Some(self.report_due.map_or(due, |earlier| earlier.min(due)));
    }

    async fn report(&mut self) -> Result<()> {
        self.report_due = None;
        self.reported = Instant::now();
        let report = self.fleet.registry.ground().board.changes(self.reported);
        if report == WorkerReport::default() {
            return Ok(());
        }
        self.say(Up::Report(report)).await
    }

    async fn say(&mut self, kind: Up) -> Result<()> {
        self.seq += 1;
        self.said = Instant::now();
        let message = WorkerMessage {
            session_id: (&self.id).into(),
            seq: self.seq,
            acked_controller_seq: self.acked,
            kind: Some(kind),
        };
        match timeout(PATIENCE, self.up.send(message)).await {
            Ok(sent) => sent.map_err(|_| SessionError::Closed),
            Err(_) => Err(SessionError::Stuck(PATIENCE)),
        }
    }

    async fn goodbye(&mut self) -> Result<()> {
        self.report().await?;
        let reason = "the worker was asked to end".to_owned();
        self.say(Up::Goodbye(Goodbye { reason })).await?;
        // Wait until the controller has read it: it then ends the stream.
        let ended = async { while let Ok(Some(_)) = self.down.message().await {} };
        drop(timeout(Duration::from_secs(1), ended).await);
        Ok(())
    }
}

fn bad_epoch(command: &Command) -> Outcome {
    Outcome {
        command_id: command.command_id.clone(),
        kind: Some(Answer::Refused(Refused {
            reason: RefusedReason::BadEpoch.into(),
            touch_seq: 0,
            message: "a newer controller has been seen".to_owned(),
        })),
    }
}
