//! Wishes for models that are not loaded: one `EnsureLoaded` stream per model, shared by all who wait for it (PROTOCOL.md 9).
//!
//! ```text
//!            first waiter              Ready                  last waiter gone
//!   (none) ───────────────► waiting ──────────► ready ─────────────────────────► stream closed = hold released
//!                              │ Failed           │ refused all the same
//!                              ▼                  ▼
//!                           failed            replaced by a new wish that avoids what refused
//! ```
//!
//! A waiter counts until its request is admitted or dropped; then its [`Waiter`] is dropped. The open stream is the hold.
//! While the controller is away the same `ensure_id` is tried again for [`PATIENCE`].
//! The time limit counts for each request by itself, not for the shared stream: otherwise the last one to come would have the least time.
//!
//! Invariant: waiters are counted under the lock of all wishes, those of replaced wishes too, so exactly one of them is the last.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use muster_core::{Code, Error, InstanceId, Missing, WorkerId, id};
use muster_proto::{
    StatusExt as _,
    pauses::Pauses,
    v1::{self, EnsureLoadedRequest, QueuedReason, ensure_loaded_event::Kind},
};
use tokio::{runtime::Handle, sync::watch};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::{Controller, route::Route};
use crate::metrics;

/// How long a wish is kept while the controller is away (PROTOCOL.md 23).
const PATIENCE: Duration = Duration::from_secs(5);
const RETRY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));
/// Number of requests that may wait for a model if the catalogue sets no limit.
const DEFAULT_LIMIT: u32 = 128;

#[derive(Clone, Debug)]
enum State {
    /// Not decided yet. The code is the error of a request that stops waiting now.
    Waiting(Code),
    Ready(Box<Route>),
    Failed(Box<Error>),
}

/// A stream and the requests that wait for it.
#[derive(Debug)]
struct Wish {
    request: EnsureLoadedRequest,
    state: watch::Sender<State>,
    /// Cancelled when all waiters are gone.
    unwanted: CancellationToken,
    /// Number of waiters. Changed only under the lock of [`Wishes`], which orders the changes.
    waiters: AtomicU32,
}

impl Wish {
    /// Records what the wish waits for, unless it is decided.
    fn waits_for(&self, code: Code) {
        self.state.send_if_modified(|state| match state {
            State::Waiting(known) => std::mem::replace(known, code) != code,
            State::Ready(_) | State::Failed(_) => false,
        });
    }
}

/// Instances and workers that refused a request or did not answer it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Avoid {
    pub(crate) instances: Vec<InstanceId>,
    pub(crate) workers: Vec<WorkerId>,
}

/// All open wishes, by model.
#[derive(Debug)]
pub(crate) struct Wishes {
    controller: Controller,
    /// How long a request may wait for its model; none = without limit.
    longest: Option<Duration>,
    runtime: Handle,
    /// Held for a few instructions, never across an await: a std mutex is enough.
    open: Mutex<HashMap<String, Arc<Wish>>>,
}

impl Wishes {
    pub(super) fn new(controller: Controller, longest: Option<Duration>, runtime: Handle) -> Arc<Self> {
        Arc::new(Self {
            controller,
            longest,
            runtime,
            open: Mutex::default(),
        })
    }

