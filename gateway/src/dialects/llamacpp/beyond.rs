//! What llama.cpp's server does for its own page and Muster does not: 501 with the reason.

use http::Method;

use crate::web::{access::Access, route::Route};

const STEERED: &str = "an answer is ended by closing its connection, and is not steered otherwise";
const STREAMS: &str = "a stream goes with its connection: it is not kept to be taken up again";
const TOOLS: &str = "tools run at the client: none runs here";
const PROXY: &str = "requests are not passed on to other servers";

/// Paths, and why they are not done.
const BEYOND: [(Method, &str, &str); 8] = [
    (Method::POST, "/v1/chat/completions/control", STEERED),
    (Method::GET, "/v1/stream", STREAMS),
    (Method::DELETE, "/v1/stream", STREAMS),
    (Method::POST, "/v1/streams/lookup", STREAMS),
    (Method::GET, "/tools", TOOLS),
    (Method::POST, "/tools", TOOLS),
    (Method::GET, "/cors-proxy", PROXY),
    (Method::POST, "/cors-proxy", PROXY),
];

/// The routes.
pub(super) fn routes() -> Vec<Route> {
    let route = |(method, path, why): (Method, &'static str, &'static str)| {
        Route::not_done(&method, path, Access::User, why)
    };
    BEYOND.into_iter().map(route).collect()
}
