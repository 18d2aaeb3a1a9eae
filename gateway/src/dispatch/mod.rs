//! From a validated request to an admitted one (PROTOCOL.md 16).
//!
//! ```text
//!  table ──► pick ──► start ──► admitted ──► the caller reads events
//!    │ none              │ refused (stale, lost, full), or silent for 2 s: at most 3 times elsewhere
//!    ▼                   ▼
//!  wish ──► route ──► start          (the wish's waiter is dropped at admission: that releases the hold)
//! ```
//!
//! Invariants: nothing is sent again after admission; only what a worker refused or never answered is sent again; a dropped future leaves
//! nothing behind, in the queue of a cold model neither.

mod affinity;
pub(crate) mod autoload;
pub(crate) mod loaded;
pub(crate) mod media;
mod pick;
mod uploads;

use std::{
    collections::HashMap,
    future::poll_fn,
    sync::Arc,
    time::{Duration, Instant},
};

use muster_core::{Code, Error};
use muster_proto::v1::{Event, ModelSummary, ModelType, Start, event, start::Work};

use self::{autoload::Autoload, loaded::Loaded, media::MediaHosts};
use crate::{
    fleet::{
        Fleet,
        ensure::{Avoid, Waiter},
        gauge::InFlight,
        table::Target,
    },
    metrics,
    session::{Batch, Pool, Request},
    translate::{Common, defaults, gemma},
};

/// Time without an answer after which a worker counts as suspect.
const ADMISSION: Duration = Duration::from_secs(2);
/// Number of times a request may be sent again.
const MAX_AGAIN: u32 = 3;

/// Everything about a request except its work.
#[derive(Clone, Debug)]
pub(crate) struct Envelope {
    pub(crate) common: Common,
    /// Id of the request, the same for all retries.
    pub(crate) request_id: String,
    /// W3C trace context headers.
    pub(crate) trace: HashMap<String, String>,
    /// The API key's name, by which callers take turns; empty if there is none.
    pub(crate) key: String,
    /// Urgency among waiting requests, -4 to 4.
    pub(crate) priority: i32,
    /// The request's own `?autoload=`; none if it has none.
    pub(crate) autoload: Option<bool>,
}

/// A request that a worker has admitted, with the events received so far.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) request: Request<InFlight>,
    pub(crate) events: Vec<Event>,
    /// The request waited until its model was loaded.
    pub(crate) waited: bool,
}

/// Sends the requests of one I/O thread to workers.
#[derive(Debug)]
pub(crate) struct Dispatcher {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) pool: Arc<Pool>,
    /// Whether requests load models.
    pub(crate) autoload: Autoload,
    /// The hosts from which engines may fetch images and audio.
    pub(crate) media: Arc<MediaHosts>,
    /// Whether cached prompts serve only requests with the same API key.
    pub(crate) private_prefixes: bool,
}

enum Refusal {
    /// Try another instance, perhaps on the same worker.
    Stale(Error),
    /// Try an instance on another worker.
    Away(Error),
    /// Try another instance if one is ready. Loading one more would not help.
    Full(Error),
    /// Answer with this error.
    Final(Error),
}

impl Dispatcher {
    /// Finds an instance for `work` and waits until the instance has admitted it. Loads the model if necessary.
    ///
    /// # Errors
    /// The last error of a worker or the controller, with a code of the catalogue.
    pub(crate) async fn dispatch(&self, envelope: &Envelope, work: &Work) -> Result<Admitted, Error> {
        self.media.check(work)?;
        let shaped = match self.fleet.table().model(&envelope.common.model) {
            Some(summary) => {
                let filled = defaults::filled(summary, work);
                gemma::structured(summary, filled.as_ref().unwrap_or(work))?.or(filled)
            }
            None => None,
        };
        let work = shaped.as_ref().unwrap_or(work);
        let affinity = affinity::key(&envelope.common.model, work);
        let mut avoid = Avoid::default();
        let mut again = 0;
        let mut silent = false;
        let mut waited = false;
        loop {
            let (target, waiter) = self.target(envelope, work, affinity, &avoid).await?;
            waited |= waiter.is_some();
            let capabilities = target.route.capabilities.as_ref();
            check_thinking(envelope, capabilities.map(|can| can.thinking))?;
            let start = Start {
                private_prefixes: self.private_prefixes,
                ..start(envelope, work, &target, waiter.as_ref())
            };
            let error = match self.attempt(start, &target, &mut silent).await {
                Ok((request, events)) => {
                    return Ok(Admitted {
                        request,
                        events,
                        waited,
                    });
                }
                Err(Refusal::Final(error)) => return Err(error),
                Err(Refusal::Stale(error)) => {
                    avoid.instances.push(target.instance_id().clone());
                    error
                }
                Err(Refusal::Away(error)) => {
                    avoid.instances.push(target.instance_id().clone());
                    avoid.workers.push(target.route.to.worker.clone());
                    error
                }
                Err(Refusal::Full(error)) => {
                    avoid.instances.push(target.instance_id().clone());
                    if self.pick(envelope, affinity, &avoid).is_none() {
                        return Err(error);
                    }
                    error
                }
            };
            tracing::debug!(request = %envelope.request_id, instance = %target.instance_id(), %error, "sending a request elsewhere");
            if again == MAX_AGAIN {
                return Err(error);
            }
            again += 1;
        }
    }

