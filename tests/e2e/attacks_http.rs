//! Attacks by requests: a user with an ordinary key, a web page, anybody who reaches the gateway (issue 10, 3). Each was done to the running
//! product; proto/README.md, Trust, says what holds instead.

use std::time::Duration;

use futures::FutureExt as _;
use muster_tests::{Engine, Stack, engines};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::timeout,
};

const LIMIT: Duration = Duration::from_secs(30);

/// A model whose entry leaves the runtime to us.
fn open_model() -> String {
    let file = engines::test_model("tiny-chat");
    format!("[models.m]\ncheckpoint = {file:?}\nrecipe = 'llamacpp'\nctx_size = 256\nthreads = 1\n")
}

/// Item 2: `--chat-template-file /etc/passwd` was shown by `/props`, `--log-file` overwrote a file, `--tools all` was a shell.
#[tokio::test]
async fn load_arguments_are_no_file_access_and_no_code() {
    let stack = Stack::with(open_model()).start().await;
    let http = stack.http();
    let target = stack.path("target");
    std::fs::write(&target, "precious").unwrap();
    let precious = target.display();
    for (flag, args) in [
        (
            "--chat-template-file",
            "--chat-template-file /etc/passwd".to_owned(),
        ),
        ("--grammar-file", "--grammar-file /etc/passwd".to_owned()),
        ("--log-file", format!("--log-file {precious}")),
        ("--log-file", format!("-t 1 --log-file={precious}")),
        ("--tools", "--tools all".to_owned()),
        ("--path", "--path /etc".to_owned()),
        ("--models-dir", "--models-dir /".to_owned()),
        ("--slots", "--slots".to_owned()),
        // One of the list, but our engine has none such: no other engine is chosen for it.
        ("--cache-reuse", "--cache-reuse 3".to_owned()),
    ] {
        let load = json!({"model_name": "m", "llamacpp_args": args, "save_options": true});
        let options = json!({"llamacpp_args": args});
        for reply in [
            http.post("/api/v1/load", &load).await,
            http.post("/api/v1/models/m/options", &options).await,
        ] {
            let error = reply.error(400);
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(flag) && !message.contains("root:"), "{message}");
        }
    }
    for (checkpoint, mmproj) in [("/etc/passwd", ""), ("o/n:Q4_0", "/etc/passwd")] {
        let body =
            json!({"model_name": "user.x", "checkpoint": checkpoint, "mmproj": mmproj, "recipe": "llamacpp"});
        http.post("/api/v1/models/register", &body).await.error(400);
        http.post("/api/v1/pull", &body).await.error(400);
    }
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
    assert_eq!(stack.stats().await.loads_started, 0);
    let options = http.get("/api/v1/models/m/options").await.ok();
    assert_eq!(options["saved"], json!({}));
    // What is on the list is taken, and the runtime stays.
    let load = json!({"model_name": "m", "llamacpp_args": "-b 64 --flash-attn off"});
    http.post("/api/v1/load", &load).await.ok();
    assert_eq!(stack.model("m").await.runtime, "llama_cpp");
}

