//! The two llama.cpp runtimes: each passes the kit, and both say the same.

use std::time::Duration;

use muster_core::Code;
use muster_proto::v1::{
    Chat, ChatMessage, ContentPart, EmbedRequest, GenerateRequest, ModelSettings, ModelType, Prompt,
    PromptPiece, RerankRequest, Sampling, TokenizeCall, content_part, event,
    generate_request::{Constraint, Input},
    prompt_piece,
    start::Work,
};

use crate::{
    harness::{Bench, Talk, eventually, model},
    kit::{Subject, streams_stay_separate, tokens},
};

const LLAMA_SERVER: Subject = Subject {
    runtime: "llama_server",
    settings: chat_settings,
    bound: Duration::from_secs(2),
};
const LLAMA_CPP: Subject = Subject {
    runtime: "llama_cpp",
    settings: chat_settings,
    bound: Duration::from_millis(500),
};

fn chat_settings() -> ModelSettings {
    ModelSettings {
        checkpoint: model("tiny-chat"),
        ctx_size: 4096,
        sequences: 4,
        r#type: ModelType::Llm.into(),
        ..Default::default()
    }
}

fn many_sequences() -> ModelSettings {
    ModelSettings {
        sequences: 64,
        ..chat_settings()
    }
}

/// Every kind of memory, without the roundings of flash attention and half precision.
fn of_kind(model_name: &str) -> ModelSettings {
    ModelSettings {
        checkpoint: model(model_name),
        flash_attention: "off".into(),
        cache_type_k: "f32".into(),
        cache_type_v: "f32".into(),
        threads: 1,
        ..chat_settings()
    }
}

/// Plain attention, windows (one with experts and sinks), recurrent states, and both.
const KINDS: [fn() -> ModelSettings; 6] = [
    || of_kind("tiny-chat"),
    || of_kind("tiny-swa"),
    || of_kind("tiny-gpt-oss"),
    || of_kind("tiny-mamba"),
    || of_kind("tiny-lfm2"),
    || of_kind("tiny-granite"),
];

/// A model that takes a while to read a prompt, in small batches; on one thread, since several wait for each other on a busy machine.
fn slow_reader() -> ModelSettings {
    ModelSettings {
        checkpoint: model("bench-chat"),
        ctx_size: 8192,
        sequences: 2,
        batch_size: 64,
        ubatch_size: 64,
        threads: 1,
        ..chat_settings()
    }
}

/// Both look once per batch whether a prompt is still wanted; llama-server, left to itself, only when the whole prompt has been read.
async fn a_cancel_in_prefill_frees_the_sequence(subject: Subject, bound: Duration) {
    let bench = Bench::new();
    let subject = Subject {
        settings: slow_reader,
        ..subject
    };
    let mut talk = subject.talk(&bench).await;
    let mut best = Duration::MAX;
    // A busy machine may delay one, not each of three.
    for attempt in 0..3 {
        let prompt = format!("{attempt} {}", "so it goes on ".repeat(500));
        let handle = talk.generate(tokens(&prompt, 10), 100).await;
        eventually("a prompt that is read", async || talk.busy().await == 1).await;
        let begin = std::time::Instant::now();
        talk.cancel(handle).await;
        let got = talk.finish(handle).await;
        assert_eq!(got.code(), Some("cancelled"));
        assert_eq!(got.deltas().count(), 0, "the prompt had been read");
        eventually("a free sequence", async || talk.busy().await == 0).await;
        best = best.min(begin.elapsed());
    }
    assert!(best < bound, "freed after {best:?} at best");
}

/// A grammar that allows nothing but the stream's own name.
fn named(i: u32) -> GenerateRequest {
    let grammar = format!("root ::= (\"<{i}>\")+");
    GenerateRequest {
        constraint: Some(Constraint::Grammar(grammar)),
        ..tokens("say your name", 24)
    }
}

fn own(i: u32, text: &str) -> bool {
    let name = format!("<{i}>");
    let rest = text.replace(&name, "");
    !text.is_empty() && name.starts_with(&rest)
}

mod llama_server {
    use super::{LLAMA_SERVER, Subject, many_sequences, named, own, streams_stay_separate};

    crate::kit::conforms!(LLAMA_SERVER);

    #[tokio::test]
    async fn what_came_before_does_not_show_with_any_kind_of_memory() {
        for settings in super::KINDS {
            let subject = Subject {
                settings,
                ..LLAMA_SERVER
            };
            crate::kit::what_came_before_does_not_show(subject).await;
        }
    }

