//! What clients of each dialect read, end to end through the real binary.

use muster_proto::v1::{
    EmbedResult, Embedding, ModelSummary, ModelType, PromptProgress, RerankResult, Start, Usage, Vector,
    event::Kind, start::Work,
};
use serde_json::{Value, json};

use crate::{
    controller::Controller,
    gateway::{Gateway, events, model, read},
    within,
    worker::{Tick, Worker, admitted, event, finished, says},
};

/// Answers all kinds of work.
fn anything(start: &Start) -> Vec<Tick> {
    let usage = Some(Usage {
        prompt_tokens: 12,
        ..Usage::default()
    });
    let result = match start.work.as_ref().unwrap() {
        Work::Generate(generate) => {
            let mut ticks = says(&["Hel", "lo"]);
            if generate.return_progress {
                let progress = PromptProgress {
                    total: 12,
                    cached: 5,
                    processed: 5,
                    elapsed_ms: 0.0,
                };
                ticks.insert(1, (vec![event(Kind::Progress(progress))], false));
            }
            return ticks;
        }
        Work::Embed(embed) => {
            let vector = Vector {
                values: vec![0.5, -0.5],
            };
            let embedding = Embedding {
                vectors: vec![vector],
                tokens: 6,
            };
            let embeddings = vec![embedding; embed.inputs.len()];
            Kind::Embedded(EmbedResult { embeddings, usage })
        }
        Work::Rerank(rerank) => {
            let tokens = vec![4; rerank.documents.len()];
            let scores = (0_u8..).map(f32::from).take(tokens.len()).collect();
            Kind::Reranked(RerankResult {
                scores,
                usage,
                tokens,
            })
        }
    };
    vec![(vec![admitted()], false), (vec![event(result), finished()], true)]
}

/// A gateway with a model of each kind: `m` talks, `e` embeds, `r` reranks.
async fn start() -> (Gateway, Controller, Worker) {
    let worker = Worker::start(anything).await;
    let routes = ["m", "e", "r"].map(|model| worker.route(model, &format!("instance-{model}")));
    let (gateway, controller) = Gateway::with(routes.to_vec()).await;
    let kind = |id: &str, kind: ModelType| ModelSummary {
        r#type: kind.into(),
        ..model(id)
    };
    controller.say(|said| {
        said.models.push(kind("e", ModelType::Embedding));
        said.models.push(kind("r", ModelType::Reranking));
    });
    let known = async { while gateway.get("/v1/models/r").await.0 != 200 {} };
    within(known).await;
    (gateway, controller, worker)
}

#[tokio::test]
async fn vectors_have_the_forms_of_openai_and_ollama() {
    let (gateway, _controller, worker) = start().await;
    let body = json!({"model": "e", "input": ["a", "b"]});
    for prefix in ["/v1", "/api/v1", "/v0", "/api/v0"] {
        let (status, answer) = read(gateway.post(&format!("{prefix}/embeddings"), &body).await).await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["data"][1]["embedding"], json!([0.5, -0.5]));
        assert_eq!(answer["usage"]["total_tokens"], 12);
    }
    let body = json!({"model": "e", "input": "a", "encoding_format": "base64"});
    let (_, answer) = read(gateway.post("/v1/embeddings", &body).await).await;
    assert_eq!(answer["data"][0]["embedding"], "AAAAPwAAAL8=");
    let body = json!({"model": "e:latest", "input": ["a", "b"]});
    let (_, answer) = read(gateway.post("/api/embed", &body).await).await;
    assert_eq!(answer["embeddings"].as_array().unwrap().len(), 2);
    assert_eq!(
        (&answer["model"], &answer["prompt_eval_count"]),
        (&json!("e:latest"), &json!(12))
    );
    let body = json!({"model": "e", "prompt": "a"});
    let (_, answer) = read(gateway.post("/api/embeddings", &body).await).await;
    assert_eq!(answer, json!({"embedding": [0.5, -0.5]}));
    assert!(
        worker
            .starts()
            .iter()
            .all(|start| matches!(start.work, Some(Work::Embed(_))))
    );
}

