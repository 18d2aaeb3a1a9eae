//! llama.cpp's flags in `llamacpp_args` have the effect that they have with llama.cpp's own server: both engines, with the same flags, give the
//! same greedy answers, which are not those without them.

use std::path::Path;

use muster_tests::{Engine, Stack};
use serde_json::{Value, json};

const PROMPT: &str = "once upon a time there was a house near the sea and people lived in it";

/// A file with a control vector for layer 1 of a model that is 64 wide.
fn control(path: &Path) {
    const WIDTH: u16 = 64;
    let name = b"direction.1";
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3_u32.to_le_bytes());
    // One tensor, no key.
    bytes.extend(1_u64.to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    bytes.extend((name.len() as u64).to_le_bytes());
    bytes.extend(name);
    // One dimension, 32-bit numbers, from the beginning of the data.
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend(u64::from(WIDTH).to_le_bytes());
    bytes.extend(0_u32.to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    for index in 0..WIDTH {
        let number: f32 = if index % 3 == 0 { 2.0 } else { -0.5 };
        bytes.extend(number.to_le_bytes());
    }
    std::fs::write(path, bytes).unwrap();
}

/// What a model with these flags says to the prompt, and with which settings.
async fn said(engine: Engine, args: &str) -> Value {
    let more = format!("ctx_size = 1024\nllamacpp_args = {args:?}");
    let stack = Stack::with(engine.model("m", 1, &more)).start().await;
    let body = json!({"prompt": PROMPT, "n_predict": 24, "ignore_eos": true, "temperature": 0, "model": "m"});
    let answer = stack.http().post("/completion", &body).await.ok();
    assert_eq!(answer["tokens_predicted"], 24, "{answer}");
    answer["content"].clone()
}

#[tokio::test]
async fn positions_and_control_vectors_are_llama_cpps() {
    let folder = tempfile::tempdir().unwrap();
    let vector = folder.path().join("vector.gguf");
    control(&vector);
    let vector = vector.display();
    let plain = said(Engine::LlamaCpp, "").await;
    for args in [
        "--rope-freq-base 300".to_owned(),
        "--rope-scale 8".to_owned(),
        "--rope-scaling yarn --rope-scale 8 --yarn-orig-ctx 16 --yarn-beta-fast 16".to_owned(),
        "--override-kv llama.rope.freq_base=float:500".to_owned(),
        format!("--control-vector-scaled {vector}:0.75 --control-vector-layer-range 1 1"),
    ] {
        let ours = said(Engine::LlamaCpp, &args).await;
        assert_ne!(ours, plain, "{args} has no effect");
        assert_eq!(ours, said(Engine::LlamaServer, &args).await, "{args}");
    }
}

/// Flags choose llama.cpp's own server only where our engine has no such flag; a file that is not there is told before an engine is started.
#[tokio::test]
async fn flags_of_ours_choose_our_engine() {
    let file = muster_tests::engines::test_model("tiny-chat");
    let entry = |id: &str, args: &str| {
        format!(
            "[models.{id}]\nrecipe = \"llamacpp\"\ncheckpoint = {file:?}\nthreads = 1\nllamacpp_args = {args:?}\n"
        )
    };
    let models = [
        entry("ours", "--temp 0.25 --seed 7 -n 5 --rope-scale 2 -ot ffn=CPU"),
        entry("missing", "--control-vector /no/such.gguf"),
        entry("uneven", "--main-gpu 3"),
    ];
    let stack = Stack::with(format!("[policy]\nmax_loaded_models = -1\n{}", models.concat()))
        .start()
        .await;
    let http = stack.http();
    let answer = http
        .post("/completion", &json!({"prompt": PROMPT, "model": "ours"}))
        .await
        .ok();
    assert_eq!(answer["tokens_predicted"], 5, "{answer}");
    let shown = &answer["generation_settings"];
    assert_eq!((&shown["temperature"], &shown["seed"]), (&json!(0.25), &json!(7)));
    let again = http
        .post("/completion", &json!({"prompt": PROMPT, "model": "ours"}))
        .await
        .ok();
    assert_eq!(again["content"], answer["content"]);
    let refused = http
        .post("/completion", &json!({"prompt": PROMPT, "model": "missing"}))
        .await;
    assert!(refused.text.contains("/no/such.gguf"), "{}", refused.text);
    // On a CPU there is no main GPU, and llama.cpp ignores it as well.
    http.post(
        "/completion",
        &json!({"prompt": PROMPT, "model": "uneven", "n_predict": 1}),
    )
    .await
    .ok();
}
