//! What works with which runtime: each route and what it can be asked for, tried with real engines. The table in gateway/README.md is made of it.
//!
//! `MUSTER_BLESS=1` writes the table anew; without it a table that says something else is a failure.

use std::fmt::Write as _;

use muster_tests::{
    Engine, Stack,
    engines::{committed, test_model},
    http::{Http, Reply},
};
use serde_json::{Value, json};

const BEGIN: &str =
    "<!-- made by tests/e2e/surface.rs; MUSTER_BLESS=1 tests/run e2e surface writes it anew -->\n";
const END: &str = "<!-- end -->\n";

/// Something to ask for, and what an answer to it must show.
struct Try {
    what: &'static str,
    path: String,
    /// None: GET.
    body: Option<Value>,
    shows: fn(&Reply) -> bool,
}

fn post(what: &'static str, path: &str, body: Value, shows: fn(&Reply) -> bool) -> Try {
    Try {
        what,
        path: path.to_owned(),
        body: Some(body),
        shows,
    }
}

fn get(what: &'static str, path: &str, shows: fn(&Reply) -> bool) -> Try {
    Try {
        what,
        path: path.to_owned(),
        body: None,
        shows,
    }
}

fn with(mut body: Value, more: &Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn is_full(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.is_empty())
}

fn is_list(value: &Value, least: usize) -> bool {
    value.as_array().is_some_and(|list| list.len() >= least)
}

/// 1×1 pixels.
const PIXEL: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

