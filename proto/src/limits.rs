//! What one request may make the processes hold, where more than one of them must know it (proto/README.md, Trust).

/// Most alternatives per token that a request may ask for (`top_logprobs`, `n_probs`). llama-server's bound is the vocabulary: one answer of 400 tokens
/// took some hundred MiB in each process that it went through.
pub const TOP_LOGPROBS: u32 = 1000;

/// Most bytes of numbers that the vectors of one answer may have: they are one event, which is less than a message may have
/// ([`crate::MAX_MESSAGE_BYTES`]).
pub const VECTOR_BYTES: usize = 48 << 20;

/// A message of a session is ended once it has so many bytes; what else is ready goes into the next one.
pub const MESSAGE_BYTES: usize = 4 << 20;

/// A message that is ended there, with one more event of the largest kind, may be sent.
const _: () = assert!(MESSAGE_BYTES + VECTOR_BYTES + (1 << 20) < crate::MAX_MESSAGE_BYTES);
