//! The course of a request in any dialect: it is read and dispatched, and its answer is streamed or collected.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use axum::{
    extract::{FromRequest, Request},
    response::Response,
};
use bytes::Bytes;
use futures::future::try_join_all;
use http::HeaderMap;
use muster_core::{Code, Error};
use muster_proto::{trace, v1::start::Work};

use super::{
    App,
    access::Caller,
    budget::Held,
    layers::RequestId,
    reply::{self, Refusal},
};
use crate::{
    answer_events::AnswerEvents,
    body::EventBody,
    dispatch::{Admitted, Envelope, autoload::on_off},
    render::{Head, Render, answer::Answer},
    stats::Meter,
    translate::Common,
};

/// A request as its handler gets it: the whole body and what came with it.
#[derive(Debug)]
pub(crate) struct ClientRequest {
    pub(crate) body: Bytes,
    /// The body's part of the process's budget.
    _held: Held,
    /// The request's id, made by this gateway.
    pub(crate) id: String,
    trace: HashMap<String, String>,
    /// Tells callers apart by their keys; empty without a key.
    key: String,
    /// The value of `x-muster-priority`.
    priority: i32,
    /// The request's own `?autoload=`; none if it has none.
    pub(crate) autoload: Option<bool>,
    /// Whether its sender may change what is loaded.
    pub(crate) administers: bool,
    /// When the whole request had arrived.
    began: Instant,
}

impl FromRequest<Arc<App>> for ClientRequest {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Refusal> {
        let (parts, body) = request.into_parts();
        let autoload = autoload(parts.uri.query().unwrap_or_default())?;
        let caller = parts.extensions.get::<Caller>().cloned().unwrap_or_default();
        let priority = priority(&parts.headers)?;
        let id = parts.extensions.get::<RequestId>();
        let id = id.map(|id| id.0.clone()).unwrap_or_default();
        let (body, held) = reply::body(body, app.max_body, &app.bodies).await?;
        Ok(Self {
            body,
            _held: held,
            id,
            trace: trace::from_headers(&parts.headers),
            key: caller.key,
            priority: if caller.may_hurry {
                priority
            } else {
                priority.min(0)
            },
            autoload,
            administers: caller.administers,
            began: Instant::now(),
        })
    }
}

impl ClientRequest {
    /// The head of the answer; its id begins with `prefix`.
    pub(crate) fn head(&self, prefix: &str, common: &Common) -> Head {
        Head {
            id: format!("{prefix}{}", self.id),
            model: common.model.clone(),
            created: unix_now(),
        }
    }

    /// Dispatches a piece of work with `choices` choices.
    ///
    /// # Errors
    /// The worker's or the controller's error.
    pub(crate) async fn dispatch(
        &self,
        app: &App,
        common: Common,
        work: Work,
        choices: u32,
    ) -> Result<AnswerEvents, Error> {
        let envelope = self.envelope(common, self.id.clone());
        let admitted = app.dispatcher.dispatch(&envelope, &work).await?;
        let meter = self.meter(app, envelope.common.model);
        Ok(AnswerEvents::new(vec![admitted], choices, meter))
    }

    /// Dispatches all pieces of work at once. One refusal fails them all.
    ///
    /// # Errors
    /// The first error of a worker or the controller.
    pub(crate) async fn dispatch_together(
        &self,
        app: &App,
        common: Common,
        work: Vec<Work>,
        choices: u32,
    ) -> Result<AnswerEvents, Error> {
        let work = match <[Work; 1]>::try_from(work) {
            Ok([work]) => return self.dispatch(app, common, work, choices).await,
            Err(work) => work,
        };
        let parts = self.parts(app, &common, &work).await?;
        Ok(AnswerEvents::new(parts, choices, self.meter(app, common.model)))
    }

    /// As [`dispatch_together`](Self::dispatch_together), where each piece of work is an answer of its own.
    ///
    /// # Errors
    /// The first error of a worker or the controller.
    pub(crate) async fn dispatch_each(
        &self,
        app: &App,
        common: Common,
        work: Vec<Work>,
        choices: u32,
    ) -> Result<Vec<AnswerEvents>, Error> {
        let work = match <[Work; 1]>::try_from(work) {
            Ok([work]) => return Ok(vec![self.dispatch(app, common, work, choices).await?]),
            Err(work) => work,
        };
        let parts = self.parts(app, &common, &work).await?;
        let answer = |part| AnswerEvents::new(vec![part], choices, self.meter(app, common.model.clone()));
        Ok(parts.into_iter().map(answer).collect())
    }

    async fn parts(&self, app: &App, common: &Common, work: &[Work]) -> Result<Vec<Admitted>, Error> {
        let envelope = |index| self.envelope(common.clone(), format!("{}-{index}", self.id));
        let envelopes: Vec<_> = (0..work.len()).map(envelope).collect();
        let pairs = envelopes.iter().zip(work);
        try_join_all(pairs.map(|(envelope, work)| app.dispatcher.dispatch(envelope, work))).await
    }

    fn meter(&self, app: &App, model: String) -> Meter {
        Meter::new(Arc::clone(&app.stats), self.key.clone(), model, self.began)
    }

    fn envelope(&self, common: Common, request_id: String) -> Envelope {
        Envelope {
            common,
            request_id,
            trace: self.trace.clone(),
            key: self.key.clone(),
            priority: self.priority,
            autoload: self.autoload,
        }
    }
}

/// Unix time in seconds.
pub(crate) fn unix_now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}

/// Reads `x-muster-priority`: the urgency among waiting requests, -4 to 4; 0 = normal.
fn priority(headers: &HeaderMap) -> Result<i32, Error> {
    const NAME: &str = "x-muster-priority";
    let Some(value) = headers.get(NAME) else {
        return Ok(0);
    };
    let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    number.filter(|number| (-4..=4).contains(number)).ok_or_else(|| {
        let message = format!("`{NAME}` must be a whole number from -4 to 4");
        Code::InvalidRequest.error(message).with_param(NAME)
    })
}

/// Reads `?autoload=` (gateway/README.md, Autoload).
fn autoload(query: &str) -> Result<Option<bool>, Error> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix("autoload="));
    let wrong = |value| {
        let message = format!("`autoload` must be on or off, not `{value}`");
        Code::InvalidRequest.error(message).with_param("autoload")
    };
    value
        .map(|value| on_off(value).ok_or_else(|| wrong(value)))
        .transpose()
}

/// Streams an answer as server-sent events. The headers wait for the first event, so that an error before it has a plain status.
///
/// # Errors
/// The first event is an error.
pub(crate) async fn stream<R>(mut answers: AnswerEvents, render: R) -> Result<Response, Refusal>
where
    R: Render + Unpin + Send + 'static,
{
    let events = answers.first().await?;
    Ok(reply::events(EventBody::new(answers, events, render)))
}

/// Streams an answer as lines of JSON, in the same way.
///
/// # Errors
/// The first event is an error.
pub(crate) async fn lines<R>(mut answers: AnswerEvents, render: R) -> Result<Response, Refusal>
where
    R: Render + Unpin + Send + 'static,
{
    let events = answers.first().await?;
    Ok(reply::lines(EventBody::new(answers, events, render)))
}

/// Collects a whole answer.
///
/// # Errors
/// Any event is an error.
pub(crate) async fn gather(mut answers: AnswerEvents) -> Result<Answer, Refusal> {
    let mut answer = Answer::default();
    loop {
        for event in answers.first().await? {
            if answer.event(event)? {
                return Ok(answer);
            }
        }
    }
}
