//! Chats and completions, streamed and whole, as OpenAI's clients expect them.

use muster_tests::{Engine, Stack, http};
use serde_json::{Value, json};

crate::for_each_runtime!(
    a_chat_streams,
    a_whole_chat_says_the_same,
    a_completion_streams_and_comes_whole,
    parallel_streams_stay_separate,
);

async fn stack(engine: Engine) -> Stack {
    Stack::with(engine.model("m", 4, "")).start().await
}

async fn a_chat_streams(engine: Engine) {
    let stack = stack(engine).await;
    let more = json!({"max_tokens": 12, "stream_options": {"include_usage": true}});
    let chat = stack.http().chat_stream("m", more).await.chat().await.whole();

    let first = &chat.chunks[0];
    assert_eq!(first["object"], "chat.completion.chunk");
    assert_eq!(first["model"], "m");
    assert_eq!(first["choices"][0]["delta"]["role"], "assistant");
    let with_role = chat
        .chunks
        .iter()
        .filter(|chunk| chunk["choices"][0]["delta"]["role"].is_string());
    assert_eq!(with_role.count(), 1, "the role comes once");
    for chunk in &chat.chunks {
        assert_eq!(chunk["id"], first["id"], "one id for all chunks");
        assert_eq!(chunk["created"], first["created"]);
    }
    let usage = chat.usage.expect("usage was asked for");
    let last = chat.chunks.last().expect("chunks");
    assert_eq!(
        last["choices"],
        json!([]),
        "usage comes in a chunk of its own, at the end"
    );
    assert!(usage["prompt_tokens"].as_u64() > Some(0), "{usage}");
    assert!(
        (1..=12).contains(&usage["completion_tokens"].as_u64().unwrap()),
        "{usage}"
    );
    assert_eq!(
        usage["total_tokens"].as_u64(),
        Some(usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap())
    );

    let without = stack
        .http()
        .chat_stream("m", json!({"max_tokens": 4}))
        .await
        .chat()
        .await
        .whole();
    assert!(without.usage.is_none(), "usage was not asked for");
}

async fn a_whole_chat_says_the_same(engine: Engine) {
    let stack = stack(engine).await;
    let more = json!({"max_tokens": 12});
    let streamed = stack
        .http()
        .chat_stream("m", more.clone())
        .await
        .chat()
        .await
        .whole();
    let reply = stack.http().chat("m", more).await;
    let body = reply.ok();
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], "m");
    let choice = &body["choices"][0];
    assert_eq!(choice["index"], 0);
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(choice["finish_reason"].as_str(), streamed.finish.as_deref());
    assert_eq!(reply.chat_text(), streamed.text);
    assert!(body["usage"]["completion_tokens"].as_u64() > Some(0), "{body}");
}

async fn a_completion_streams_and_comes_whole(engine: Engine) {
    let stack = stack(engine).await;
    let body = json!({"model": "m", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0});
    let whole = stack.http().post("/v1/completions", &body).await.ok();
    assert_eq!(whole["object"], "text_completion");
    let text = whole["choices"][0]["text"].as_str().expect("text").to_owned();
    assert!(!text.is_empty());

    let mut streaming = body;
    streaming["stream"] = json!(true);
    let mut stream = stack.http().stream("/api/v1/completions", &streaming).await;
    let mut streamed = String::new();
    let mut done = false;
    while let Some(event) = stream.next().await {
        assert!(!done, "something after [DONE]");
        if event.data == "[DONE]" {
            done = true;
            continue;
        }
        let chunk: Value = serde_json::from_str(&event.data).unwrap();
        assert_eq!(chunk["object"], "text_completion");
        streamed.push_str(chunk["choices"][0]["text"].as_str().unwrap_or_default());
    }
    assert!(done, "no [DONE]");
    assert_eq!(streamed, text);
}

/// Each stream gets its own answer, the one it gets alone.
async fn parallel_streams_stay_separate(engine: Engine) {
    let stack = stack(engine).await;
    let http = stack.http();
    let ask = |number: usize| {
        let http = http.clone();
        async move {
            let question = format!("Tell me about number {number}.");
            let more = json!({"max_tokens": 16, "messages": [{"role": "user", "content": question}]});
            http.chat_stream("m", more).await.chat().await.whole().text
        }
    };
    let mut alone = Vec::new();
    for number in 0..8 {
        alone.push(ask(number).await);
    }
    let together = http::all(8, ask).await;
    // Batches of different sizes may round differently in a real engine, so only the stub must match to the letter.
    if engine == Engine::Stub {
        assert_eq!(together, alone);
    }
}

#[tokio::test]
async fn the_catalogue_is_listed() {
    let stack = Stack::with(format!(
        "{}{}",
        Engine::Stub.model("a", 1, ""),
        Engine::Stub.model("b", 1, "labels = ['embeddings']")
    ))
    .start()
    .await;
    for prefix in ["/v1", "/api/v1"] {
        let list = stack.http().get(&format!("{prefix}/models")).await.ok();
        assert_eq!(list["object"], "list");
        let ids: Vec<_> = list["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|model| model["id"].as_str().unwrap())
            .collect();
        assert_eq!(ids, ["a", "b"]);
        assert!(list["data"][0]["created"].is_u64(), "{list}");
        let one = stack.http().get(&format!("{prefix}/models/a")).await.ok();
        assert_eq!(one["id"], "a");
        assert_eq!(one["object"], "model");
        let health = stack.http().get(&format!("{prefix}/health")).await.ok();
        assert_eq!(health["status"], "ok");
    }
    stack.http().get("/live").await.ok();
}

#[tokio::test]
async fn every_field_of_a_chat_is_accepted_and_unknown_ones_pass() {
    let stack = stack(Engine::Stub).await;
    let more = json!({
        "max_completion_tokens": 3, "top_p": 0.9, "frequency_penalty": 0.1, "presence_penalty": 0.1, "seed": 1, "user": "u",
        "stop": ["never to be seen"], "logit_bias": {}, "store": false, "metadata": {"a": "b"}, "service_tier": "auto",
        "top_k": 20, "min_p": 0.05, "some_future_field": {"deep": [1, 2]},
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]},
        ],
    });
    let reply = stack.http().chat("m", more).await;
    assert!(!reply.chat_text().is_empty());
}
