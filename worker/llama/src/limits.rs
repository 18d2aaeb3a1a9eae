//! What a loaded model allows a request, decided once at load.

/// What the instance is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Generate,
    Embed,
    Rerank,
}

/// Bounds of requests.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) role: Role,
    /// Most tokens one request may use, prompt and output together.
    pub(crate) context: usize,
    /// Most tokens of one input for embeddings.
    pub(crate) input: usize,
    /// Logical batch, for infill's shares.
    pub(crate) batch: usize,
    /// Tokens gathered per event of a stream.
    pub(crate) interval: u32,
}

/// Tokens gathered per event for a caller that reads no stream.
pub(crate) const INTERVAL_UNSTREAMED: u32 = 32;
