//! What Ollama's own client does beyond talking: models made from others, a context that grows.

use std::process::Command;

use muster_tests::{
    Stack,
    engines::{Engine, required, test_model},
};
use serde_json::{Value, json};

use crate::clients::run;

fn models() -> String {
    let file = test_model("bench-chat");
    Engine::LlamaCpp.serving(&file, "bench-chat", 1, "")
        + &Engine::LlamaCpp.serving(&file, "fixed", 1, "ctx_size = 1024")
}

#[tokio::test]
async fn ollamas_client_makes_models_and_asks_for_context() {
    let stack = Stack::with(models()).start().await;
    let mut command = Command::new(required("MUSTER_TEST_PYTHON"));
    command
        .arg(format!("{}/e2e/sdk/ollama_client.py", env!("CARGO_MANIFEST_DIR")))
        .arg(format!("http://{}", stack.gateway_address()))
        .arg("bench-chat")
        .arg(test_model("tiny-chat"));
    let output = run(command).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

/// What was made outlives the controller; what it is made from is the configuration's.
#[tokio::test]
async fn a_model_made_from_another_outlives_the_controller() {
    let mut stack = Stack::with(models()).start().await;
    let body = json!({
        "model": "mario",
        "from": "fixed",
        "system": "You are Mario.",
        "parameters": {"num_predict": 3},
        "template": "{% for m in messages %}{{ m.content }}{% endfor %}",
        "stream": false,
    });
    stack.http().post("/api/create", &body).await.ok();
    let show = json!({"model": "mario"});
    let before = stack.http().post("/api/show", &show).await.ok();
    assert_eq!(before["system"], "You are Mario.");
    stack.kill(muster_tests::Role::Controller);
    stack.start_process(muster_tests::Role::Controller).await;
    stack.model("user.mario").await;
    let rendered = json!({"model": "mario", "messages": [{"role": "user", "content": "Hi"}]});
    let chat = stack.http().post("/v1/chat/completions", &rendered).await.ok();
    assert_eq!(chat["usage"]["completion_tokens"], 3, "{chat}");
    let prompt = stack.http().post("/apply-template", &rendered).await.ok();
    assert_eq!(prompt["prompt"], "You are Mario.Hi");
    let after = stack.http().post("/api/show", &show).await.ok();
    assert_eq!(after["modelfile"], before["modelfile"]);
}

/// Clients that search in documents send pieces of any length, and count on the rest being left out.
#[tokio::test]
async fn inputs_of_vectors_that_are_too_long_are_cut_unless_the_client_says_no() {
    let long = "Once upon a time there was a fox. ".repeat(400);
    for engine in [Engine::LlamaCpp, Engine::LlamaServer] {
        let models = engine.serving(&test_model("tiny-embed"), "tiny-embed", 1, "ctx_size = 64");
        let stack = Stack::with(models).start().await;
        let body = |more: &Value| {
            let mut body = json!({"model": "tiny-embed", "input": ["Hello!", long]});
            body.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            body
        };
        let cut = stack.http().post("/api/embed", &body(&json!({}))).await.ok();
        assert_eq!(
            cut["embeddings"].as_array().map(Vec::len),
            Some(2),
            "{engine:?}: {cut}"
        );
        let alone = json!({"model": "tiny-embed", "input": "Hello!"});
        let alone = stack.http().post("/api/embed", &alone).await.ok();
        assert_eq!(cut["embeddings"][0], alone["embeddings"][0], "{engine:?}");
        let counted =
            cut["prompt_eval_count"].as_u64().unwrap() - alone["prompt_eval_count"].as_u64().unwrap();
        assert!((32..=64).contains(&counted), "{engine:?}: {counted}");
        let older = json!({"model": "tiny-embed", "prompt": long});
        let older = stack.http().post("/api/embeddings", &older).await.ok();
        assert!(
            older["embedding"]
                .as_array()
                .is_some_and(|vector| vector.len() > 1),
            "{engine:?}"
        );
        let refused = stack
            .http()
            .post("/api/embed", &body(&json!({"truncate": false})))
            .await;
        assert_eq!(refused.status, 400, "{engine:?}: {}", refused.text);
    }
}

/// Other options of a load: a model that is idle is loaded anew with them, once; what was set otherwise stays as it is.
#[tokio::test]
async fn options_of_a_load_are_honoured_where_nobody_set_them() {
    let file = test_model("tiny-chat");
    for engine in [Engine::LlamaCpp, Engine::LlamaServer] {
        let models = engine.serving(&file, "m", 1, "llamacpp_args = \"--no-warmup\"");
        let stack = Stack::with(models).start().await;
        let generate = async |options: Value| {
            let body = json!({"model": "m", "prompt": "Hello", "stream": false, "options": options});
            stack.http().post("/api/generate", &body).await
        };
        let loaded = async || {
            let instance = stack.model("m").await.instances.remove(0);
            let spec = instance.status.and_then(|status| status.spec);
            let args = spec.and_then(|spec| spec.settings).map(|settings| settings.args);
            (instance.r#ref.unwrap().instance_id, args.unwrap())
        };
        let few = json!({"num_predict": 1});
        generate(few.clone()).await.ok();
        let before = loaded().await;
        // The first is as the configuration has it; what names devices is left to it.
        for same in [
            json!({"num_thread": 1, "num_predict": 1}),
            json!({"num_gpu": 1, "main_gpu": 0, "num_predict": 1}),
        ] {
            generate(same.clone()).await.ok();
            assert_eq!(loaded().await, before, "{engine:?} {same}");
        }
        let options = json!({"num_predict": 1, "num_batch": 64, "use_mmap": false});
        generate(options.clone()).await.ok();
        let anew = loaded().await;
        assert_eq!(
            anew.1,
            ["--no-warmup", "-b", "64", "--load-mode", "none"],
            "{engine:?}"
        );
        for again in [options, few] {
            generate(again.clone()).await.ok();
            assert_eq!(loaded().await, anew, "{engine:?} {again}");
        }
        let refused = generate(json!({"num_thread": 2})).await;
        assert!(
            refused.status == 400 && refused.text.contains("num_thread"),
            "{engine:?} {}",
            refused.text
        );
        assert_eq!(loaded().await, anew, "{engine:?}");
    }
}
