//! Clients of llama.cpp's server: its own tests' in Python (`sdk/llama_cpp_client.py`), against a single model and against several.

use std::{fs, process::Command, time::Duration};

use muster_proto::net::Address;
use muster_tests::{
    Engine, Http, Hub, Stack,
    engines::{required, test_model},
    eventually,
};
use serde_json::json;

use crate::{clients::run, up::Up};

async fn client(words: &[&str], at: &Address, more: &[&str]) {
    let mut command = Command::new(required("MUSTER_TEST_PYTHON"));
    command
        .arg(format!(
            "{}/e2e/sdk/llama_cpp_client.py",
            env!("CARGO_MANIFEST_DIR")
        ))
        .args(words)
        .arg(format!("http://{at}"))
        .args(more);
    let output = run(command).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

#[tokio::test]
async fn llama_cpps_client_names_no_model() {
    for (kind, model) in [
        ("native", "tiny-chat"),
        ("embedding", "tiny-embed"),
        ("rerank", "tiny-rerank"),
        ("infill", "tiny-infill"),
    ] {
        let model = test_model(model);
        let words = ["--model", model.to_str().unwrap(), "--llamacpp-args", "--slots"];
        let up = Up::start("", &words).await;
        client(&[kind], &up.http, &[]).await;
    }
}

#[tokio::test]
async fn llama_cpps_client_downloads_loads_and_deletes_through_the_router() {
    const REPO: &str = "muster/tiny-GGUF";
    let hub = Hub::start().await;
    hub.put(REPO, "tiny-Q8_0.gguf", fs::read(test_model("tiny-chat")).unwrap());
    let others = ["a", "b"].map(|id| Engine::Stub.model(id, 1, "")).concat();
    let stack = Stack::with(others)
        .worker_env(&[("HF_ENDPOINT", &hub.endpoint())])
        .start()
        .await;
    let model = format!("{REPO}:Q8_0");
    client(&["router"], stack.gateway_address(), &[&model]).await;
}

/// llama.cpp's router, started as its README starts it: a folder, a file of presets and a limit.
#[tokio::test]
async fn models_come_from_llama_cpps_folder_and_presets() {
    let folder = tempfile::tempdir().unwrap();
    let below = folder.path().join("models");
    fs::create_dir(&below).unwrap();
    fs::copy(test_model("tiny-chat"), below.join("lying-here.gguf")).unwrap();
    let preset = folder.path().join("models.ini");
    let text = format!(
        "version = 1\n[*]\nc = 512\n[mine]\nmodel = {}\nalias = my-own, first\nnp = 2\ntags = small\n[other]\nmodel = {}\n",
        test_model("tiny-chat").display(),
        test_model("tiny-chat-b").display()
    );
    fs::write(&preset, text).unwrap();
    let paths = [&below, &preset].map(|path| path.to_str().unwrap().to_owned());
    let up = Up::start(
        "",
        &[
            "--models-dir",
            &paths[0],
            "--models-preset",
            &paths[1],
            "--models-max",
            "2",
        ],
    )
    .await;
    let http = Http::new(&up.http);
    let listed = async || {
        let list = http.get("/models").await.ok();
        let rows = list["data"].as_array().cloned().unwrap_or_default();
        let ids: Vec<_> = rows.iter().map(|row| row["id"].clone()).collect();
        if ids == ["lying-here", "mine", "other"] {
            Ok(rows)
        } else {
            Err(ids)
        }
    };
    let (rows, _) = eventually("all models are listed", Duration::from_secs(30), listed).await;
    assert_eq!(
        (&rows[0]["source"], &rows[1]["source"]),
        (&json!("models_dir"), &json!("preset"))
    );
    assert_eq!(
        (&rows[1]["aliases"], &rows[1]["tags"]),
        (&json!(["my-own", "first"]), &json!(["small"]))
    );
    assert_eq!(http.get("/props").await.ok()["max_instances"], 2);
    let asked = json!({"model": "first", "prompt": "a", "n_predict": 1});
    let answer = http.post("/completion", &asked).await.ok();
    assert_eq!(answer["generation_settings"]["n_ctx"], 512);
    assert_eq!(http.get("/props?model=my-own").await.ok()["total_slots"], 2);
}

/// Whichever engine it is: `verbose` shows the prompt that it saw, and what was in force, tokens that it never chooses among it.
#[tokio::test]
async fn verbose_shows_what_the_engine_saw() {
    let checkpoint = test_model("tiny-chat");
    for engine in [Engine::LlamaCpp, Engine::LlamaServer] {
        let stack = Stack::with(engine.serving(&checkpoint, "m", 1, "")).start().await;
        let http = stack.http();
        let turns = json!([{"role": "user", "content": "hi"}]);
        let asked = json!({
            "messages": turns, "max_tokens": 3, "temperature": 0.5, "ignore_eos": true, "logit_bias": [[300, false]], "verbose": true,
        });
        let answer = http.post("/v1/chat/completions", &asked).await.ok();
        let shown = &answer["__verbose"];
        let template = http
            .post("/apply-template", &json!({"messages": turns}))
            .await
            .ok();
        let prompt = shown["prompt"].as_str().unwrap_or_default();
        assert!(
            prompt.ends_with(template["prompt"].as_str().unwrap()),
            "{engine:?} {shown}"
        );
        assert_eq!(shown["generation_settings"]["temperature"], 0.5, "{engine:?}");
        assert_eq!(
            (&shown["tokens_predicted"], &shown["stop_type"]),
            (&json!(3), &json!("limit")),
            "{engine:?}"
        );
        let never = shown["generation_settings"]["logit_bias"]
            .as_array()
            .unwrap()
            .iter();
        let never: Vec<_> = never.filter(|one| one["bias"].is_null()).collect();
        assert!(
            never.len() > 1 && never.iter().any(|one| one["token"] == 300),
            "{engine:?} {never:?}"
        );
        let mut stream = asked.clone();
        stream["stream"] = json!(true);
        let text = http.post("/v1/chat/completions", &stream).await.text;
        assert_eq!(text.matches("\"__verbose\":").count(), 1, "{engine:?} {text}");
        let quiet = http
            .post(
                "/v1/chat/completions",
                &json!({"messages": turns, "max_tokens": 1}),
            )
            .await
            .ok();
        assert!(quiet.get("__verbose").is_none(), "{engine:?}");
    }
}

/// llama.cpp's own page shows the speed while an answer comes: `timings_per_token` in a chat or a completion.
#[tokio::test]
async fn times_come_with_each_chunk_where_they_are_asked_for() {
    let checkpoint = test_model("tiny-chat");
    for engine in [Engine::LlamaCpp, Engine::LlamaServer] {
        let stack = Stack::with(engine.serving(&checkpoint, "m", 1, "")).start().await;
        let http = stack.http();
        let turns = json!([{"role": "user", "content": "hi"}]);
        for (path, mut body) in [
            ("/v1/chat/completions", json!({"messages": turns})),
            ("/v1/completions", json!({"prompt": "hi"})),
        ] {
            let options = json!({"max_tokens": 6, "stream": true, "ignore_eos": true, "stream_options": {"include_usage": true}});
            body.as_object_mut()
                .unwrap()
                .extend(options.as_object().unwrap().clone());
            let chunks = async |body: &serde_json::Value| {
                let text = http.post(path, body).await.text;
                let events = text.lines().filter_map(|line| line.strip_prefix("data: {"));
                events
                    .map(|event| serde_json::from_str(&format!("{{{event}")).unwrap())
                    .collect::<Vec<serde_json::Value>>()
            };
            let shown = |chunk: &&serde_json::Value| {
                let choice = &chunk["choices"][0];
                !choice["delta"]["content"].is_null()
                    || !choice["text"].as_str().unwrap_or_default().is_empty()
            };
            let quiet = chunks(&body).await;
            assert!(
                quiet
                    .iter()
                    .filter(shown)
                    .all(|chunk| chunk.get("timings").is_none()),
                "{engine:?} {path}"
            );
            body["timings_per_token"] = json!(true);
            let timed = chunks(&body).await;
            let counts: Vec<u64> = timed
                .iter()
                .filter(shown)
                .map(|chunk| chunk["timings"]["predicted_n"].as_u64().unwrap())
                .collect();
            assert!(
                !counts.is_empty() && counts.is_sorted() && counts[0] > 0,
                "{engine:?} {path} {counts:?}"
            );
            let last = timed.last().unwrap();
            assert_eq!(
                (
                    &last["timings"]["predicted_n"],
                    &last["usage"]["completion_tokens"]
                ),
                (&json!(6), &json!(6)),
                "{engine:?} {path}"
            );
        }
    }
}

/// With `--no-kv-unified` each sequence has a part of the context, as llama.cpp rounds it, and that is what its clients are told.
#[tokio::test]
async fn a_split_cache_shows_each_sequences_part() {
    let checkpoint = test_model("tiny-chat");
    for engine in [Engine::LlamaCpp, Engine::LlamaServer] {
        for (flag, most) in [("--kv-unified", 512), ("--no-kv-unified", 256)] {
            let more = format!("ctx_size = 512\nllamacpp_args = \"--slots {flag}\"");
            let stack = Stack::with(engine.serving(&checkpoint, "m", 4, &more))
                .start()
                .await;
            let http = stack.http();
            http.chat("m", json!({"max_tokens": 1})).await.ok();
            let props = http.get("/props").await.ok();
            assert_eq!(
                (
                    &props["total_slots"],
                    &props["default_generation_settings"]["n_ctx"]
                ),
                (&json!(4), &json!(most)),
                "{engine:?} {flag}"
            );
            let slots = http.get("/slots").await.ok();
            let slots = slots.as_array().unwrap();
            assert!(
                slots.len() == 4 && slots.iter().all(|slot| slot["n_ctx"] == most),
                "{engine:?} {flag} {slots:?}"
            );
            let long = json!({"prompt": vec![20; 600], "n_predict": 1});
            let refused = http.post("/completion", &long).await;
            assert_eq!(refused.status, 400, "{engine:?} {flag}");
            assert_eq!(
                refused.json()["error"]["n_ctx"],
                most,
                "{engine:?} {flag} {}",
                refused.text
            );
            let fits = json!({"prompt": vec![20; most - 10], "n_predict": 1});
            http.post("/completion", &fits).await.ok();
        }
    }
}

/// Anthropic's clients switch thinking where the template can: the generated model's closes it at once where it is off, which takes tokens.
#[tokio::test]
async fn anthropics_thinking_reaches_the_template() {
    let checkpoint = test_model("tiny-chat");
    for engine in [Engine::LlamaCpp, Engine::LlamaServer] {
        let stack = Stack::with(engine.serving(&checkpoint, "m", 1, "")).start().await;
        let http = stack.http();
        let tokens = async |thinking: &str| {
            let kind = json!({"type": thinking, "budget_tokens": 1024});
            let turns = json!([{"role": "user", "content": "hi"}]);
            let body = json!({"model": "m", "max_tokens": 1, "messages": turns, "thinking": kind});
            let answer = http.post("/v1/messages", &body).await.ok();
            let usage = |key: &str| answer["usage"][key].as_u64().unwrap_or_default();
            let read = usage("input_tokens") + usage("cache_read_input_tokens");
            let counted = http.post("/v1/messages/count_tokens", &body).await.ok();
            assert_eq!(json!(read), counted["input_tokens"], "{engine:?}");
            counted["input_tokens"].as_u64().unwrap()
        };
        let (on, off) = (tokens("enabled").await, tokens("disabled").await);
        assert!(
            off > on,
            "{engine:?}: {off} tokens without thinking, {on} with it"
        );
    }
}
