//! Renders embeddings as OpenAI lists them.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::{Bytes, BytesMut};
use muster_core::{Code, Error};
use muster_proto::v1::Vector;

use crate::render::{
    answer::Answer,
    json::{list, member, raw, value},
};

/// Renders a complete answer.
///
/// # Errors
/// `unsupported_by_runtime` if the model gives one vector per token instead of one per input.
pub(crate) fn body(model: &str, base64: bool, answer: &Answer) -> Result<Bytes, Error> {
    let embedded = answer.embedded.as_ref();
    let embeddings = embedded.map_or(&[][..], |embedded| &embedded.embeddings);
    let mut vectors = Vec::with_capacity(embeddings.len());
    for embedding in embeddings {
        match embedding.vectors.as_slice() {
            [vector] => vectors.push(vector),
            _ => {
                let message = "this model has a vector for each token (pooling `none`); OpenAI's form has one for each input";
                return Err(Code::UnsupportedByRuntime.error(message));
            }
        }
    }
    let mut out = BytesMut::with_capacity(512);
    raw(&mut out, "{\"object\":\"list\",\"data\":");
    list(
        &mut out,
        vectors.into_iter().enumerate(),
        |out, (index, vector)| {
            raw(out, "{\"object\":\"embedding\",\"index\":");
            value(out, &index);
            raw(out, ",\"embedding\":");
            if base64 {
                value(out, &encoded(vector));
            } else {
                value(out, &vector.values);
            }
            raw(out, "}");
        },
    );
    member(&mut out, "model", model);
    usage(
        &mut out,
        embedded
            .and_then(|embedded| embedded.usage)
            .unwrap_or_else(|| answer.usage())
            .prompt_tokens,
    );
    raw(&mut out, "}");
    Ok(out.freeze())
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

/// Writes the token counts of a request that generates nothing.
pub(super) fn usage(out: &mut BytesMut, tokens: u32) {
    raw(out, ",\"usage\":{\"prompt_tokens\":");
    value(out, &tokens);
    member(out, "total_tokens", &tokens);
    raw(out, "}");
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::{EmbedResult, Embedding, Usage};
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