    #[tokio::test]
    async fn a_cancel_in_prefill_frees_the_sequence() {
        let bound = std::time::Duration::from_secs(1);
        super::a_cancel_in_prefill_frees_the_sequence(LLAMA_SERVER, bound).await;
    }

    #[tokio::test]
    async fn streams_of_many_stay_separate() {
        streams_stay_separate(
            Subject {
                settings: many_sequences,
                ..LLAMA_SERVER
            },
            named,
            own,
        )
        .await;
    }
}

mod llama_cpp {
    use super::{LLAMA_CPP, Subject, many_sequences, named, own, streams_stay_separate};

    crate::kit::conforms!(LLAMA_CPP);

    #[tokio::test]
    async fn what_came_before_does_not_show_with_any_kind_of_memory() {
        for settings in super::KINDS {
            let subject = Subject {
                settings,
                ..LLAMA_CPP
            };
            crate::kit::what_came_before_does_not_show(subject).await;
        }
    }

    #[tokio::test]
    async fn a_cancel_in_prefill_frees_the_sequence() {
        let bound = std::time::Duration::from_millis(400);
        super::a_cancel_in_prefill_frees_the_sequence(LLAMA_CPP, bound).await;
    }

    #[tokio::test]
    async fn streams_of_many_stay_separate() {
        streams_stay_separate(
            Subject {
                settings: many_sequences,
                ..LLAMA_CPP
            },
            named,
            own,
        )
        .await;
    }
}

fn chat(text: &str) -> GenerateRequest {
    let part = ContentPart {
        kind: Some(content_part::Kind::Text(text.into())),
    };
    let message = ChatMessage {
        role: "user".into(),
        parts: vec![part],
        ..Default::default()
    };
    let chat = Chat {
        messages: vec![message],
        ..Default::default()
    };
    let sampling = Sampling {
        temperature: Some(0.0),
        ..Default::default()
    };
    GenerateRequest {
        input: Some(Input::Chat(chat)),
        max_tokens: Some(48),
        sampling: Some(sampling),
        stream: true,
        ..Default::default()
    }
}

async fn both(bench: &Bench, settings: fn() -> ModelSettings) -> [Talk; 2] {
    let talk = |subject: Subject| Subject { settings, ..subject }.talk(bench);
    [talk(LLAMA_CPP).await, talk(LLAMA_SERVER).await]
}

#[tokio::test]
async fn greedy_output_is_the_same() {
    let bench = Bench::new();
    let mut talks = both(&bench, chat_settings).await;
    let requests = [
        tokens("Once upon a time", 40),
        GenerateRequest {
            stop: vec!["e".into()],
            ..tokens("The quick brown fox", 40)
        },
        chat("Hello!"),
        chat("Tell me about rivers."),
    ];
    for request in requests {
        let mut answers = Vec::new();
        for talk in &mut talks {
            let handle = talk.generate(request.clone(), 1000).await;
            let got = talk.finish(handle).await;
            let reasoning: String = got.deltas().map(|delta| delta.reasoning.as_str()).collect();
            let end = got.events.iter().find_map(|event| match &event.kind {
                Some(event::Kind::ChoiceFinished(end)) => Some(end.reason()),
                _ => None,
            });
            let Some(event::Kind::Finished(finished)) = got.terminals().first() else {
                panic!("{:?}", got.events)
            };
            let usage = finished.usage.unwrap();
            answers.push((
                got.text(),
                reasoning,
                end,
                usage.prompt_tokens,
                usage.completion_tokens,
            ));
        }
        assert_eq!(answers[0], answers[1], "left: llama_cpp, right: llama_server");
    }
}

#[tokio::test]
async fn tokens_and_templates_are_the_same() {
    let bench = Bench::new();
    let talks = both(&bench, chat_settings).await;
    let Some(Input::Chat(chat)) = chat("Grüße ☃").input else {
        panic!("no chat")
    };
    let mut answers = Vec::new();
    for talk in &talks {
        let calls = &talk.engine.calls;
        let call = muster_proto::v1::ApplyTemplateCall {
            chat: Some(chat.clone()),
            ..Default::default()
        };
        let prompt = calls.apply_template(call).await.unwrap().prompt;
        let content = Prompt {
            pieces: vec![text(&prompt)],
            add_special: None,
        };
        let call = TokenizeCall {
            content: Some(content),
            add_special: true,
            parse_special: true,
            ..Default::default()
        };
        let tokens = calls.tokenize(call).await.unwrap();
        let call = muster_proto::v1::DetokenizeCall {
            tokens: vec![1 << 30],
            ..Default::default()
        };
        assert_eq!(
            calls.detokenize(call).await.unwrap_err().code,
            Code::InvalidRequest
        );
        answers.push((prompt, tokens));
    }
    assert_eq!(answers[0], answers[1]);
}