    fn open(&self) -> MutexGuard<'_, HashMap<String, Arc<Wish>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request to those that wait for `model`. At most `limit` may wait (0 = the default).
    ///
    /// # Errors
    /// `queue_full`.
    pub(crate) fn join(self: &Arc<Self>, model: &str, limit: u32, avoid: &Avoid) -> Result<Waiter, Error> {
        let limit = if limit == 0 { DEFAULT_LIMIT } else { limit };
        let mut open = self.open();
        if let Some(wish) = open.get(model) {
            let spent = match &*wish.state.borrow() {
                State::Waiting(_) => false,
                State::Ready(route) => refused(route, avoid),
                State::Failed(_) => true,
            };
            if !spent {
                if wish.waiters.load(Ordering::Relaxed) >= limit {
                    let message = format!("{limit} requests already wait for model {model}");
                    return Err(Code::QueueFull
                        .error(message)
                        .with_retry_after(Duration::from_secs(1)));
                }
                return Ok(Waiter::new(self, wish, &open));
            }
        }
        let wish = Arc::new(Wish {
            request: EnsureLoadedRequest {
                ensure_id: id::fresh().as_ref().to_owned(),
                gateway_id: (&self.controller.gateway_id).into(),
                model_id: model.to_owned(),
                avoid_instances: avoid.instances.iter().map(String::from).collect(),
                avoid_workers: avoid.workers.iter().map(String::from).collect(),
                wait_budget: None,
            },
            state: watch::Sender::new(State::Waiting(Code::EvictionTimeout)),
            unwanted: CancellationToken::new(),
            waiters: AtomicU32::new(0),
        });
        // The other waiters of the replaced wish keep it open until they are gone. Nobody joins it any more.
        open.insert(model.to_owned(), Arc::clone(&wish));
        let waiter = Waiter::new(self, &wish, &open);
        self.runtime.spawn(pursue(self.controller.clone(), wish));
        Ok(waiter)
    }

    fn leave(&self, wish: &Arc<Wish>) {
        let model = &wish.request.model_id;
        let mut open = self.open();
        if wish.waiters.fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        wish.unwanted.cancel();
        // A replaced wish is no longer in the table; its successor stays.
        if open.get(model).is_some_and(|current| Arc::ptr_eq(current, wish)) {
            open.remove(model);
        }
    }
}

/// Whether `route` leads to an instance or worker that refused.
fn refused(route: &Route, avoid: &Avoid) -> bool {
    avoid.instances.contains(&route.to.instance)
}

/// A place among the requests that wait for a model. Dropping it gives the place up.
#[derive(Debug)]
pub(crate) struct Waiter {
    wishes: Arc<Wishes>,
    wish: Arc<Wish>,
    state: watch::Receiver<State>,
    since: Instant,
}

impl Waiter {
    /// Counts one more waiter. The guard proves that the lock is held.
    fn new(wishes: &Arc<Wishes>, wish: &Arc<Wish>, _: &MutexGuard<'_, HashMap<String, Arc<Wish>>>) -> Self {
        wish.waiters.fetch_add(1, Ordering::Relaxed);
        Self {
            wishes: Arc::clone(wishes),
            wish: Arc::clone(wish),
            state: wish.state.subscribe(),
            since: Instant::now(),
        }
    }

    /// The id of the hold, which is the wish's `ensure_id`.
    pub(crate) fn hold_id(&self) -> &str {
        &self.wish.request.ensure_id
    }

    /// Waits for the route.
    ///
    /// # Errors
    /// The controller's error, or `controller_unavailable`; after the longest wait `eviction_timeout`, `model_loading` or `no_worker`.
    pub(crate) async fn route(&mut self) -> Result<Route, Error> {
        let over = self.state.wait_for(|state| !matches!(state, State::Waiting(_)));
        let Some(longest) = self.wishes.longest else {
            return settled(over.await.as_deref().ok());
        };
        let left = longest.saturating_sub(self.since.elapsed());
        if let Ok(state) = tokio::time::timeout(left, over).await {
            return settled(state.as_deref().ok());
        }
        match &*self.state.borrow() {
            State::Waiting(code) => Err(self.gave_up(*code, longest)),
            state @ (State::Ready(_) | State::Failed(_)) => settled(Some(state)),
        }
    }

    fn gave_up(&self, code: Code, longest: Duration) -> Error {
        let model = &self.wish.request.model_id;
        let waited = longest.as_millis();
        code.error(format!("model {model} was not ready within {waited} ms"))
            .with_detail("waited_ms", waited)
            .with_retry_after(Duration::from_secs(1))
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.wishes.leave(&self.wish);
    }
}