/// Seed 000, `POST /api/v1/reranking`, and llama.cpp's names of it.
#[tokio::test]
async fn documents_are_scored_under_each_name() {
    let (gateway, _controller, _worker) = start().await;
    let body = json!({"model": "r", "query": "q", "documents": ["a", "b"]});
    for path in ["/api/v1/reranking", "/v1/rerank", "/v1/reranker"] {
        let (status, answer) = read(gateway.post(path, &body).await).await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["results"][1], json!({"index": 1, "relevance_score": 1.0}));
        assert_eq!(answer["usage"], json!({"prompt_tokens": 12, "total_tokens": 12}));
    }
}

/// gateway/README.md, Autoload: the wrong kind of request is refused from the catalogue.
#[tokio::test]
async fn the_wrong_kind_of_model_is_refused_in_the_dialects_form() {
    let (gateway, controller, _worker) = start().await;
    let messages = json!([{"role": "user", "content": "hi"}]);
    let bodies = [
        ("/v1/embeddings", json!({"model": "cold", "input": "a"})),
        (
            "/v1/chat/completions",
            json!({"model": "e", "messages": messages}),
        ),
        (
            "/v1/rerank",
            json!({"model": "e", "query": "q", "documents": ["a"]}),
        ),
    ];
    for (path, body) in bodies {
        let (status, answer) = read(gateway.post(path, &body).await).await;
        assert_eq!(status, 400, "{path}");
        assert_eq!(answer["error"]["code"], "unsupported_by_runtime", "{path}");
    }
    let body = json!({"model": "e", "max_tokens": 4, "messages": messages});
    let (_, answer) = read(gateway.post("/v1/messages", &body).await).await;
    assert_eq!(
        (&answer["type"], &answer["error"]["type"]),
        (&json!("error"), &json!("invalid_request_error"))
    );
    let body = json!({"model": "nobody", "messages": messages});
    let (status, answer) = read(gateway.post("/api/chat", &body).await).await;
    assert_eq!(
        (status.as_u16(), answer),
        (404, json!({"error": "Model nobody has not been found"}))
    );
    assert!(
        controller.heard().wishes.is_empty(),
        "nothing was loaded for them"
    );
}

/// Seed 000, `POST /api/v1/responses`: the three events its clients wait for, among OpenAI's.
#[tokio::test]
async fn responses_stream_their_events_in_order() {
    let (gateway, _controller, _worker) = start().await;
    let body = json!({"model": "m", "input": "hi", "stream": true});
    let events = events(gateway.post("/api/v1/responses", &body).await).await;
    let kinds: Vec<_> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!(
        kinds,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed"
        ]
    );
    let numbers: Vec<_> = events
        .iter()
        .filter_map(|event| event["sequence_number"].as_u64())
        .collect();
    assert_eq!(numbers, (0..10).collect::<Vec<_>>());
    assert_eq!(events[9]["response"]["output"][0]["content"][0]["text"], "Hello");
    let body = json!({"model": "m", "input": "hi", "instructions": "be", "temperature": 0.5});
    let (_, answer) = read(gateway.post("/v1/responses", &body).await).await;
    assert_eq!(
        (&answer["object"], &answer["status"]),
        (&json!("response"), &json!("completed"))
    );
    assert_eq!(
        (&answer["temperature"], &answer["instructions"]),
        (&json!(0.5), &json!("be"))
    );
    assert_eq!(answer["output"][0]["content"][0]["text"], "Hello");
}

