//! llama.cpp's flags that are no settings of ours: each has its effect, or is refused by its name (settings: `flags.rs`, `src/grpc/tuning.rs`).
//! That the effect is llama.cpp's own is compared end to end (`tests/e2e/tuned.rs`).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use std::path::Path;

use muster_core::Code;
use muster_proto::v1::{
    EngineDescription, GenerateRequest, ModelSettings, Sampling, generate_request::Input,
};
use support::{Engine, chat, completion, settings};

const FILE: &str = "tiny-chat.gguf";
const PROMPT: &str = "once upon a time there was a house near the sea and people lived in it";

fn with(args: &str) -> ModelSettings {
    ModelSettings {
        args: args.split_whitespace().map(str::to_owned).collect(),
        ..settings(FILE)
    }
}

async fn refused(args: &str) -> muster_core::Error {
    let mut engine = Engine::bare().await;
    engine.try_load(with(args)).await.expect_err(args)
}

/// What a model with these flags says, and how it describes itself.
async fn says(args: &str) -> (String, EngineDescription) {
    let mut engine = Engine::with(with(args)).await;
    let mut session = engine.session().await;
    let answer = session.run(completion(PROMPT, 24)).await;
    (answer.text().to_owned(), engine.description.clone())
}

#[tokio::test]
async fn positions_are_scaled() {
    let (plain, description) = says("").await;
    let trained = description.capabilities.unwrap().train_context_length;
    let mut seen = vec![plain];
    for args in [
        "--rope-freq-base 300",
        "--rope-scale 8",
        "--rope-scaling yarn --rope-scale 8 --yarn-orig-ctx 16",
        "--rope-scaling yarn --rope-scale 8 --yarn-orig-ctx 16 --yarn-ext-factor 0.25 --yarn-beta-slow 4",
    ] {
        let (text, _) = says(args).await;
        assert!(!seen.contains(&text), "{args} has no effect");
        seen.push(text);
    }
    let (same, _) = says("--rope-freq-scale 0.125").await;
    assert_eq!(same, seen[2], "a scale of 8 is a frequency scale of 1/8");
    let (none, _) = says("--rope-scaling none --rope-freq-scale 1").await;
    assert_eq!(none, seen[0]);
    // One request may be as long as the stretched training.
    let long = |args: &str| ModelSettings {
        ctx_size: 2 * trained,
        sequences: 1,
        cache_type_k: "q8_0".into(),
        cache_type_v: "q8_0".into(),
        ..with(args)
    };
    for (args, most) in [("", trained), ("--rope-scale 2", 2 * trained)] {
        let engine = Engine::with(long(args)).await;
        let can = engine.description.capabilities.as_ref().unwrap();
        assert_eq!(can.context_length, most, "{args}");
        assert_eq!(can.train_context_length, trained);
    }
}

/// A control vector for layer 1 in a file.
fn control(path: &Path, width: usize) {
    let mut bytes = b"GGUF".to_vec();
    let name = b"direction.1";
    bytes.extend(3_u32.to_le_bytes());
    bytes.extend(1_u64.to_le_bytes()); // tensors
    bytes.extend(0_u64.to_le_bytes()); // keys
    bytes.extend((name.len() as u64).to_le_bytes());
    bytes.extend(name);
    bytes.extend(1_u32.to_le_bytes()); // dimensions
    bytes.extend((width as u64).to_le_bytes());
    bytes.extend(0_u32.to_le_bytes()); // 32-bit numbers
    bytes.extend(0_u64.to_le_bytes()); // where they begin
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    for index in 0..width {
        let number: f32 = if index % 3 == 0 { 2.0 } else { -0.5 };
        bytes.extend(number.to_le_bytes());
    }
    std::fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn a_control_vector_turns_what_the_model_says() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, width| {
        let path = dir.path().join(name);
        control(&path, width);
        path.display().to_string()
    };
    let (right, narrow) = (file("right", 64), file("narrow", 32));
    let plain = says("").await.0;
    let turned = says(&format!("--control-vector {right}")).await.0;
    assert_ne!(turned, plain);
    // Twice the half, and what is added and taken away again.
    let halves = format!("--control-vector-scaled {right}:0.5,{right}:0.5");
    assert_eq!(says(&halves).await.0, turned);
    let nothing = format!("--control-vector {right} --control-vector-scaled {right}:-1");
    assert_eq!(says(&nothing).await.0, plain);
    let elsewhere = format!("--control-vector {right} --control-vector-layer-range 2 7");
    assert_eq!(says(&elsewhere).await.0, plain);
    for (file, what) in [
        (narrow, "32 wide"),
        (support::model(FILE), "can't be read"),
        ("/no/such".to_owned(), "can't be read"),
    ] {
        let error = refused(&format!("--control-vector {file}")).await;
        assert_eq!(error.code, Code::InvalidLoadRequest);
        assert!(error.message.contains(what), "{}", error.message);
    }
}

