//! Operators over HTTP, through the real controller, worker and engine: the Runtime Admin API (seed 001), Lemonade's loads (seed 000),
//! llama.cpp's own routes (seed 004).

use std::time::Duration;

use muster_tests::{Engine, Stack, engines, eventually};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn hello() -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4})
}

async fn row(stack: &Stack) -> Value {
    stack.http().get("/v1/admin/models/m").await.ok()
}

#[tokio::test]
async fn a_strict_gateway_serves_only_what_an_operator_loaded() {
    let stack = Stack::with(Engine::Stub.model("m", 2, ""))
        .gateway_args(&["--autoload", "off"])
        .start()
        .await;
    assert_eq!(row(&stack).await["runtime_state"], "unloaded");
    let error = stack.http().post(CHAT, &hello()).await.error(409);
    assert_eq!(error["code"], "model_not_loaded");
    let loaded = stack
        .http()
        .post("/v1/admin/models/m/load", &json!({}))
        .await
        .ok();
    assert_eq!(
        (&loaded["runtime_state"], &loaded["loaded_replicas"]),
        (&json!("loaded"), &json!(1))
    );
    stack.http().post(CHAT, &hello()).await.ok();
    // A second bare load changes nothing; an override while it is loaded is refused (seed 001).
    let again = stack
        .http()
        .post("/v1/admin/models/m/load", &json!({}))
        .await
        .ok();
    assert_eq!(again["is_loaded"], true);
    let error = stack
        .http()
        .post("/v1/admin/models/m/load", &json!({"replicas": 1}))
        .await
        .error(400);
    assert_eq!(error["code"], "invalid_load_request");
    let unloaded = stack
        .http()
        .post("/v1/admin/models/m/unload", &json!({}))
        .await
        .ok();
    assert_eq!(unloaded["runtime_state"], "unloaded");
    let error = stack.http().post(CHAT, &hello()).await.error(409);
    assert_eq!(error["code"], "model_not_loaded");
}

#[tokio::test]
async fn an_override_is_what_the_engine_gets_and_dies_with_the_load() {
    let model = engines::test_model("tiny-chat");
    let entry = Engine::LlamaCpp.serving(&model, "m", 1, "ctx_size = 256");
    let stack = Stack::with(entry).start().await;
    let body = json!({"gguf_n_ctx": 512, "gguf_type_k": null});
    let loaded = stack.http().post("/v1/admin/models/m/load", &body).await.ok();
    assert_eq!(loaded["load_override"], body);
    assert_eq!(loaded["definition"]["gguf_n_ctx"], 256);
    assert_eq!(loaded["vram_estimate_source"], "observed_load_delta");
    assert!(loaded["vram_estimate_mib"].as_u64() > Some(0));
    let props = stack.http().get("/props").await.ok();
    assert_eq!(props["default_generation_settings"]["n_ctx"], 512);
    stack
        .http()
        .post("/api/v1/unload", &json!({"model_name": "m"}))
        .await
        .ok();
    assert_eq!(row(&stack).await["load_override"], json!({}));
    // Lemonade's own words for the same thing; other settings load it anew.
    stack
        .http()
        .post("/api/v1/load", &json!({"model_name": "m", "ctx_size": 384}))
        .await
        .ok();
    let props = stack.http().get("/props?model=m").await.ok();
    assert_eq!(props["default_generation_settings"]["n_ctx"], 384);
    stack
        .http()
        .post("/api/v1/load", &json!({"model_name": "m"}))
        .await
        .ok();
    let props = stack.http().get("/props?model=m").await.ok();
    assert_eq!(props["default_generation_settings"]["n_ctx"], 256);
    assert_eq!(row(&stack).await["load_override"], json!({}));
}

#[tokio::test]
async fn llama_cpps_routes_speak_to_the_engine() {
    let model = engines::test_model("tiny-chat");
    for engine in [Engine::LlamaCpp, Engine::LlamaServer] {
        let stack = Stack::with(engine.serving(&model, "m", 1, "")).start().await;
        stack
            .http()
            .post("/models/load", &json!({"model": "m"}))
            .await
            .ok();
        // Loads it, if the load has not ended.
        let body = json!({"model": "m", "prompt": "Hello", "n_predict": 4, "temperature": 0});
        let answer = stack.http().post("/completion", &body).await.ok();
        assert_eq!(answer["stop"], true, "{engine:?}");
        assert_eq!(answer["tokens_predicted"], 4, "{engine:?}");
        let tokens = stack
            .http()
            .post("/tokenize", &json!({"content": "Hello world"}))
            .await
            .ok();
        let text = stack
            .http()
            .post("/detokenize", &json!({"tokens": tokens["tokens"]}))
            .await
            .ok();
        assert_eq!(
            text["content"].as_str().unwrap_or_default().trim(),
            "Hello world",
            "{engine:?}"
        );
        let stats = stack.http().get("/api/v1/stats").await.ok();
        assert_eq!(stats["output_tokens"], 4, "{engine:?}");
        stack
            .http()
            .post("/models/unload", &json!({"model": "m"}))
            .await
            .ok();
    }
}

