//! TLS for the worker's HTTP clients with `ring`, which reqwest does not choose by itself.

/// A builder for clients. A client made in another way panics, because no TLS implementation is installed.
pub(crate) fn client() -> reqwest::ClientBuilder {
    // Only the first call installs it; all calls install the same.
    rustls::crypto::ring::default_provider().install_default().ok();
    reqwest::Client::builder()
}
