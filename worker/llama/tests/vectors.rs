//! Embeddings and reranking through the real process.
mod support;

use muster_proto::v1::{EmbedRequest, ModelSettings, ModelType, RerankRequest};
use support::{Engine, completion, settings, text_prompt, token_prompt};

fn embedding() -> ModelSettings {
    ModelSettings {
        r#type: ModelType::Embedding.into(),
        ctx_size: 0,
        sequences: 8,
        ..settings("tiny-embed.gguf")
    }
}

fn inputs(texts: &[&str]) -> EmbedRequest {
    EmbedRequest {
        inputs: texts.iter().map(|text| text_prompt(text)).collect(),
        ..Default::default()
    }
}

fn norm(vector: &[f32]) -> f32 {
    vector.iter().map(|v| v * v).sum::<f32>().sqrt()
}

#[tokio::test]
async fn embeddings_are_pooled_normalised_and_do_not_depend_on_company() {
    let mut engine = Engine::with(embedding()).await;
    let capabilities = engine.description.capabilities.clone().unwrap();
    assert!(capabilities.embed && !capabilities.generate);
    let mut session = engine.session().await;
    let texts: Vec<String> = (0..40)
        .map(|i| format!("text number {i} {}", "and more ".repeat(i % 5)))
        .collect();
    let all: Vec<&str> = texts.iter().map(String::as_str).collect();
    let together = session.embed(inputs(&all)).await.embedded.unwrap();
    assert_eq!(together.embeddings.len(), 40);
    assert!(together.usage.unwrap().prompt_tokens > 40);
    for (index, embedding) in together.embeddings.iter().enumerate() {
        assert_eq!(embedding.vectors.len(), 1, "pooled");
        let vector = &embedding.vectors[0].values;
        assert_eq!(vector.len(), capabilities.embedding_length as usize);
        assert!((norm(vector) - 1.0).abs() < 1e-3);
        if index % 13 == 0 {
            let alone = session.embed(inputs(&[all[index]])).await.embedded.unwrap();
            let close = alone.embeddings[0].vectors[0]
                .values
                .iter()
                .zip(vector)
                .all(|(a, b)| (a - b).abs() < 1e-3);
            assert!(close, "input {index} alone and in company");
        }
    }
    let raw = session
        .embed(EmbedRequest {
            normalize: Some(-1),
            ..inputs(&["x y z"])
        })
        .await
        .embedded
        .unwrap();
    assert!((norm(&raw.embeddings[0].vectors[0].values) - 1.0).abs() > 1e-3);
    let short = session
        .embed(EmbedRequest {
            dimensions: 8,
            ..inputs(&["x y z"])
        })
        .await
        .embedded
        .unwrap();
    assert_eq!(short.embeddings[0].vectors[0].values.len(), 8);
    assert!((norm(&short.embeddings[0].vectors[0].values) - 1.0).abs() < 1e-3);
}

#[tokio::test]
async fn what_an_embedding_model_cannot_do_is_refused() {
    let mut engine = Engine::with(embedding()).await;
    let mut session = engine.session().await;
    assert_eq!(
        session.run(completion("x", 4)).await.code(),
        "unsupported_by_runtime"
    );
    let long = "word ".repeat(5000);
    assert_eq!(
        session.embed(inputs(&[&long])).await.code(),
        "context_length_exceeded"
    );
    assert_eq!(
        session.embed(EmbedRequest::default()).await.code(),
        "invalid_request"
    );
    let foreign = EmbedRequest {
        inputs: vec![token_prompt(vec![1_000_000])],
        ..Default::default()
    };
    assert_eq!(session.embed(foreign).await.code(), "invalid_request");
    assert_eq!(
        session
            .embed(EmbedRequest {
                dimensions: 100_000,
                ..inputs(&["x"])
            })
            .await
            .code(),
        "invalid_request"
    );
    let rerank = RerankRequest {
        query: "q".into(),
        documents: vec!["d".into()],
    };
    assert_eq!(session.rerank(rerank).await.code(), "unsupported_by_runtime");
    assert!(session.embed(inputs(&["fine"])).await.embedded.is_some());
    assert!(engine.is_running());
}

