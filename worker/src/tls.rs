//! TLS of the worker's HTTP clients: one implementation, `ring`, which reqwest doesn't choose by itself.

/// Where every client begins: one that is built without it would panic for want of an implementation.
pub(crate) fn client() -> reqwest::ClientBuilder {
    // Only the first counts; it is the same each time.
    rustls::crypto::ring::default_provider().install_default().ok();
    reqwest::Client::builder()
}