/// The result of a wish. A dropped wish has failed.
fn settled(state: Option<&State>) -> Result<Route, Error> {
    match state {
        Some(State::Ready(route)) => Ok((**route).clone()),
        Some(State::Failed(error)) => Err((**error).clone()),
        Some(State::Waiting(_)) | None => Err(Code::Internal.error("the wish for the model was dropped")),
    }
}

/// Why an attempt ended.
enum Ended {
    /// The controller refused.
    Failed(Error),
    /// The controller could not be reached, or the stream broke.
    Away { status: Status, heard: bool },
    /// The stream broke after `ready`: now the hold ends by its time limit at the worker.
    Held,
}

/// Fails a wish whose task panics: nobody else would tell its waiters.
struct Pursued<'a>(&'a Wish);

impl Drop for Pursued<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let error = Code::Internal.error("the load of the model is not followed any more");
            self.0.state.send_replace(State::Failed(Box::new(error)));
        }
    }
}

/// Runs a wish until all its waiters are gone. If the task is dropped, the waiters see that the sender is gone.
async fn pursue(controller: Controller, wish: Arc<Wish>) {
    let _pursued = Pursued(&wish);
    tokio::select! {
        () = wish.unwanted.cancelled() => {}
        () = insist(&controller, &wish) => {}
    }
}

async fn insist(controller: &Controller, wish: &Wish) {
    let mut away_since: Option<Instant> = None;
    let mut retry = Pauses::new(RETRY);
    loop {
        match attempt(controller, wish).await {
            Ended::Failed(error) => {
                wish.state.send_replace(State::Failed(Box::new(error)));
                return;
            }
            Ended::Held => return,
            Ended::Away { status, heard } => {
                if heard {
                    away_since = None;
                    retry.reset();
                }
                if away_since.get_or_insert_with(Instant::now).elapsed() >= PATIENCE {
                    let model = &wish.request.model_id;
                    tracing::warn!(%model, reason = %status.message(), "no controller to load a model");
                    let message = format!("model {model} is not loaded and the controller is away");
                    let error = Code::ControllerUnavailable
                        .error(message)
                        .with_retry_after(Duration::from_secs(1));
                    wish.state.send_replace(State::Failed(Box::new(error)));
                    return;
                }
                retry.wait().await;
            }
        }
    }
}

/// Reads the route in an event.
fn read(route: Option<v1::Route>) -> Result<Route, Error> {
    let read = route.ok_or(Missing("route")).and_then(Route::try_from);
    read.map_err(|missing| {
        metrics::malformed("answer", missing);
        Code::Internal.error(format!("the controller's answer cannot be understood: {missing}"))
    })
}

async fn attempt(controller: &Controller, wish: &Wish) -> Ended {
    let mut heard = false;
    let mut ready = false;
    let status = match controller.client().ensure_loaded(wish.request.clone()).await {
        Err(status) => status,
        Ok(response) => {
            let mut events = response.into_inner();
            loop {
                let event = match events.message().await {
                    Ok(Some(event)) => event,
                    Ok(None) => break Status::unavailable("the stream ended"),
                    Err(status) => break status,
                };
                if !controller.epochs.admit(event.epoch) {
                    break Status::unavailable("a controller of an older epoch answered");
                }
                heard = true;
                match event.kind {
                    Some(Kind::Ready(done)) => match read(done.route) {
                        Ok(route) => {
                            ready = true;
                            wish.state.send_replace(State::Ready(Box::new(route)));
                        }
                        Err(error) => return Ended::Failed(error),
                    },
                    Some(Kind::Failed(error)) => return Ended::Failed(error.into()),
                    Some(Kind::Queued(queued)) => wish.waits_for(match queued.reason() {
                        QueuedReason::NoWorker => Code::NoWorker,
                        QueuedReason::Unspecified
                        | QueuedReason::Settling
                        | QueuedReason::Downloading
                        | QueuedReason::LoadSlot
                        | QueuedReason::Claim => Code::EvictionTimeout,
                    }),
                    Some(Kind::Evicting(_)) => wish.waits_for(Code::EvictionTimeout),
                    Some(Kind::Loading(_)) => wish.waits_for(Code::ModelLoading),
                    None => {}
                }
            }
        }
    };
    if ready {
        return Ended::Held;
    }
    // An error with typed details is the controller's own; any other comes from the connection.
    let error = Error::from_status(&status);
    let gone = matches!(error.code, Code::ControllerUnavailable | Code::ShuttingDown);
    if status.details().is_empty() || gone {
        return Ended::Away { status, heard };
    }
    Ended::Failed(error)
}