#[tokio::test]
async fn messages_stream_and_come_whole() {
    let (gateway, _controller, _worker) = start().await;
    let messages = json!([{"role": "user", "content": "hi"}]);
    let body = json!({"model": "m", "max_tokens": 8, "messages": messages});
    let (status, answer) = read(gateway.post("/v1/messages", &body).await).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["content"], json!([{"type": "text", "text": "Hello"}]));
    assert_eq!(
        (&answer["stop_reason"], &answer["role"]),
        (&json!("end_turn"), &json!("assistant"))
    );
    assert_eq!(answer["usage"]["cache_read_input_tokens"], 2);
    let body = json!({"model": "m", "max_tokens": 8, "messages": messages, "stream": true});
    let events = events(gateway.post("/v1/messages", &body).await).await;
    let kinds: Vec<_> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!(
        kinds,
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    let usage = &events[0]["message"]["usage"];
    assert_eq!(
        (&usage["input_tokens"], &usage["cache_read_input_tokens"]),
        (&json!(7), &json!(5))
    );
}

#[tokio::test]
async fn tokens_are_counted_where_the_model_is_loaded_and_nothing_is_loaded_for_it() {
    let (gateway, controller, _worker) = start().await;
    let messages = json!([{"role": "user", "content": "one two three"}]);
    let body = json!({"model": "m", "messages": messages});
    let (status, answer) = read(gateway.post("/v1/messages/count_tokens", &body).await).await;
    // The scripted worker renders the words and makes a token of each.
    assert_eq!((status.as_u16(), answer), (200, json!({"input_tokens": 3})));
    let body = json!({"model": "cold", "messages": messages});
    let (status, answer) = read(gateway.post("/v1/messages/count_tokens", &body).await).await;
    assert_eq!(
        (status.as_u16(), &answer["error"]["type"]),
        (409, &json!("invalid_request_error"))
    );
    assert!(controller.heard().wishes.is_empty());
}

