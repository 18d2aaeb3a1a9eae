//! Renders embeddings as OpenAI lists them.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use muster_core::{Code, Error};
use muster_proto::v1::{Embedding, Vector};
use serde::Serialize;
use utoipa::ToSchema;

use crate::render::{answer::Answer, json};

/// A list of vectors.
#[derive(Serialize, ToSchema)]
pub(crate) struct EmbeddingList<'a> {
    /// `list`.
    object: &'static str,
    /// The vectors, in the order of the inputs.
    data: Vec<EmbeddingOne<'a>>,
    /// Name of the model as the client gave it.
    model: &'a str,
    /// Token counts.
    usage: PromptUsage,
}

/// One input's vector.
#[derive(Serialize, ToSchema)]
struct EmbeddingOne<'a> {
    /// `embedding`.
    object: &'static str,
    /// Index of the input, from 0.
    #[schema(value_type = u32)]
    index: usize,
    /// The vector.
    embedding: EmbeddingValues<'a>,
}

/// A vector in the encoding that `encoding_format` asks for.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum EmbeddingValues<'a> {
    #[schema(value_type = Vec<f64>)]
    Float(&'a [f32]),
    /// Base64 of little-endian 32-bit floats.
    Base64(String),
}

/// Token counts of a request that generates nothing.
#[derive(Serialize, ToSchema)]
pub(super) struct PromptUsage {
    /// Tokens of all inputs.
    prompt_tokens: u32,
    /// The same as `prompt_tokens`.
    total_tokens: u32,
}

impl PromptUsage {
    pub(super) const fn of(tokens: u32) -> Self {
        Self {
            prompt_tokens: tokens,
            total_tokens: tokens,
        }
    }
}

/// Renders a complete answer.
///
/// # Errors
/// `unsupported_by_runtime` if the model gives one vector per token instead of one per input.
pub(crate) fn body(model: &str, base64: bool, answer: &Answer) -> Result<Bytes, Error> {
    let embedded = answer.embedded.as_ref();
    let embeddings = embedded.map_or(&[][..], |embedded| &embedded.embeddings);
    let one = |(index, embedding)| one(index, embedding, base64);
    let usage = embedded.and_then(|embedded| embedded.usage);
    Ok(json::body(&EmbeddingList {
        object: "list",
        data: embeddings.iter().enumerate().map(one).collect::<Result<_, _>>()?,
        model,
        usage: PromptUsage::of(usage.unwrap_or_else(|| answer.usage()).prompt_tokens),
    }))
}

fn one(index: usize, embedding: &Embedding, base64: bool) -> Result<EmbeddingOne<'_>, Error> {
    let [vector] = embedding.vectors.as_slice() else {
        let message =
            "this model has a vector for each token (pooling `none`); OpenAI's form has one for each input";
        return Err(Code::UnsupportedByRuntime.error(message));
    };
    let embedding = if base64 {
        EmbeddingValues::Base64(encoded(vector))
    } else {
        EmbeddingValues::Float(&vector.values)
    };
    Ok(EmbeddingOne {
        object: "embedding",
        index,
        embedding,
    })
}

/// The vector as base64 of little-endian 32-bit floats, which OpenAI's clients decode.
fn encoded(vector: &Vector) -> String {
    let bytes: Vec<u8> = vector
        .values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::{EmbedResult, Usage};
    use serde_json::json;

    use super::*;
    use crate::render::recorded;

    fn answer(vectors: &[&[f32]]) -> Answer {
        let vector = |values: &&[f32]| Vector {
            values: values.to_vec(),
        };
        let embedding = |vectors: Vec<Vector>| Embedding { vectors, tokens: 2 };
        Answer {
            embedded: Some(EmbedResult {
                embeddings: vectors.iter().map(|one| embedding(vec![vector(one)])).collect(),
                usage: Some(Usage {
                    prompt_tokens: 4,
                    ..Usage::default()
                }),
            }),
            ..Answer::default()
        }
    }

    #[test]
    fn vectors_are_lists_or_base64() {
        let answer = answer(&[&[0.5, -1.0], &[0.25]]);
        assert_eq!(
            recorded::json(&body("m", false, &answer).unwrap()),
            json!({"object": "list", "model": "m", "usage": {"prompt_tokens": 4, "total_tokens": 4}, "data": [
                {"object": "embedding", "index": 0, "embedding": [0.5, -1.0]},
                {"object": "embedding", "index": 1, "embedding": [0.25]},
            ]})
        );
        let encoded = recorded::json(&body("m", true, &answer).unwrap());
        assert_eq!(encoded["data"][0]["embedding"], "AAAAPwAAgL8=");
    }

    #[test]
    fn a_vector_per_token_has_no_place() {
        let mut answer = answer(&[&[0.5]]);
        if let Some(embedded) = &mut answer.embedded {
            embedded.embeddings[0].vectors.push(Vector::default());
        }
        assert_eq!(
            body("m", false, &answer).unwrap_err().code,
            Code::UnsupportedByRuntime
        );
    }
}