fn text(text: &str) -> PromptPiece {
    PromptPiece {
        kind: Some(prompt_piece::Kind::Text(text.into())),
    }
}

fn embedding_settings() -> ModelSettings {
    ModelSettings {
        checkpoint: model("tiny-embed"),
        r#type: ModelType::Embedding.into(),
        ..Default::default()
    }
}

fn rerank_settings() -> ModelSettings {
    ModelSettings {
        checkpoint: model("tiny-rerank"),
        r#type: ModelType::Reranking.into(),
        ..Default::default()
    }
}

#[tokio::test]
async fn embeddings_are_the_same() {
    let bench = Bench::new();
    let mut answers = Vec::new();
    for mut talk in both(&bench, embedding_settings).await {
        let input = |words: &str| Prompt {
            pieces: vec![text(words)],
            add_special: None,
        };
        let request = EmbedRequest {
            inputs: vec![input("red fox"), input("a longer text")],
            ..Default::default()
        };
        let handle = talk.start(Work::Embed(request), 0).await;
        let got = talk.finish(handle).await;
        let embedded = got.events.iter().find_map(|event| match &event.kind {
            Some(event::Kind::Embedded(result)) => Some(result.clone()),
            _ => None,
        });
        answers.push(embedded.unwrap_or_else(|| panic!("{:?}", got.events)));
    }
    assert_eq!(answers[0].embeddings.len(), 2);
    assert_eq!(
        answers[0].usage.unwrap().prompt_tokens,
        answers[1].usage.unwrap().prompt_tokens
    );
    for (left, right) in answers[0].embeddings.iter().zip(&answers[1].embeddings) {
        let product: f32 = left.vectors[0]
            .values
            .iter()
            .zip(&right.vectors[0].values)
            .map(|(x, y)| x * y)
            .sum();
        assert!((product - 1.0).abs() < 1e-3, "{product}");
    }
}

#[tokio::test]
async fn scores_are_the_same() {
    let bench = Bench::new();
    let mut answers = Vec::new();
    for mut talk in both(&bench, rerank_settings).await {
        let documents = vec!["a red fox".into(), "rivers and lakes".into(), "nothing".into()];
        let request = RerankRequest {
            query: "red fox".into(),
            documents,
        };
        let handle = talk.start(Work::Rerank(request), 0).await;
        let got = talk.finish(handle).await;
        let reranked = got.events.iter().find_map(|event| match &event.kind {
            Some(event::Kind::Reranked(result)) => Some(result.scores.clone()),
            _ => None,
        });
        answers.push(reranked.unwrap_or_else(|| panic!("{:?}", got.events)));
    }
    assert_eq!(answers[0].len(), 3);
    for (left, right) in answers[0].iter().zip(&answers[1]) {
        assert!((left - right).abs() < 1e-2, "{answers:?}");
    }
}

#[tokio::test]
async fn causes_are_known_before_the_spawn() {
    let bench = Bench::new();
    for runtime in ["llama_cpp", "llama_server"] {
        let settings = ModelSettings {
            checkpoint: "/no/such.gguf".into(),
            ..Default::default()
        };
        let error = bench.launch(runtime, settings).await.unwrap_err().info;
        assert_eq!(
            (error.code.as_str(), error.param.as_deref().unwrap_or_default()),
            ("file_not_found", "checkpoint")
        );
    }
    let settings = ModelSettings {
        args: vec!["--no-such-flag".into()],
        ..chat_settings()
    };
    let error = bench.launch("llama_server", settings).await.unwrap_err().info;
    assert_eq!(
        (error.code.as_str(), error.details["flag"].as_str()),
        ("invalid_load_request", "--no-such-flag")
    );
}

#[tokio::test]
async fn a_broken_model_is_a_failed_load_with_the_engines_own_words() {
    let bench = Bench::new();
    let whole = std::fs::read(model("tiny-chat")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broken.gguf");
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    for runtime in ["llama_server", "llama_cpp"] {
        let settings = ModelSettings {
            checkpoint: path.to_str().unwrap().into(),
            ..chat_settings()
        };
        let error = bench.launch(runtime, settings).await.unwrap_err().info;
        assert_eq!(error.code, Code::ModelLoadFailed, "{runtime}: {error}");
        assert!(error.details.contains_key("log"), "{runtime}: {error:?}");
    }
}
