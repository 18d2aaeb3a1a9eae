//! `POST /v1/embeddings` (OpenAI; seeds 000 and 004).

use muster_core::Error;
use muster_proto::v1::EmbedRequest;

use super::common;
use crate::translate::{
    Common,
    object::{self, Object},
    prompt::prompts,
};

/// OpenAI's limit on inputs per request.
const MAX_INPUTS: usize = 2048;
/// llama.cpp's `embd_normalize`: -1 none, 0 by the largest, 1 taxicab, 2 Euclidean.
const NORMS: (i32, i32) = (-1, 2);

/// A request for vectors.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EmbeddingCall {
    pub(crate) common: Common,
    pub(crate) work: EmbedRequest,
    /// Vectors as base64 of little-endian floats instead of lists of numbers.
    pub(crate) base64: bool,
}

/// Reads a request for vectors. Fields that mean nothing here are ignored, since no engine has more to say about vectors.
///
/// # Errors
/// `invalid_json`, or `invalid_request` naming the field.
pub(crate) fn embeddings(body: &[u8]) -> Result<EmbeddingCall, Error> {
    let mut body = Object::body(object::text(body)?)?;
    let common = common(&mut body)?;
    let input = match body.take("input") {
        Some(field) => field,
        // llama.cpp's older name for it.
        None => body.take("content").map_or_else(|| body.need("input"), Ok)?,
    };
    let base64 = match body.take("encoding_format") {
        Some(field) => match field.string()?.as_str() {
            "float" => false,
            "base64" => true,
            _ => return Err(field.wrong("must be `float` or `base64`")),
        },
        None => false,
    };
    let dimensions = match body.take("dimensions") {
        Some(field) => field.u32(1)?,
        None => 0,
    };
    let normalize = body.take("embd_normalize");
    let work = EmbedRequest {
        inputs: prompts(&input, MAX_INPUTS)?,
        normalize: normalize.map(|field| field.i32(NORMS.0, NORMS.1)).transpose()?,
        dimensions,
    };
    Ok(EmbeddingCall { common, work, base64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(fields: &str) -> Result<EmbeddingCall, Error> {
        embeddings(format!("{{\"model\": \"m\", {fields}}}").as_bytes())
    }

    #[test]
    fn one_text_several_and_tokens_are_inputs() {
        let inputs = |fields| read(fields).unwrap().work.inputs.len();
        assert_eq!(inputs(r#""input": "a""#), 1);
        assert_eq!(inputs(r#""input": ["a", "b"]"#), 2);
        assert_eq!(inputs(r#""input": [1, 2, 3]"#), 1);
        assert_eq!(inputs(r#""input": [[1, 2], [3]]"#), 2);
        assert_eq!(inputs(r#""content": "a""#), 1);
    }

    #[test]
    fn the_form_of_the_vectors_is_read() {
        let call =
            read(r#""input": "a", "encoding_format": "base64", "dimensions": 8, "embd_normalize": -1"#);
        let call = call.unwrap();
        assert!(call.base64);
        assert_eq!((call.work.dimensions, call.work.normalize), (8, Some(-1)));
        assert!(
            !read(r#""input": "a", "encoding_format": "float", "user": "u""#)
                .unwrap()
                .base64
        );
    }

    #[test]
    fn faults_are_refused_by_name() {
        for (fields, param) in [
            (r#""x": 1"#, "input"),
            (r#""input": []"#, "input"),
            (r#""input": {"a": 1}"#, "input"),
            (r#""input": "a", "encoding_format": "hex""#, "encoding_format"),
            (r#""input": "a", "dimensions": 0"#, "dimensions"),
            (r#""input": "a", "embd_normalize": 3"#, "embd_normalize"),
        ] {
            assert_eq!(
                read(fields).unwrap_err().param.unwrap_or_default(),
                param,
                "{fields}"
            );
        }
    }
}