#[tokio::test]
async fn a_vector_per_token_without_pooling() {
    let mut engine = Engine::with(ModelSettings {
        pooling: "none".into(),
        ..embedding()
    })
    .await;
    let mut session = engine.session().await;
    let result = session
        .embed(inputs(&["one two three", "four"]))
        .await
        .embedded
        .unwrap();
    for embedding in &result.embeddings {
        assert_eq!(embedding.vectors.len(), embedding.tokens as usize);
    }
}

#[tokio::test]
async fn a_text_model_embeds_when_it_is_asked_to() {
    let settings = ModelSettings {
        r#type: ModelType::Embedding.into(),
        pooling: "mean".into(),
        ..settings("tiny-chat.gguf")
    };
    let mut engine = Engine::with(settings).await;
    let mut session = engine.session().await;
    let result = session
        .embed(inputs(&["one", "two", "one"]))
        .await
        .embedded
        .unwrap();
    let values = |index: usize| result.embeddings[index].vectors[0].values.clone();
    assert!(values(0).iter().zip(values(2)).all(|(a, b)| (a - b).abs() < 1e-3));
    assert!(values(0).iter().zip(values(1)).any(|(a, b)| (a - b).abs() > 1e-3));
}

#[tokio::test]
async fn documents_get_raw_scores_in_input_order() {
    let settings = ModelSettings {
        r#type: ModelType::Reranking.into(),
        ctx_size: 0,
        ..settings("tiny-rerank.gguf")
    };
    let mut engine = Engine::with(settings).await;
    let mut session = engine.session().await;
    let ask = |documents: &[&str]| RerankRequest {
        query: "which document".into(),
        documents: documents.iter().map(|text| (*text).to_owned()).collect(),
    };
    let forward = session
        .rerank(ask(&["alpha beta", "gamma", "delta epsilon zeta"]))
        .await
        .reranked
        .unwrap();
    let backward = session
        .rerank(ask(&["delta epsilon zeta", "gamma", "alpha beta"]))
        .await
        .reranked
        .unwrap();
    assert_eq!(forward.scores.len(), 3);
    assert_eq!(forward.tokens.len(), 3);
    for (a, b) in forward.scores.iter().zip(backward.scores.iter().rev()) {
        assert!((a - b).abs() < 1e-3, "{:?} {:?}", forward.scores, backward.scores);
    }
    assert!(
        forward
            .scores
            .iter()
            .any(|score| (score - forward.scores[0]).abs() > 1e-6)
    );
    assert_eq!(session.rerank(ask(&[])).await.code(), "invalid_request");
    assert_eq!(
        session.embed(inputs(&["x"])).await.code(),
        "unsupported_by_runtime"
    );
}

/// A vector for each token, of as many inputs as fit a message: what is more is refused before it is computed, and it was sent whole.
#[tokio::test]
async fn vectors_that_no_message_could_carry_are_refused_before_they_are_computed() {
    let mut engine = Engine::with(ModelSettings {
        pooling: "none".into(),
        ..embedding()
    })
    .await;
    let mut session = engine.session().await;
    let width = engine.description.capabilities.as_ref().unwrap().embedding_length as usize;
    let of = |count: usize| EmbedRequest {
        inputs: vec![token_prompt(vec![7; 500]); count],
        ..Default::default()
    };
    let answer = session.embed(of(3)).await.embedded.unwrap();
    assert_eq!(answer.embeddings.len(), 3);
    assert_eq!(answer.embeddings[2].vectors.len(), 500);
    let most = muster_proto::limits::VECTOR_BYTES / (500 * width * 4);
    let answer = session.embed(of(most + 1)).await;
    assert_eq!(answer.code(), "invalid_request", "{:?}", answer.failed);
    assert_eq!(session.embed(of(1)).await.code(), "");
    assert!(engine.is_running());
}
