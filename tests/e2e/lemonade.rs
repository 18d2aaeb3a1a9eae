//! Lemonade's clients of today: what they read beside seed 000's answers, with real engines.

use std::{process::Command, time::Duration};

use muster_tests::{
    Engine, Stack,
    engines::{required, test_model},
    eventually,
    http::client,
};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(30);

/// The row of a model in Lemonade's health, as the holder of a key sees it, once it has what is wanted.
async fn row(stack: &Stack, key: &str, model: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let looks = async || {
        let request = client().get(format!("{}/api/v1/health", stack.http().base()));
        let answer = request.bearer_auth(key).send().await;
        let health: Value = answer.expect("it answers").json().await.expect("JSON");
        let rows = health["all_models_loaded"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let found = rows.into_iter().find(|row| row["model_name"] == model);
        found.filter(|row| wanted(row)).ok_or(health)
    };
    eventually("health shows the model as it is", LIMIT, looks)
        .await
        .0
}

/// What the kernel says that a process was started with.
fn started_with(pid: &Value) -> Vec<String> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).expect("the process runs");
    let words = line.split(|byte| *byte == 0);
    let mut words: Vec<String> = words
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    // Each word ends with a zero.
    words.pop();
    words
}

#[tokio::test]
async fn health_shows_the_process_and_command_line_of_an_engine_without_its_secrets() {
    let secret = "llamacpp_args = \"--hf-token s3cret\"\npinned = true";
    let config = "[policy]\nmax_loaded_models = 2\n".to_owned()
        + &Engine::Stub.model("stub", 1, "")
        + &Engine::LlamaCpp.model("ours", 1, "")
        + &Engine::LlamaServer.model("theirs", 1, secret);
    for (model, pinned) in [("stub", false), ("ours", false), ("theirs", true)] {
        let keys = ["--api-key", "user", "--admin-api-key", "admin"];
        let stack = Stack::with(config.clone()).gateway_args(&keys).start().await;
        let load = client()
            .post(format!("{}/api/v1/load", stack.http().base()))
            .json(&json!({"model_name": model}));
        let answer = load.bearer_auth("admin").send().await.expect("it answers");
        assert_eq!(answer.status(), 200, "{model}");
        let known = |row: &Value| !row["pid"].is_null();
        let shown = row(&stack, "admin", model, known).await;
        assert_eq!(shown["pinned"], pinned, "{shown}");
        let mut real = started_with(&shown["pid"]);
        if let Some(place) = real.iter().position(|word| word == "s3cret") {
            "***".clone_into(&mut real[place]);
        }
        assert_eq!(
            real.contains(&"***".to_owned()),
            model == "theirs",
            "{model}: {real:?}"
        );
        // The program may be a script, which its interpreter runs.
        let line = shown["launch_command"].as_array().expect("the command line");
        assert!(
            line.len() > 1 && json!(real[real.len() - line.len() + 1..]) == json!(line[1..]),
            "{model}: {line:?} is not {real:?}"
        );
        let users = row(&stack, "user", model, known).await;
        assert_eq!(users["launch_command"], Value::Null, "{model}");
        assert_eq!(users["pid"], shown["pid"], "{model}");
    }
}

#[tokio::test]
async fn health_shows_who_works_and_streams_and_what_may_be_loaded() {
    let config = "[policy]\nmax_loaded_models = 2\n".to_owned() + &Engine::Stub.model("m", 1, "");
    let stack = Stack::with(config).start().await;
    let load = json!({"model_name": "m", "pinned": true});
    stack.http().post("/api/v1/load", &load).await.ok();
    row(&stack, "", "m", |row| row["pinned"] == true).await;
    let mut stream = stack
        .http()
        .chat_stream("m", json!({"max_tokens": 1_000_000}))
        .await;
    assert!(stream.next().await.is_some());
    let works = |row: &Value| row["is_busy"] == true && row["is_streaming"] == true;
    row(&stack, "", "m", works).await;
    drop(stream);
    let rests = |row: &Value| row["is_busy"] == false && row["is_streaming"] == false;
    row(&stack, "", "m", rests).await;
    let health = stack.http().get("/api/v1/health").await.ok();
    assert_eq!(
        (&health["max_models"]["llm"], &health["max_models"]["image"]),
        (&json!(2), &json!(2)),
        "{health}"
    );
    assert_eq!(health["pinned_models"]["llm"], 1, "{health}");
}

