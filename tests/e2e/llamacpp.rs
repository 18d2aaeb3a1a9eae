//! llama.cpp's own routes through our engine and through its own server: the same questions have the same answers (seed 004).

use std::path::{Path, PathBuf};

use muster_tests::{
    Engine, Stack,
    engines::test_model,
    http::{Http, Reply},
};
use serde_json::{Value, json};

/// A model of each kind per engine: `ours-…` and `theirs-…`.
async fn stack() -> Stack {
    let mut models = "[policy]\nmax_loaded_models = -1\n".to_owned();
    for (engine, name) in [(Engine::LlamaCpp, "ours"), (Engine::LlamaServer, "theirs")] {
        let vectors = "labels = [\"embeddings\"]";
        models += &engine.model(&format!("{name}-chat"), 2, "llamacpp_args = \"--slots\"");
        models += &engine.serving(&test_model("tiny-infill"), &format!("{name}-infill"), 1, "");
        models += &engine.serving(
            &test_model("tiny-embed"),
            &format!("{name}-tokens"),
            1,
            &format!("{vectors}\npooling = \"none\""),
        );
    }
    let stack = Stack::with(models).start().await;
    for engine in ["ours", "theirs"] {
        for kind in ["chat", "infill", "tokens"] {
            let body = json!({"model": format!("{engine}-{kind}")});
            stack.http().post("/v1/load", &body).await.ok();
        }
    }
    stack
}

async fn both(http: &Http, path: &str, kind: &str, body: &Value) -> [Reply; 2] {
    [
        http.post(&format!("{path}?model=ours-{kind}"), body).await,
        http.post(&format!("{path}?model=theirs-{kind}"), body).await,
    ]
}

/// A copy of a model whose file says `temp` and `top_k` of how tokens are chosen, as publishers of models do.
fn opinionated(folder: &Path) -> PathBuf {
    fn put(out: &mut Vec<u8>, key: &str, kind: u32, value: &[u8]) {
        out.extend((key.len() as u64).to_le_bytes());
        out.extend(key.as_bytes());
        out.extend(kind.to_le_bytes());
        out.extend(value);
    }
    let file = std::fs::read(test_model("tiny-chat")).unwrap();
    let mut more = Vec::new();
    put(&mut more, "general.sampling.temp", 6, &0.5_f32.to_le_bytes());
    put(&mut more, "general.sampling.top_k", 5, &7_i32.to_le_bytes());
    // What follows stays where it is counted from 32 bytes to 32 bytes.
    put(&mut more, "x", 8, &0_u64.to_le_bytes());
    assert_eq!(more.len() % 32, 0);
    let (head, rest) = file.split_at(24);
    let keys = u64::from_le_bytes(head[16..].try_into().unwrap()) + 3;
    let path = folder.join("opinionated.gguf");
    let parts = [&head[..16], &keys.to_le_bytes(), &more, rest];
    std::fs::write(&path, parts.concat()).unwrap();
    path
}

