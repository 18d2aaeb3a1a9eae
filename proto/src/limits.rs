//! Limits on what a request may make processes hold, if several of them must know the limit (proto/README.md, Trust).

/// Largest number of alternatives per token (`top_logprobs`, `n_probs`). llama-server's own limit is the vocabulary: with that, one answer
/// of 400 tokens took some hundred MiB in each process that it passed through.
pub const TOP_LOGPROBS: u32 = 1000;

/// Largest size in bytes of the vectors in one answer. They are a single event, which must fit a message ([`crate::MAX_MESSAGE_BYTES`]).
pub const VECTOR_BYTES: usize = 48 << 20;

/// Size in bytes after which a message of a session is complete; other events go into the next one.
pub const MESSAGE_BYTES: usize = 4 << 20;

/// A message of that size, with one more event of the largest kind, can still be sent.
const _: () = assert!(MESSAGE_BYTES + VECTOR_BYTES + (1 << 20) < crate::MAX_MESSAGE_BYTES);
