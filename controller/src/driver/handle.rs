//! The handle by which all others use the driver. Cheap to clone.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::SystemTime,
};

use muster_core::{Code, Error, RequestId, SessionId};
use muster_proto::{
    StatusExt,
    life::Life,
    v1::{self, worker_message::Kind as Up},
};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::inbox::{
    ASKS, Answer, Ask, CLOSINGS, CallState, Closing, Inbox, Join, Models, OnDrop, Order, Pin, PullState,
    Query, Reply, SESSIONS, Said, WORKERS, stopping,
};
use crate::{
    config::{Sources, Timing},
    convert::{stage::unknown_model, wish::Wish},
    state::Saving,
};

/// The sending ends of the driver's lanes.
#[derive(Debug, Clone)]
pub(crate) struct Lanes {
    outcomes: mpsc::Sender<SessionId>,
    reports: mpsc::Sender<SessionId>,
    joins: mpsc::Sender<Box<Join>>,
    ends: mpsc::Sender<SessionId>,
    closings: mpsc::Sender<Closing>,
    asks: mpsc::Sender<Ask>,
    joining: Arc<AtomicUsize>,
}

/// Both ends of the lanes.
pub(super) fn lanes() -> (Lanes, Inbox) {
    let (outcomes, with_outcomes) = mpsc::channel(WORKERS);
    let (reports, with_reports) = mpsc::channel(WORKERS);
    let (joins, from_workers) = mpsc::channel(WORKERS);
    let (ends, from_sessions) = mpsc::channel(SESSIONS);
    let (closings, from_streams) = mpsc::channel(CLOSINGS);
    let (asks, from_callers) = mpsc::channel(ASKS);
    let joining = Arc::new(AtomicUsize::new(0));
    let inbox = Inbox {
        outcomes: with_outcomes,
        reports: with_reports,
        joins: from_workers,
        ends: from_sessions,
        closings: from_streams,
        asks: from_callers,
        joining: Arc::clone(&joining),
    };
    (
        Lanes {
            outcomes,
            reports,
            joins,
            ends,
            closings,
            asks,
            joining,
        },
        inbox,
    )
}

/// A handle of the driver.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    lanes: Lanes,
    serials: Arc<AtomicU64>,
    epoch: watch::Receiver<u64>,
    events: broadcast::Sender<v1::FleetEvent>,
    timing: Timing,
    stop: CancellationToken,
    life: Life,
    troubles: watch::Receiver<Vec<String>>,
    sources: Arc<Sources>,
}

/// Counts a worker that is about to join: from its call until the driver has its hello, or the worker is gone.
#[derive(Debug)]
pub(crate) struct Joining(Arc<AtomicUsize>);

impl Drop for Joining {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The driver no longer reads what the session says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unheard;

/// An open `EnsureLoaded` stream. The hold lives as long as this value.
#[derive(Debug)]
pub(crate) struct Ensure {
    // Dropped before `_end` is sent, so that a driver that sees the end first finds no listener.
    receiver: watch::Receiver<Option<v1::EnsureLoadedEvent>>,
    _end: OnDrop<Closing>,
}

impl Ensure {
    /// The next event; none when another stream has taken over this hold, or the controller ends.
    pub(crate) async fn next(&mut self) -> Option<v1::EnsureLoadedEvent> {
        loop {
            self.receiver.changed().await.ok()?;
            if let Some(event) = self.receiver.borrow_and_update().clone() {
                return Some(event);
            }
        }
    }
}

/// An operator's call in progress. It goes on if this value is dropped.
#[derive(Debug)]
pub(crate) struct RunningCall {
    receiver: watch::Receiver<CallState>,
}

/// A message about a call.
#[derive(Debug)]
pub(crate) enum Word {
    /// The call goes on.
    Progress(Box<v1::load_model_event::Kind>),
    /// The call has ended.
    Done(Answer),
}

impl RunningCall {
    /// Waits for the next message.
    ///
    /// # Errors
    /// The call failed, or the controller ends.
    pub(crate) async fn next(&mut self) -> Result<Word, Status> {
        loop {
            self.receiver.changed().await.map_err(|_| stopping())?;
            match self.receiver.borrow_and_update().clone() {
                CallState::Waiting => {}
                CallState::Progress(kind) => return Ok(Word::Progress(kind)),
                CallState::Done(Ok(answer)) => return Ok(Word::Done(answer)),
                CallState::Done(Err(error)) => return Err(error.into_status()),
            }
        }
    }

