//! The document holds what is really answered: nothing is missing in it, and it promises nothing that does not come.

mod admin;
mod lemonade;
mod llamacpp;

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    contract::{CUT, start},
    gateway::Gateway,
    within,
};

/// The document; by default, one in which objects have no fields but those they name.
struct Document(Value);

impl Document {
    async fn of(gateway: &Gateway) -> Self {
        let mut document = Self::open(gateway).await;
        close(&mut document.0["components"]["schemas"]);
        document
    }

    /// The document as it is: objects may have further fields.
    async fn open(gateway: &Gateway) -> Self {
        let (status, document) = gateway.get("/openapi.json").await;
        assert_eq!(status, 200);
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
        let named = schema.get("items").unwrap_or(schema).get("$ref");
        assert!(
            named.is_some(),
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

/// Forbids fields that are not named, where any are; those of an object's parts (`allOf`) are fields of its own.
fn close(schemas: &mut Value) {
    let mut parts = Vec::new();
    find_parts(schemas, &mut parts);
    for (name, schema) in schemas.as_object_mut().unwrap() {
        if !parts.contains(&format!("#/components/schemas/{name}")) {
            close_one(schema);
        }
    }
}

/// References from within `allOf`.
fn find_parts(schema: &Value, out: &mut Vec<String>) {
    match schema {
        Value::Object(fields) => {
            let all = fields.get("allOf").and_then(Value::as_array);
            let references = all.into_iter().flatten().filter_map(|part| part["$ref"].as_str());
            out.extend(references.map(str::to_owned));
            fields.values().for_each(|value| find_parts(value, out));
        }
        Value::Array(items) => items.iter().for_each(|item| find_parts(item, out)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn close_one(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            let open = !fields.contains_key("additionalProperties");
            if open && (fields.contains_key("properties") || fields.contains_key("allOf")) {
                fields.insert("unevaluatedProperties".into(), false.into());
            }
            for (key, value) in fields {
                match (key.as_str(), value) {
                    ("allOf", Value::Array(parts)) => {
                        let properties = parts.iter_mut().filter_map(|part| part.get_mut("properties"));
                        properties.for_each(close_one);
                    }
                    (_, value) => close_one(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(close_one),
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

/// A request, and the status of its answer.
struct Case {
    method: Method,
    /// The path as the document has it.
    route: &'static str,
    path: String,
    body: Value,
    status: u16,
}

impl Case {
    fn new(method: Method, route: &'static str, body: Value) -> Self {
        let path = route.to_owned();
        let status = 200;
        Self {
            method,
            route,
            path,
            body,
            status,
        }
    }

    /// The real path, with query.
    fn at(self, path: &str) -> Self {
        Self {
            path: path.to_owned(),
            ..self
        }
    }

    fn is(self, status: u16) -> Self {
        Self { status, ..self }
    }
}

fn get(route: &'static str) -> Case {
    Case::new(Method::GET, route, Value::Null)
}

fn post(route: &'static str, body: Value) -> Case {
    Case::new(Method::POST, route, body)
}

fn delete(route: &'static str) -> Case {
    Case::new(Method::DELETE, route, Value::Null)
}

/// Holds every answer against the document.
async fn check(gateway: &Gateway, cases: impl IntoIterator<Item = Case>) {
    let document = Document::of(gateway).await;
    let mut faults = Vec::new();
    for case in cases {
        let Case {
            method,
            route,
            path,
            body,
            status,
        } = case;
        let (got, kind, answers) = ask(gateway, &method, &path, &body).await;
        assert_eq!(got, status, "{method} {path} {body}: {answers:?}");
        assert!(!answers.is_empty());
        for answer in answers {
            let found = document.faults(&method.as_str().to_lowercase(), route, status, &kind, &answer);
            let told = |fault| format!("{method} {path} {status} {fault}");
            faults.extend(found.into_iter().map(told));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[tokio::test]
async fn answers_are_as_the_document_says() {
    let (gateway, _controller, _worker) = start().await;
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
    let text = json!({"model": "m", "prompt": "hi", "stream": false});
    let vectors = json!({"model": "e", "input": ["a", "b"]});
    let encoded = json!({"model": "e", "input": "a", "encoding_format": "base64"});
    let wrong = json!({"model": "x", "prompt": "", "input": "", "messages": messages, "max_tokens": 1});
    let cases = [
        post("/v1/chat/completions", chat.clone()),
        post("/v1/chat/completions", with(figures)),
        post("/v1/chat/completions", with(probabilities)),
        post("/v1/chat/completions", wrong.clone()).is(404),
        post("/v1/completions", completion),
        post("/v1/completions", wrong.clone()).is(404),
        post("/v1/responses", response),
        post("/v1/responses", cut),
        post("/v1/responses", json!({"model": "x", "input": "hi"})).is(404),
        post("/v1/embeddings", vectors.clone()),
        post("/v1/embeddings", encoded),
        post("/v1/messages", with(json!({"max_tokens": 9}))),
        post("/v1/messages", wrong.clone()).is(404),
        post("/v1/messages/count_tokens", chat.clone()),
        post("/v1/messages/count_tokens", wrong.clone()).is(404),
        get("/v1/models"),
        get("/v1/models/{id}").at("/v1/models/m"),
        get("/v1/models/{id}").at("/v1/models/x").is(404),
        post("/api/chat", with(json!({"stream": false}))),
        post("/api/chat", chat.clone()),
        post("/api/generate", text),
        post("/api/embed", vectors),
        post("/api/embeddings", json!({"model": "e", "prompt": "a"})),
        post("/api/chat", wrong).is(404),
        get("/api/tags"),
        get("/api/ps"),
        post("/api/show", json!({"model": "m"})),
        get("/api/version"),
    ];
    check(&gateway, cases).await;
}

/// Else no test of these could fail.
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

/// Fields of a part are fields of the whole, and no others are.
#[tokio::test]
async fn what_is_put_together_of_parts_is_closed_too() {
    let (gateway, controller, _worker) = start().await;
    controller.say(|said| said.catalogue.push(muster_proto::v1::Model::default()));
    let document = Document::of(&gateway).await;
    let route = "/v1/admin/models";
    let (status, kind, mut answers) = ask(&gateway, &Method::GET, route, &Value::Null).await;
    let faults = |answer: &Value| document.faults("get", route, status, &kind, answer).join("\n");
    let answer = &mut answers[0];
    assert_eq!(faults(answer), "");
    assert!(!answer["models"][0]["vram_estimate_method"].is_null());
    answer["models"][0]["mood"] = "good".into();
    assert!(faults(answer).contains("mood"));
    answer["models"][0] = json!({});
    assert!(faults(answer).contains("vram_estimate_source"));
}
