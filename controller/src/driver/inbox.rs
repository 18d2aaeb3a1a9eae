//! What reaches the driver, and in which order.
//!
//! | lane     | what                                  | when full                                             |
//! |----------|---------------------------------------|-------------------------------------------------------|
//! | ends     | ends of sessions                      | never: each session has reserved its place            |
//! | outcomes | sessions that have answered a command | the session waits, so its worker's stream does        |
//! | reports  | sessions that have said anything else | the session waits                                     |
//! | joins    | workers that introduce themselves     | the session waits                                     |
//! | closings | ends of `EnsureLoaded` streams        | never: each open stream has reserved its place        |
//! | asks     | calls from outside                    | the call is refused with `queue_full`                 |
//!
//! The order is: ends, then outcomes, then closings, then one of each of the others and of what is due by time, in turn (PROTOCOL.md 21).
//! No lane waits for ever behind another.
//!
//! The order within a session matters (PROTOCOL.md 3). So each session has a mailbox for its messages, and the lanes of outcomes and
//! reports only say whose mailbox to read. An outcome is read before messages of *other* sessions, together with everything that its own
//! session said before it. A session that says much waits for a place in its own mailbox and delays nobody else. What a session has said is
//! read before its end.

use std::sync::{Arc, atomic::AtomicUsize};

use muster_core::{Code, Error, HoldId, RequestId, SessionId, WorkerId};
use muster_proto::{StatusExt as _, v1};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{handle::Joining, pulse::Pulse, replace::Replacement};
use crate::{
    config::Config,
    convert::wish::Wish,
    routes::Subscription,
    state::{Own, Saving},
};

/// Number of places in each of the lanes for outcomes, reports and joins.
pub(crate) const WORKERS: usize = 1024;
/// Number of places in a session's mailbox.
pub(crate) const MAILBOX: usize = 16;
/// Number of worker sessions that may be open, which is the size of the ends' lane.
pub(crate) const SESSIONS: usize = 1 << 14;
/// Number of `EnsureLoaded` streams that may be open, which is the size of the closings' lane.
pub(crate) const CLOSINGS: usize = 1 << 16;
/// Number of places in the lane for calls.
pub(crate) const ASKS: usize = 4096;

/// A message of a session that was not read yet.
pub(crate) type Said = Box<v1::worker_message::Kind>;

/// A worker's request for a session.
#[derive(Debug)]
pub(crate) struct Join {
    /// Id of the session, made by its task.
    pub(crate) session: SessionId,
    /// Counts the worker as about to join until this is dropped.
    pub(crate) joining: Option<Joining>,
    /// The worker's introduction.
    pub(crate) hello: v1::Hello,
    /// The channel for the session's commands; boxed, because a channel reserves room for many. If it is full, the session is ended. A
    /// worker that reads never fills it, since at most one command per instance is outstanding.
    pub(crate) commands: mpsc::Sender<Box<v1::controller_message::Kind>>,
    /// Ends the session when cancelled.
    pub(crate) end: CancellationToken,
    /// The worker's signs of life.
    pub(crate) pulse: Pulse,
    /// A silent session of another boot that may be ended for this one.
    pub(crate) silent: Option<SessionId>,
    pub(crate) reply: oneshot::Sender<JoinAnswer>,
}

/// Answer to [`Join`].
#[derive(Debug)]
pub(crate) enum JoinAnswer {
    /// The session counts from now on.
    Accepted {
        /// The current epoch.
        epoch: watch::Receiver<u64>,
        /// The session's mailbox. It closes when the session no longer counts.
        mailbox: mpsc::Sender<Said>,
    },
    /// Another boot of this worker has a session; check whether it is alive (PROTOCOL.md 5).
    Occupied {
        /// The other boot's session.
        session: SessionId,
        pulse: Pulse,
    },
    /// The worker may not join.
    Rejected(Error),
}

/// The end of an `EnsureLoaded` stream.
#[derive(Debug)]
pub(crate) struct Closing {
    pub(crate) hold: HoldId,
    /// Tells apart streams with the same hold.
    pub(crate) serial: u64,
}

/// A call from outside.
#[derive(Debug)]
pub(crate) enum Ask {
    /// A gateway wants a model. Ignored if nobody listens any more.
    Ensure {
        wish: Wish,
        /// Tells apart streams with the same hold.
        serial: u64,
        /// The newest event for the stream.
        sender: watch::Sender<Option<v1::EnsureLoadedEvent>>,
    },
    /// An operator's call.
    Call {
        /// Id of the call.
        request: RequestId,
        order: Order,
        /// The newest message about the call, which goes on if nobody listens.
        sender: watch::Sender<CallState>,
    },
    /// Pin or unpin a model.
    Pin(Pin),
    /// A question.
    Query(Query),
    /// A change of the catalogue, or of the files of its models.
    Models(Models),
}