#[tokio::test]
async fn replicas_are_loaded_together_as_many_as_a_load_says() {
    let stack = Stack::with(Engine::Stub.model("m", 2, "replica_max = 3"))
        .start()
        .await;
    let load = async |body: Value| stack.http().post("/v1/admin/models/m/load", &body).await;
    assert_eq!(
        load(json!({"replicas": 4})).await.error(400)["code"],
        "invalid_load_request"
    );
    assert_eq!(
        load(json!({"replicas": 0})).await.error(422)["code"],
        "invalid_schema"
    );
    assert_eq!(row(&stack).await["runtime_state"], "unloaded");
    let loaded = load(json!({"replicas": 3})).await.ok();
    for (key, value) in [
        ("loaded_replicas", 3),
        ("replicas", 3),
        ("replica_max", 3),
        ("vram_estimate_replica_count", 3),
    ] {
        assert_eq!(loaded[key], value, "{key}");
    }
    assert_eq!(loaded["definition"]["replicas"], 1, "it is not modified");
    stack.http().chat("m", json!({"max_tokens": 4})).await.ok();
    let unloaded = stack
        .http()
        .post("/v1/admin/models/m/unload", &json!({}))
        .await
        .ok();
    assert_eq!(
        (&unloaded["loaded_replicas"], &unloaded["replicas"]),
        (&json!(0), &json!(1))
    );
}

#[tokio::test]
async fn a_failed_load_is_told_and_may_be_tried_again() {
    let entry = format!(
        "{}[models.m.stub]\nfail = 'load'\n",
        Engine::Stub.model("m", 1, "")
    );
    let stack = Stack::with(entry)
        .gateway_args(&["--autoload", "off"])
        .start()
        .await;
    for _ in 0..2 {
        let error = stack
            .http()
            .post("/v1/admin/models/m/load", &json!({}))
            .await
            .error(500);
        let shown = row(&stack).await;
        assert_eq!(
            (&shown["runtime_state"], &shown["is_loaded"]),
            (&json!("failed"), &json!(false))
        );
        assert_eq!(shown["last_error_code"], error["code"]);
        assert!(!shown["last_error"].as_str().unwrap_or_default().is_empty());
    }
    let error = stack.http().post(CHAT, &hello()).await.error(409);
    assert_eq!(error["code"], "model_failed");
    let unloaded = stack
        .http()
        .post("/v1/admin/models/m/unload", &json!({}))
        .await
        .ok();
    assert_eq!(unloaded["runtime_state"], "failed", "there is nothing to unload");
}

#[tokio::test]
async fn an_unload_lets_what_runs_finish_and_takes_nothing_new() {
    let entry = format!(
        "{}[models.m.stub]\ntokens_per_second = 20\n",
        Engine::Stub.model("m", 1, "")
    );
    let stack = Stack::with(entry).start().await;
    let mut running = stack.http().chat_stream("m", json!({"max_tokens": 30})).await;
    running.next().await.expect("an event");
    let unload = tokio::spawn({
        let http = stack.http();
        async move { http.post("/v1/admin/models/m/unload", &json!({})).await.ok() }
    });
    eventually("the model is unloading", Duration::from_secs(10), async || {
        match row(&stack).await["runtime_state"].as_str() {
            Some("unloading") => Ok(()),
            other => Err(other.map(str::to_owned)),
        }
    })
    .await;
    assert_eq!(row(&stack).await["runtime_inflight"], 1);
    // On or off, requests do not bring back what an operator is unloading.
    let error = stack.http().post(CHAT, &hello()).await.error(409);
    assert_eq!(error["code"], "model_unloading");
    // A second unload answers at once, a load conflicts (seed 001).
    let second = stack
        .http()
        .post("/v1/admin/models/m/unload", &json!({}))
        .await
        .ok();
    assert_eq!(second["runtime_state"], "unloading");
    let error = stack
        .http()
        .post("/v1/admin/models/m/load", &json!({}))
        .await
        .error(409);
    assert_eq!(error["code"], "model_unloading");
    assert_eq!(running.chat().await.finish.as_deref(), Some("length"));
    assert_eq!(unload.await.expect("an answer")["runtime_state"], "unloaded");
}