#[tokio::test]
async fn what_is_shown_is_what_is_in_force() {
    let folder = tempfile::tempdir().unwrap();
    let file = opinionated(folder.path());
    let ours = Engine::LlamaCpp.serving(&file, "ours-file", 1, "llamacpp_args = \"--slots\"");
    let theirs = Engine::LlamaServer.serving(&file, "theirs-file", 1, "llamacpp_args = \"--slots\"");
    let flags = Engine::LlamaServer.model("theirs-flags", 1, "llamacpp_args = \"--temp 0.25 --min-p 0.5\"");
    let models = format!("[policy]\nmax_loaded_models = -1\n{ours}{theirs}{flags}");
    let stack = Stack::with(models).start().await;
    let http = stack.http();
    let shown = async |model: &str, more: Value| {
        let mut body = json!({"prompt": "Once", "n_predict": 1});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let answer = http.post(&format!("/completion?model={model}"), &body).await.ok();
        let settings = answer["generation_settings"].clone();
        let [temperature, k, min_p] =
            ["temperature", "top_k", "min_p"].map(|key| settings[key].as_f64().unwrap());
        assert_eq!(
            settings["dry_sequence_breakers"],
            json!(["\n", ":", "\"", "*"]),
            "{model}"
        );
        // They are 32 bits wide.
        (temperature, k, (min_p * 1000.0).round() / 1000.0)
    };
    for model in ["ours-file", "theirs-file"] {
        assert_eq!(shown(model, json!({})).await, (0.5, 7.0, 0.05), "{model}");
        assert_eq!(
            shown(model, json!({"top_k": 3})).await,
            (0.5, 3.0, 0.05),
            "{model}"
        );
        // What a caller asks for is shown as it was asked for, whatever name it was given.
        let body = json!({"prompt": "Once", "n_predict": 1, "typ_p": 0.5, "stream": true});
        let mut stream = http.stream(&format!("/completion?model={model}"), &body).await;
        let mut last = Value::Null;
        while let Some(event) = stream.next().await {
            last = serde_json::from_str(&event.data).unwrap();
        }
        assert_eq!(last["generation_settings"]["typical_p"], 0.5, "{model}");
        assert_eq!(last["generation_settings"]["temperature"], 0.5, "{model}");
        let props = http.get(&format!("/props?model={model}")).await.ok();
        let own = &props["default_generation_settings"]["params"];
        assert_eq!(
            (&own["temperature"], &own["top_k"]),
            (&json!(0.5), &json!(7)),
            "{model}"
        );
    }
    assert_eq!(shown("theirs-flags", json!({})).await, (0.25, 40.0, 0.5));
    assert_eq!(
        shown("theirs-flags", json!({"temperature": 0.75})).await,
        (0.75, 40.0, 0.5)
    );
}

/// Without what is of one engine or one moment.
fn essence(mut answer: Value) -> Value {
    if let Some(list) = answer.as_array_mut() {
        return list.drain(..).map(essence).collect();
    }
    let Some(fields) = answer.as_object_mut() else {
        return answer;
    };
    for own in [
        "model",
        "id_slot",
        "timings",
        "tokens_cached",
        "completion_probabilities",
    ] {
        fields.remove(own);
    }
    if let Some(settings) = fields.get_mut("generation_settings") {
        assert!(settings["n_ctx"].as_u64() > Some(0), "{settings}");
        assert!(settings["model"].is_string(), "{settings}");
        settings["n_ctx"] = Value::Null;
        settings["model"] = Value::Null;
        // Only ours guesses by itself.
        settings["speculative.types"] = Value::Null;
    }
    answer
}

#[tokio::test]
async fn seed_004_completions_are_the_same() {
    let stack = stack().await;
    let http = stack.http();
    for (what, more) in [
        ("text", json!({"prompt": "Once"})),
        ("tokens", json!({"prompt": [1, 300, 301], "return_tokens": true})),
        ("a mixture", json!({"prompt": [1, "Once", 301]})),
        ("several", json!({"prompt": ["Once", [1, 300], [1, "x", 5]]})),
        ("nothing to generate", json!({"prompt": "Once", "n_predict": 0})),
        (
            "a stop string",
            json!({"prompt": "Once", "n_predict": 40, "stop": ["e n"]}),
        ),
        (
            "a bias",
            json!({"prompt": "Once", "logit_bias": [[300, 1.0], ["a", false]]}),
        ),
        (
            "a schema",
            json!({"prompt": "Once", "json_schema": {"type": "integer"}}),
        ),
        (
            "chosen fields",
            json!({"prompt": "Once", "response_fields": ["content", "generation_settings/n_predict"]}),
        ),
    ] {
        let mut body = json!({"temperature": 0, "n_predict": 6});
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        let [ours, theirs] = both(&http, "/completion", "chat", &body).await;
        assert_eq!(essence(ours.ok()), essence(theirs.ok()), "{what}");
    }
    // The prompt comes back as the model saw it.
    let body = json!({"prompt": "Once", "n_predict": 1});
    for reply in both(&http, "/completion", "chat", &body).await {
        assert_eq!(reply.ok()["prompt"], "<s>Once");
    }
    let body = json!({"input_prefix": "one", "input_suffix": "two", "n_predict": 4, "temperature": 0});
    let [ours, theirs] = both(&http, "/infill", "infill", &body).await;
    assert_eq!(essence(ours.ok()), essence(theirs.ok()));
}

/// Without flash attention and half precision, whose roundings change with the shape of a batch.
const EXACT: &str = "--slots --flash-attn off -ctk f32 -ctv f32";

