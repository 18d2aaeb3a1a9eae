//! Reads request bodies up to a limit, and writes answers and errors.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::{Bytes, BytesMut};
use http::{
    HeaderValue, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER},
};
use http_body_util::BodyExt as _;
use muster_core::{Code, Error};

use super::budget::{Budget, Held};
use crate::render::error::{ErrorForm, http_status};

/// Longest time for a body to arrive: twice what the largest body needs at 1 MB/s.
const BODY_TIME: Duration = Duration::from_secs(120);
/// Number of bytes of a body that is too large that are read anyway, so that its sender gets the answer.
const DISCARD_BYTES: usize = 64 << 20;
const DISCARD_TIME: Duration = Duration::from_secs(5);
/// `Retry-After` if the error has none of its own.
const RETRY: Duration = Duration::from_secs(1);

/// An error as a response.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) Error);

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Refusal {
    /// Status and headers. [`write_error`], which knows the dialect, writes the body.
    fn into_response(self) -> Response {
        let error = self.0;
        let code = error.code;
        if http_status(code).is_server_error() {
            tracing::warn!(%error, "answered with an error");
        } else {
            tracing::debug!(%error, "refused a request");
        }
        let mut response = json(http_status(code), Body::empty());
        if let Some(after) = retry_after(&error) {
            response.headers_mut().insert(RETRY_AFTER, after);
        }
        response.extensions_mut().insert(Unwritten(error));
        response
    }
}

/// An error whose body is not written yet.
#[derive(Clone, Debug)]
struct Unwritten(Error);

/// Writes the body of a [`Refusal`] in a dialect's form. Other responses stay as they are.
pub(crate) fn write_error(form: &ErrorForm, mut response: Response) -> Response {
    if let Some(Unwritten(error)) = response.extensions_mut().remove::<Unwritten>() {
        *response.status_mut() = (form.status)(error.code);
        *response.body_mut() = form.body(&error).into();
    }
    response
}

/// Whole seconds, rounded up, for errors that a retry can resolve.
fn retry_after(error: &Error) -> Option<HeaderValue> {
    let after = error.retry_after.or_else(|| {
        let busy = matches!(
            http_status(error.code),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        );
        busy.then_some(RETRY)
    })?;
    let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
    Some(HeaderValue::from(seconds.max(1)))
}

/// A JSON body.
pub(crate) fn json(status: StatusCode, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A JSON body with status 200.
pub(crate) fn ok(body: Bytes) -> Response {
    json(StatusCode::OK, body)
}

/// A value as a JSON body.
pub(crate) fn value<T: serde::Serialize>(status: StatusCode, value: &T) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => json(status, body),
        Err(error) => {
            let error = Code::Internal.error(format!("could not write the answer: {error}"));
            Refusal(error).into_response()
        }
    }
}

/// A stream of server-sent events.
pub(crate) fn events<B>(body: B) -> Response
where
    B: http_body::Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    streamed(body, "text/event-stream")
}

/// A stream of lines of JSON.
pub(crate) fn lines<B>(body: B) -> Response
where
    B: http_body::Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    streamed(body, "application/x-ndjson")
}

fn streamed<B>(body: B, kind: &'static str) -> Response
where
    B: http_body::Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // nginx would otherwise buffer events.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Reads a request's body of at most `limit` bytes. Keep the returned account as long as the body.
///
/// # Errors
/// `body_too_large`; `queue_full` if the process holds too many bytes of bodies; `slow_request` if the body takes too long;
/// `invalid_request` if the client stops sending.
pub(crate) async fn body(mut body: Body, limit: usize, budget: &Arc<Budget>) -> Result<(Bytes, Held), Error> {
    let mut held = budget.begin();
    let read = tokio::time::timeout(BODY_TIME, gather(&mut body, limit, &mut held)).await;
    let Ok(read) = read else {
        let message = format!("the body did not come whole in {} s", BODY_TIME.as_secs());
        return Err(Code::SlowRequest.error(message));
    };
    let error = match read {
        Ok(bytes) => return Ok((bytes, held)),
        Err(Unread::Large) => Code::BodyTooLarge.error(format!("the body is larger than {limit} bytes")),
        Err(Unread::Full) => {
            let message = format!("the gateway holds {} bytes of requests already", budget.all());
            Code::QueueFull.error(message)
        }
        Err(Unread::Broken(error)) => {
            return Err(Code::InvalidRequest.error(format!("could not read the body: {error}")));
        }
    };
    drop(held);
    discard(body).await;
    Err(error)
}

/// Why a body was not read to its end.
#[derive(Debug)]
enum Unread {
    Large,
    Full,
    Broken(axum::Error),
}

async fn gather(body: &mut Body, limit: usize, held: &mut Held) -> Result<Bytes, Unread> {
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(Unread::Broken)?.into_data() else {
            continue;
        };
        if data.len() > limit - all.len() {
            return Err(Unread::Large);
        }
        if !held.take(data.len()) {
            return Err(Unread::Full);
        }
        all.extend_from_slice(&data);
    }
    Ok(all.freeze())
}

/// Reads on for a while, so that its sender gets the answer instead of a closed connection.
pub(crate) async fn discard(mut body: Body) {
    let mut left = DISCARD_BYTES;
    let read = async {
        while let Some(Ok(frame)) = body.frame().await {
            let size = frame.data_ref().map_or(0, Bytes::len);
            if size > left {
                return;
            }
            left -= size;
        }
    };
    // Too slow or too large: the sender sees the connection close instead.
    drop(tokio::time::timeout(DISCARD_TIME, read).await);
}

#[cfg(test)]
mod tests {
    use std::{
        pin::Pin,
        task::{Context, Poll},
    };

    use http_body::Frame;

    use super::*;

    /// A body that sends one byte every ten seconds.
    struct Slow(Pin<Box<tokio::time::Sleep>>);

    impl http_body::Body for Slow {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            std::task::ready!(self.0.as_mut().poll(cx));
            self.0 = Box::pin(tokio::time::sleep(Duration::from_secs(10)));
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b" ")))))
        }
    }

    #[tokio::test]
    async fn a_body_that_never_ends_is_given_up() {
        tokio::time::pause();
        let began = tokio::time::Instant::now();
        let slow = Slow(Box::pin(tokio::time::sleep(Duration::ZERO)));
        let error = body(Body::new(slow), 1 << 20, &Budget::new(1 << 20))
            .await
            .unwrap_err();
        assert_eq!(error.code, Code::SlowRequest);
        assert!(began.elapsed() >= BODY_TIME && began.elapsed() < 2 * BODY_TIME);
    }
}
