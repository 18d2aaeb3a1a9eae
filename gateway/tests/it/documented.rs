//! The document holds what is really answered: nothing is missing in it, and it promises nothing that does not come.

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    contract::{CUT, start},
    gateway::Gateway,
    within,
};

/// The document, in which objects have no fields but those they name.
struct Document(Value);

impl Document {
    async fn of(gateway: &Gateway) -> Self {
        let (status, mut document) = gateway.get("/openapi.json").await;
        assert_eq!(status, 200);
        close(&mut document["components"]["schemas"]);
        Self(document)
    }

    /// What is wrong with an answer; `route` is the path as the document has it.
    fn faults(&self, method: &str, route: &str, status: u16, kind: &str, answer: &Value) -> Vec<String> {
        let responses = &self.0["paths"][route][method]["responses"];
        let class = format!("{}XX", status / 100);
        let response = [status.to_string(), class]
            .iter()
            .find_map(|key| responses.get(key))
            .unwrap_or_else(|| panic!("{method} {route} says nothing of {status}"));
        let schema = &response["content"][kind]["schema"];
        assert!(
            schema.get("$ref").is_some(),
            "{method} {route} has no type for {kind}: {schema}"
        );
        let mut schema = schema.clone();
        schema["components"] = self.0["components"].clone();
        let validator = jsonschema::draft202012::new(&schema).unwrap();
        let errors = validator.iter_errors(answer);
        errors
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect()
    }
}

/// Forbids fields that are not named, where any are.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if fields.contains_key("properties") && !fields.contains_key("additionalProperties") {
                fields.insert("additionalProperties".into(), false.into());
            }
            fields.values_mut().for_each(close);
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Asks, and reads the answer: JSON, or each line of several.
async fn ask(gateway: &Gateway, method: &Method, path: &str, body: &Value) -> (u16, String, Vec<Value>) {
    let mut request = gateway
        .client
        .request(method.clone(), format!("{}{path}", gateway.url));
    if !body.is_null() {
        request = request.json(body);
    }
    let response = within(request.send()).await.unwrap();
    let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
    let status = response.status().as_u16();
    let text = within(response.text()).await.unwrap();
    let values = serde_json::Deserializer::from_str(&text).into_iter();
    (status, kind, values.collect::<Result<_, _>>().unwrap())
}

#[tokio::test]
async fn answers_are_as_the_document_says() {
    let (gateway, _controller, _worker) = start().await;
    let document = Document::of(&gateway).await;
    let messages = json!([{"role": "user", "content": "hi"}]);
    let tool = json!({"type": "function", "name": "f", "parameters": {"type": "object"}});
    let chat = json!({"model": "m", "messages": messages});
    let with = |fields: Value| {
        let mut body = chat.clone();
        for (key, value) in fields.as_object().unwrap() {
            body[key] = value.clone();
        }
        body
    };
    let figures = json!({"logprobs": true, "top_logprobs": 1, "return_tokens": true});
    let probabilities = json!({"logprobs": true, "n_probs": 1, "post_sampling_probs": true});
    let completion = json!({"model": "m", "prompt": ["hi", "ho"], "logprobs": 1, "return_tokens": true});
    let response = json!({"model": "m", "input": "hi", "tools": [tool], "top_logprobs": 1, "user": "u",
        "instructions": "be", "metadata": {"a": "b"}, "max_tool_calls": 2, "temperature": 0.5});
    let cut = json!({"model": "m", "input": "hi", "max_output_tokens": CUT});
    let message = with(json!({"max_tokens": 9}));
    let whole = with(json!({"stream": false}));
    let lines = chat.clone();
    let text = json!({"model": "m", "prompt": "hi", "stream": false});
    let vectors = json!({"model": "e", "input": ["a", "b"]});
    let encoded = json!({"model": "e", "input": "a", "encoding_format": "base64"});
    let none = Value::Null;
    let wrong = json!({"model": "x", "prompt": "", "input": "", "messages": messages, "max_tokens": 1});
    let mut faults = Vec::new();
    for (method, route, path, body, status) in [
        (Method::POST, "/v1/chat/completions", "", &chat, 200),
        (Method::POST, "/v1/chat/completions", "", &with(figures), 200),
        (
            Method::POST,
            "/v1/chat/completions",
            "",
            &with(probabilities),
            200,
        ),
        (Method::POST, "/v1/chat/completions", "", &wrong, 404),
        (Method::POST, "/v1/completions", "", &completion, 200),
        (Method::POST, "/v1/completions", "", &wrong, 404),
        (Method::POST, "/v1/responses", "", &response, 200),
        (Method::POST, "/v1/responses", "", &cut, 200),
        (
            Method::POST,
            "/v1/responses",
            "",
            &json!({"model": "x", "input": "hi"}),
            404,
        ),
        (Method::POST, "/v1/embeddings", "", &vectors, 200),
        (Method::POST, "/v1/embeddings", "", &encoded, 200),
        (Method::POST, "/v1/messages", "", &message, 200),
        (Method::POST, "/v1/messages", "", &wrong, 404),
        (Method::GET, "/v1/models", "", &none, 200),
        (Method::GET, "/v1/models/{id}", "/v1/models/m", &none, 200),
        (Method::GET, "/v1/models/{id}", "/v1/models/x", &none, 404),
        (Method::POST, "/api/chat", "", &whole, 200),
        (Method::POST, "/api/chat", "", &lines, 200),
        (Method::POST, "/api/generate", "", &text, 200),
        (Method::POST, "/api/embed", "", &vectors, 200),
        (
            Method::POST,
            "/api/embeddings",
            "",
            &json!({"model": "e", "prompt": "a"}),
            200,
        ),
        (Method::POST, "/api/chat", "", &wrong, 404),
        (Method::GET, "/api/tags", "", &none, 200),
        (Method::GET, "/api/ps", "", &none, 200),
        (Method::POST, "/api/show", "", &json!({"model": "m"}), 200),
        (Method::GET, "/api/version", "", &none, 200),
    ] {
        let path = if path.is_empty() { route } else { path };
        let (got, kind, answers) = ask(&gateway, &method, path, body).await;
        assert_eq!(got, status, "{method} {path} {body}: {answers:?}");
        assert!(!answers.is_empty());
        for answer in answers {
            let found = document.faults(&method.as_str().to_lowercase(), route, status, &kind, &answer);
            faults.extend(
                found
                    .into_iter()
                    .map(|fault| format!("{method} {path} {status} {fault}")),
            );
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

/// Else the test above could not fail.
#[tokio::test]
async fn what_the_document_does_not_say_is_found() {
    let (gateway, _controller, _worker) = start().await;
    let document = Document::of(&gateway).await;
    let (route, kind) = ("/v1/chat/completions", "application/json");
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    let (status, mut answer) = (200, ask(&gateway, &Method::POST, route, &body).await.2.remove(0));
    assert_eq!(
        document.faults("post", route, status, kind, &answer),
        Vec::<String>::new()
    );
    answer["choices"][0]["message"]["mood"] = "good".into();
    answer["choices"][0]["finish_reason"] = "tired".into();
    answer["usage"] = json!({});
    let faults = document.faults("post", route, status, kind, &answer).join("\n");
    for part in ["mood", "tired", "prompt_tokens"] {
        assert!(faults.contains(part), "{part}: {faults}");
    }
}