#[tokio::test]
async fn tokens_that_are_guessed_ahead_change_nothing_and_are_told() {
    let model = |engine: Engine, name: &str, more: &str| {
        engine.model(name, 2, &format!("llamacpp_args = \"{EXACT}{more}\""))
    };
    let models = [
        "[policy]\nmax_loaded_models = -1\n".to_owned(),
        model(Engine::LlamaCpp, "ours", ""),
        model(Engine::LlamaCpp, "plain", " --spec-type none"),
        model(Engine::LlamaServer, "theirs", ""),
    ];
    let stack = Stack::with(models.concat()).start().await;
    let http = stack.http();
    let story = "the house of the people was near the water and every day the children went there ";
    let ask = async |model: &str, more: Value| {
        let mut body = json!({
            "prompt": story.repeat(3), "n_predict": 60, "temperature": 0, "ignore_eos": true, "n_probs": 1,
        });
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        http.post(&format!("/completion?model={model}"), &body).await.ok()
    };
    let text = |answer: &Value| answer["content"].as_str().unwrap().to_owned();
    let without = ask("ours", json!({"speculative.n_max": 0})).await;
    assert_eq!(without["timings"].get("draft_n"), None);
    for answer in [
        ask("ours", json!({"speculative.n_max": 16, "speculative.n_min": 1})).await,
        ask("ours", json!({})).await,
        ask("theirs", json!({})).await,
    ] {
        assert_eq!(text(&answer), text(&without));
    }
    let with = ask("ours", json!({"speculative.n_max": 16})).await;
    let drafted = with["timings"]["draft_n"].as_u64().unwrap();
    let accepted = with["timings"]["draft_n_accepted"].as_u64().unwrap();
    assert!((1..=drafted).contains(&accepted), "{accepted} of {drafted}");
    assert_eq!(with["completion_probabilities"].as_array().unwrap().len(), 60);
    assert_eq!(with["generation_settings"]["speculative.types"], "ngram-simple");
    let plain = ask("plain", json!({"speculative.n_max": 16})).await;
    assert_eq!(text(&plain), text(&without));
    assert_eq!(plain["timings"].get("draft_n"), None);
    assert_eq!(plain["generation_settings"]["speculative.types"], "none");
    for (model, speculative) in [("ours", true), ("plain", false)] {
        let slots = http.get(&format!("/slots?model={model}")).await.ok();
        assert_eq!(slots[0]["speculative"], speculative, "{model}");
    }
    let wrong = json!({"prompt": "x", "speculative.n_max": "many"});
    assert_eq!(http.post("/completion?model=ours", &wrong).await.status, 400);
}

#[tokio::test]
async fn seed_004_each_of_several_prompts_has_its_own_figures() {
    let stack = stack().await;
    let body = json!({"prompt": [[1, 300], [1, 300, 301, 302]], "n_predict": 2, "temperature": 0});
    for reply in both(&stack.http(), "/completion", "chat", &body).await {
        let list = reply.ok();
        let figures = |index: usize| {
            (
                list[index]["index"].clone(),
                list[index]["tokens_evaluated"].clone(),
                list[index]["tokens_predicted"].clone(),
            )
        };
        assert_eq!(figures(0), (json!(0), json!(2), json!(2)));
        assert_eq!(figures(1), (json!(1), json!(4), json!(2)));
    }
}

#[tokio::test]
async fn seed_004_questions_about_tokens_have_the_same_answers() {
    let stack = stack().await;
    let http = stack.http();
    for (path, body) in [
        (
            "/tokenize",
            json!({"content": "Hello รก", "with_pieces": true, "add_special": true}),
        ),
        ("/tokenize", json!({"content": ["Hello", 5]})),
        ("/detokenize", json!({"tokens": [300, 301]})),
        (
            "/apply-template",
            json!({"messages": [{"role": "user", "content": "Hi"}]}),
        ),
    ] {
        let [ours, theirs] = both(&http, path, "chat", &body).await;
        assert_eq!(ours.ok(), theirs.ok(), "{path}");
    }
}

