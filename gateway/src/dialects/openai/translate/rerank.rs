//! `POST /v1/reranking` (seeds 000 and 004; Jina's and Cohere's further fields).

use muster_core::Error;
use muster_proto::v1::RerankRequest;

use super::{super::requests::RerankBody, asked, opened};
use crate::translate::{
    Asked,
    object::{Field, Kind, invalid},
    read::{At, Fields as _, Uint},
};

/// Largest number of documents in one request.
const MAX_DOCUMENTS: usize = 4096;

/// A request to score documents.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RerankCall {
    pub(crate) asked: Asked,
    pub(crate) work: RerankRequest,
    /// Number of documents to return, highest score first; absent = all, in input order (gateway/README.md, Lemonade).
    pub(crate) top_n: Option<usize>,
    /// Show the document in each result.
    pub(crate) return_documents: bool,
    /// The answer has TEI's form.
    pub(crate) tei: bool,
}

/// Reads a request to score documents.
///
/// # Errors
/// `invalid_json`, or `invalid_request` naming the field.
pub(crate) fn rerank(body: &[u8]) -> Result<RerankCall, Error> {
    let request = RerankBody::take_from(&mut opened(body)?)?;
    let tei = request.documents.is_none() && request.texts.is_some();
    let given = request.documents.or(request.texts);
    let At { value: list, field } = given.ok_or_else(|| invalid("documents", "is required"))?;
    if list.is_empty() {
        return Err(field.wrong("must not be empty"));
    }
    if list.len() > MAX_DOCUMENTS {
        return Err(field.wrong(format_args!("must not hold more than {MAX_DOCUMENTS} documents")));
    }
    let documents = list.iter().map(document).collect::<Result<_, _>>()?;
    let most = |Uint(most)| usize::try_from(most).unwrap_or(usize::MAX);
    Ok(RerankCall {
        asked: asked(request.asking),
        work: RerankRequest {
            query: request.query,
            documents,
        },
        top_n: request.top_n.map(most),
        return_documents: request
            .return_documents
            .or(request.return_text)
            .unwrap_or_default(),
        tei,
    })
}

/// Reads a document: text, or `{"text": …}`.
fn document(field: &Field<'_>) -> Result<String, Error> {
    match field.kind() {
        Kind::Object => field.object()?.need("text")?.string(),
        Kind::Null | Kind::Bool | Kind::Number | Kind::String | Kind::Array => field.string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(fields: &str) -> Result<RerankCall, Error> {
        rerank(format!("{{\"model\": \"m\", {fields}}}").as_bytes())
    }

    #[test]
    fn documents_are_texts_or_objects_with_one() {
        let call = read(r#""query": "q", "documents": ["a", {"text": "b"}], "top_n": 1"#).unwrap();
        assert_eq!(call.work.documents, ["a", "b"]);
        assert_eq!(call.top_n, Some(1));
        assert_eq!(read(r#""query": "q", "texts": ["a"]"#).unwrap().top_n, None);
    }

    #[test]
    fn faults_are_refused_by_name() {
        for (fields, param) in [
            (r#""documents": ["a"]"#, "query"),
            (r#""query": "q""#, "documents"),
            (r#""query": "q", "documents": []"#, "documents"),
            (r#""query": "q", "documents": [1]"#, "documents[0]"),
            (r#""query": "q", "documents": ["a"], "top_n": 0"#, "top_n"),
        ] {
            assert_eq!(
                read(fields).unwrap_err().param.unwrap_or_default(),
                param,
                "{fields}"
            );
        }
    }
}
