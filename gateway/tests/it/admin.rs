//! The Runtime Admin API over HTTP (seed 001).

use std::time::Duration;

use muster_core::Code;
use muster_proto::v1;
use reqwest::Response;
use serde_json::{Value, json};

use crate::{
    controller::{Controller, Said},
    gateway::{self, Gateway, read},
    within,
    worker::{Worker, says},
};

/// A model as operators see it.
fn model(id: &str, runtime: &str, status: v1::ModelStatus) -> v1::Model {
    v1::Model {
        id: id.into(),
        r#type: v1::ModelType::Llm.into(),
        status: status.into(),
        runtime: runtime.into(),
        enabled: true,
        replica_max: 4,
        settings: Some(v1::ModelSettings {
            checkpoint: format!("/models/{id}.gguf"),
            ctx_size: 4096,
            ..v1::ModelSettings::default()
        }),
        ..v1::Model::default()
    }
}

async fn start(said: impl FnOnce(&mut Said)) -> (Gateway, Controller) {
    let mut all = Said {
        epoch: 1,
        catalogue: vec![
            model("gguf", "llama_cpp", v1::ModelStatus::Unloaded),
            model("ex", "exllamav3", v1::ModelStatus::Unloaded),
            model("org/name", "vllm", v1::ModelStatus::Loaded),
            model("server", "llama_server", v1::ModelStatus::Unloaded),
        ],
        ..Said::default()
    };
    said(&mut all);
    let controller = Controller::start(all).await;
    let gateway = Gateway::start(&controller.address).await;
    (gateway, controller)
}

async fn post(gateway: &Gateway, path: &str, body: &str) -> Response {
    let request = gateway
        .client
        .post(format!("{}/v1/admin/models/{path}", gateway.url));
    within(request.body(body.to_owned()).send()).await.unwrap()
}

async fn refused(gateway: &Gateway, path: &str, body: &str) -> (u16, Value) {
    let (status, body) = read(post(gateway, path, body).await).await;
    (status.as_u16(), body["error"]["code"].clone())
}

#[tokio::test]
async fn seed_001_models_are_listed_with_their_definition_and_state() {
    let (gateway, _controller) = start(|_| {}).await;
    let (status, body) = gateway.get("/v1/admin/models").await;
    assert_eq!(status, 200);
    let names: Vec<_> = body["models"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["name"].clone())
        .collect();
    assert_eq!(names, ["gguf", "ex", "org/name", "server"]);
    assert_eq!(body["models"][0]["definition"]["gguf_n_ctx"], 4096);
    assert_eq!(body["models"][0]["load_constraints"]["gguf_n_ctx"]["minimum"], 1);
    let (status, row) = gateway.get("/v1/admin/models/gguf").await;
    assert_eq!(status, 200);
    assert_eq!(row, body["models"][0], "one row is the list's row");
    for path in ["org/name", "org%2Fname"] {
        let (status, row) = gateway.get(&format!("/v1/admin/models/{path}")).await;
        assert_eq!((status.as_u16(), &row["name"]), (200, &json!("org/name")));
    }
    let (status, body) = gateway.get("/v1/admin/models/nobody").await;
    assert_eq!(
        (status.as_u16(), &body["error"]["code"]),
        (404, &json!("unknown_model"))
    );
}