/// Seed 004, `POST /embeddings`: where nothing is pooled, the vectors of all tokens come as they are.
#[tokio::test]
async fn seed_004_vectors_of_tokens_are_not_normalised() {
    let stack = stack().await;
    let body = json!({"input": "one two", "embd_normalize": 2});
    let [ours, theirs] = both(&stack.http(), "/embeddings", "tokens", &body).await;
    let (ours, theirs) = (ours.ok(), theirs.ok());
    let vectors =
        |answer: &Value| -> Vec<Vec<f64>> { serde_json::from_value(answer[0]["embedding"].clone()).unwrap() };
    let (ours, theirs) = (vectors(&ours), vectors(&theirs));
    assert_eq!(ours.len(), theirs.len());
    for (one, other) in ours.iter().zip(&theirs) {
        assert!(one.iter().zip(other).all(|(a, b)| (a - b).abs() < 1e-3));
        let length = one.iter().map(|value| value * value).sum::<f64>().sqrt();
        assert!((length - 1.0).abs() > 0.1, "{length}");
    }
}

/// Seed 004, `POST /slots/{id_slot}`: what a sequence has cached comes back from a file, after a new load too, and our engine answers as
/// llama.cpp's own server does.
#[tokio::test]
async fn seed_004_a_saved_cache_is_restored() {
    let (ours, theirs) = tokio::join!(slot_answers(Engine::LlamaCpp), slot_answers(Engine::LlamaServer));
    assert_eq!(ours, theirs);
}

/// The forms of the answers to what is done with a slot, with the numbers of tokens.
async fn slot_answers(engine: Engine) -> Vec<Value> {
    let saved = tempfile::tempdir().unwrap();
    let args = format!("--slots --slot-save-path {}", saved.path().display());
    let model = engine.model("m", 1, &format!("llamacpp_args = {args:?}"));
    let stack = Stack::with(model).start().await;
    let http = stack.http();
    let body = json!({"model": "m", "prompt": "Once upon a time there was", "n_predict": 2, "temperature": 0, "id_slot": 0});
    let before = http.post("/completion", &body).await.ok();
    let act = async |prefix: &str, action: &str, name: &str| {
        let path = format!("{prefix}/slots/0?action={action}");
        http.post(&path, &json!({"filename": name})).await
    };
    let save = act("", "save", "once.bin").await.ok();
    let kept = save["n_saved"].as_u64().unwrap();
    assert!(kept > 2, "{kept}");
    let file = saved.path().join("once.bin");
    assert_eq!(save["n_written"], std::fs::metadata(&file).unwrap().len());
    let erase = act("", "erase", "").await.ok();
    assert_eq!(erase["n_erased"], kept);
    // Under Lemonade's prefixes as well, where the model used last is meant.
    let restore = act("/api/v1", "restore", "once.bin").await.ok();
    assert_eq!(
        (&restore["n_restored"], &restore["n_read"]),
        (&save["n_saved"], &save["n_written"])
    );
    let after = http.post("/completion", &body).await.ok();
    assert_eq!(after["content"], before["content"]);
    assert!(after["timings"]["cache_n"].as_u64() > Some(2), "{after}");
    let mut refused = Vec::new();
    for name in ["none.bin", "../once.bin", "/etc/passwd", ""] {
        let reply = act("", "restore", name).await;
        let error = error(&reply, 400);
        refused.push(json!([error["code"], error["type"]]));
    }

    http.post("/v1/unload", &json!({"model_name": "m"})).await.ok();
    http.post("/v1/load", &json!({"model_name": "m"})).await.ok();
    act("", "restore", "once.bin").await.ok();
    let after = http.post("/completion", &body).await.ok();
    assert_eq!(after["content"], before["content"]);
    assert!(after["timings"]["cache_n"].as_u64() > Some(2), "{after}");
    vec![form(&save), form(&erase), form(&restore), refused.into()]
}

/// An answer with what differs between engines left out: sizes and times.
fn form(answer: &Value) -> Value {
    let mut answer = answer.clone();
    for key in ["n_written", "n_read"] {
        if let Some(size) = answer.get_mut(key) {
            assert!(size.is_u64(), "{key}");
            *size = Value::Null;
        }
    }
    if let Some(times) = answer.get_mut("timings").and_then(Value::as_object_mut) {
        for time in times.values_mut() {
            assert!(time.is_number());
            *time = Value::Null;
        }
    }
    answer
}

