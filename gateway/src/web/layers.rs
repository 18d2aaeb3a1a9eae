//! Layers around all routes: request ids, cross-origin access, and errors for panics.

use std::{
    any::Any,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::{MatchedPath, Request},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
};
use http::{HeaderName, HeaderValue, header::RETRY_AFTER};
use muster_core::{Code, id};
use tower_http::{
    catch_panic::CatchPanicLayer,
    cors::{AllowHeaders, Any as AnyOrigin, CorsLayer},
};

use super::{
    FormAt,
    host::{self, Hosts},
    reply::{self, Refusal},
};
use crate::{metrics, render::error};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Anthropic's name of the request id's header.
const ANTHROPIC_ID: HeaderName = HeaderName::from_static("request-id");
const LONGEST_ID: usize = 128;
/// How long browsers may cache the answer to a preflight request; Chrome caps it at two hours.
const PREFLIGHT: Duration = Duration::from_secs(7200);

/// A new id for a request. The client's own is not used, because a worker cancels the older of two requests with the same id.
#[derive(Clone, Debug)]
pub(super) struct RequestId(pub(super) String);

pub(super) fn wrap(router: Router, hosts: Arc<Hosts>, form_at: FormAt) -> Router {
    // Local web applications of any origin use the API, as with Lemonade and llama.cpp's server. `*` would exclude `Authorization`.
    let cors = CorsLayer::new()
        .allow_origin(AnyOrigin)
        .allow_methods(AnyOrigin)
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([REQUEST_ID, ANTHROPIC_ID, RETRY_AFTER])
        .max_age(PREFLIGHT);
    router
        .layer(CatchPanicLayer::custom(panicked))
        // An error outside any dialect, such as an unknown path, has OpenAI's form.
        .layer(middleware::map_response(|response| async {
            reply::write_error(&error::OPENAI, response)
        }))
        .layer(cors)
        .layer(middleware::from_fn(move |request, next| {
            host::check(Arc::clone(&hosts), form_at, request, next)
        }))
        .layer(middleware::from_fn(request_id))
        .layer(middleware::from_fn(count))
}

/// Counts requests by route. Paths without a route are counted together, so that clients cannot create labels.
async fn count(request: Request, next: Next) -> Response {
    let began = Instant::now();
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    let known = matches!(
        method.as_str(),
        "GET" | "POST" | "DELETE" | "OPTIONS" | "HEAD" | "PUT"
    );
    let method = if known { method.as_str() } else { "other" };
    metrics::answered(method, route, response.status().as_u16(), began.elapsed());
    response
}

/// Adds the client's `x-request-id` to the answer, or a new one if it sent none.
async fn request_id(mut request: Request, next: Next) -> Response {
    let ours = id::fresh();
    let theirs = request
        .headers()
        .get(&REQUEST_ID)
        .filter(|value| value.len() <= LONGEST_ID)
        .cloned();
    request
        .extensions_mut()
        .insert(RequestId(ours.as_ref().to_owned()));
    let mut response = next.run(request).await;
    if let Some(value) = theirs.or_else(|| HeaderValue::from_str(&ours).ok()) {
        response.headers_mut().insert(ANTHROPIC_ID, value.clone());
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

#[allow(clippy::needless_pass_by_value, reason = "the signature that the layer wants")]
fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!(panic = text.unwrap_or("unknown"), "a handler panicked");
    Refusal(Code::Internal.error("the gateway failed on this request")).into_response()
}