#[tokio::test]
async fn a_load_is_checked_for_its_model_then_its_shape_then_its_values() {
    let (gateway, controller) = start(|_| {}).await;
    for (path, body, expected) in [
        ("nobody/load", "{", (404, "unknown_model")),
        ("nobody/unload", "", (404, "unknown_model")),
        ("gguf/load", "{", (422, "invalid_schema")),
        (
            "gguf/load",
            r#"{"gguf_n_ctx": 0, "gguf_type_k": "foo"}"#,
            (422, "invalid_schema"),
        ),
        (
            "gguf/load",
            r#"{"gguf_type_k": "q8-0"}"#,
            (400, "invalid_load_request"),
        ),
        (
            "gguf/load",
            r#"{"exllama_cache_size": 32768}"#,
            (400, "invalid_load_request"),
        ),
        ("gguf/load", r#"{"replicas": 5}"#, (400, "invalid_load_request")),
        (
            "ex/load",
            r#"{"exllama_cache_size": 8000}"#,
            (400, "invalid_load_request"),
        ),
        ("gguf/reload", "", (404, "route_not_found")),
    ] {
        assert_eq!(
            refused(&gateway, path, body).await,
            (expected.0, json!(expected.1)),
            "{path} {body}"
        );
    }
    let heard = controller.heard();
    assert!(
        heard.loads.is_empty() && heard.unloads.is_empty(),
        "a 4xx changes nothing: {heard:?}"
    );
}

#[tokio::test]
async fn a_load_waits_for_its_end_and_answers_the_whole_row() {
    let (gateway, controller) = start(|said| said.evicts = vec!["org/name".into()]).await;
    let load = tokio::spawn({
        let request = gateway
            .client
            .post(format!("{}/v1/admin/models/gguf/load", gateway.url))
            // Any Content-Type is accepted (gateway/README.md, Runtime Admin API).
            .header("content-type", "text/plain")
            .body(r#"{"replicas": 3, "gguf_n_ctx": 32768, "gguf_type_k": null}"#);
        request.send()
    });
    let heard = controller.hears(|heard| heard.loads.len() == 1).await;
    assert_eq!(heard.loads[0].replicas, 3);
    assert_eq!(
        heard.loads[0].override_json,
        r#"{"gguf_n_ctx":32768,"gguf_type_k":null}"#
    );
    assert!(!load.is_finished());
    controller.say(|said| said.load = Some(Ok(model("gguf", "llama_cpp", v1::ModelStatus::Loaded))));
    // Requests that follow the answer find the model loaded: the table must have it too.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!load.is_finished());
    controller.say(|said| {
        said.models = vec![v1::ModelSummary {
            status: v1::ModelStatus::Loaded.into(),
            ..gateway::model("gguf")
        }];
    });
    let (status, row) = read(within(load).await.unwrap().unwrap()).await;
    assert_eq!((status.as_u16(), &row["runtime_state"]), (200, &json!("loaded")));
    assert_eq!(row["evicted"], json!(["org/name"]));
    let (_, shown) = gateway.get("/v1/admin/models/gguf").await;
    let keys = |row: &Value| row.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&row), keys(&shown));
}

#[tokio::test]
async fn what_the_controller_decides_about_states_is_the_answer() {
    let (gateway, controller) = start(|_| {}).await;
    for (error, expected) in [
        (Code::ModelUnloading.error("x"), (409, "model_unloading")),
        (
            Code::InvalidLoadRequest.error("it is loaded"),
            (400, "invalid_load_request"),
        ),
        (
            Code::ModelLoadFailed.error("no such tensor"),
            (500, "model_load_failed"),
        ),
        (Code::SlotsPinned.error("x"), (409, "slots_pinned")),
    ] {
        controller.say(|said| said.load = Some(Err(error)));
        assert_eq!(
            refused(&gateway, "gguf/load", "").await,
            (expected.0, json!(expected.1))
        );
    }
    controller.say(|said| said.unload = Some(Err(Code::ModelLoading.error("x"))));
    assert_eq!(
        refused(&gateway, "gguf/unload", "").await,
        (409, json!("model_loading"))
    );
    controller.say(|said| said.unload = Some(Ok(model("gguf", "llama_cpp", v1::ModelStatus::Unloaded))));
    let (status, row) = read(post(&gateway, "gguf/unload", "").await).await;
    assert_eq!(
        (status.as_u16(), &row["runtime_state"]),
        (200, &json!("unloaded"))
    );
}

#[tokio::test]
async fn seed_001_gpu_memory_without_a_gpu_says_why() {
    let (gateway, _controller) = start(|_| {}).await;
    let (status, body) = gateway.get("/v1/admin/gpu-memory").await;
    assert_eq!((status.as_u16(), &body["gpus"]), (200, &json!([])));
    assert!(body["error"].is_string());
    assert_eq!(body["models"][0]["name"], "gguf");
    assert_eq!(body["models"][0]["vram_estimate_mib"], Value::Null);
}

#[tokio::test]
async fn without_a_controller_the_admin_api_is_unavailable() {
    let (gateway, controller) = start(|_| {}).await;
    controller.kill();
    let (status, body) = gateway.get("/v1/admin/models").await;
    assert_eq!(
        (status.as_u16(), &body["error"]["code"]),
        (503, &json!("controller_unavailable"))
    );
}

