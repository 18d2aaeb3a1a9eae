//! Our engine and llama.cpp's own server give the same greedy answers to the same requests, whatever the request asks for.

use muster_tests::{Engine, Stack, engines, http};
use serde_json::{Value, json};

/// Both, side by side.
async fn stack() -> Stack {
    let models = format!(
        "{}{}",
        Engine::LlamaCpp.model("ours", 2, ""),
        Engine::LlamaServer.model("theirs", 2, "")
    );
    Stack::with(format!("[policy]\nmax_loaded_models = 2\n{models}"))
        .start()
        .await
}

fn tools() -> Value {
    let parameters =
        json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    json!([{"type": "function", "function": {"name": "get_weather", "description": "Weather of a city.", "parameters": parameters}}])
}

fn requests() -> Vec<(&'static str, Value)> {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"], "additionalProperties": false});
    vec![
        ("plain", json!({"max_tokens": 40})),
        (
            "a system message",
            json!({"max_tokens": 20, "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]}),
        ),
        (
            "a longer conversation",
            json!({"max_tokens": 20, "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}, {"role": "user", "content": "Again"}]}),
        ),
        (
            "a required tool",
            json!({"max_tokens": 120, "tools": tools(), "tool_choice": "required"}),
        ),
        (
            "a named tool",
            json!({"max_tokens": 120, "tools": tools(), "tool_choice": {"type": "function", "function": {"name": "get_weather"}}}),
        ),
        (
            "no tool",
            json!({"max_tokens": 20, "tools": tools(), "tool_choice": "none"}),
        ),
        (
            "a JSON schema",
            json!({"max_tokens": 80, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}),
        ),
        (
            "a JSON object",
            json!({"max_tokens": 40, "response_format": {"type": "json_object"}}),
        ),
        (
            "a grammar",
            json!({"max_tokens": 10, "grammar": "root ::= \"yes\" | \"no\""}),
        ),
        ("a stop string", json!({"max_tokens": 40, "stop": ["e n"]})),
        ("two choices", json!({"max_tokens": 6, "n": 2})),
        (
            "no thinking",
            json!({"max_tokens": 12, "chat_template_kwargs": {"enable_thinking": false}}),
        ),
        (
            "penalties",
            json!({"max_tokens": 20, "frequency_penalty": 0.5, "presence_penalty": 0.5, "repeat_penalty": 1.3}),
        ),
        ("a bias", json!({"max_tokens": 10, "logit_bias": {"291": -100}})),
        ("no token", json!({"max_tokens": 0})),
    ]
}

/// What must be equal in a whole answer.
fn essence(answer: &Value) -> Value {
    let mut choices = answer["choices"].clone();
    for choice in choices.as_array_mut().unwrap() {
        // Call ids are random.
        for call in choice["message"]["tool_calls"]
            .as_array_mut()
            .into_iter()
            .flatten()
        {
            call["id"] = Value::Null;
        }
    }
    json!({"choices": choices, "prompt_tokens": answer["usage"]["prompt_tokens"]})
}

#[tokio::test]
async fn ours_and_theirs_say_the_same() {
    let stack = stack().await;
    for (what, more) in requests() {
        let ours = stack.http().chat("ours", more.clone()).await.ok();
        let theirs = stack.http().chat("theirs", more).await.ok();
        assert_eq!(essence(&ours), essence(&theirs), "{what}");
    }
}

#[tokio::test]
async fn streams_add_up_to_the_whole_answer() {
    let stack = stack().await;
    for model in ["ours", "theirs"] {
        for (what, more) in requests()
            .into_iter()
            .filter(|(_, more)| more["n"].is_null() && more["max_tokens"] != 0)
        {
            let whole = stack.http().chat(model, more.clone()).await.ok();
            let streamed = stack.http().chat_stream(model, more).await.chat().await;
            assert!(
                streamed.error.is_none() && streamed.done,
                "{model}, {what}: {:?}",
                streamed.error
            );
            let choice = &whole["choices"][0];
            assert_eq!(
                streamed.finish.as_deref(),
                choice["finish_reason"].as_str(),
                "{model}, {what}"
            );
            let text = ["reasoning_content", "content"]
                .map(|key| choice["message"][key].as_str().unwrap_or_default())
                .concat();
            assert_eq!(streamed.text, text, "{model}, {what}");
            assert_eq!(
                called(&streamed),
                functions(&choice["message"]["tool_calls"]),
                "{model}, {what}"
            );
        }
    }
}

#[tokio::test]
async fn probabilities_are_close() {
    let stack = stack().await;
    let mut seen = Vec::new();
    for model in ["ours", "theirs"] {
        let answer = stack
            .http()
            .chat(
                model,
                json!({"max_tokens": 6, "logprobs": true, "top_logprobs": 3}),
            )
            .await
            .ok();
        let tokens = answer["choices"][0]["logprobs"]["content"]
            .as_array()
            .unwrap()
            .clone();
        assert_eq!(tokens.len(), 6, "{model}");
        assert!(
            tokens
                .iter()
                .all(|token| token["top_logprobs"].as_array().unwrap().len() == 3),
            "{model}"
        );
        seen.push(tokens);
    }
    for (ours, theirs) in seen[0].iter().zip(&seen[1]) {
        assert_eq!(ours["token"], theirs["token"]);
        let difference = ours["logprob"].as_f64().unwrap() - theirs["logprob"].as_f64().unwrap();
        assert!(difference.abs() < 0.01, "{ours} {theirs}");
    }
}

/// The text that a model puts into a gap, and how many tokens its prompt had.
async fn infill(stack: &Stack, model: &str, mut parts: Value) -> (String, u64) {
    parts["model"] = json!(model);
    parts["n_predict"] = json!(16);
    parts["temperature"] = json!(0);
    let answer = stack.http().post("/infill", &parts).await.ok();
    assert_eq!(answer["tokens_predicted"], 16, "{answer}");
    let text = answer["content"].as_str().unwrap().to_owned();
    (text, answer["tokens_evaluated"].as_u64().unwrap())
}

/// llama.cpp's own shape of a code prompt: the parts, where they are cut, and the order of its special tokens.
#[tokio::test]
async fn infill_is_the_same() {
    let file = engines::test_model("tiny-infill");
    let models = format!(
        "{}{}",
        Engine::LlamaCpp.serving(&file, "ours", 2, ""),
        Engine::LlamaServer.serving(&file, "theirs", 2, "")
    );
    let stack = Stack::with(format!("[policy]\nmax_loaded_models = 2\n{models}"))
        .start()
        .await;
    let long = "there was a house near the sea and people lived in it. ".repeat(100);
    for (what, parts) in [
        (
            "the gap between two texts",
            json!({"input_prefix": "once there was a ", "input_suffix": " and they went home."}),
        ),
        (
            "a beginning of the gap",
            json!({"input_prefix": "once ", "input_suffix": " home.", "prompt": "the children"}),
        ),
        (
            "other files",
            json!({"input_prefix": "a ", "input_suffix": " b", "input_extra": [
                {"filename": "one.txt", "text": "the first story"}, {"filename": "two.txt", "text": "the second story"}]}),
        ),
        (
            "more than is read of either side",
            json!({"input_prefix": long, "input_suffix": long}),
        ),
    ] {
        let ours = infill(&stack, "ours", parts.clone()).await;
        assert_eq!(ours, infill(&stack, "theirs", parts).await, "{what}");
    }
    // Where files must be cut we leave room for the answer; llama.cpp counts on the server's default length instead.
    let parts = json!({"input_prefix": "a ", "input_suffix": " b", "input_extra": [{"filename": "long.txt", "text": long.repeat(2)}]});
    let (_, evaluated) = infill(&stack, "ours", parts).await;
    assert!((1500..4096 - 16).contains(&evaluated), "{evaluated}");
    // A model without these tokens cannot, whoever runs it.
    for engine in [Engine::LlamaCpp, Engine::LlamaServer] {
        let stack = Stack::with(engine.model("m", 2, "")).start().await;
        let body = json!({"model": "m", "input_prefix": "a", "input_suffix": "b", "n_predict": 2});
        let reply = stack.http().post("/infill", &body).await;
        assert_eq!(reply.status, 501, "{reply:?}");
    }
}

/// Names and arguments of the calls in a whole message.
fn functions(calls: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let calls = calls.as_array().into_iter().flatten();
    calls
        .map(|call| {
            (
                text(&call["function"]["name"]),
                text(&call["function"]["arguments"]),
            )
        })
        .collect()
}

/// Names and arguments of the calls in a stream, put together as clients do.
fn called(chat: &http::Chat) -> Vec<(String, String)> {
    let mut calls: Vec<(String, String)> = Vec::new();
    let deltas = chat.chunks.iter().flat_map(|chunk| {
        chunk["choices"][0]["delta"]["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
    });
    for delta in deltas {
        let index = usize::try_from(delta["index"].as_u64().unwrap()).unwrap();
        if index == calls.len() {
            assert!(delta["id"].is_string(), "the first piece has the id: {delta}");
            calls.push((
                delta["function"]["name"].as_str().unwrap().to_owned(),
                String::new(),
            ));
        }
        calls[index]
            .1
            .push_str(delta["function"]["arguments"].as_str().unwrap_or_default());
    }
    calls
}
