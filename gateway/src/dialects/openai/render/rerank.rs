//! Renders scores as Lemonade and llama.cpp list them (seeds 000 and 004).

use bytes::Bytes;
use serde::Serialize;
use utoipa::ToSchema;

use super::embedding::PromptUsage;
use crate::{
    dialects::openai::translate::RerankCall,
    render::{answer::Answer, json},
};

/// Documents with their scores. A request with `texts` is answered as Hugging Face's TEI does: with the list of results alone, highest score first,
/// each with `index`, `score` and, if asked for by `return_text`, `text`.
#[derive(Serialize, ToSchema)]
pub(crate) struct RerankList<'a> {
    /// Name of the model as the client gave it.
    model: &'a str,
    /// `list`.
    object: &'static str,
    /// Results in input order, or with `top_n` the best ones, highest score first.
    results: Vec<RerankOne<'a>>,
    /// Token counts.
    usage: PromptUsage,
}

/// One document's score.
#[derive(Serialize, ToSchema)]
struct RerankOne<'a> {
    /// Index of the document, from 0.
    #[schema(value_type = u32)]
    index: usize,
    /// The model's score; higher is more relevant.
    #[schema(value_type = f64)]
    relevance_score: f32,
    /// The document; only with `return_documents`.
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<RerankDocument<'a>>,
}

/// A document of a request.
#[derive(Serialize, ToSchema)]
struct RerankDocument<'a> {
    /// Text of the document, as the client sent it.
    text: &'a str,
}

/// One document's score as Hugging Face's TEI gives it.
#[derive(Serialize)]
struct TeiOne<'a> {
    index: usize,
    score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
}

/// Renders a complete answer: raw scores in input order, or with `top_n` the best ones, highest first.
pub(crate) fn body(model: &str, call: &RerankCall, answer: &Answer) -> Bytes {
    let reranked = answer.reranked.as_ref();
    let scores = reranked.map_or(&[][..], |reranked| &reranked.scores);
    let text = |index: usize| call.work.documents.get(index).map_or("", String::as_str);
    let mut results: Vec<_> = scores.iter().enumerate().collect();
    if call.tei || call.top_n.is_some() {
        // Stable: equal scores stay in input order.
        results.sort_by(|(_, one), (_, two)| two.total_cmp(one));
        results.truncate(call.top_n.unwrap_or(usize::MAX));
    }
    if call.tei {
        let one = |(index, score): (usize, &f32)| TeiOne {
            index,
            score: *score,
            text: call.return_documents.then(|| text(index)),
        };
        return json::body(&results.into_iter().map(one).collect::<Vec<_>>());
    }
    let one = |(index, score): (usize, &f32)| RerankOne {
        index,
        relevance_score: *score,
        document: call
            .return_documents
            .then(|| RerankDocument { text: text(index) }),
    };
    let usage = reranked.and_then(|reranked| reranked.usage);
    json::body(&RerankList {
        model,
        object: "list",
        results: results.into_iter().map(one).collect(),
        usage: PromptUsage::of(usage.unwrap_or_else(|| answer.usage()).prompt_tokens),
    })
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::{RerankResult, Usage};
    use serde_json::json;

    use super::*;
    use crate::{dialects::openai::translate, render::recorded};

    fn shown(fields: &str) -> serde_json::Value {
        of("documents", fields)
    }

    fn of(documents: &str, fields: &str) -> serde_json::Value {
        let body = format!(
            "{{\"model\": \"m\", \"query\": \"q\", \"{documents}\": [\"a\", \"b\", \"c\"] {fields}}}"
        );
        let call = translate::rerank(body.as_bytes()).unwrap();
        let answer = Answer {
            reranked: Some(RerankResult {
                scores: vec![-5.5, 8.5, -3.5],
                usage: Some(Usage {
                    prompt_tokens: 51,
                    ..Usage::default()
                }),
                tokens: vec![17, 17, 17],
            }),
            ..Answer::default()
        };
        recorded::json(&super::body("m", &call, &answer))
    }

    #[test]
    fn without_top_n_all_come_in_input_order() {
        assert_eq!(
            shown(""),
            json!({"model": "m", "object": "list", "usage": {"prompt_tokens": 51, "total_tokens": 51}, "results": [
                {"index": 0, "relevance_score": -5.5},
                {"index": 1, "relevance_score": 8.5},
                {"index": 2, "relevance_score": -3.5},
            ]})
        );
    }

    #[test]
    fn teis_clients_get_teis_list() {
        let best = json!([{"index": 1, "score": 8.5, "text": "b"}, {"index": 2, "score": -3.5, "text": "c"},
                          {"index": 0, "score": -5.5, "text": "a"}]);
        assert_eq!(of("texts", ", \"return_text\": true"), best);
        assert_eq!(of("texts", "")[0], json!({"index": 1, "score": 8.5}));
    }

    #[test]
    fn with_it_the_best_come_first() {
        let best = json!([{"index": 1, "relevance_score": 8.5, "document": {"text": "b"}},
                          {"index": 2, "relevance_score": -3.5, "document": {"text": "c"}}]);
        assert_eq!(
            shown(", \"top_n\": 2, \"return_documents\": true")["results"],
            best
        );
        assert_eq!(shown(", \"top_n\": 9")["results"].as_array().unwrap().len(), 3);
    }
}