#[tokio::test]
async fn the_files_header_is_overridden() {
    let (plain, description) = says("").await;
    let trained = description.capabilities.unwrap().train_context_length;
    let (text, description) = says("--override-kv llama.rope.freq_base=float:300,general.name=str:x").await;
    assert_ne!(text, plain);
    assert_eq!(text, says("--rope-freq-base 300").await.0);
    assert_eq!(description.capabilities.unwrap().train_context_length, trained);
    let (_, description) = says("--override-kv llama.context_length=int:4096").await;
    assert_eq!(description.capabilities.unwrap().train_context_length, 4096);
    for wrong in ["a", "a=what:1", "a=bool:2"] {
        let error = refused(&format!("--override-kv {wrong}")).await;
        assert_eq!(error.code, Code::InvalidLoadRequest);
        assert!(error.message.contains(&format!("`{wrong}`")), "{}", error.message);
    }
}

/// Where tensors lie and how they are read changes nothing of what the model says.
#[tokio::test]
async fn a_model_laid_out_otherwise_says_the_same() {
    let plain = says("--no-repack").await.0;
    for args in [
        "-ot ffn=CPU,.*attn.*=CPU --no-repack",
        "--cpu-moe --n-cpu-moe 3 --n-cpu-ffn 1 -nr",
        "-nkvo --no-op-offload --no-host -nr --check-tensors",
        "-kvo --op-offload --lazy-mode off -nr",
        "--numa distribute -sm none -mg 0 -ts 1 -nr --warmup",
    ] {
        assert_eq!(says(args).await.0, plain, "{args}");
    }
    for (args, what) in [
        ("-ot ffn=Vulkan7", "Vulkan7"),
        ("-ot (=CPU", ""),
        ("-ot ffn", "-ot"),
        ("--split-mode tensor", "--split-mode"),
        ("--numa yes", "--numa"),
        ("--lazy-mode maybe", "--lazy-mode"),
    ] {
        let error = refused(args).await;
        assert_eq!(error.code, Code::InvalidLoadRequest, "{args}: {}", error.message);
        assert!(error.message.contains(what), "{}", error.message);
    }
}

/// A request that says nothing of how tokens are chosen.
fn open(max_tokens: Option<u32>) -> GenerateRequest {
    GenerateRequest {
        sampling: None,
        max_tokens,
        return_sampling: true,
        ..completion(PROMPT, 0)
    }
}

#[tokio::test]
async fn requests_that_say_nothing_get_what_the_flags_say() {
    let args = "--temp 0.25 --seed 7 --top-k 5 --samplers top_k;temperature --ignore-eos -n 6 --repeat-last-n -1 --no-cache-prompt";
    let mut engine = Engine::with(with(args)).await;
    let shown = engine.description.sampling.clone().unwrap();
    assert_eq!(
        (shown.temperature, shown.top_k, shown.seed),
        (Some(0.25), Some(5), Some(7))
    );
    assert_eq!(shown.samplers, ["top_k", "temperature"]);
    assert_eq!(shown.repeat_last_n, Some(2048));
    let mut session = engine.session().await;
    let first = session.run(open(None)).await;
    assert_eq!(first.usage().completion_tokens, 6);
    let used = first.end().sampling.clone().unwrap();
    assert_eq!((used.temperature, used.seed), (Some(0.25), Some(7)));
    let second = session.run(open(None)).await;
    assert_eq!(first.text(), second.text(), "a seed for all requests");
    assert_eq!(second.usage().cached_tokens, 0);
    // A request's own word counts.
    let own = |sampling, max_tokens, cache| GenerateRequest {
        sampling: Some(sampling),
        cache_prompt: cache,
        ..open(max_tokens)
    };
    let seeded = Sampling {
        seed: Some(8),
        ..Sampling::default()
    };
    let other = session.run(own(seeded, Some(9), Some(true))).await;
    assert_eq!(other.usage().completion_tokens, 9);
    assert!(other.usage().cached_tokens > 0);
    assert_ne!(other.text(), first.text());
    let random = Sampling {
        seed: Some(-1),
        ..Sampling::default()
    };
    let random = session.run(own(random, None, None)).await;
    assert_eq!(random.end().sampling.as_ref().unwrap().seed, Some(0xffff_ffff));
    // Choices of one request differ, as those of llama.cpp do.
    let two = session
        .run(GenerateRequest {
            n: 2,
            ..open(Some(12))
        })
        .await;
    assert_ne!(two.choices[0].content, two.choices[1].content);
    assert!(two.choices[0].content.starts_with(first.text()));
}

#[tokio::test]
async fn thinking_is_as_the_flags_say_where_a_request_says_nothing() {
    let mut engine = Engine::with(with("--reasoning off")).await;
    let mut session = engine.session().await;
    let off = session.run(chat("Hi", 8)).await;
    drop(session);
    drop(engine);
    let mut engine = Engine::with(with("--reasoning on")).await;
    let mut session = engine.session().await;
    let on = session.run(chat("Hi", 8)).await;
    let mut own = chat("Hi", 8);
    if let Some(Input::Chat(chat)) = &mut own.input {
        chat.enable_thinking = Some(false);
    }
    let own = session.run(own).await;
    assert_eq!(own.text(), off.text());
    assert_ne!(on.usage().prompt_tokens, off.usage().prompt_tokens);
}
