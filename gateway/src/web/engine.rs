//! An engine's own HTTP answer as ours.

use axum::{body::Body, response::Response};
use futures::{Stream, StreamExt as _};
use http::{HeaderValue, StatusCode, header::CONTENT_TYPE};
use muster_proto::{
    Code,
    v1::{ErrorInfo, NativeChunk},
};

use super::reply::Refusal;

/// Its head, then its body as it comes.
///
/// # Errors
/// The engine did not answer.
pub(crate) async fn response<S>(mut chunks: S) -> Result<Response, Refusal>
where
    S: Stream<Item = Result<NativeChunk, ErrorInfo>> + Unpin + Send + 'static,
{
    let first = match chunks.next().await {
        Some(first) => first?,
        None => return Err(Code::RuntimeError.error("the engine did not answer").into()),
    };
    let status = u16::try_from(first.status).ok();
    let status = status.and_then(|status| StatusCode::from_u16(status).ok());
    let kind = HeaderValue::from_str(&first.content_type).ok();
    let head = futures::stream::once(async move { Ok(first.body) });
    let rest = chunks.map(|chunk| {
        let body = chunk.map(|chunk| chunk.body);
        body.map_err(|error| std::io::Error::other(error.message))
    });
    let mut response = Response::new(Body::from_stream(head.chain(rest)));
    *response.status_mut() = status.unwrap_or(StatusCode::BAD_GATEWAY);
    if let Some(kind) = kind {
        response.headers_mut().insert(CONTENT_TYPE, kind);
    }
    Ok(response)
}