#[tokio::test]
async fn stats_and_metrics_add_up_and_recipes_say_what_the_machine_can_run() {
    let config = Engine::LlamaCpp.model("m", 1, "");
    let stack = Stack::with(config).start().await;
    for _ in 0..2 {
        let reply = stack.http().chat("m", json!({"max_tokens": 4})).await;
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    let stats = stack.http().get("/api/v1/stats").await.ok();
    let figure = |name: &str| stats[name].as_u64().unwrap_or_else(|| panic!("{name}: {stats}"));
    assert_eq!(
        (figure("request_count_total"), figure("output_tokens_total")),
        (2, 8)
    );
    // The second prompt is the first one's again.
    assert_eq!(figure("prompt_tokens_total"), 2 * figure("prompt_tokens"));
    assert!(figure("cache_tokens") > 0, "{stats}");
    assert_eq!(figure("cache_tokens_total"), figure("cache_tokens"));
    let evaluated = figure("prompt_tokens_total") - figure("cache_tokens_total");
    assert_eq!(figure("input_tokens_total"), evaluated);
    let metrics = stack.http().get("/metrics").await.text;
    let of_model = |name: &str| {
        let start = format!("lemonade_model_{name}{{checkpoint=");
        let mut lines = metrics.lines().filter_map(|line| line.strip_prefix(&start));
        let found = lines.find(|line| line.contains("model_name=\"m\",recipe=\"\",type=\"llm\""));
        found
            .and_then(|line| line.split(' ').next_back())
            .map(str::to_owned)
    };
    for (name, value) in [
        ("loaded", 1),
        ("requests_total", 2),
        ("cache_tokens_total", figure("cache_tokens_total")),
        ("prompt_tokens", figure("prompt_tokens")),
    ] {
        assert_eq!(of_model(name), Some(value.to_string()), "{name}: {metrics}");
    }
    let info = stack.http().get("/api/v1/system-info").await.ok();
    let llama = &info["recipes"]["llamacpp"];
    assert_eq!(llama["default_backend"], "cpu", "{info}");
    let cpu = &llama["backends"]["cpu"];
    assert_eq!(
        (&cpu["state"], &cpu["devices"]),
        (&json!("installed"), &json!(["cpu"]))
    );
    let npu = &info["recipes"]["flm"]["backends"]["npu"];
    assert_eq!(
        (&npu["state"], &npu["devices"]),
        (&json!("unsupported"), &json!([]))
    );
}

/// The one package of the registry that is a client of Lemonade's servers, through its own script.
#[tokio::test]
async fn lemonades_python_client_talks_to_llama_cpp() {
    let engine = Engine::LlamaCpp;
    let of_type = |name: &str, label: &str| {
        let more = format!("labels = [\"{label}\"]");
        engine.serving(&test_model(&format!("tiny-{name}")), name, 1, &more)
    };
    let config = engine.model("chat", 1, "recipe = \"llamacpp\"")
        + &of_type("embed", "embeddings")
        + &of_type("rerank", "reranking");
    let stack = Stack::with(config).start().await;
    let mut command = Command::new(required("MUSTER_TEST_PYTHON"));
    command
        .arg(format!(
            "{}/e2e/sdk/lemonade_client.py",
            env!("CARGO_MANIFEST_DIR")
        ))
        .arg(format!("http://{}", stack.gateway_address()));
    let output = crate::clients::run(command).await;
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A load with other settings replaces what is loaded: its pin goes over, and goes with the model.
#[tokio::test]
async fn a_pin_by_a_load_survives_a_load_with_other_settings_and_no_unload() {
    let stack = Stack::with(Engine::LlamaCpp.model("m", 1, "")).start().await;
    let http = stack.http();
    let load = async |more: Value| {
        let mut body = json!({"model_name": "m"});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        http.post("/v1/load", &body).await.ok()
    };
    load(json!({"pinned": true})).await;
    assert!(stack.model("m").await.pinned);
    load(json!({"ctx_size": 512})).await;
    assert!(stack.model("m").await.pinned);
    assert_eq!(http.get("/v1/models/m").await.ok()["id"], "m");
    http.post("/v1/unload", &json!({"model_name": "m"})).await.ok();
    assert!(!stack.model("m").await.pinned);
}

/// Seed 000's example of arguments: today's llama-server calls `--no-mmap` otherwise and would not start.
#[tokio::test]
async fn seed_000_example_arguments_load_on_either_runtime() {
    for engine in [Engine::LlamaCpp, Engine::LlamaServer] {
        let stack = Stack::with(engine.model("m", 1, "")).start().await;
        let body = json!({"model_name": "m", "llamacpp_args": "--flash-attn on --no-mmap"});
        stack.http().post("/api/v1/load", &body).await.ok();
        let answer = stack.http().chat("m", json!({"max_tokens": 1})).await;
        assert_eq!(answer.status, 200, "{engine:?} {}", answer.text);
    }
}