#[cfg(test)]
mod tests {
    use muster_core::GatewayId;
    use muster_proto::{net, trust::Credentials};

    use super::*;

    fn wishes() -> Arc<Wishes> {
        wishes_of(None)
    }

    fn wishes_of(longest: Option<Duration>) -> Arc<Wishes> {
        let controller = Controller {
            channel: net::channel_lazy(&"unix:/nowhere".parse().unwrap(), &Credentials::none()),
            gateway_id: GatewayId::fresh(),
            epochs: Arc::default(),
        };
        Wishes::new(controller, longest, Handle::current())
    }

    fn fail(wish: &Wish) {
        let error = Code::ModelLoadFailed.error("it broke");
        wish.state.send_replace(State::Failed(Box::new(error)));
    }

    #[tokio::test]
    async fn a_wish_ends_with_its_last_waiter_replaced_or_not() {
        let wishes = wishes();
        let join = || wishes.join("m", 0, &Avoid::default()).unwrap();
        let (one, two) = (join(), join());
        let old = Arc::clone(&one.wish);
        assert!(Arc::ptr_eq(&old, &two.wish));
        fail(&old);
        let three = join();
        let new = Arc::clone(&three.wish);
        assert!(!Arc::ptr_eq(&old, &new));
        drop(one);
        assert!(!old.unwanted.is_cancelled());
        drop(two);
        assert!(old.unwanted.is_cancelled());
        assert!(!new.unwanted.is_cancelled());
        assert!(Arc::ptr_eq(&join().wish, &new), "the successor can be joined");
        drop(three);
        assert!(new.unwanted.is_cancelled());
        assert!(wishes.open().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn each_waiter_waits_for_its_own_time_and_hears_what_it_waited_for() {
        let longest = Duration::from_secs(10);
        let wishes = wishes_of(Some(longest));
        let join = || wishes.join("m", 0, &Avoid::default()).unwrap();
        let mut first = join();
        first.wish.waits_for(Code::NoWorker);
        assert_eq!(first.route().await.unwrap_err().code, Code::NoWorker);
        let mut second = join();
        assert!(Arc::ptr_eq(&first.wish, &second.wish));
        drop(first);
        let wish = Arc::clone(&second.wish);
        let ready = Route::try_from(super::super::route::wire("m", "i")).unwrap();
        let (route, ()) = tokio::join!(second.route(), async {
            tokio::time::sleep(longest / 2).await;
            wish.waits_for(Code::ModelLoading);
            wish.state.send_replace(State::Ready(Box::new(ready)));
            wish.waits_for(Code::ModelLoading);
        });
        assert_eq!(route.unwrap().model.as_str(), "m");
    }

    #[tokio::test]
    async fn waiters_that_left_but_still_hold_their_receivers_do_not_count() {
        let wishes = wishes();
        let join = || wishes.join("m", 0, &Avoid::default()).unwrap();
        let waiters = [join(), join()];
        let old = Arc::clone(&waiters[0].wish);
        fail(&old);
        let _new = join();
        // Another thread's waiter still has this between leaving and its end.
        let _lingering = old.state.subscribe();
        drop(waiters);
        assert!(old.unwanted.is_cancelled());
    }
}
