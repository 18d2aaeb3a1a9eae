//! Schemas of OpenAI's answers, for the OpenAPI document.

pub(in crate::dialects) mod answers;
pub(in crate::dialects) mod response;