#[tokio::test]
async fn the_admin_key_guards_it() {
    let controller = Controller::start(Said::default()).await;
    let keys = ["--api-key", "user", "--admin-api-key", "admin"];
    let gateway = Gateway::start_with("127.0.0.1:0", &controller.address, &keys).await;
    for (key, status) in [("user", 403), ("wrong", 401), ("admin", 200)] {
        let request = gateway
            .client
            .get(format!("{}/v1/admin/models", gateway.url))
            .bearer_auth(key);
        assert_eq!(within(request.send()).await.unwrap().status(), status, "{key}");
    }
}

#[tokio::test]
async fn seed_001_each_example_of_a_load_body_is_a_load() {
    let (gateway, controller) = start(|said| {
        said.load = Some(Ok(model("gguf", "llama_cpp", v1::ModelStatus::Loaded)));
    })
    .await;
    let vllm = json!({
        "vllm_max_model_len": 16384,
        "vllm_kv_cache_dtype": "fp8",
        "vllm_kv_cache_memory_bytes": 2_147_483_648_u64,
        "vllm_max_pixels": 4_014_080,
        "vllm_speculative_method": "mtp",
        "vllm_speculative_model": "google/gemma-4-26B-A4B-it-assistant",
        "vllm_num_speculative_tokens": 1
    });
    let server = json!({
        "llama_server_n_ctx": 4096,
        "llama_server_image_max_tokens": 512,
        "llama_server_spec_type": "draft-mtp",
        "llama_server_spec_draft_n_max": 4,
        "llama_server_spec_draft_p_min": 0.25
    });
    let exllama = |quant: Value| json!({"exllama_cache_size": 32768, "exllama_cache_quant": quant, "exllama_max_rq_tokens": 32768});
    let bits = json!({
        "exllama_cache_size": 32768,
        "exllama_cache_k_bits": 8,
        "exllama_cache_v_bits": 4,
        "exllama_max_rq_tokens": 32768
    });
    let cache =
        json!({"gguf_n_ctx": 32768, "gguf_flash_attn": "auto", "gguf_type_k": "q8_0", "gguf_type_v": "q4_0"});
    for (name, body, said) in [
        ("gguf", json!({"gguf_n_ctx": 8192}), None),
        ("gguf", json!({"gguf_n_ctx": 16384}), None),
        ("gguf", json!({"gguf_n_ctx": 32768}), None),
        ("gguf", cache, None),
        ("ex", exllama(Value::Null), None),
        ("ex", exllama(json!("8,8")), None),
        ("ex", exllama(json!("8,4")), None),
        ("ex", bits, Some(exllama(json!("8,4")))),
        ("org%2Fname", vllm, None),
        ("server", server, None),
    ] {
        let response = post(&gateway, &format!("{name}/load"), &body.to_string()).await;
        assert_eq!(response.status(), 200, "{body}");
        let heard = controller.heard().loads.pop().unwrap();
        let heard: Value = serde_json::from_str(&heard.override_json).unwrap();
        assert_eq!(heard, said.unwrap_or(body));
    }
    assert_eq!(
        post(&gateway, "gguf/load", r#"{"replicas": 3}"#).await.status(),
        200
    );
    let heard = controller.heard().loads.pop().unwrap();
    assert_eq!((heard.replicas, heard.override_json.as_str()), (3, ""));
}

#[tokio::test]
async fn seed_001_each_example_of_a_wrong_load_body_is_refused() {
    let (gateway, controller) = start(|_| {}).await;
    for (name, body, status) in [
        ("gguf", r#"{"gguf_n_ctx": 0}"#, 422),
        ("ex", r#"{"exllama_cache_size": 0}"#, 422),
        ("ex", r#"{"exllama_max_rq_tokens": 0}"#, 422),
        ("gguf", r#"{"gguf_type_k": "q8-0"}"#, 400),
        ("gguf", r#"{"gguf_type_k": "foo"}"#, 400),
        ("ex", r#"{"exllama_cache_k_bits": 8}"#, 400),
        (
            "ex",
            r#"{"exllama_cache_quant": "8", "exllama_cache_k_bits": 8, "exllama_cache_v_bits": 8}"#,
            400,
        ),
        ("ex", r#"{"exllama_cache_size": 8000}"#, 400),
        ("ex", r#"{"exllama_cache_quant": "fp16"}"#, 400),
        ("server", r#"{"llama_server_spec_type": "medusa"}"#, 400),
        ("server", r#"{"llama_server_spec_draft_n_max": 7}"#, 400),
        ("server", r#"{"llama_server_spec_draft_p_min": 1.5}"#, 400),
        ("gguf", r#"{"exllama_cache_size": 32768}"#, 400),
        ("org%2Fname", r#"{"llama_server_n_ctx": 4096}"#, 400),
    ] {
        let code = match status {
            422 => "invalid_schema",
            _ => "invalid_load_request",
        };
        let answer = refused(&gateway, &format!("{name}/load"), body).await;
        assert_eq!(answer, (status, json!(code)), "{name} {body}");
    }
    assert!(controller.heard().loads.is_empty());
}

/// A gateway with a loaded model `m` and an unloaded one, `cold`, both changed by `with`.
async fn serving(worker: &Worker, with: impl Fn(&mut v1::ModelSummary)) -> (Gateway, Controller) {
    let mut models = vec![
        v1::ModelSummary {
            status: v1::ModelStatus::Loaded.into(),
            ..gateway::model("m")
        },
        gateway::model("cold"),
    ];
    models.iter_mut().for_each(with);
    let controller = Controller::start(Said {
        epoch: 1,
        routes: vec![worker.route("m", "i")],
        models,
        ..Said::default()
    })
    .await;
    let gateway = Gateway::start(&controller.address).await;
    (gateway, controller)
}

#[tokio::test]
async fn seed_001_thinking_is_refused_before_any_load_where_it_is_not_advertised() {
    let worker = Worker::start(|_| says(&["a"])).await;
    let (gateway, controller) = serving(&worker, |model| model.thinking = Some(false)).await;
    for mode in ["enabled", "disabled"] {
        for path in ["/v1/responses", "/v1/chat/completions"] {
            let turns = json!([{"role": "user", "content": "hi"}]);
            let body = match path {
                "/v1/responses" => json!({"model": "cold", "input": "hi", "thinking": mode}),
                _ => json!({"model": "cold", "messages": turns, "thinking": mode}),
            };
            let (status, body) = read(gateway.post(path, &body).await).await;
            assert_eq!(
                (status.as_u16(), &body["error"]["code"]),
                (400, &json!("thinking_unsupported"))
            );
        }
    }
    assert!(controller.heard().wishes.is_empty());
    let body = json!({"model": "m", "input": "hi", "thinking": "default"});
    assert_eq!(gateway.post("/v1/responses", &body).await.status(), 200);
}

#[tokio::test]
async fn seed_001_translategemma_gets_its_structured_request() {
    let worker = Worker::start(|_| says(&["hallo"])).await;
    let format = |model: &mut v1::ModelSummary| model.prompt_format = "translategemma_template".into();
    let (gateway, _controller) = serving(&worker, format).await;
    let body = json!({"model": "m", "input": "hello", "source_lang_code": "en", "target_lang_code": "de"});
    assert_eq!(gateway.post("/v1/responses", &body).await.status(), 200);
    assert_eq!(
        kwargs(&worker),
        json!({"source_lang": "English", "source_lang_code": "en", "target_lang": "German", "target_lang_code": "de"})
    );
    let turn = |role| json!({"role": role, "content": "hi"});
    let turns = [turn("user"), turn("assistant"), turn("user")];
    let body = json!({"model": "m", "messages": turns, "target_lang_code": "de"});
    let (status, refused) = read(gateway.post("/v1/responses", &body).await).await;
    assert_eq!(
        (status.as_u16(), &refused["error"]["param"]),
        (400, &json!("messages"))
    );
}

/// What the last request's template got.
fn kwargs(worker: &Worker) -> Value {
    let start = worker.starts().pop().unwrap();
    let Some(v1::start::Work::Generate(work)) = start.work else {
        panic!("it generates")
    };
    match work.input {
        Some(v1::generate_request::Input::Chat(chat)) => {
            serde_json::from_str(&chat.template_kwargs_json).unwrap()
        }
        other => panic!("{other:?}"),
    }
}