    /// Waits for the call's end.
    ///
    /// # Errors
    /// As [`RunningCall::next`].
    pub(crate) async fn finish(mut self) -> Result<Answer, Status> {
        loop {
            if let Word::Done(answer) = self.next().await? {
                return Ok(answer);
            }
        }
    }
}

impl Handle {
    pub(super) fn new(
        lanes: Lanes,
        epoch: &watch::Sender<u64>,
        events: &broadcast::Sender<v1::FleetEvent>,
        timing: Timing,
        stop: CancellationToken,
        (life, troubles): (&Life, watch::Receiver<Vec<String>>),
        sources: Sources,
    ) -> Self {
        let (epoch, events) = (epoch.subscribe(), events.clone());
        Self {
            lanes,
            serials: Arc::default(),
            epoch,
            events,
            timing,
            stop,
            life: life.clone(),
            troubles,
            sources: Arc::new(sources),
        }
    }

    /// Whether the driver still makes progress.
    pub(crate) fn alive(&self) -> bool {
        self.life.still().is_none()
    }

    /// What the controller cannot do at the moment, in sentences.
    pub(crate) fn troubles(&self) -> Vec<String> {
        self.troubles.borrow().clone()
    }

    /// Times of sessions and streams.
    pub(crate) fn timing(&self) -> Timing {
        self.timing
    }

    /// Resolves when the controller ends.
    pub(crate) fn stop(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// The controller's epoch.
    pub(crate) fn epoch(&self) -> u64 {
        *self.epoch.borrow()
    }

    /// Where the configuration comes from.
    pub(crate) fn sources(&self) -> Sources {
        self.sources.as_ref().clone()
    }

    /// Tells operators of something that did not come of policy.
    pub(crate) fn tell(&self, kind: &str, reason: &str) {
        let event = v1::FleetEvent {
            at: Some(SystemTime::now().into()),
            kind: kind.to_owned(),
            reason: reason.to_owned(),
            ..v1::FleetEvent::default()
        };
        // Nobody need listen.
        drop(self.events.send(event));
    }

    /// A receiver of the events that policy decides from now on.
    pub(crate) fn events(&self) -> broadcast::Receiver<v1::FleetEvent> {
        self.events.subscribe()
    }

    /// Notes that a worker is about to join.
    pub(crate) fn joining(&self) -> Joining {
        self.lanes.joining.fetch_add(1, Ordering::Relaxed);
        Joining(Arc::clone(&self.lanes.joining))
    }

    /// Asks for a worker's session. Waits while the driver is behind. Returns false if the controller ends.
    pub(crate) async fn join(&self, join: Join) -> bool {
        self.lanes.joins.send(Box::new(join)).await.is_ok()
    }

    /// Passes on a message of a session. Waits while the driver is behind, which slows the worker down.
    ///
    /// # Errors
    /// The session no longer counts, or the controller ends.
    pub(crate) async fn say(
        &self,
        session: &SessionId,
        mailbox: &mpsc::Sender<Said>,
        kind: Up,
    ) -> Result<(), Unheard> {
        let turns = match kind {
            Up::Outcome(_) => &self.lanes.outcomes,
            Up::Report(_) | Up::Goodbye(_) | Up::Files(_) | Up::Heartbeat(_) | Up::Hello(_) => {
                &self.lanes.reports
            }
        };
        mailbox.send(Box::new(kind)).await.map_err(|_| Unheard)?;
        // If this task ends here, the session's end makes the driver read it.
        turns.send(session.clone()).await.map_err(|_| Unheard)
    }

    /// Reserves a place for a worker's session. Dropping the value tells the driver that the session has ended.
    ///
    /// # Errors
    /// Too many sessions are open; none if the controller ends.
    pub(crate) fn session(&self, id: SessionId) -> Result<OnDrop<SessionId>, Option<Error>> {
        match self.lanes.ends.clone().try_reserve_owned() {
            Ok(permit) => Ok(OnDrop::new(permit, id)),
            Err(mpsc::error::TrySendError::Full(_)) => {
                let text = format!("the controller has {SESSIONS} worker sessions open and takes no more");
                Err(Some(
                    Code::QueueFull
                        .error(text)
                        .with_retry_after(self.timing.lost_after),
                ))
            }
            Err(mpsc::error::TrySendError::Closed(_)) => Err(None),
        }
    }

    /// Opens a wish for a model.
    ///
    /// # Errors
    /// Too many are open, or the controller ends.
    pub(crate) fn ensure(&self, wish: Wish) -> Result<Ensure, Status> {
        let permit = self
            .lanes
            .closings
            .clone()
            .try_reserve_owned()
            .map_err(|error| refused(&error))?;
        let serial = self.serials.fetch_add(1, Ordering::Relaxed);
        let hold = wish.hold.clone();
        let (sender, receiver) = watch::channel(None);
        let ensure = Ensure {
            receiver,
            _end: OnDrop::new(permit, Closing { hold, serial }),
        };
        self.ask(Ask::Ensure { wish, serial, sender })?;
        Ok(ensure)
    }

    /// Begins an operator's call.
    ///
    /// # Errors
    /// The controller is overloaded or ends.
    pub(crate) fn call(&self, order: Order) -> Result<RunningCall, Status> {
        let (sender, receiver) = watch::channel(CallState::Waiting);
        self.ask(Ask::Call {
            request: RequestId::fresh(),
            order,
            sender,
        })?;
        Ok(RunningCall { receiver })
    }

    /// Asks a question.
    ///
    /// # Errors
    /// The controller is overloaded or ends.
    pub(crate) async fn query<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<T>) -> Query,
    ) -> Result<T, Status> {
        let (sender, receiver) = oneshot::channel();
        self.ask(Ask::Query(question(sender)))?;
        receiver.await.map_err(|_| stopping())
    }

