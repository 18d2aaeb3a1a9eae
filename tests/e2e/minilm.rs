//! Embeddings with a meaning: all-MiniLM-L6-v2 through both engines, against what `transformers` says (tests/models/minilm).

use muster_proto::v1::{EmbedCall, EmbedRequest, LoadModelRequest, Prompt, PromptPiece, prompt_piece};
use muster_tests::{
    Engine, Stack,
    engines::{committed, required},
};

crate::for_each_engine!(embeddings_are_those_of_the_reference);

fn read(file: &str) -> String {
    std::fs::read_to_string(committed("tests/models/minilm").join(file)).unwrap()
}

fn cosine(left: &[f32], right: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    assert_eq!(left.len(), right.len());
    dot(left, right) / (dot(left, left) * dot(right, right)).sqrt()
}

fn prompt(text: &str) -> Prompt {
    let kind = Some(prompt_piece::Kind::Text(text.to_owned()));
    Prompt {
        pieces: vec![PromptPiece { kind }],
        add_special: None,
    }
}

/// Loads the model and gives one vector per sentence.
async fn embed(engine: Engine, sentences: &[String]) -> Vec<Vec<f32>> {
    let model = required("MUSTER_TEST_MINILM");
    let entry = engine.serving(
        model.as_ref(),
        "minilm",
        1,
        "labels = ['embeddings']\nctx_size = 512",
    );
    let stack = Stack::with(entry).start().await;
    let load = LoadModelRequest {
        model: "minilm".to_owned(),
        ..LoadModelRequest::default()
    };
    let mut progress = stack.control().load_model(load).await.unwrap().into_inner();
    while progress.message().await.expect("it loads").is_some() {}
    let call = EmbedCall {
        instance: None,
        model: "minilm".to_owned(),
        request: Some(EmbedRequest {
            inputs: sentences.iter().map(|text| prompt(text)).collect(),
            ..EmbedRequest::default()
        }),
    };
    let result = stack
        .inference(0)
        .embed(call)
        .await
        .expect("embeddings")
        .into_inner();
    let vectors = result.embeddings.into_iter().map(|mut one| {
        assert_eq!(one.vectors.len(), 1, "one pooled vector per sentence");
        one.vectors.remove(0).values
    });
    vectors.collect()
}

async fn embeddings_are_those_of_the_reference(engine: Engine) {
    let sentences: Vec<String> = serde_json::from_str(&read("sentences.json")).unwrap();
    let reference: Vec<Vec<f32>> = serde_json::from_str(&read("reference.json")).unwrap();
    assert_eq!((sentences.len(), reference.len()), (20, 20));
    let vectors = embed(engine, &sentences).await;
    assert_eq!(vectors.len(), sentences.len());
    for (sentence, (vector, wanted)) in sentences.iter().zip(vectors.iter().zip(&reference)) {
        let cosine = cosine(vector, wanted);
        assert!(cosine >= 0.999, "{cosine} for: {sentence}");
    }
    // The sentences come in pairs that mean nearly the same in other words.
    for (index, vector) in vectors.iter().enumerate() {
        let others = (0..vectors.len()).filter(|other| *other != index);
        let nearest = others
            .max_by(|a, b| cosine(vector, &vectors[*a]).total_cmp(&cosine(vector, &vectors[*b])))
            .unwrap();
        assert_eq!(
            nearest,
            index ^ 1,
            "{} is nearest to {}",
            sentences[nearest],
            sentences[index]
        );
    }
}
