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

/// Four tokens that are drawn nearly always, so that they repeat and there is something to penalise.
fn few() -> Value {
    json!([[300, 20.0], [301, 20.0], [302, 20.0], [303, 20.0]])
}

/// Each sampler alone, strong enough to change what is drawn without it.
fn samplers() -> Vec<(&'static str, Value)> {
    vec![
        ("seed", json!({"seed": 8})),
        ("temperature", json!({"temperature": 0.3})),
        (
            "dynatemp",
            json!({"dynatemp_range": 0.8, "dynatemp_exponent": 2.0}),
        ),
        ("top_k", json!({"top_k": 3})),
        ("top_p", json!({"top_p": 0.2})),
        ("min_p", json!({"min_p": 0.3})),
        ("typical_p", json!({"typical_p": 0.2})),
        ("top_n_sigma", json!({"top_n_sigma": 0.05})),
        ("xtc", json!({"xtc_probability": 1.0, "xtc_threshold": 0.01})),
        (
            "repeat_penalty",
            json!({"logit_bias": few(), "repeat_penalty": 1.9}),
        ),
        (
            "presence_penalty",
            json!({"logit_bias": few(), "presence_penalty": 2.0}),
        ),
        (
            "frequency_penalty",
            json!({"logit_bias": few(), "frequency_penalty": 2.0}),
        ),
        (
            "dry",
            json!({"logit_bias": few(), "dry_multiplier": 5.0, "dry_allowed_length": 1, "dry_penalty_last_n": -1, "dry_sequence_breakers": ["|"]}),
        ),
        ("mirostat 1", json!({"mirostat": 1, "mirostat_tau": 2.0})),
        (
            "mirostat 2",
            json!({"mirostat": 2, "mirostat_tau": 2.0, "mirostat_eta": 0.3}),
        ),
        (
            "adaptive_p",
            json!({"samplers": ["adaptive_p"], "adaptive_target": 0.5, "adaptive_decay": 0.5}),
        ),
        (
            "samplers",
            json!({"samplers": ["top_k"], "top_k": 2, "temperature": 0.1}),
        ),
        ("logit_bias", json!({"logit_bias": [[529, false], [316, -100]]})),
    ]
}

#[tokio::test]
async fn every_sampler_draws_what_theirs_draws() {
    let stack = stack().await;
    let drawn = async |model: &str, more: &Value| {
        let mut request = json!({
            "model": model, "prompt": "one two one two one two one", "n_predict": 10, "ignore_eos": true, "seed": 7,
            "temperature": 0.9, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "return_tokens": true,
        });
        let fields = more.as_object().unwrap().clone();
        request.as_object_mut().unwrap().extend(fields);
        let answer = stack.http().post("/completion", &request).await.ok();
        answer["tokens"].clone()
    };
    let plain = drawn("ours", &json!({})).await;
    let repeating = drawn("ours", &json!({"logit_bias": few()})).await;
    assert_eq!(plain.as_array().unwrap().len(), 10);
    for (what, more) in samplers() {
        let (ours, theirs) = (drawn("ours", &more).await, drawn("theirs", &more).await);
        assert_eq!(ours, theirs, "{what}");
        let without = if more["logit_bias"] == few() {
            &repeating
        } else {
            &plain
        };
        assert_ne!(ours, *without, "{what}");
    }
}