/// Lines of a stream as Ollama's clients read them.
async fn lines(gateway: &Gateway, path: &str, body: Value) -> Vec<Value> {
    let response = gateway.post(path, &body).await;
    assert_eq!(response.headers()["content-type"], "application/x-ndjson");
    let text = within(response.text()).await.unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[tokio::test]
async fn ollamas_routes_stream_lines_by_default() {
    let (gateway, _controller, _worker) = start().await;
    let messages = json!([{"role": "user", "content": "hi"}]);
    let chat = lines(
        &gateway,
        "/api/chat",
        json!({"model": "m:latest", "messages": messages}),
    )
    .await;
    let text: String = chat
        .iter()
        .filter_map(|line| line["message"]["content"].as_str())
        .collect();
    assert_eq!((text.as_str(), chat.len()), ("Hello", 3));
    assert_eq!(
        (&chat[2]["done"], &chat[2]["eval_count"]),
        (&json!(true), &json!(3))
    );
    let generated = lines(&gateway, "/api/generate", json!({"model": "m", "prompt": "hi"})).await;
    assert_eq!(generated[0]["response"], "Hel");
    let body = json!({"model": "m", "messages": messages, "stream": false});
    let (_, whole) = read(gateway.post("/api/chat", &body).await).await;
    assert_eq!(whole["message"], json!({"role": "assistant", "content": "Hello"}));
    let (_, loaded) = read(gateway.post("/api/generate", &json!({"model": "m"})).await).await;
    assert_eq!(loaded["done_reason"], "load");
}

#[tokio::test]
async fn ollamas_catalogue_shows_what_is_here_and_what_is_loaded() {
    let (gateway, _controller, _worker) = start().await;
    let (_, tags) = gateway.get("/api/tags").await;
    let names: Vec<_> = tags["models"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| &model["name"])
        .collect();
    assert_eq!(names, ["cold:latest", "e:latest", "m:latest", "r:latest"]);
    assert_eq!(tags["models"][0]["modified_at"], "2023-11-14T22:13:20Z");
    let (_, running) = gateway.get("/api/ps").await;
    assert_eq!(running["models"].as_array().unwrap().len(), 1);
    assert_eq!(running["models"][0]["model"], "m:latest");
    let (_, shown) = read(gateway.post("/api/show", &json!({"model": "e:latest"})).await).await;
    assert_eq!(shown["capabilities"], json!(["embedding"]));
    assert_eq!(shown["template"], "{{ messages }}", "the engine's own");
    let (status, _) = read(gateway.post("/api/show", &json!({"model": "nobody"})).await).await;
    assert_eq!(status, 404);
    assert!(gateway.get("/api/version").await.1["version"].is_string());
}

/// Seed 001: refused before a load where the catalogue knows that the model cannot.
#[tokio::test]
async fn thinking_is_refused_before_a_load() {
    let (gateway, controller, _worker) = start().await;
    controller.say(|said| {
        said.models.push(ModelSummary {
            thinking: Some(false),
            ..model("plain")
        });
    });
    within(async { while gateway.get("/v1/models/plain").await.0 != 200 {} }).await;
    let messages = json!([{"role": "user", "content": "hi"}]);
    for (path, key, content) in [
        ("/v1/chat/completions", "messages", messages),
        ("/v1/responses", "input", json!("hi")),
    ] {
        let mut body = json!({"model": "plain", "thinking": "enabled"});
        body[key] = content;
        let (status, answer) = read(gateway.post(path, &body).await).await;
        assert_eq!(
            (status.as_u16(), &answer["error"]["code"]),
            (400, &json!("thinking_unsupported"))
        );
    }
    assert!(controller.heard().wishes.is_empty());
}

#[tokio::test]
async fn echo_shows_tokens_as_the_models_text_for_them() {
    let worker = Worker::start(|_| says(&["a"])).await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    let body = json!({"model": "m", "prompt": [1, "b", 2], "echo": true});
    let (status, answer) = read(gateway.post("/v1/completions", &body).await).await;
    assert_eq!(
        (status.as_u16(), &answer["choices"][0]["text"]),
        (200, &json!("<1>b<2>a"))
    );
}

#[tokio::test]
async fn ollama_is_looked_for_at_the_root_and_its_errors_have_its_form() {
    let (gateway, _controller, _worker) = start().await;
    let answer = within(gateway.client.get(&gateway.url).send()).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert!(answer.text().await.unwrap().starts_with("Ollama is running"));
    let browser = gateway
        .client
        .get(&gateway.url)
        .header("accept", "text/html,application/xhtml+xml");
    let page = within(browser.send()).await.unwrap();
    assert!(
        page.headers()["content-type"]
            .to_str()
            .unwrap()
            .starts_with("text/html")
    );
    assert!(page.headers().contains_key("content-security-policy"));
    assert!(page.text().await.unwrap().contains("<h1>Muster</h1>"));
    for (path, status) in [("/api/nothing", 404), ("/api", 404), ("/api/chat", 405)] {
        let (is, body) = gateway.get(path).await;
        assert_eq!(is, status, "{path}");
        assert!(body["error"].is_string(), "{path}: {body}");
    }
    for path in ["/api/v1/nothing", "/apiary", "/v1/nothing"] {
        let (_, body) = gateway.get(path).await;
        assert!(body["error"]["message"].is_string(), "{path}: {body}");
    }
}

#[tokio::test]
async fn a_health_query_that_is_none_is_refused() {
    let (gateway, _controller, _worker) = start().await;
    assert_eq!(gateway.get("/health").await.0, 200);
    assert_eq!(gateway.get("/health?model=m").await.0, 200);
    let (status, body) = gateway.get("/health?model=m&model=e").await;
    assert_eq!((status.as_u16(), &body["error"]["code"]), (400, &json!(400)));
}

#[tokio::test]
async fn images_in_a_llama_cpp_request_for_vectors_are_refused() {
    let (gateway, _controller, _worker) = start().await;
    let image = json!([{"data": "AAAA", "id": 1}]);
    for path in ["/embedding", "/embeddings"] {
        let body = json!({"model": "e", "content": "a", "image_data": image});
        let (status, answer) = read(gateway.post(path, &body).await).await;
        assert!(
            status.is_client_error() || status == 501,
            "{path}: {status} {answer}"
        );
        let body = json!({"model": "e", "content": "a", "image_data": []});
        assert_eq!(gateway.post(path, &body).await.status(), 200);
    }
}