    /// Waits until a model is loaded, and sends it nothing. `autoload` is the request's own.
    ///
    /// # Errors
    /// Why it cannot be loaded.
    pub(crate) async fn ensure(&self, model: &str, autoload: Option<bool>) -> Result<(), Error> {
        self.loaded_for(model, autoload).await.map(drop)
    }

    /// A client for an instance, for calls beside the sessions. Loads the model if necessary; `autoload` is the request's own. If a waiter
    /// is returned, it protects the instance until it is dropped.
    ///
    /// # Errors
    /// Why the model cannot be loaded.
    pub(crate) async fn loaded_for(
        &self,
        model: &str,
        autoload: Option<bool>,
    ) -> Result<(Loaded, Option<Waiter>), Error> {
        let common = Common {
            model: model.to_owned(),
            ..Common::default()
        };
        let envelope = Envelope {
            common,
            request_id: String::new(),
            trace: HashMap::new(),
            key: String::new(),
            priority: 0,
            autoload,
        };
        if let Some(target) = self.pick(&envelope, None, &Avoid::default()) {
            return Ok((self.at(&target.route), None));
        }
        let limit = {
            let table = self.fleet.table();
            if table.known() && table.model(model).is_none() {
                return Err(unknown_model(model));
            }
            self.may_load(model, autoload)?;
            table.model(model).map_or(0, |summary| summary.queue_limit)
        };
        let mut waiter = self.fleet.wishes().join(model, limit, &Avoid::default())?;
        let route = waiter.route().await?;
        Ok((self.at(&route), Some(waiter)))
    }

    /// A ready instance, or one that is loaded for this request.
    async fn target(
        &self,
        envelope: &Envelope,
        work: &Work,
        affinity: Option<u64>,
        avoid: &Avoid,
    ) -> Result<(Arc<Target>, Option<Waiter>), Error> {
        let limit = {
            let table = self.fleet.table();
            let model = &envelope.common.model;
            match table.model(model) {
                Some(summary) => {
                    check_type(summary, work)?;
                    check_thinking(envelope, summary.thinking)?;
                }
                None if table.known() => return Err(unknown_model(model)),
                // The catalogue is not known yet: the controller decides.
                None => {}
            }
            table.model(model).map_or(0, |summary| summary.queue_limit)
        };
        if let Some(target) = self.pick(envelope, affinity, avoid) {
            return Ok((target, None));
        }
        self.may_load(&envelope.common.model, envelope.autoload)?;
        let mut waiter = self.fleet.wishes().join(&envelope.common.model, limit, avoid)?;
        let since = Instant::now();
        let route = waiter.route().await;
        metrics::waited(&envelope.common.model, route.is_ok(), since.elapsed());
        let route = route?;
        let gauge = self.fleet.table().gauge(route.to.instance.as_str());
        Ok((Arc::new(Target::new(route, gauge, 0)), Some(waiter)))
    }

    /// Checks whether a request may load its model; `autoload` is the request's own.
    pub(crate) fn may_load(&self, model: &str, autoload: Option<bool>) -> Result<(), Error> {
        let table = self.fleet.table();
        let summary = table.model(model).map(Arc::as_ref);
        self.autoload.check(autoload, summary)
    }

    fn pick(&self, envelope: &Envelope, affinity: Option<u64>, avoid: &Avoid) -> Option<Arc<Target>> {
        let now = Instant::now();
        pick::pick(
            self.fleet.table().targets(&envelope.common.model),
            affinity,
            |target| avoid.instances.iter().any(|id| id == target.instance_id()),
            |target| {
                let session = self.pool.existing(target.at());
                session.is_some_and(|session| session.is_suspect(now))
            },
            |n| fastrand::usize(..n),
        )
    }

