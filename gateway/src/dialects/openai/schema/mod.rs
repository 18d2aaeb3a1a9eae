//! What OpenAI's requests and answers look like, for the document.

pub(in crate::dialects) mod answers;
pub(in crate::dialects) mod response;
