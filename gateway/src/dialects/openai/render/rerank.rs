//! Renders scores as Lemonade and llama.cpp list them (seeds 000 and 004).

use bytes::{Bytes, BytesMut};

use super::embedding::usage;
use crate::{
    dialects::openai::translate::RerankCall,
    render::{
        answer::Answer,
        json::{list, member, raw, value},
    },
};

/// Renders a complete answer: raw scores in input order, or with `top_n` the best ones, highest first.
pub(crate) fn body(model: &str, call: &RerankCall, answer: &Answer) -> Bytes {
    let reranked = answer.reranked.as_ref();
    let scores = reranked.map_or(&[][..], |reranked| &reranked.scores);
    let mut results: Vec<_> = scores.iter().enumerate().collect();
    if call.tei || call.top_n.is_some() {
        // Stable: equal scores stay in input order.
        results.sort_by(|(_, one), (_, two)| two.total_cmp(one));
        results.truncate(call.top_n.unwrap_or(usize::MAX));
    }
    let mut out = BytesMut::with_capacity(512);
    let document = |index: usize| call.work.documents.get(index).map_or("", String::as_str);
    if call.tei {
        list(&mut out, results, |out, (index, score)| {
            raw(out, "{\"index\":");
            value(out, &index);
            member(out, "score", score);
            if call.return_documents {
                member(out, "text", document(index));
            }
            raw(out, "}");
        });
        return out.freeze();
    }
    raw(&mut out, "{\"model\":");
    value(&mut out, model);
    raw(&mut out, ",\"object\":\"list\",\"results\":");
    list(&mut out, results, |out, (index, score)| {
        raw(out, "{\"index\":");
        value(out, &index);
        member(out, "relevance_score", score);
        if call.return_documents {
            raw(out, ",\"document\":{\"text\":");
            value(out, document(index));
            raw(out, "}");
        }
        raw(out, "}");
    });
    usage(
        &mut out,
        reranked
            .and_then(|reranked| reranked.usage)
            .unwrap_or_else(|| answer.usage())
            .prompt_tokens,
    );
    raw(&mut out, "}");
    out.freeze()
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