    /// Sends a request to one instance and waits until it is admitted. `silent`: a worker has already left it unanswered once.
    async fn attempt(
        &self,
        start: Start,
        target: &Target,
        silent: &mut bool,
    ) -> Result<(Request<InFlight>, Vec<Event>), Refusal> {
        let session = self.pool.session(target.at());
        let mut request = Request::start(session, start, target.gauge.enter());
        let mut events = Vec::new();
        let answer = poll_fn(|cx| request.poll(cx, &mut events));
        match tokio::time::timeout(ADMISSION, answer).await {
            Ok(Batch::More) => match events.first().and_then(|event| event.kind.as_ref()) {
                Some(event::Kind::Failed(error)) => Err(refusal(error.clone().into())),
                Some(event::Kind::Admitted(admitted)) => {
                    target.gauge.report(admitted.queue_position);
                    events.remove(0);
                    Ok((request, events))
                }
                Some(_) | None => Ok((request, events)),
            },
            Ok(Batch::End(_)) => {
                let error =
                    Code::WorkerLost.error("the connection to the worker broke before it took the request");
                Err(Refusal::Away(error))
            }
            Err(_) => {
                request.session().suspect();
                let error = Code::WorkerLost.error("the worker did not answer in time");
                let again = !std::mem::replace(silent, true);
                Err(if again {
                    Refusal::Away(error)
                } else {
                    Refusal::Final(error)
                })
            }
        }
    }
}

fn refusal(error: Error) -> Refusal {
    #[allow(
        clippy::wildcard_enum_match_arm,
        reason = "all other codes of the catalogue are answers, not refusals"
    )]
    match error.code {
        Code::StaleInstance => Refusal::Stale(error),
        Code::ShuttingDown => Refusal::Away(error),
        Code::QueueFull | Code::NoRoom => Refusal::Full(error),
        _ => Refusal::Final(error),
    }
}

fn start(envelope: &Envelope, work: &Work, target: &Target, waiter: Option<&Waiter>) -> Start {
    Start {
        request_id: envelope.request_id.clone(),
        instance: Some(target.route.instance()),
        // Callers take turns by key, and within a key by the `user` that they name.
        fairness_key: envelope.key.clone(),
        fairness_user: envelope.common.user.clone(),
        priority: envelope.priority,
        hold_id: waiter
            .map(|waiter| waiter.hold_id().to_owned())
            .unwrap_or_default(),
        trace: envelope.trace.clone(),
        work: Some(work.clone()),
        ..Start::default()
    }
}

/// The error with seed 000's text (`GET /models/{id}`).
pub(crate) fn unknown_model(model: &str) -> Error {
    let error = Code::UnknownModel.error(format!("Model {model} has not been found"));
    error.with_param("model")
}

fn check_type(summary: &ModelSummary, work: &Work) -> Result<(), Error> {
    match work {
        Work::Generate(_) => check_kind(summary, ModelType::Llm, "generate text"),
        Work::Embed(_) => check_kind(summary, ModelType::Embedding, "compute embeddings"),
        Work::Rerank(_) => check_kind(summary, ModelType::Reranking, "rerank"),
    }
}

/// Refuses a model of the wrong type before any load (gateway/README.md, Autoload). `does` is what the request wanted, for the message.
pub(crate) fn check_kind(summary: &ModelSummary, want: ModelType, does: &str) -> Result<(), Error> {
    let is = match ModelType::try_from(summary.r#type) {
        Ok(ModelType::Unspecified) | Err(_) => ModelType::Llm,
        Ok(known) => known,
    };
    if is == want {
        return Ok(());
    }
    let what = match is {
        ModelType::Llm | ModelType::Unspecified => "a chat model",
        ModelType::Embedding => "an embedding model",
        ModelType::Reranking => "a reranking model",
        ModelType::Audio => "an audio model",
        ModelType::Image => "an image model",
    };
    let message = format!("model {} is {what}; it does not {does}", summary.id);
    Err(Code::UnsupportedByRuntime.error(message).with_param("model"))
}

/// Refuses a request that switches thinking if the model cannot (seed 001). Checked before a load if it is known.
fn check_thinking(envelope: &Envelope, can: Option<bool>) -> Result<(), Error> {
    if envelope.common.thinking && can == Some(false) {
        let message = format!(
            "model {} cannot switch thinking per request",
            envelope.common.model
        );
        return Err(Code::ThinkingUnsupported.error(message).with_param("thinking"));
    }
    Ok(())
}
