//! llama.cpp's own routes over HTTP (seed 004).

use muster_proto::v1;
use serde_json::json;

use crate::{
    controller::{Controller, Said},
    gateway::{Gateway, events, model, read},
    worker::{Worker, says},
};

#[tokio::test]
async fn seed_004_a_completion_of_the_only_loaded_model() {
    let worker = Worker::start(|_| says(&["a", "b"])).await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    let body = json!({"prompt": "p", "n_predict": 4});
    for path in ["/completion", "/completions", "/completion?model=m"] {
        let (status, answer) = read(gateway.post(path, &body).await).await;
        assert_eq!(
            (status.as_u16(), &answer["content"]),
            (200, &json!("ab")),
            "{path}"
        );
        assert_eq!((&answer["stop"], &answer["model"]), (&json!(true), &json!("m")));
        assert_eq!(answer["generation_settings"]["n_predict"], 4);
        assert!(answer["generation_settings"]["n_ctx"].is_u64());
    }
    let (status, answer) = read(gateway.post("/completion?model=nobody", &body).await).await;
    assert_eq!((status.as_u16(), &answer["error"]["code"]), (404, &json!(404)));
}

#[tokio::test]
async fn a_stream_ends_with_stop() {
    let worker = Worker::start(|_| says(&["a", "b"])).await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    let body = json!({"prompt": "p", "stream": true});
    let events = events(gateway.post("/completion", &body).await).await;
    let text: String = events
        .iter()
        .filter_map(|event| event["content"].as_str())
        .collect();
    assert_eq!(text, "ab");
    let stops: Vec<_> = events.iter().map(|event| event["stop"] == json!(true)).collect();
    assert_eq!(stops.iter().filter(|stop| **stop).count(), 1);
    assert_eq!(stops.last(), Some(&true));
}

#[tokio::test]
async fn what_is_switched_off_is_501() {
    let worker = Worker::start(|_| says(&["a"])).await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    for path in ["/slots", "/metrics?model=m"] {
        let (status, answer) = gateway.get(path).await;
        assert_eq!(status, 501, "{path}");
        assert_eq!(
            (&answer["error"]["code"], &answer["error"]["type"]),
            (&json!(501), &json!("not_supported_error"))
        );
    }
    for (path, body) in [
        ("/props", json!({})),
        ("/slots/0?action=erase", json!({})),
        ("/lora-adapters", json!([])),
    ] {
        let (status, answer) = read(gateway.post(path, &body).await).await;
        assert_eq!(
            (status.as_u16(), &answer["error"]["code"]),
            (501, &json!(501)),
            "{path}"
        );
    }
}

#[tokio::test]
async fn seed_004_props_of_an_engine_that_speaks_no_http() {
    let worker = Worker::start(|_| says(&["a"])).await.with_args(&["--props"]);
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    let (status, props) = gateway.get("/props").await;
    assert_eq!(status, 200);
    assert_eq!(props["default_generation_settings"]["params"]["top_k"], 40);
    assert_eq!(props["default_generation_settings"]["next_token"]["n_remain"], -1);
    assert_eq!(props["model_path"], "/models/m.gguf");
    assert_eq!(props["total_slots"], 2);
    assert_eq!(props["chat_template"], "{{ messages }}");
    assert_eq!(props["build_info"], "scripted 1");
    let (status, answer) = read(gateway.post("/props", &json!({})).await).await;
    assert_eq!((status.as_u16(), answer), (200, json!({"success": true})));
}

#[tokio::test]
async fn seed_004_slots_of_an_engine_that_speaks_no_http() {
    let worker = Worker::start(|_| says(&["a"])).await.with_args(&["--slots"]);
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    let (status, slots) = gateway.get("/slots?fail_on_no_slot=1").await;
    assert_eq!((status.as_u16(), slots.as_array().unwrap().len()), (200, 2));
    assert_eq!(
        (
            &slots[0]["id"],
            &slots[0]["is_processing"],
            &slots[1]["is_processing"]
        ),
        (&json!(0), &json!(true), &json!(false))
    );
    assert_eq!(slots[0]["next_token"]["n_decoded"], 7);
    assert_eq!(slots[1]["id_task"], -1);
    // Those of the request that runs there; of nobody's, llama.cpp's own.
    assert_eq!(slots[0]["params"]["n_predict"], 77);
    assert_eq!(slots[1]["params"]["n_predict"], -1);
    // It can show them, not save them.
    let body = json!({"filename": "x.bin"});
    let (status, answer) = read(gateway.post("/slots/0?action=save", &body).await).await;
    assert_eq!(
        (status.as_u16(), &answer["error"]["message"]),
        (
            501,
            &json!("This server does not support slots action. Start it with `--slot-save-path`")
        )
    );
}

