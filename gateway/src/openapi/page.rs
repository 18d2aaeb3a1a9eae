//! The page that shows the document: Swagger UI, from the binary.
//!
//! Its scripts may do what the gateway's caller may, so that the browser is told to run these files only, and to let them speak with nobody else.

use std::sync::{Arc, LazyLock};

use axum::{body::Bytes, response::Response};
use http::{
    HeaderValue, StatusCode,
    header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION, X_CONTENT_TYPE_OPTIONS},
};
use utoipa_swagger_ui::{Config, serve};

/// Swagger UI sets styles of its elements, and draws with images that stand in its style sheet.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Seen from the page; no address outside is asked whether the document is valid.
static CONFIG: LazyLock<Arc<Config<'static>>> = LazyLock::new(|| {
    let config = Config::from("../openapi.json")
        .use_base_layout()
        .deep_linking(true)
        .filter(true)
        .show_extensions(true)
        .try_it_out_enabled(true)
        .validator_url("none");
    Arc::new(config)
});

/// A file of the page; the page itself is the one without a name. None if it has no such file.
pub(crate) fn file(name: &str) -> Option<Response> {
    let file = serve(name, Arc::clone(&CONFIG))
        .inspect_err(|error| tracing::error!(%error, name, "could not write a file of the page"))
        .ok()??;
    let mut response = Response::new(Bytes::from(file.bytes.into_owned()).into());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::try_from(file.content_type).ok()?);
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    Some(response)
}

/// Where the page is: what it names is found from there, whatever a proxy puts before the path.
pub(crate) fn place() -> Response {
    let mut response = Response::default();
    *response.status_mut() = StatusCode::PERMANENT_REDIRECT;
    response
        .headers_mut()
        .insert(LOCATION, HeaderValue::from_static("docs/"));
    response
}