#[tokio::test]
async fn a_prompt_format_is_what_the_engine_renders() {
    let model = engines::test_model("tiny-chat");
    let entry =
        |format: &str| Engine::LlamaCpp.serving(&model, format, 1, &format!("prompt_format = '{format}'"));
    let formats = ["generic", "mistral_template", "qwen3_template", "gemma4_template"];
    let config: String = formats.iter().map(|format| entry(format)).collect();
    let limits = "[policy]\nmax_loaded_models = -1\n";
    let config = format!("{limits}{config}{}", entry("translategemma_template"));
    let stack = Stack::with(config).start().await;
    let turns = json!([
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Bye"},
    ]);
    for (format, prompt, modes) in [
        (
            "generic",
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n\
             <|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
            1,
        ),
        (
            "mistral_template",
            // What ends the test model's turns is its end of text.
            "[SYSTEM_PROMPT]Be kind.[/SYSTEM_PROMPT][INST]Hi[/INST]Hello<|im_end|>[INST]Bye[/INST]",
            1,
        ),
        (
            "qwen3_template",
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n\
             <|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
            3,
        ),
        (
            "gemma4_template",
            "<|turn>system\nBe kind.<turn|>\n<|turn>user\nHi<turn|>\n<|turn>model\nHello<turn|>\n<|turn>user\nBye<turn|>\n\
             <|turn>model\n<|channel>thought\n<channel|>",
            3,
        ),
    ] {
        let load = format!("/v1/admin/models/{format}/load");
        let loaded = stack.http().post(&load, &json!({})).await.ok();
        assert_eq!(loaded["definition"]["prompt_format"], format);
        let can = &loaded["capabilities"];
        assert_eq!(can["multi_turn"], true, "{format}");
        assert_eq!(
            can["thinking_modes"].as_array().map(Vec::len),
            Some(modes),
            "{format}"
        );
        let body = json!({"model": format, "messages": turns, "enable_thinking": false});
        let shown = stack.http().post("/apply-template", &body).await.ok();
        let shown = shown["prompt"].as_str().expect("a prompt");
        assert_eq!(shown.trim_start_matches("<s>"), prompt, "{format}");
    }
    let format = "translategemma_template";
    let request = json!({"model": format, "input": "Hola", "target_lang_code": "en", "max_output_tokens": 4});
    stack.http().post("/v1/responses", &request).await.ok();
    let shown = stack.http().get(&format!("/v1/admin/models/{format}")).await.ok();
    assert_eq!(shown["capabilities"]["multi_turn"], false);
    let error = stack
        .http()
        .post(
            "/v1/responses",
            &json!({"model": format, "messages": turns, "target_lang_code": "en"}),
        )
        .await
        .error(400);
    assert_eq!(error["param"], "messages");
}

#[tokio::test]
async fn llama_server_gets_its_overrides_as_flags() {
    let stack = Stack::with(Engine::LlamaServer.model("m", 1, "ctx_size = 256"))
        .start()
        .await;
    let load = async |body: Value| stack.http().post("/v1/admin/models/m/load", &body).await;
    for (body, status) in [
        (json!({"llama_server_spec_draft_n_max": 7}), 400),
        (json!({"gguf_n_ctx": 512}), 400),
        (json!({"llama_server_n_ctx": 0}), 422),
    ] {
        load(body).await.error(status);
    }
    let body = json!({"llama_server_n_ctx": 512});
    let loaded = load(body.clone()).await.ok();
    assert_eq!(loaded["load_override"], body);
    assert_eq!(loaded["definition"]["llama_server_n_ctx"], 256);
    let props = stack.http().get("/props?model=m").await.ok();
    assert_eq!(props["default_generation_settings"]["n_ctx"], 512);
}

#[tokio::test]
async fn sound_goes_to_a_runtime_that_takes_it_and_nowhere_else() {
    let audio = "labels = ['audio']";
    let config = format!(
        "[policy]\nmax_loaded_models = -1\n{}{}{}",
        Engine::LlamaServer.model("server", 1, audio),
        Engine::LlamaCpp.model("embedded", 1, audio),
        Engine::LlamaCpp.model("chat", 1, "")
    );
    let stack = Stack::with(config).start().await;
    let ask = async |model: &str| {
        let path = "/api/v1/audio/transcriptions";
        stack.http().post(path, &json!({"model": model})).await
    };
    for model in ["embedded", "chat"] {
        assert_eq!(
            ask(model).await.error(400)["code"],
            "unsupported_by_runtime",
            "{model}"
        );
    }
    // It is loaded for that; the test model has no ears, and llama-server says so in its own words.
    let told = ask("server").await;
    assert!(
        told.status.is_client_error() || told.status.is_server_error(),
        "{told:?}"
    );
    assert_ne!(told.json()["error"]["code"], "unsupported_by_runtime");
    let health = stack.http().get("/api/v1/health").await.ok();
    let loaded = &health["all_models_loaded"];
    assert_eq!(
        (&loaded[0]["model_name"], &loaded[0]["type"]),
        (&json!("server"), &json!("audio"))
    );
    assert_eq!(loaded.as_array().map(Vec::len), Some(1));
}
