//! The model that ships calls functions that it has never heard of, and uses what they answer.

use muster_tests::{Engine, Stack, http};
use serde_json::{Map, Value, json};

use crate::demo::{answer, held_out, stack};

crate::for_each_engine!(
    it_calls_unknown_functions_and_uses_their_answers,
    tools_are_left_alone_when_not_needed
);

/// The functions of an entry, as clients send them.
fn tools(entry: &Value) -> Value {
    let described = entry["tools"].as_array().unwrap().iter().map(|tool| {
        let parameters = tool["parameters"].as_object().unwrap();
        let properties: Map<String, Value> = parameters
            .iter()
            .map(|(name, kind)| (name.clone(), json!({"type": kind})))
            .collect();
        let required: Vec<&String> = parameters.keys().collect();
        json!({"type": "function", "function": {
            "name": tool["name"],
            "description": tool["description"],
            "parameters": {"type": "object", "properties": properties, "required": required},
        }})
    });
    described.collect()
}

/// Is this the one call that was asked for?
fn is_right(entry: &Value, calls: &[(String, String)]) -> bool {
    let [(name, arguments)] = calls else { return false };
    let arguments: Result<Value, _> = serde_json::from_str(arguments);
    entry["call"]["name"] == **name
        && arguments.is_ok_and(|arguments| arguments == entry["call"]["arguments"])
}

fn calls_of(message: &Value) -> Vec<(String, String)> {
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    calls
        .map(|call| {
            (
                text(&call["function"]["name"]),
                text(&call["function"]["arguments"]),
            )
        })
        .collect()
}

/// The calls of a stream, put together as clients do.
fn calls_of_stream(chat: &http::Chat) -> Vec<(String, String)> {
    let mut calls: Vec<(String, String)> = Vec::new();
    for chunk in &chat.chunks {
        let deltas = chunk["choices"][0]["delta"]["tool_calls"].as_array();
        for delta in deltas.into_iter().flatten() {
            let index = usize::try_from(delta["index"].as_u64().unwrap()).unwrap();
            if index == calls.len() {
                calls.push((
                    delta["function"]["name"].as_str().unwrap().to_owned(),
                    String::new(),
                ));
            }
            let piece = delta["function"]["arguments"].as_str().unwrap_or_default();
            calls[index].1.push_str(piece);
        }
    }
    calls
}

/// Whether the final reply, after the function has answered, says what the function said.
async fn uses_the_answer(stack: &Stack, entry: &Value, thinking: bool) -> bool {
    let call = json!({"id": "call_1", "type": "function", "function": {
        "name": entry["call"]["name"], "arguments": entry["call"]["arguments"].to_string(),
    }});
    let more = json!({
        "tools": tools(entry), "max_tokens": 200, "enable_thinking": thinking,
        "messages": [
            {"role": "user", "content": entry["question"]},
            {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": entry["result"]},
        ],
    });
    let message = answer(stack, more).await;
    let content = message["content"].as_str().unwrap_or_default();
    println!("{content}");
    let expected = entry["expect"].as_array().unwrap();
    message.get("tool_calls").is_none()
        && expected
            .iter()
            .all(|text| content.contains(text.as_str().unwrap()))
}

async fn it_calls_unknown_functions_and_uses_their_answers(engine: Engine) {
    let stack = stack(engine).await;
    let entries = held_out("tools");
    assert_eq!(entries.len(), 10);
    for thinking in [false, true] {
        let (mut whole, mut streamed, mut used) = (0, 0, 0);
        for entry in &entries {
            let more = json!({
                "messages": [{"role": "user", "content": entry["question"]}],
                "tools": tools(entry), "max_tokens": 200, "enable_thinking": thinking,
            });
            let message = answer(&stack, more.clone()).await;
            println!("{} -> {message}", entry["question"]);
            whole += usize::from(is_right(entry, &calls_of(&message)));
            let thought = message["reasoning_content"].as_str().unwrap_or_default();
            assert_eq!(!thought.is_empty(), thinking, "{message}");

            let chat = stack.http().chat_stream("muster-demo", more).await.chat().await;
            assert!(chat.error.is_none() && chat.done, "{chat:?}");
            streamed += usize::from(is_right(entry, &calls_of_stream(&chat)));
            used += usize::from(uses_the_answer(&stack, entry, thinking).await);
        }
        println!("thinking {thinking}: of 10 right: {whole} whole, {streamed} streamed, {used} answers used");
        assert!(
            whole >= 8 && streamed >= 8 && used >= 8,
            "{whole}, {streamed}, {used} of 10"
        );
    }
}

async fn tools_are_left_alone_when_not_needed(engine: Engine) {
    let stack = stack(engine).await;
    let entry = &held_out("tools")[0];
    for (question, expected) in [
        ("What is Muster?", "OpenAI-compatible"),
        ("Hello", "muster-demo"),
        ("What is 2 + 2?", "= 4"),
    ] {
        let more = json!({
            "messages": [{"role": "user", "content": question}],
            "tools": tools(entry), "max_tokens": 200, "enable_thinking": false,
        });
        let message = answer(&stack, more).await;
        assert!(message.get("tool_calls").is_none(), "{question}: {message}");
        assert!(
            message["content"].as_str().unwrap().contains(expected),
            "{question}: {message}"
        );
    }
}