/// A change of the catalogue or of files. A dropped reply means that the controller is ending; if the caller has left, that is no failure.
#[derive(Debug)]
pub(crate) enum Models {
    /// Download a model's files, perhaps those of a new definition. The download goes on if nobody listens.
    Pull(v1::PullModelRequest, watch::Sender<PullState>),
    /// All downloads.
    ListDownloads(Reply<Vec<v1::Download>>),
    /// Pause, resume or cancel one.
    ControlDownload(v1::ControlDownloadRequest, Reply<(v1::Download, Saving)>),
    /// Which models' files the hub may have newer, of these or of all.
    Checkable(Vec<String>, Reply<Vec<Checkable>>),
    /// Have a worker ask the hub.
    Check(WorkerId, v1::HubCheckpoint, Reply<v1::FilesCheck>),
    /// Add a user's model to the catalogue, or change it.
    Register(v1::ModelDefinition, Reply<(v1::Model, Saving)>),
    /// Remove the files of a model that is unloaded.
    RemoveFiles(String, Reply<Removed>),
    /// Remove a user's model from the catalogue. Any other model stays and is returned.
    Remove(String, Reply<(Option<v1::Model>, Saving)>),
    /// Save options for a model's loads.
    SetOptions(v1::SetModelOptionsRequest, Reply<(v1::Model, Saving)>),
    /// Take over another configuration.
    Reload(Box<Config>, Reply<v1::ReloadResponse>),
    /// Take over what users registered and saved, as it was on disk after this turn; false if nothing came of it.
    ReloadOwn {
        turn: u64,
        own: Box<Own>,
        reply: Reply<bool>,
    },
    /// List what a repository on the hub has.
    ListVariants(String, Reply<v1::HubListing>),
    /// Give a model a further name.
    SetAlias(v1::Alias, Reply<Saving>),
    /// Remove a further name.
    DeleteAlias(String, Reply<Saving>),
    /// List all further names.
    ListAliases(Reply<Vec<v1::Alias>>),
}

/// How a model's files on a host stand.
#[derive(Debug)]
pub(crate) struct Checkable {
    /// What is known of it here.
    pub(crate) update: v1::ModelUpdate,
    /// Whom to ask for the rest, if that could be more.
    pub(crate) ask: Option<(WorkerId, v1::HubCheckpoint)>,
}

/// The sender of an answer.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// The state of a pull.
#[derive(Debug, Clone)]
pub(crate) enum PullState {
    /// Nothing to tell yet.
    Waiting,
    /// The download goes on.
    Progress(v1::FetchProgress),
    /// The download has ended.
    Done(Result<(), Error>),
}

/// The result of removing files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Removed {
    /// Bytes freed on all workers.
    pub(crate) freed: u64,
}

/// A request to pin or unpin a model.
#[derive(Debug)]
pub(crate) struct Pin {
    /// Id of the model.
    pub(crate) model: String,
    /// What is said of it.
    pub(crate) pin: crate::state::Pin,
    /// Receives the model afterwards and when that is on disk; none if there is no such model.
    pub(crate) reply: oneshot::Sender<Option<(v1::Model, Saving)>>,
}

/// An operator's order.
#[derive(Debug)]
pub(crate) enum Order {
    Load(v1::LoadModelRequest),
    Unload(v1::UnloadModelRequest),
    /// Forget a lost worker.
    Forget(v1::ForgetWorkerRequest),
}

/// The state of a call.
#[derive(Debug, Clone)]
pub(crate) enum CallState {
    /// Nothing to tell yet.
    Waiting,
    /// The load goes on.
    Progress(Box<v1::load_model_event::Kind>),
    /// The call has ended.
    Done(Result<Answer, Error>),
}

/// The result of a call.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// The model afterwards.
    Model(Box<v1::Model>),
    /// The ids of the forgotten instances.
    Forgotten(Vec<String>),
}

/// A question. A dropped sender means that the controller is ending.
#[derive(Debug)]
pub(crate) enum Query {
    /// List the catalogue.
    Models(v1::ListModelsRequest, oneshot::Sender<v1::ListModelsResponse>),
    /// Show one model.
    Model(String, oneshot::Sender<Option<v1::Model>>),
    /// Explain a load of a model, with at most this many places in detail.
    Explain(v1::ExplainLoadRequest, usize, Reply<v1::ExplainLoadResponse>),
    /// Compare a load with the model's loaded instances.
    Replacement(v1::LoadModelRequest, Reply<Replacement>),
    Devices(oneshot::Sender<v1::ListDevicesResponse>),
    Workers(oneshot::Sender<v1::ListWorkersResponse>),
    /// Return counters.
    Stats(oneshot::Sender<v1::GetStatsResponse>),
    /// Subscribe to routes.
    Routes(oneshot::Sender<Subscription>),
    /// The turn of the last change that is on disk; none while one is being written.
    Saved(oneshot::Sender<Option<u64>>),
    /// Loads of idle models whose definition changed while they were loaded.
    Stale(oneshot::Sender<Vec<v1::LoadModelRequest>>),
}

/// The driver's end of the lanes.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// Sessions with an outcome in their mailbox.
    pub(crate) outcomes: mpsc::Receiver<SessionId>,
    /// Sessions with another message in their mailbox.
    pub(crate) reports: mpsc::Receiver<SessionId>,
    /// Workers that introduce themselves.
    pub(crate) joins: mpsc::Receiver<Box<Join>>,
    /// Sessions whose tasks have ended.
    pub(crate) ends: mpsc::Receiver<SessionId>,
    /// Ends of streams.
    pub(crate) closings: mpsc::Receiver<Closing>,
    /// Calls.
    pub(crate) asks: mpsc::Receiver<Ask>,
    /// Number of workers that are about to join.
    pub(crate) joining: Arc<AtomicUsize>,
}

/// Sends the end of a session or a stream when dropped. Its place in the lane is reserved, so sending neither waits nor fails.
#[derive(Debug)]
pub(crate) struct OnDrop<T> {
    place: Option<(mpsc::OwnedPermit<T>, T)>,
}

impl<T> OnDrop<T> {
    /// Sends `message` when dropped.
    pub(crate) fn new(permit: mpsc::OwnedPermit<T>, message: T) -> Self {
        Self {
            place: Some((permit, message)),
        }
    }
}

impl<T> Drop for OnDrop<T> {
    fn drop(&mut self) {
        if let Some((permit, message)) = self.place.take() {
            permit.send(message);
        }
    }
}

/// The error of a controller that is ending.
pub(crate) fn stopping() -> tonic::Status {
    Code::ShuttingDown
        .error("the controller is shutting down")
        .into_status()
}
