//! Images in questions, through our engine and llama.cpp's own server with a projector: what is seen changes what is said, in every dialect that takes
//! them, and both say the same.

use muster_tests::{Engine, Stack, engines::test_model};
use serde_json::{Value, json};

/// 1×1 pixels each.
const RED: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC";
const BLUE: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGNgYPgPAAEDAQAIicLsAAAAAElFTkSuQmCC";

/// A model that sees.
async fn stack(engine: Engine) -> Stack {
    seeing(engine, "tiny-chat", "tiny-vision").await
}

async fn seeing(engine: Engine, model: &str, projector: &str) -> Stack {
    let projector = format!("mmproj = {:?}\nctx_size = 512", test_model(projector));
    let entry = engine.serving(&test_model(model), "sees", 1, &projector);
    Stack::with(entry).start().await
}

async fn ask(stack: &Stack, path: &str, body: Value) -> Value {
    stack.http().post(path, &body).await.ok()
}

/// The answers of one engine to the same questions.
async fn said(engine: Engine, (model, projector): (&str, &str)) -> Vec<Value> {
    let stack = seeing(engine, model, projector).await;
    let chat = async |image: Option<&str>| {
        let mut parts = vec![json!({"type": "text", "text": "What is this?"})];
        parts.extend(image.map(
            |data| json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{data}")}}),
        ));
        let messages = json!([{"role": "user", "content": parts}]);
        let body = json!({"model": "sees", "max_tokens": 12, "temperature": 0, "messages": messages});
        ask(&stack, "/v1/chat/completions", body).await
    };
    let [first_red, again, first_blue, nothing] = [
        chat(Some(RED)).await,
        chat(Some(RED)).await,
        chat(Some(BLUE)).await,
        chat(None).await,
    ];
    let said = |answer: &Value| answer["choices"][0]["message"].clone();
    assert_eq!(said(&first_red), said(&again));
    assert_ne!(said(&first_red), said(&first_blue));
    // The same image again is not read again.
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert!(cached(&again) > cached(&first_red), "{first_red} {again}");
    let tokens = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(tokens(&first_red) > tokens(&nothing), "{first_red} {nothing}");

    let other_dialects = async |image: &str| {
        let source = json!({"type": "base64", "media_type": "image/png", "data": image});
        let parts = json!([{"type": "text", "text": "What is this?"}, {"type": "image", "source": source}]);
        let messages = json!([{"role": "user", "content": parts}]);
        let body = json!({"model": "sees", "max_tokens": 12, "temperature": 0, "messages": messages});
        let anthropic = ask(&stack, "/v1/messages", body).await["content"].clone();
        let messages = json!([{"role": "user", "content": "What is this?", "images": [image]}]);
        let options = json!({"temperature": 0, "num_predict": 12});
        let body = json!({"model": "sees", "stream": false, "messages": messages, "options": options});
        let ollama = ask(&stack, "/api/chat", body).await["message"].clone();
        [anthropic, ollama]
    };
    let (red, blue) = (other_dialects(RED).await, other_dialects(BLUE).await);
    assert!(
        red.iter().zip(&blue).all(|(red, blue)| red != blue),
        "{red:?} {blue:?}"
    );
    let mut all: Vec<Value> = [&red, &blue].into_iter().flatten().cloned().collect();
    all.extend([said(&first_red), said(&first_blue), said(&nothing)]);
    all.extend([tokens(&first_red), tokens(&nothing)].map(Value::from));
    all
}

#[tokio::test]
async fn what_is_seen_changes_what_is_said_and_both_engines_say_the_same() {
    // An image in a row, one whose tokens see each other, and one whose tokens have rows and columns (M-RoPE).
    for kind in [
        ("tiny-chat", "tiny-vision"),
        ("tiny-swa", "tiny-swa-vision"),
        ("tiny-rows", "tiny-rows-vision"),
    ] {
        let ours = said(Engine::LlamaCpp, kind).await;
        assert_eq!(ours, said(Engine::LlamaServer, kind).await, "{kind:?}");
    }
}

/// llama.cpp's own routes: files in prompts in object form, at the marker that `/props` tells, and seed 004's `image_data`.
async fn plain_prompts(engine: Engine) -> Vec<Value> {
    let stack = stack(engine).await;
    let http = stack.http();
    http.chat("sees", json!({"max_tokens": 1})).await.ok();
    let props = http.get("/props?model=sees").await.ok();
    assert_eq!(props["modalities"]["vision"], true);
    let marker = props["media_marker"].as_str().unwrap();
    let complete = async |mut body: Value| {
        body["n_predict"] = json!(12);
        body["temperature"] = json!(0);
        ask(&stack, "/completion", body).await
    };
    let object =
        |data: &str| json!({"prompt_string": format!("See {marker} this"), "multimodal_data": [data]});
    let named = |data: &str| json!({"prompt": "See [img-12] this", "image_data": [{"data": data, "id": 12}]});
    let red = complete(json!({"prompt": object(RED)})).await;
    let blue = complete(json!({"prompt": object(BLUE)})).await;
    let blind = complete(json!({"prompt": "See  this"})).await;
    assert_ne!(red["content"], blue["content"]);
    let read = |answer: &Value| answer["tokens_evaluated"].as_u64().unwrap();
    assert!(read(&red) > read(&blind), "{red} {blind}");
    assert_eq!(complete(named(RED)).await["content"], red["content"]);
    assert_eq!(complete(named(BLUE)).await["content"], blue["content"]);
    // Several prompts, each with its own; the marker alone is text.
    let several = complete(json!({"prompt": [object(BLUE), "See  this", object(RED)]})).await;
    let said: Vec<_> = several
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["content"])
        .collect();
    assert_eq!(said, [&blue["content"], &blind["content"], &red["content"]]);
    complete(json!({"prompt": format!("See {marker} this")})).await;

    for (body, status) in [
        (
            json!({"prompt": {"prompt_string": marker, "multimodal_data": [RED]}}),
            400,
        ),
        (
            json!({"prompt": {"prompt_string": marker, "multimodal_data": []}}),
            200,
        ),
        (
            json!({"prompt": {"prompt_string": "a", "multimodal_data": [RED]}}),
            400,
        ),
        (
            json!({"prompt": {"prompt_string": format!("{marker} a"), "multimodal_data": ["AAAA"]}}),
            400,
        ),
        (
            json!({"prompt": {"prompt_string": marker, "multimodal_data": ["/etc/passwd"]}}),
            400,
        ),
        (
            json!({"prompt": "a", "image_data": [{"data": RED, "id": 1}]}),
            400,
        ),
    ] {
        let mut body = body;
        body["n_predict"] = json!(1);
        let reply = http.post("/completion", &body).await;
        assert_eq!(reply.status.as_u16(), status, "{body} {}", reply.text);
    }
    let tokens = http.post("/tokenize", &json!({"content": object(RED)})).await;
    assert_eq!(tokens.status, 400, "{}", tokens.text);
    let content = |answer: &Value| answer["content"].clone();
    [&red, &blue, &blind].map(content).into()
}

