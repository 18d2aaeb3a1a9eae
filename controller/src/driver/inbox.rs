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
//! Ends come first, then outcomes, then closings, then one of each of the others and of what is due by the clock, in turn (PROTOCOL.md 21): none of them
//! waits for ever behind another.
//!
//! A session's order counts (PROTOCOL.md 3). So what it says lies in a mailbox of its own, and the lanes of outcomes and reports only carry whose turn it
//! is: an outcome comes before what *other* sessions say, with all that its own session said before it. One session that says much waits for a place in
//! its own mailbox, and keeps nobody else waiting. What a session has said is heard before its end.

use std::sync::{Arc, atomic::AtomicUsize};

use muster_core::{Code, Error, HoldId, RequestId, SessionId};
use muster_proto::{StatusExt as _, v1};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{handle::Joining, pulse::Pulse, replace::Replacement};
use crate::{convert::wish::Wish, routes::Subscription, state::Saving};

/// Places in the lanes of outcomes, of reports and of joins each.
pub(crate) const WORKERS: usize = 1024;
/// Places in the mailbox of one session.
pub(crate) const MAILBOX: usize = 16;
/// Places in the ends' lane: worker sessions that may be open at once.
pub(crate) const SESSIONS: usize = 1 << 14;
/// Places in the closings' lane: `EnsureLoaded` streams that may be open at once.
pub(crate) const CLOSINGS: usize = 1 << 16;
/// Places in the asks' lane.
pub(crate) const ASKS: usize = 4096;

/// What a session said, unread.
pub(crate) type Said = Box<v1::worker_message::Kind>;

/// A worker that wants a session.
#[derive(Debug)]
pub(crate) struct Join {
    /// Its name, minted by its task.
    pub(crate) session: SessionId,
    /// It is about to join until the driver takes this.
    pub(crate) joining: Option<Joining>,
    /// The introduction.
    pub(crate) hello: v1::Hello,
    /// Where the session's commands go, each in a box: a channel sets room aside for many. When full the session is ended: one command per instance can be outstanding, so that never
    /// happens to a worker that reads.
    pub(crate) commands: mpsc::Sender<Box<v1::controller_message::Kind>>,
    /// Ends the session.
    pub(crate) end: CancellationToken,
    /// Shows that it lives.
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
        /// The epoch, kept current.
        epoch: watch::Receiver<u64>,
        /// Its mailbox; closed once it counts no more.
        mailbox: mpsc::Sender<Said>,
    },
    /// Another boot of this worker has a session: see whether it lives (PROTOCOL.md 5).
    Occupied {
        /// That session.
        session: SessionId,
        pulse: Pulse,
    },
    /// Not like this.
    Rejected(Error),
}

/// The end of an `EnsureLoaded` stream.
#[derive(Debug)]
pub(crate) struct Closing {
    pub(crate) hold: HoldId,
    /// Which of the streams with that hold.
    pub(crate) serial: u64,
}

/// Calls from outside.
#[derive(Debug)]
pub(crate) enum Ask {
    /// A gateway wants a model; ignored if nobody listens any more.
    Ensure {
        /// What it wants.
        wish: Wish,
        /// Tells this stream from an earlier one with the same id.
        serial: u64,
        /// The newest word on it.
        sender: watch::Sender<Option<v1::EnsureLoadedEvent>>,
    },
    /// An operator wants something done.
    Call {
        /// Names the call.
        request: RequestId,
        order: Order,
        /// The newest word on it; the call goes on if nobody listens.
        sender: watch::Sender<CallState>,
    },
    /// An operator pins or unpins a model.
    Pin(Pin),
    /// Somebody wants to know something.
    Query(Query),
    /// An operator changes the catalogue, or the files of its models.
    Models(Models),
}