#[tokio::test]
async fn seed_004_a_slot_is_saved_restored_and_erased() {
    let args = ["--slot-save-path=/slots"];
    let worker = Worker::start(|_| says(&["a"])).await.with_args(&args);
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    let file = json!({"filename": "x.bin"});
    for (action, body, expected) in [
        (
            "save",
            &file,
            json!({"id_slot": 7, "filename": "x.bin", "n_saved": 7, "n_written": 1, "timings": {"save_ms": 0.5}}),
        ),
        (
            "restore",
            &file,
            json!({"id_slot": 7, "filename": "x.bin", "n_restored": 7, "n_read": 2, "timings": {"restore_ms": 0.5}}),
        ),
        ("erase", &json!({}), json!({"id_slot": 7, "n_erased": 7})),
    ] {
        let path = format!("/slots/7?action={action}");
        let (status, answer) = read(gateway.post(&path, body).await).await;
        assert_eq!((status.as_u16(), answer), (200, expected));
    }
}

#[tokio::test]
async fn wrong_paths_and_queries_are_refused_in_llama_cpps_form() {
    let worker = Worker::start(|_| says(&["a"])).await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    for (path, body) in [
        ("/slots/x?action=erase", json!({})),
        ("/slots/0", json!({})),
        ("/slots/0?action=eat", json!({})),
        ("/slots/0?action=save", json!({"filename": "../x"})),
        ("/slots/0?action=restore", json!({})),
        ("/completion?model=m&model=m", json!({"prompt": "a"})),
    ] {
        let (status, answer) = read(gateway.post(path, &body).await).await;
        assert_eq!(
            (status.as_u16(), &answer["error"]["code"]),
            (400, &json!(400)),
            "{path}"
        );
        assert_eq!(answer["error"]["type"], "invalid_request_error", "{path}");
    }
}

#[tokio::test]
async fn the_gateways_own_counters_say_what_it_did() {
    let worker = Worker::start(|_| says(&["a", "b"])).await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    let (status, _) = read(gateway.post("/completion", &json!({"prompt": "p"})).await).await;
    assert_eq!(status, 200);
    let (status, _) = gateway.get("/nowhere/at/all").await;
    assert_eq!(status, 404);
    let answer = gateway.client.get(format!("{}/metrics", gateway.url)).send();
    let answer = answer.await.unwrap();
    assert!(
        answer.headers()["content-type"]
            .to_str()
            .unwrap()
            .starts_with("text/plain")
    );
    let text = answer.text().await.unwrap();
    for wanted in [
        "muster_http_requests_total{method=\"POST\",route=\"/completion\",status=\"200\"} 1",
        "muster_http_requests_total{method=\"GET\",route=\"none\",status=\"404\"} 1",
        "muster_answers_total{model=\"m\",outcome=\"ok\"} 1",
        "muster_prompt_tokens_total{model=\"m\"} 5",
        "muster_generated_tokens_total{model=\"m\"} 3",
        "muster_time_to_first_token_seconds_count{model=\"m\"} 1",
        "muster_models{state=\"loaded\"} 1",
        "muster_instance_requests{instance=\"i\",model=\"m\"} 0",
    ] {
        assert!(text.lines().any(|line| line == wanted), "{wanted}: {text}");
    }
}

#[tokio::test]
async fn one_of_several_replicas_must_be_named() {
    let worker = Worker::start(|_| says(&["a"])).await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i"), worker.route("m", "k")]).await;
    let (status, answer) = gateway.get("/props").await;
    assert_eq!(status, 409);
    assert!(answer["error"]["message"].as_str().unwrap().contains('k'));
    assert_eq!(gateway.get("/props?instance=k").await.0, 200);
}

#[tokio::test]
async fn without_a_loaded_model_one_of_several_must_be_named_and_nothing_is_loaded() {
    let controller = Controller::start(Said {
        epoch: 1,
        models: vec![model("cold"), model("colder")],
        ..Said::default()
    })
    .await;
    let gateway = Gateway::start(&controller.address).await;
    let (status, _) = read(gateway.post("/tokenize", &json!({"content": "x"})).await).await;
    assert_eq!(status, 400);
    let (status, _) = read(
        gateway
            .post("/tokenize", &json!({"content": "x", "model": "cold"}))
            .await,
    )
    .await;
    assert_eq!(status, 409);
    assert!(controller.heard().wishes.is_empty());
    let (status, list) = gateway.get("/models").await;
    assert_eq!(
        (status.as_u16(), &list["data"][0]["status"]["value"]),
        (200, &json!("unloaded"))
    );
    assert!(list.get("models").is_none(), "{list}");
}

#[tokio::test]
async fn without_a_name_properties_are_the_routers_where_several_models_are() {
    let controller = Controller::start(Said {
        epoch: 1,
        models: vec![model("cold"), model("colder")],
        limits: vec![3, 1, 1, 1, 1],
        ..Said::default()
    })
    .await;
    let gateway = Gateway::start(&controller.address).await;
    let (status, props) = gateway.get("/props").await;
    assert_eq!((status.as_u16(), &props["role"]), (200, &json!("router")));
    assert_eq!(
        (&props["max_instances"], &props["models_autoload"]),
        (&json!(3), &json!(true))
    );
    // Figures of an engine wake nobody either.
    let (status, _) = gateway.get("/metrics?model=cold").await;
    assert_eq!(status, 409);
    // Of a model there are only those of its engine.
    let (status, _) = gateway.get("/props?model=cold").await;
    assert_eq!(status, 409);
    assert!(controller.heard().wishes.is_empty());
}

