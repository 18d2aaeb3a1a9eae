//! What clients read.

use muster_proto::v1::{Delta, FinishReason, ToolCallDelta, event::Kind, generate_request::Input};
use serde_json::{Value, json};

use crate::{
    gateway::{Gateway, content, events, read},
    worker::{Tick, Worker, admitted, ended, event, finished, says, text},
};

#[tokio::test]
async fn a_chat_streams_role_text_end_usage_and_done() {
    let worker = Worker::start(|_| says(&["Hel", "lo \"w\"\n"])).await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    for path in ["/v1/chat/completions", "/api/v1/chat/completions"] {
        let body = crate::gateway::chat(json!({"stream": true, "stream_options": {"include_usage": true}}));
        let response = gateway.post(path, &body).await;
        assert!(response.headers().contains_key("x-request-id"));
        let events = events(response).await;
        assert_eq!(content(&events), "Hello \"w\"\n");
        assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
        assert_eq!(events[0]["object"], "chat.completion.chunk");
        assert!(events[1]["choices"][0]["delta"].get("role").is_none());
        assert_eq!(events[0]["choices"][0]["delta"]["content"], Value::Null);
        assert_eq!(events[3]["choices"][0]["finish_reason"], "stop");
        assert_eq!(events[4]["choices"], json!([]));
        assert_eq!(events[4]["usage"]["total_tokens"], 8);
        assert_eq!(events[4]["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
        assert_eq!(events[5], "[DONE]");
        assert_eq!(events.len(), 6);
    }
    let start = &worker.starts()[0];
    assert!(start.credit > 0);
    assert_eq!(start.instance.as_ref().unwrap().instance_id, "i");
}

#[tokio::test]
async fn a_chat_without_streaming_is_one_body() {
    let worker = Worker::start(|_| says(&["Hel", "lo"])).await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    let (status, body) = read(gateway.chat(json!({})).await).await;
    assert_eq!(status, 200);
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(
        body["choices"][0]["message"],
        json!({"role": "assistant", "content": "Hello"})
    );
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    assert_eq!(body["usage"]["completion_tokens"], 3);
}

fn two_choices() -> Vec<Tick> {
    vec![
        (vec![admitted()], false),
        (vec![text(0, "a"), text(1, "x")], false),
        (
            vec![text(1, "y"), ended(1, FinishReason::Length), text(0, "b")],
            false,
        ),
        (vec![ended(0, FinishReason::Stop), finished()], true),
    ]
}

#[tokio::test]
async fn two_choices_stay_apart() {
    let worker = Worker::start(|_| two_choices()).await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    let (_, body) = read(gateway.chat(json!({"n": 2})).await).await;
    assert_eq!(body["choices"][0]["message"]["content"], "ab");
    assert_eq!(body["choices"][1]["message"]["content"], "xy");
    assert_eq!(body["choices"][1]["finish_reason"], "length");
    let events = events(gateway.chat(json!({"n": 2, "stream": true})).await).await;
    let roles = events
        .iter()
        .filter(|event| event["choices"][0]["delta"].get("role").is_some());
    assert_eq!(roles.count(), 2);
}

fn tool_calls() -> Vec<Tick> {
    let piece = |id: &str, name: &str, arguments: &str| {
        let call = ToolCallDelta {
            index: 0,
            id: id.into(),
            name: name.into(),
            arguments: arguments.into(),
        };
        event(Kind::Delta(Delta {
            tool_calls: vec![call],
            ..Delta::default()
        }))
    };
    vec![
        (vec![admitted()], false),
        (vec![piece("call_1", "weather", "")], false),
        (vec![piece("", "", "{\"city\":")], false),
        (vec![piece("", "", "\"Rome\"}")], false),
        (vec![ended(0, FinishReason::ToolCalls), finished()], true),
    ]
}

#[tokio::test]
async fn tool_calls_come_in_pieces_or_whole() {
    let worker = Worker::start(|_| tool_calls()).await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    let tools =
        json!([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]);
    let (_, body) = read(gateway.chat(json!({"tools": tools})).await).await;
    let message = &body["choices"][0]["message"];
    assert_eq!(message["content"], json!(null));
    assert_eq!(message["tool_calls"][0]["id"], "call_1");
    assert_eq!(
        message["tool_calls"][0]["function"],
        json!({"name": "weather", "arguments": "{\"city\":\"Rome\"}"})
    );
    let events = events(gateway.chat(json!({"tools": tools, "stream": true})).await).await;
    let call = &events[1]["choices"][0]["delta"]["tool_calls"][0];
    assert_eq!(
        (&call["id"], &call["function"]["name"]),
        (&json!("call_1"), &json!("weather"))
    );
    assert_eq!(
        events[2]["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"],
        "{\"city\":"
    );
    assert_eq!(events[4]["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn several_prompts_are_several_requests_and_one_answer() {
    let worker = Worker::start(|start| {
        let Some(muster_proto::v1::start::Work::Generate(work)) = &start.work else {
            panic!("no work")
        };
        let Some(Input::Prompt(prompt)) = &work.input else {
            panic!("no prompt")
        };
        let word = format!("{:?}", prompt.pieces).contains("\"b\"");
        says(&[if word { "B" } else { "A" }])
    })
    .await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    let body = json!({"model": "m", "prompt": ["a", "b"], "echo": true});
    let (status, body) = read(gateway.post("/v1/completions", &body).await).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(body["object"], "text_completion");
    assert_eq!(body["choices"][0]["text"], "aA");
    assert_eq!(body["choices"][1]["text"], "bB");
    assert_eq!(body["usage"]["prompt_tokens"], 10);
    let body = json!({"model": "m", "prompt": ["a", "b"], "stream": true});
    let events = events(gateway.post("/api/v1/completions", &body).await).await;
    let text = |index: u64| -> String {
        let choices = events
            .iter()
            .map(|event| &event["choices"][0])
            .filter(|choice| choice["index"] == index);
        choices.filter_map(|choice| choice["text"].as_str()).collect()
    };
    assert_eq!((text(0).as_str(), text(1).as_str()), ("A", "B"));
    assert_eq!(
        events.iter().filter(|event| **event == json!("[DONE]")).count(),
        1
    );
}

#[tokio::test]
async fn models_and_health_show_the_catalogue() {
    let (gateway, controller) = Gateway::with(vec![]).await;
    let (status, list) = gateway.get("/v1/models").await;
    assert_eq!(
        (status.as_u16(), list["data"].as_array().unwrap().len()),
        (200, 2)
    );
    let (_, model) = gateway.get("/api/v1/models/m").await;
    assert_eq!(
        (&model["id"], &model["object"], &model["created"]),
        (&json!("m"), &json!("model"), &json!(1_700_000_000))
    );
    assert_eq!(
        (&model["size"], &model["recipe"]),
        (&json!(0.38), &json!("llamacpp"))
    );
    for spelling in ["m:latest", "builtin.m"] {
        let (_, same) = gateway.get(&format!("/v1/models/{spelling}")).await;
        assert_eq!(same["id"], "m", "{spelling}");
    }
    let (status, error) = gateway.get("/v1/models/none/of/it").await;
    assert_eq!(status, 404);
    assert_eq!(error["error"]["message"], "Model none/of/it has not been found");
    assert_eq!(error["error"]["type"], "not_found");
    let (_, health) = gateway.get("/api/v1/health").await;
    assert_eq!(
        (&health["status"], &health["model_loaded"]),
        (&json!("ok"), &json!("m"))
    );
    assert_eq!(health["all_models_loaded"][0]["type"], "llm");
    assert_eq!(gateway.get("/health").await.0, 200);
    assert_eq!(gateway.get("/health?model=cold").await.0, 503);
    assert_eq!(gateway.get("/live").await.0, 200);
    controller.say(|said| said.models.clear());
    let nulls = async {
        loop {
            let (_, health) = gateway.get("/v1/health").await;
            if health["model_loaded"].is_null() {
                return health;
            }
        }
    };
    assert_eq!(crate::within(nulls).await["all_models_loaded"], json!([]));
}
