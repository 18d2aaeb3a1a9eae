//! `POST /v1/embeddings` (OpenAI; seeds 000 and 004).

use muster_core::Error;
use muster_proto::v1::EmbedRequest;

use super::{
    super::requests::{EmbeddingBody, Encoding},
    asked, opened,
};
use crate::translate::{
    Asked,
    prompt::prompts,
    read::{Fields as _, Int, Uint},
};

/// Largest number of inputs in one request, as OpenAI has it.
pub(crate) const MAX_INPUTS: usize = 2048;
/// A request for embeddings.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EmbeddingCall {
    pub(crate) asked: Asked,
    pub(crate) work: EmbedRequest,
    /// Encode vectors as base64 of little-endian floats instead of lists of numbers.
    pub(crate) base64: bool,
}

/// Reads a request for embeddings. Other fields are ignored, since no engine has more parameters for embeddings.
///
/// # Errors
/// `invalid_json`, or `invalid_request` naming the field.
pub(crate) fn embeddings(body: &[u8]) -> Result<EmbeddingCall, Error> {
    let request = EmbeddingBody::take_from(&mut opened(body)?)?;
    let work = EmbedRequest {
        inputs: prompts(&request.input, MAX_INPUTS)?,
        normalize: request.embd_normalize.map(|Int(norm)| norm),
        dimensions: request.dimensions.map_or(0, |Uint(length)| length),
    };
    Ok(EmbeddingCall {
        asked: asked(request.asking),
        work,
        base64: request.encoding_format == Some(Encoding("base64")),
    })
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
            (r#""input": {"a": 1}"#, "input.prompt_string"),
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