#[tokio::test]
async fn the_only_model_sleeps_while_it_is_not_loaded() {
    let controller = Controller::start(Said {
        epoch: 1,
        models: vec![v1::ModelSummary {
            downloaded: true,
            ctx_size: 256,
            ..model("only")
        }],
        ..Said::default()
    })
    .await;
    let gateway = Gateway::start(&controller.address).await;
    let (status, props) = gateway.get("/props").await;
    assert_eq!((status.as_u16(), &props["is_sleeping"]), (200, &json!(true)));
    assert_eq!(props["default_generation_settings"]["n_ctx"], 256);
    assert!(controller.heard().wishes.is_empty());
    let (_, list) = gateway.get("/models").await;
    assert_eq!(list["models"][0]["name"], "only");
}

/// llama.cpp's own clients ask so for what has come into a watched folder. It is a change, though it comes as a GET.
#[tokio::test]
async fn only_administrators_have_a_list_reloaded() {
    let said = Said {
        epoch: 1,
        models: vec![model("new")],
        ..Said::default()
    };
    let controller = Controller::start(said).await;
    let gateway = Gateway::start(&controller.address).await;
    let (status, list) = gateway.get("/models?reload=1").await;
    assert_eq!((status.as_u16(), &list["data"][0]["id"]), (200, &json!("new")));
    assert_eq!(controller.heard().reloads, 1);
    let (status, error) = gateway.get("/models?reload=perhaps").await;
    assert_eq!(
        (status.as_u16(), &error["error"]["message"]),
        (400, &json!("`reload` must be `1` or `0`"))
    );
    let foreign = async |path: &str| {
        let request = gateway.client.get(format!("{}{path}", gateway.url));
        let request = request.header("origin", "http://evil.example");
        read(request.send().await.unwrap()).await.0
    };
    assert_eq!(
        (
            foreign("/models?reload=1").await.as_u16(),
            foreign("/models?reload=0").await.as_u16()
        ),
        (403, 200)
    );
    assert_eq!(controller.heard().reloads, 1);
}

#[tokio::test]
async fn a_router_load_answers_when_it_has_begun() {
    let controller = Controller::start(Said {
        epoch: 1,
        models: vec![model("cold")],
        catalogue: vec![v1::Model {
            id: "cold".into(),
            ..v1::Model::default()
        }],
        ..Said::default()
    })
    .await;
    let gateway = Gateway::start(&controller.address).await;
    let (status, answer) = read(gateway.post("/models/load", &json!({"model": "cold"})).await).await;
    assert_eq!((status.as_u16(), answer), (200, json!({"success": true})));
    assert_eq!(controller.heard().loads[0].model, "cold");
}

/// Lemonade's own documentation: under the prefixes, the llama.cpp model used last is meant where none is named.
#[tokio::test]
async fn the_model_used_last_is_meant_under_the_prefixes() {
    let worker = Worker::start(|_| says(&["a"])).await.with_args(&["--slots"]);
    let routes = ["old", "new", "other"].map(|id| worker.route(id, &format!("i-{id}")));
    let (gateway, controller) = Gateway::with(routes.to_vec()).await;
    let loaded = |(id, runtime, seconds): (&str, &str, i64)| v1::ModelSummary {
        runtime: runtime.into(),
        status: v1::ModelStatus::Loaded.into(),
        last_used: Some(prost_types::Timestamp { seconds, nanos: 0 }),
        ..model(id)
    };
    let models = [
        ("old", "llama_cpp", 10),
        ("new", "llama_server", 20),
        ("other", "stub", 30),
    ];
    controller.say(|said| said.models = models.map(loaded).into());
    let used_last = async { while gateway.get("/v1/health").await.1["model_loaded"] != "other" {} };
    crate::within(used_last).await;
    for prefix in ["/v1", "/api/v1", "/v0", "/api/v0"] {
        let body = json!({"content": "a"});
        assert_eq!(
            gateway.post(&format!("{prefix}/tokenize"), &body).await.status(),
            200
        );
        let body = json!({"content": "a", "model": "nobody"});
        assert_eq!(
            gateway.post(&format!("{prefix}/tokenize"), &body).await.status(),
            404
        );
        let (status, slots) = gateway.get(&format!("{prefix}/slots?model=old")).await;
        assert_eq!((status.as_u16(), slots.as_array().map(Vec::len)), (200, Some(2)));
        let (status, _) = read(
            gateway
                .post(&format!("{prefix}/slots/x?action=erase"), &json!({}))
                .await,
        )
        .await;
        assert_eq!(status, 400);
    }
    assert_eq!(worker.tokenized(), ["new"; 4]);
    // Without a prefix one has to say which.
    assert_eq!(
        gateway.post("/tokenize", &json!({"content": "a"})).await.status(),
        400
    );
}