    /// Pins or unpins a model and waits until that is on disk.
    ///
    /// # Errors
    /// The model is unknown, the pin cannot be written, or the controller is overloaded or ends.
    pub(crate) async fn pin(&self, model: String, pin: crate::state::Pin) -> Result<v1::Model, Status> {
        let (reply, receiver) = oneshot::channel();
        let unknown = unknown_model(&model);
        self.ask(Ask::Pin(Pin { model, pin, reply }))?;
        let (model, saving) = receiver
            .await
            .map_err(|_| stopping())?
            .ok_or_else(|| unknown.into_status())?;
        let kept = self.kept(saving).await;
        kept.map(|()| model).map_err(StatusExt::into_status)
    }

    /// Waits until a change is on disk.
    ///
    /// # Errors
    /// It cannot be written, or the controller ends.
    pub(crate) async fn kept(&self, saving: Saving) -> Result<(), Error> {
        saving.done().await.map_err(|failed| match failed {
            None => Error::from_status(&stopping()),
            Some(error) => Code::Internal
                .error("it holds, but only until the controller ends: it could not be written")
                .with_detail("cause", error),
        })
    }

    /// Begins to download a model's files.
    ///
    /// # Errors
    /// The controller is overloaded or ends.
    pub(crate) fn pull(&self, request: v1::PullModelRequest) -> Result<watch::Receiver<PullState>, Status> {
        let (sender, receiver) = watch::channel(PullState::Waiting);
        self.ask(Ask::Models(Models::Pull(request, sender)))?;
        Ok(receiver)
    }

    /// Changes the catalogue, or files.
    ///
    /// # Errors
    /// It is refused, or the controller is overloaded or ends.
    pub(crate) async fn models<T>(&self, change: impl FnOnce(Reply<T>) -> Models) -> Result<T, Error> {
        let (reply, receiver) = oneshot::channel();
        let asked = self.ask(Ask::Models(change(reply)));
        asked.map_err(|status| Error::from_status(&status))?;
        let answer = receiver.await;
        answer.map_err(|_| Error::from_status(&stopping()))?
    }

    fn ask(&self, ask: Ask) -> Result<(), Status> {
        self.lanes.asks.try_send(ask).map_err(|error| refused(&error))
    }
}

fn refused<T>(error: &mpsc::error::TrySendError<T>) -> Status {
    match error {
        mpsc::error::TrySendError::Full(_) => Code::QueueFull
            .error("the controller has too many calls waiting")
            .into_status(),
        mpsc::error::TrySendError::Closed(_) => stopping(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: each session held a place in the lane that all of them send on, so with as many sessions as places nothing came through.
    #[test]
    fn sessions_take_no_place_from_their_messages_and_one_too_many_is_refused() {
        let (lanes, mut inbox) = lanes();
        let (epoch, events) = (watch::Sender::new(1), broadcast::Sender::new(1));
        let timing = Timing::default();
        let handle = Handle::new(
            lanes,
            &epoch,
            &events,
            timing,
            CancellationToken::new(),
            (&Life::default(), watch::channel(Vec::new()).1),
            Sources::default(),
        );
        let name = |n: usize| SessionId::from(n.to_string().as_str());
        let mut open: Vec<_> = (0..SESSIONS).map(|n| handle.session(name(n)).unwrap()).collect();
        assert_eq!(handle.lanes.reports.capacity(), WORKERS);
        let refused = handle.session(name(SESSIONS)).unwrap_err().unwrap();
        assert_eq!(refused.code, Code::QueueFull);
        assert!(inbox.ends.try_recv().is_err());
        open.pop();
        assert_eq!(inbox.ends.try_recv().unwrap(), name(SESSIONS - 1));
        assert!(handle.session(name(SESSIONS)).is_ok());
    }
}