/// Seed 004, `GET /slots`: `params` are those of the request that runs there.
#[tokio::test]
async fn seed_004_a_slot_shows_what_its_request_asked_for() {
    let model = Engine::LlamaCpp.model("m", 2, "llamacpp_args = \"--slots\"");
    let stack = Stack::with(model).start().await;
    let http = stack.http();
    let more =
        json!({"max_tokens": 400, "temperature": 0.25, "top_k": 7, "ignore_eos": true, "stop": ["never"]});
    let mut stream = http.chat_stream("m", more).await;
    stream.next().await.unwrap();
    let slots = http.get("/slots").await.ok();
    let (busy, idle): (Vec<_>, Vec<_>) = slots
        .as_array()
        .unwrap()
        .iter()
        .partition(|slot| slot["is_processing"] == true);
    let params = |slot: &Value| {
        let params = &slot["params"];
        (
            params["temperature"].clone(),
            params["top_k"].clone(),
            params["n_predict"].clone(),
        )
    };
    assert_eq!((busy.len(), idle.len()), (1, 1), "{slots}");
    assert_eq!(params(busy[0]), (json!(0.25), json!(7), json!(400)));
    assert_eq!(busy[0]["params"]["stop"], json!(["never"]));
    let (temperature, top_k, n_predict) = params(idle[0]);
    assert!(
        (temperature.as_f64().unwrap() - 0.8).abs() < 1e-6,
        "{temperature}"
    );
    assert_eq!((top_k, n_predict), (json!(40), json!(-1)));
    // Lists of models show what llama.cpp's own do.
    let meta = http.get("/v1/models/m").await.ok()["meta"].clone();
    for key in [
        "vocab_type",
        "n_vocab",
        "n_ctx_train",
        "n_embd",
        "n_params",
        "size",
    ] {
        assert!(meta[key].as_u64() > Some(0), "{key}: {meta}");
    }
}

fn error(reply: &Reply, status: u16) -> Value {
    assert_eq!(reply.status.as_u16(), status, "{}", reply.text);
    let error = reply.json()["error"].clone();
    assert!(
        error["message"].as_str().is_some_and(|text| !text.is_empty()),
        "{error}"
    );
    error
}

#[tokio::test]
async fn seed_004_errors_have_llama_cpps_form_and_numbers() {
    let stack = stack().await;
    let http = stack.http();
    let long = json!({"prompt": "Once upon a time ".repeat(3000)});
    for reply in both(&http, "/completion", "chat", &long).await {
        let error = error(&reply, 400);
        assert_eq!(error["type"], "exceed_context_size_error", "{error}");
        assert!(
            error["n_prompt_tokens"].as_u64() > error["n_ctx"].as_u64(),
            "{error}"
        );
    }
    // OpenAI's routes say the numbers, too, and so does an input of an embedding that is too long.
    let long = "Once upon a time ".repeat(3000);
    for (path, kind) in [
        ("/v1/chat/completions", "chat"),
        ("/embedding", "tokens"),
        ("/embeddings", "tokens"),
    ] {
        for model in ["ours", "theirs"].map(|whose| format!("{whose}-{kind}")) {
            let mut body = json!({"model": model, "content": long, "input": long});
            if kind == "chat" {
                body = json!({"model": model, "messages": [{"role": "user", "content": long}]});
            }
            let reply = http.post(path, &body).await;
            let error = error(&reply, 400);
            assert!(
                error["n_prompt_tokens"].as_u64() > error["n_ctx"].as_u64(),
                "{path} {error}"
            );
            let message = error["message"].as_str().unwrap_or_default();
            assert!(
                message.contains("exceeds the available context size"),
                "{path} {error}"
            );
        }
    }
    for (path, body, status, kind) in [
        (
            "/completion",
            json!({"prompt": "a", "grammar": "root ::= ("}),
            400,
            "invalid_request_error",
        ),
        (
            "/detokenize",
            json!({"tokens": [99_999_999]}),
            400,
            "invalid_request_error",
        ),
        ("/embedding", json!({"content": "a"}), 501, "not_supported_error"),
        (
            "/infill",
            json!({"input_prefix": "a", "input_suffix": "b"}),
            501,
            "not_supported_error",
        ),
    ] {
        for reply in both(&http, path, "chat", &body).await {
            let error = error(&reply, status);
            assert_eq!(
                (&error["code"], &error["type"]),
                (&json!(status), &json!(kind)),
                "{path}"
            );
        }
    }
}