/// Changes of the catalogue and of files. A dropped reply means that the controller is ending; an asker that has gone is no failure.
#[derive(Debug)]
pub(crate) enum Models {
    /// Download a model's files, maybe those of a new definition; the download goes on if nobody listens.
    Pull(v1::PullModelRequest, watch::Sender<PullState>),
    /// Put a user's model into the catalogue, or change it.
    Register(v1::ModelDefinition, Reply<(v1::Model, Saving)>),
    /// Remove the files of a model that is unloaded.
    RemoveFiles(String, Reply<Removed>),
    /// Take a user's model out of the catalogue; any other is shown as it is then.
    Remove(String, Reply<(Option<v1::Model>, Saving)>),
    /// Save options for a model's loads.
    SetOptions(v1::SetModelOptionsRequest, Reply<(v1::Model, Saving)>),
    /// Ask the hub what a repository has.
    ListVariants(String, Reply<v1::HubListing>),
    /// Give a model another name.
    SetAlias(v1::Alias, Reply<Saving>),
    /// Take such a name away.
    DeleteAlias(String, Reply<Saving>),
    /// All such names.
    ListAliases(Reply<Vec<v1::Alias>>),
}

/// Where an answer goes.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// How a pull stands.
#[derive(Debug, Clone)]
pub(crate) enum PullState {
    /// Nothing to tell yet.
    Waiting,
    /// It goes on.
    Progress(v1::FetchProgress),
    /// The last word.
    Done(Result<(), Error>),
}

/// Files that were removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Removed {
    /// Bytes freed on all workers.
    pub(crate) freed: u64,
}

/// A model to be pinned or unpinned.
#[derive(Debug)]
pub(crate) struct Pin {
    /// Its id.
    pub(crate) model: String,
    /// Which of the two.
    pub(crate) pinned: bool,
    /// The model afterwards, and when that is on disk; none if there is no such model.
    pub(crate) reply: oneshot::Sender<Option<(v1::Model, Saving)>>,
}

/// What an operator wants done.
#[derive(Debug)]
pub(crate) enum Order {
    Load(v1::LoadModelRequest),
    Unload(v1::UnloadModelRequest),
    /// Forget a lost worker.
    Forget(v1::ForgetWorkerRequest),
}

/// How a call stands.
#[derive(Debug, Clone)]
pub(crate) enum CallState {
    /// Nothing to tell yet.
    Waiting,
    /// A load is under way.
    Progress(Box<v1::load_model_event::Kind>),
    /// The last word.
    Done(Result<Answer, Error>),
}

/// What a call comes to.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// The model afterwards.
    Model(Box<v1::Model>),
    /// The instances that were forgotten.
    Forgotten(Vec<String>),
}

/// A question; a dropped sender means that the controller is ending.
#[derive(Debug)]
pub(crate) enum Query {
    /// The catalogue.
    Models(v1::ListModelsRequest, oneshot::Sender<v1::ListModelsResponse>),
    /// One model.
    Model(String, oneshot::Sender<Option<v1::Model>>),
    /// What a load of a model would do, with at most so many places in detail.
    Explain(v1::ExplainLoadRequest, usize, Reply<v1::ExplainLoadResponse>),
    /// What a load of a model comes to that may be loaded already.
    Replacement(v1::LoadModelRequest, Reply<Replacement>),
    Devices(oneshot::Sender<v1::ListDevicesResponse>),
    Workers(oneshot::Sender<v1::ListWorkersResponse>),
    /// Counters.
    Stats(oneshot::Sender<v1::GetStatsResponse>),
    /// Routes, now and from now on.
    Routes(oneshot::Sender<Subscription>),
}

/// The controller's end of the lanes.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// Sessions with an outcome in their mailbox.
    pub(crate) outcomes: mpsc::Receiver<SessionId>,
    /// Sessions with something else there.
    pub(crate) reports: mpsc::Receiver<SessionId>,
    /// Workers that introduce themselves.
    pub(crate) joins: mpsc::Receiver<Box<Join>>,
    /// Sessions whose tasks ended, for whatever reason.
    pub(crate) ends: mpsc::Receiver<SessionId>,
    /// Ends of streams.
    pub(crate) closings: mpsc::Receiver<Closing>,
    /// Calls.
    pub(crate) asks: mpsc::Receiver<Ask>,
    /// Workers that are about to join.
    pub(crate) joining: Arc<AtomicUsize>,
}

/// Sends the end of a session, or of a stream, when dropped: it has its place in the lane from the start, so this neither waits nor fails.
#[derive(Debug)]
pub(crate) struct OnDrop<T> {
    place: Option<(mpsc::OwnedPermit<T>, T)>,
}

impl<T> OnDrop<T> {
    /// Sends `message` at the end.
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

/// The controller is ending.
pub(crate) fn stopping() -> tonic::Status {
    Code::ShuttingDown
        .error("the controller is shutting down")
        .into_status()
}