/// Item 3: with `Host` = `Origin` = `evil.test:PORT`, as after DNS rebinding, loads, unloads and configuration answered 200.
#[tokio::test]
async fn a_page_whose_name_was_led_here_is_no_operator() {
    let stack = Stack::with(Engine::Stub.model("m", 2, ""))
        .gateway_args(&["--allowed-host", "box.example"])
        .start()
        .await;
    let port = stack.gateway_address().to_string();
    let port = port.rsplit(':').next().unwrap().to_owned();
    let chat = r#"{"model":"m","messages":[{"role":"user","content":"x"}]}"#;
    let evil = format!("evil.test:{port}");
    for (path, body) in [
        ("/api/v1/load", r#"{"model_name":"m"}"#),
        ("/v1/admin/models/m/load", "{}"),
        ("/internal/set", r#"{"log_level":"info"}"#),
        ("/v1/chat/completions", chat),
        ("/nowhere", "{}"),
    ] {
        for target in [path.to_owned(), format!("http://{evil}{path}")] {
            let (status, text) = raw(&stack, &target, &evil, body).await;
            assert_eq!(status, 403, "{target}: {text}");
            assert!(text.contains("--allowed-host"), "{text}");
        }
        let (status, _) = raw(&stack, &format!("http://{evil}{path}"), "localhost", body).await;
        assert_eq!(status, 403, "{path}");
    }
    assert_eq!(stack.stats().await.loads_started, 0);
    for host in ["127.0.0.1:1", "localhost", "[::1]", "box.example:80"] {
        assert_eq!(
            raw(&stack, "/v1/chat/completions", host, chat).await.0,
            200,
            "{host}"
        );
    }
}

/// Posts as a browser would that believes it is at `host`.
async fn raw(stack: &Stack, target: &str, host: &str, body: &str) -> (u16, String) {
    let address = stack.gateway_address().to_string();
    let mut socket = TcpStream::connect(&address).await.unwrap();
    let request = format!(
        "POST {target} HTTP/1.1\r\nhost: {host}\r\norigin: http://{host}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(LIMIT, socket.read_to_string(&mut answer))
        .await
        .unwrap()
        .unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer)
}

/// Item 4: addresses of images went to llama-server, which fetched them from inside the network. Now no dialect passes one, nothing is loaded for
/// it, and nobody calls.
#[tokio::test]
async fn no_request_makes_an_engine_fetch_an_address() {
    let inside = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let secret = format!("http://{}/latest/meta-data", inside.local_addr().unwrap());
    let stack = Stack::with(Engine::Stub.model("m", 2, "")).start().await;
    for url in [secret.as_str(), "file:///etc/passwd", "https://evil.test/x"] {
        let image = json!({"type": "image_url", "image_url": {"url": url}});
        let video = json!({"type": "video_url", "video_url": {"url": url}});
        let sound = json!({"type": "input_audio", "input_audio": {"data": url, "format": "wav"}});
        let source = json!({"type": "image", "source": {"type": "url", "url": url}});
        let input = json!({"type": "input_image", "image_url": url});
        let said = |part: &Value| json!({"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": [part]}]});
        for (path, body) in [
            ("/v1/chat/completions", said(&image)),
            ("/v1/chat/completions", said(&video)),
            ("/v1/chat/completions", said(&sound)),
            ("/v1/messages", said(&source)),
            (
                "/v1/responses",
                json!({"model": "m", "input": [{"role": "user", "content": [input]}]}),
            ),
            (
                "/completion",
                json!({"model": "m", "prompt": "x", "image_data": [{"data": url, "id": 1}]}),
            ),
            (
                "/completion",
                json!({"model": "m", "prompt": {"prompt_string": "x", "multimodal_data": [url]}}),
            ),
        ] {
            let reply = stack.http().post(path, &body).await;
            // Where no runtime takes any media, that is what is said.
            let refused = reply.status == 400 || (path == "/completion" && reply.status == 501);
            assert!(refused, "{path} {body}: {} {}", reply.status, reply.text);
            let typed = path != "/completion";
            assert!(
                !typed || reply.text.contains("--allowed-media-host"),
                "{path}: {}",
                reply.text
            );
        }
    }
    assert_eq!(stack.stats().await.loads_started, 0);
    assert!(inside.accept().now_or_never().is_none(), "somebody called");
}

/// Item 13: `cached_tokens` and a chosen `id_slot` told one key what another had asked, `/stats` how long that took.
#[tokio::test]
async fn one_key_is_not_told_what_another_asked() {
    let model = Engine::LlamaCpp.serving(&engines::test_model("tiny-chat"), "m", 2, "ctx_size = 512");
    let keys = ["--api-key", "a,b", "--admin-api-key", "c"];
    let stack = Stack::with(model.clone()).gateway_args(&keys).start().await;
    let secret = "the quick brown fox jumps over the lazy dog and then it sleeps ".repeat(2);
    let cached = async |stack: &Stack, key: &str, slot: i32| {
        let body = json!({"model": "m", "prompt": secret, "n_predict": 2, "temperature": 0, "id_slot": slot});
        let done = keyed(stack, key, "/completion", Some(&body)).await;
        let (all, read) = (&done["tokens_evaluated"], &done["timings"]["prompt_n"]);
        all.as_u64().unwrap() - read.as_u64().unwrap()
    };
    assert_eq!(cached(&stack, "a", -1).await, 0);
    assert!(cached(&stack, "a", -1).await > 16, "one's own is reused");
    let before = keyed(&stack, "b", "/api/v1/stats", None).await;
    assert_eq!(before["prompt_tokens"], 0);
    // The sequence that holds the other's prompt is not to be had; where there is no other, nothing in it is kept.
    assert_eq!(cached(&stack, "b", 0).await, 0);
    assert_eq!(cached(&stack, "c", 0).await, 0);
    let chat = json!({"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": secret}]});
    let reused = async |stack: &Stack, key: &str| {
        let done = keyed(stack, key, "/v1/chat/completions", Some(&chat)).await;
        done["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap()
    };
    reused(&stack, "a").await;
    assert!(reused(&stack, "a").await > 16);
    assert_eq!(reused(&stack, "b").await, 0);
    drop(stack);

    let shared = [&keys[..], &["--share-prefixes", "on"]].concat();
    let stack = Stack::with(model).gateway_args(&shared).start().await;
    reused(&stack, "a").await;
    assert!(reused(&stack, "b").await > 16, "where the operator allows it");
}

/// With a key; a GET without a body.
async fn keyed(stack: &Stack, key: &str, path: &str, body: Option<&Value>) -> Value {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("http://{}{path}", stack.gateway_address());
    let request = match body {
        Some(body) => client.post(url).body(body.to_string()),
        None => client.get(url),
    };
    let reply = request.bearer_auth(key).timeout(LIMIT).send().await.unwrap();
    let (status, text) = (reply.status(), reply.text().await.unwrap());
    assert_eq!(status, 200, "{path}: {text}");
    serde_json::from_str(&text).unwrap()
}