#[tokio::test]
async fn plain_prompts_of_llama_cpps_routes_take_images() {
    assert_eq!(
        plain_prompts(Engine::LlamaCpp).await,
        plain_prompts(Engine::LlamaServer).await
    );
}

#[tokio::test]
async fn vectors_of_text_with_images_depend_on_them() {
    let (model, projector) = (test_model("tiny-chat"), test_model("tiny-vision"));
    let entry = format!(
        "[models.sees]\nrecipe = 'llamacpp'\ncheckpoint = {model:?}\nmmproj = {projector:?}\nctx_size = 512\nthreads = 1\nlabels = ['embeddings']\npooling = 'mean'\n"
    );
    let stack = Stack::with(entry).start().await;
    let marker = "<__media__>";
    let vector = async |data: &str| {
        let object = json!({"prompt_string": format!("a {marker} b"), "multimodal_data": [data]});
        let one = ask(&stack, "/embedding", json!({"content": object})).await;
        let named = json!({"content": "a [img-1] b", "image_data": [{"data": data, "id": 1}]});
        assert_eq!(ask(&stack, "/embedding", named).await, one);
        let openais = ask(&stack, "/v1/embeddings", json!({"input": [object, "plain"]})).await;
        assert_eq!(openais["data"].as_array().unwrap().len(), 2);
        one[0]["embedding"].clone()
    };
    assert_ne!(vector(RED).await, vector(BLUE).await);
    // llama.cpp's server aborts on this one (`GGML_ASSERT(batch.size() > 0)`).
    let last = json!({"content": {"prompt_string": marker, "multimodal_data": [RED]}});
    let reply = stack.http().post("/embedding", &last).await;
    assert_eq!(reply.status, 400, "{}", reply.text);
    vector(RED).await;
    assert_eq!(stack.stats().await.loads_started, 1);
}

/// It says so, and nothing is dropped.
#[tokio::test]
async fn an_engine_without_eyes_refuses_images_in_prompts() {
    for engine in [Engine::LlamaCpp, Engine::LlamaServer] {
        let vectors = engine.serving(
            &test_model("tiny-embed"),
            "vectors",
            1,
            "labels = [\"embeddings\"]",
        );
        let stack = Stack::with(engine.model("chat", 1, "") + &vectors).start().await;
        let object = json!({"prompt_string": "a <__media__>", "multimodal_data": [RED]});
        for (path, body) in [
            ("/completion", json!({"model": "chat", "prompt": object})),
            (
                "/completion",
                json!({"model": "chat", "prompt": "[img-1]", "image_data": [{"data": RED, "id": 1}]}),
            ),
            ("/embedding", json!({"model": "vectors", "content": object})),
        ] {
            let reply = stack.http().post(path, &body).await;
            assert_eq!(reply.status, 400, "{engine:?} {path} {}", reply.text);
            let message = &reply.json()["error"]["message"];
            assert!(
                message.as_str().unwrap().contains("no images"),
                "{engine:?} {path} {message}"
            );
        }
    }
}

#[tokio::test]
async fn what_is_no_image_is_the_callers_fault_and_the_engine_lives() {
    for engine in [Engine::LlamaCpp, Engine::LlamaServer] {
        no_images(&stack(engine).await).await;
    }
}

async fn no_images(stack: &Stack) {
    for url in [
        "data:image/png;base64,AAAA",
        "data:image/png;base64,!",
        "file:///etc/passwd",
    ] {
        let parts = json!([{"type": "image_url", "image_url": {"url": url}}]);
        let body =
            json!({"model": "sees", "max_tokens": 2, "messages": [{"role": "user", "content": parts}]});
        let reply = stack.http().post("/v1/chat/completions", &body).await;
        assert!(
            reply.status.is_client_error(),
            "{url}: {} {}",
            reply.status,
            reply.text
        );
    }
    let before = stack.stats().await.loads_started;
    let body = json!({"model": "sees", "max_tokens": 2, "messages": [{"role": "user", "content": "Hello!"}]});
    ask(stack, "/v1/chat/completions", body).await;
    assert_eq!(stack.stats().await.loads_started, before);
}
