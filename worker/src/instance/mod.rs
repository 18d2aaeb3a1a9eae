//! Instances: each load attempt is one task that owns an engine, its queue and its running table.
//!
//! ```text
//!            Load
//!              │                     ┌─── Resume, session lost ───┐
//!              ▼      loaded         ▼                            │
//!           loading ──────────────► ready ──────── Quiesce ───► quiesced
//!              │                     │  ▲                         │
//!              │        Unload DRAIN │  │ drain_for over          │ Unload
//!              │                     ▼  │                         │
//!              │                   draining ──────┐               │
//!    CancelLoad│       IF_IDLE, FORCE│       idle │               │
//!     or fails │                     ▼            ▼               │
//!              └───────────────► unloading ◄──────┴───────────────┘        crash, stall: from any state
//!                                    │ processes gone, sample taken
//!                                    ▼
//!                            gone │ failed      tombstones on the board
//! ```
//!
//! * [`actor`]: the task. [`load`], [`serve`], [`ending`]: its three stages, each with its own data.
//! * [`relay`], [`admission`], [`turns`], [`holds`], [`mode`], [`health`]: its decisions, without tasks or clocks.
//! * [`Instance`]: the handle that others have. [`registry`]: all handles. [`duplicates`]: ids of requests in progress.
//!
//! Architecture invariant: knows no gRPC service and no controller session; orders and requests arrive on channels.

pub(crate) mod actor;
pub(crate) mod admission;
pub(crate) mod duplicates;
mod ending;
mod health;
mod holds;
mod load;
mod mode;
pub(crate) mod registry;
pub(crate) mod relay;
mod serve;
mod turns;

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use muster_core::{Code, Error, InstanceId, Missing, ModelId};
use muster_proto::v1::{Done, InstanceSpec, Refused, RefusedReason, command::Kind as Order};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::engine::{EngineCalls, EngineProcess};
use relay::Begin;

/// Number of requests and orders in an instance's channels. Its task always empties them: when they are full the sender waits a moment.
const INBOX: usize = 256;

/// The result of an order.
pub(crate) type Verdict = Result<Done, Refused>;

/// A message of a session to an instance.
#[derive(Debug)]
pub(crate) enum Request {
    /// Begin a request.
    Begin(Box<Begin>),
    /// Cancel a request because the caller does not want it any more.
    Cancel(u64),
    /// End a request because a newer one has the same id.
    Supersede(u64),
    /// Allow this many more events.
    Credit(u64, u32),
    /// Begin a call outside the session protocol. The instance is not unloaded while the visit lasts.
    Visit(Purpose, oneshot::Sender<Result<Visit, Error>>),
}

/// An order of the controller or an operator, and the channel for its result.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) order: Order,
    pub(crate) verdict: oneshot::Sender<Verdict>,
}

/// The channels of an instance's task.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) requests: mpsc::Receiver<Request>,
    pub(crate) control: mpsc::Receiver<Control>,
}

/// A handle of an instance. Cheap to clone. It outlives the task; without the task, requests are refused as stale.
#[derive(Clone)]
pub(crate) struct Instance(Arc<Shared>);

struct Shared {
    id: InstanceId,
    model: ModelId,
    requests: mpsc::Sender<Request>,
    control: mpsc::Sender<Control>,
    engine: Mutex<Option<Engine>>,
}

/// What others may use of a running engine, beside its link.
#[derive(Clone)]
pub(crate) struct Engine {
    pub(crate) process: Arc<dyn EngineProcess>,
    pub(crate) calls: Arc<dyn EngineCalls>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.process.fmt(f)
    }
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.id.fmt(f)
    }
}

impl Instance {
    pub(crate) fn new(id: InstanceId, model: ModelId) -> (Self, Inbox) {
        let (requests, requests_inbox) = mpsc::channel(INBOX);
        let (control, control_inbox) = mpsc::channel(INBOX);
        let engine = Mutex::new(None);
        let shared = Shared {
            id,
            model,
            requests,
            control,
            engine,
        };
        let inbox = Inbox {
            requests: requests_inbox,
            control: control_inbox,
        };
        (Self(Arc::new(shared)), inbox)
    }

    #[cfg(test)]
    pub(crate) fn for_test(id: &str) -> (Self, Inbox) {
        Self::new(InstanceId::from(id), ModelId::from("model"))
    }

    pub(crate) fn id(&self) -> &InstanceId {
        &self.0.id
    }