fn chats() -> Vec<Try> {
    let path = "/v1/chat/completions";
    let ask = |more: Value| {
        let messages = json!([{"role": "user", "content": "Hello!"}]);
        with(
            json!({"model": "m", "messages": messages, "max_tokens": 8}),
            &more,
        )
    };
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string", "enum": ["Rome"]}}, "required": ["city"]});
    let tools =
        json!([{"type": "function", "function": {"name": "get_weather", "parameters": parameters.clone()}}]);
    let schema =
        json!({"type": "json_schema", "json_schema": {"name": "c", "strict": true, "schema": parameters}});
    let image = json!([{"role": "user", "content": [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": PIXEL}}]}]);
    vec![
        post("`chat/completions`", path, ask(json!({})), |reply| {
            let message = &reply.json()["choices"][0]["message"];
            is_full(&message["content"]) || is_full(&message["reasoning_content"])
        }),
        post(
            "… streamed, with usage",
            path,
            ask(json!({"stream": true, "stream_options": {"include_usage": true}})),
            |reply| reply.text.contains("\"usage\":{") && reply.text.ends_with("data: [DONE]\n\n"),
        ),
        post(
            "… tools",
            path,
            ask(json!({"tools": tools, "tool_choice": "required", "max_tokens": 200})),
            |reply| {
                reply.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "get_weather"
            },
        ),
        post(
            "… `response_format` with a schema",
            path,
            ask(
                json!({"response_format": schema, "max_tokens": 100, "chat_template_kwargs": {"enable_thinking": false}}),
            ),
            |reply| {
                let content = reply.json()["choices"][0]["message"]["content"].clone();
                let content = serde_json::from_str::<Value>(content.as_str().unwrap_or_default());
                content.is_ok_and(|content| content["city"] == "Rome")
            },
        ),
        post(
            "… `logprobs`, `n`",
            path,
            ask(json!({"logprobs": true, "top_logprobs": 2, "n": 2})),
            |reply| {
                let choices = reply.json()["choices"].clone();
                is_list(&choices, 2) && is_list(&choices[1]["logprobs"]["content"][0]["top_logprobs"], 2)
            },
        ),
        post(
            "… images as content parts, with an `mmproj`",
            path,
            ask(json!({"model": "s", "messages": image})),
            |reply| is_list(&reply.json()["choices"], 1),
        ),
    ]
}

fn completions() -> Vec<Try> {
    let path = "/v1/completions";
    vec![
        post(
            "`completions`",
            path,
            json!({"model": "m", "prompt": "Once", "max_tokens": 4}),
            |reply| is_full(&reply.json()["choices"][0]["text"]),
        ),
        post(
            "… `echo`, `logprobs`, several prompts",
            path,
            json!({"model": "m", "prompt": ["Once", [1, 2, 3]], "max_tokens": 2, "echo": true, "logprobs": true}),
            |reply| {
                let choices = reply.json()["choices"].clone();
                let text = choices[0]["text"].as_str().unwrap_or_default().to_owned();
                is_list(&choices, 2)
                    && text.starts_with("Once")
                    && is_list(&choices[0]["logprobs"]["tokens"], 1)
            },
        ),
        post(
            "… `suffix`",
            path,
            json!({"model": "f", "prompt": "one", "suffix": "two", "max_tokens": 4}),
            |reply| is_list(&reply.json()["choices"], 1),
        ),
        post(
            "`responses`, streamed",
            "/v1/responses",
            json!({"model": "m", "input": "Hello!", "max_output_tokens": 8, "stream": true}),
            |reply| {
                reply.text.contains("event: response.created")
                    && reply.text.contains("event: response.completed")
            },
        ),
        post(
            "`embeddings`",
            "/v1/embeddings",
            json!({"model": "e", "input": ["one", [1, 2]]}),
            |reply| is_list(&reply.json()["data"][1]["embedding"], 8),
        ),
        post(
            "… `dimensions`, base64",
            "/v1/embeddings",
            json!({"model": "e", "input": "one", "dimensions": 8, "encoding_format": "base64"}),
            // 32 bytes.
            |reply| {
                reply.json()["data"][0]["embedding"]
                    .as_str()
                    .is_some_and(|text| text.len() == 44)
            },
        ),
        post(
            "`reranking`",
            "/v1/reranking",
            json!({"model": "r", "query": "one", "documents": ["one", "two"], "top_n": 1}),
            |reply| is_list(&reply.json()["results"], 1),
        ),
    ]
}

fn others() -> Vec<Try> {
    let messages = json!([{"role": "user", "content": "Hello!"}]);
    vec![
        post(
            "Anthropic's `messages`",
            "/v1/messages",
            json!({"model": "m", "max_tokens": 8, "messages": messages.clone()}),
            |reply| is_list(&reply.json()["content"], 1),
        ),
        post(
            "… `count_tokens`",
            "/v1/messages/count_tokens",
            json!({"model": "m", "messages": messages.clone()}),
            |reply| reply.json()["input_tokens"].as_u64() > Some(0),
        ),
        post(
            "Ollama's `chat`",
            "/api/chat",
            json!({"model": "m", "messages": messages, "stream": false, "options": {"num_predict": 8}}),
            |reply| reply.json()["done"] == true,
        ),
        post(
            "… `generate`",
            "/api/generate",
            json!({"model": "m", "prompt": "Hello!", "options": {"num_predict": 8}}),
            |reply| {
                reply
                    .text
                    .trim_end()
                    .lines()
                    .last()
                    .is_some_and(|line| line.contains("\"done\":true"))
            },
        ),
        post(
            "… `embed`",
            "/api/embed",
            json!({"model": "e", "input": ["one", "two"]}),
            |reply| is_list(&reply.json()["embeddings"], 2),
        ),
    ]
}

fn llama_cpps() -> Vec<Try> {
    vec![
        post(
            "llama.cpp's `completion`",
            "/completion?model=m",
            json!({"prompt": [1, "Once", 2], "n_predict": 4, "n_probs": 2, "return_tokens": true}),
            |reply| {
                let answer = reply.json();
                is_list(&answer["tokens"], 1)
                    && is_list(&answer["completion_probabilities"][0]["top_logprobs"], 2)
                    && answer["stop"] == true
            },
        ),
        post(
            "… streamed, `timings_per_token`",
            "/completion?model=m",
            json!({"prompt": "Once", "n_predict": 4, "stream": true, "timings_per_token": true}),
            |reply| {
                let mut events = reply.text.lines().filter_map(|line| line.strip_prefix("data: "));
                events.all(|event| event.contains("\"predicted_per_second\""))
            },
        ),
        post(
            "… images in plain prompts, with an `mmproj`",
            "/completion?model=s",
            json!({"prompt": "Look: [img-1] What is it?", "n_predict": 2, "image_data": [{"id": 1, "data": PIXEL.rsplit(',').next()}]}),
            |reply| reply.json()["stop"] == true,
        ),
        post(
            "… `infill`",
            "/infill?model=f",
            json!({"input_prefix": "one", "input_suffix": "two", "n_predict": 4}),
            |reply| reply.json()["stop"] == true,
        ),
        post(
            "… `tokenize` with pieces",
            "/tokenize?model=m",
            json!({"content": "Hello", "add_special": true, "with_pieces": true}),
            |reply| reply.json()["tokens"][0]["id"].is_u64(),
        ),
        post(
            "… `detokenize`",
            "/detokenize?model=m",
            json!({"tokens": [300, 301]}),
            |reply| is_full(&reply.json()["content"]),
        ),
        post(
            "… `apply-template`",
            "/apply-template?model=m",
            json!({"messages": [{"role": "user", "content": "Hello!"}]}),
            |reply| {
                reply.json()["prompt"]
                    .as_str()
                    .is_some_and(|prompt| prompt.contains("Hello!"))
            },
        ),
        post(
            "… `embedding`",
            "/embedding?model=e",
            json!({"content": "one"}),
            |reply| is_list(&reply.json()[0]["embedding"][0], 8),
        ),
        post(
            "… `embeddings` of every token (pooling `none`)",
            "/embeddings?model=t",
            json!({"input": "one two three"}),
            |reply| is_list(&reply.json()[0]["embedding"], 2),
        ),
        post(
            "… `reranking`",
            "/reranking?model=r",
            json!({"query": "one", "documents": ["one", "two"]}),
            |reply| is_list(&reply.json()["results"], 2),
        ),
    ]
}

/// What an engine shows of itself.
fn engines() -> Vec<Try> {
    vec![
        get("… `GET props`", "/props?model=m", |reply| {
            is_full(&reply.json()["chat_template"]) && reply.json()["total_slots"] == 2
        }),
        post("… `POST props`", "/props?model=m", json!({}), |reply| {
            reply.json()["success"] == true
        }),
        get("… `slots`", "/slots?model=m", |reply| {
            is_list(&reply.json(), 2) && reply.json()[0]["is_processing"] == false
        }),
        post(
            "… `slots/{id}?action=save`",
            "/slots/0?model=m&action=save",
            json!({"filename": "a.bin"}),
            |reply| reply.json()["filename"] == "a.bin",
        ),
        post(
            "… `slots/{id}?action=erase`",
            "/slots/0?model=m&action=erase",
            json!({}),
            |reply| reply.json()["n_erased"].is_u64(),
        ),
        get("… `GET lora-adapters`", "/lora-adapters?model=m", |reply| {
            reply.json() == json!([])
        }),
        post(
            "… `POST lora-adapters`",
            "/lora-adapters?model=m",
            json!([]),
            |reply| reply.json()["success"] == true,
        ),
        get("… `metrics?model=`", "/metrics?model=m", |reply| {
            reply.text.contains("llamacpp:prompt_tokens_total")
                && reply.text.contains("llamacpp:kv_cache_tokens")
        }),
        post(
            "Lemonade's `load` with other settings",
            "/v1/load",
            json!({"model_name": "m", "ctx_size": 512}),
            |reply| reply.json()["status"] == "success",
        ),
    ]
}

/// Whether it works. What a runtime cannot do is said clearly; anything else is a fault.
async fn works(http: &Http, engine: Engine, attempt: &Try) -> bool {
    let reply = match &attempt.body {
        Some(body) => http.post(&attempt.path, body).await,
        None => http.get(&attempt.path).await,
    };
    if reply.status.is_success() {
        assert!(
            (attempt.shows)(&reply),
            "{engine:?}: {}: {}",
            attempt.what,
            reply.text
        );
        return true;
    }
    let error = &reply.json()["error"];
    // Images where there can be none are a fault of the prompt for llama.cpp's server too.
    let images = reply.status == 400
        && error["message"]
            .as_str()
            .is_some_and(|why| why.contains("images"));
    let refused = reply.status == 501 || error["code"] == "unsupported_by_runtime" || images;
    assert!(
        refused && is_full(&error["message"]),
        "{engine:?}: {}: {} {}",
        attempt.what,
        reply.status,
        reply.text
    );
    false
}

async fn column(engine: Engine) -> Vec<(&'static str, bool)> {
    let saved = tempfile::tempdir().unwrap();
    let args = match engine {
        Engine::LlamaCpp | Engine::LlamaServer => {
            format!(
                "--slots --metrics --props --slot-save-path {}",
                saved.path().display()
            )
        }
        Engine::Stub => "--slots --metrics --props".to_owned(),
    };
    let embeddings = "labels = [\"embeddings\"]";
    let projector = match engine {
        Engine::LlamaCpp | Engine::LlamaServer => format!("mmproj = {:?}", test_model("tiny-vision")),
        Engine::Stub => String::new(),
    };
    let models = [
        engine.model("s", 1, &projector),
        engine.model("m", 2, &format!("llamacpp_args = {args:?}")),
        engine.serving(&test_model("tiny-infill"), "f", 1, ""),
        engine.serving(&test_model("tiny-embed"), "e", 1, embeddings),
        engine.serving(
            &test_model("tiny-embed"),
            "t",
            1,
            &format!("{embeddings}\npooling = \"none\""),
        ),
        engine.serving(&test_model("tiny-rerank"), "r", 1, "labels = [\"reranking\"]"),
    ];
    let stack = Stack::with(format!("[policy]\nmax_loaded_models = -1\n{}", models.concat()))
        .start()
        .await;
    let http = stack.http();
    // llama.cpp's routes load nothing but completions and vectors.
    for model in ["m", "f", "t"] {
        http.post("/v1/load", &json!({"model_name": model})).await.ok();
    }
    let mut column = Vec::new();
    for attempt in [chats(), completions(), others(), llama_cpps(), engines()]
        .into_iter()
        .flatten()
    {
        column.push((attempt.what, works(&http, engine, &attempt).await));
    }
    column
}

#[tokio::test]
async fn the_table_in_readme_says_what_works_with_which_runtime() {
    let (ours, theirs) = (column(Engine::LlamaCpp).await, column(Engine::LlamaServer).await);
    let mut table = String::from("\n| | `llama_cpp` | `llama_server` |\n|---|---|---|\n");
    let word = |works| if works { "yes" } else { "no" };
    for ((what, ours), (_, theirs)) in ours.iter().zip(&theirs) {
        writeln!(table, "| {what} | {} | {} |", word(*ours), word(*theirs)).unwrap();
    }
    table.push('\n');
    let path = committed("gateway/README.md");
    let readme = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = readme.split_once(BEGIN).expect("where the table begins");
    let (said, after) = rest.split_once(END).expect("where the table ends");
    if std::env::var_os("MUSTER_BLESS").is_some() {
        std::fs::write(path, [before, BEGIN, &table, END, after].concat()).unwrap();
        return;
    }
    assert_eq!(
        said, table,
        "gateway/README.md says something else: MUSTER_BLESS=1 writes it anew"
    );
}