    pub(crate) fn model(&self) -> &ModelId {
        &self.0.model
    }

    /// Sends a request. If the task has ended, dropping the request answers its caller.
    pub(crate) async fn send(&self, request: Request) {
        drop(self.0.requests.send(request).await);
    }

    /// Gives an order; `None` if the task has ended (the board has the final state).
    pub(crate) async fn order(&self, order: Order) -> Option<Verdict> {
        let (verdict, answer) = oneshot::channel();
        self.0.control.send(Control { order, verdict }).await.ok()?;
        answer.await.ok()
    }

    /// Keeps the instance from being unloaded during a call outside the session protocol.
    ///
    /// # Errors
    /// `stale_instance`: it takes no requests.
    pub(crate) async fn visit(&self, purpose: Purpose) -> Result<Visit, Error> {
        let (reply, answer) = oneshot::channel();
        self.send(Request::Visit(purpose, reply)).await;
        answer
            .await
            .unwrap_or_else(|_| Err(stale("the instance has ended")))
    }

    /// The engine; none until it runs.
    pub(crate) fn engine(&self) -> Option<Engine> {
        self.0
            .engine
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn set_engine(&self, engine: Option<Engine>) {
        *self.0.engine.lock().unwrap_or_else(PoisonError::into_inner) = engine;
    }
}

/// The purpose of a call outside the session protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It only looks at the engine.
    Look,
    /// It is work of the model: its beginning and end are touches (I9).
    Work,
}

/// The calls outside the session protocol that are in progress.
#[derive(Clone, Debug, Default)]
pub(crate) struct Visits(Arc<Ongoing>);

#[derive(Debug, Default)]
struct Ongoing {
    count: AtomicUsize,
    /// Touches that were not reported yet.
    touches: AtomicU64,
    left: Notify,
}

impl Visits {
    fn count(&self) -> usize {
        self.0.count.load(Ordering::Relaxed)
    }

    fn enter(&self, purpose: Purpose, calls: Arc<dyn EngineCalls>) -> Visit {
        self.0.count.fetch_add(1, Ordering::Relaxed);
        let visits = self.clone();
        visits.touch(purpose);
        Visit {
            visits,
            purpose,
            calls,
        }
    }

    fn touch(&self, purpose: Purpose) {
        match purpose {
            Purpose::Look => {}
            Purpose::Work => drop(self.0.touches.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// The touches since the last call.
    fn take_touches(&self) -> u64 {
        self.0.touches.swap(0, Ordering::Relaxed)
    }

    /// Resolves when a visit has ended since the last call.
    async fn left(&self) {
        self.0.left.notified().await;
    }
}

/// A call outside the session protocol.
pub(crate) struct Visit {
    visits: Visits,
    purpose: Purpose,
    calls: Arc<dyn EngineCalls>,
}

impl Visit {
    pub(crate) fn calls(&self) -> &dyn EngineCalls {
        self.calls.as_ref()
    }
}

impl fmt::Debug for Visit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visits.fmt(f)
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.visits.touch(self.purpose);
        self.visits.0.count.fetch_sub(1, Ordering::Relaxed);
        self.visits.0.left.notify_one();
    }
}

/// The refusal that makes a gateway try another instance.
pub(crate) fn stale(why: &str) -> Error {
    Code::StaleInstance.error(why)
}

/// A refusal of an order.
pub(crate) fn refused(reason: RefusedReason, touch_seq: u64, message: &str) -> Refused {
    Refused {
        reason: reason.into(),
        touch_seq,
        message: message.to_owned(),
    }
}

/// The refusal of an order without a required field.
pub(crate) fn incomplete(missing: Missing) -> Refused {
    refused(RefusedReason::Invalid, 0, &missing.to_string())
}

/// Number of requests that may wait if the settings set none.
const DEFAULT_QUEUE: u32 = 128;

/// Numbers of requests that may run and wait, from the settings and the engine's abilities.
fn limits(spec: &InstanceSpec, sequences: u32) -> (u32, u32) {
    let (target, queue) = spec.settings.as_ref().map_or((0, 0), |settings| {
        (settings.target_inflight, settings.queue_limit)
    });
    let or = |value: u32, default: u32| if value == 0 { default } else { value };
    (or(target, sequences.max(1)), or(queue, DEFAULT_QUEUE))
}

/// Runs work that may block for milliseconds, such as a walk through `/proc`, on another thread than the one that moves events. If it
/// panics, the result is the default value.
async fn beside<T: Default + Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap_or_default()
}
