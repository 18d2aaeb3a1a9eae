//! Who may ask the real binary, and where it listens without a key.

use serde_json::json;

use crate::{
    gateway::{Gateway, read},
    worker::{Worker, says},
};

#[tokio::test]
async fn a_key_is_wanted_for_everything_but_health() {
    let worker = Worker::start(|_| says(&["hi"])).await;
    let (plain, controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    drop(plain);
    let gateway = Gateway::start_with("127.0.0.1:0", &controller.address, &["--api-key", "one,two"]).await;
    for path in ["/health", "/live", "/api/version"] {
        assert_eq!(gateway.get(path).await.0, 200, "{path}");
    }
    for path in ["/v1/models", "/api/v1/health", "/api/tags"] {
        assert_eq!(gateway.get(path).await.0, 401, "{path}");
    }
    let chat = |key: &str| {
        let request = gateway
            .client
            .post(format!("{}/v1/chat/completions", gateway.url));
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        request
            .header("authorization", format!("Bearer {key}"))
            .json(&body)
            .send()
    };
    assert_eq!(chat("two").await.unwrap().status(), 200);
    let refused = chat("three").await.unwrap();
    assert_eq!(refused.headers()["www-authenticate"], "Bearer");
    let (status, answer) = read(refused).await;
    assert_eq!(
        (status.as_u16(), &answer["error"]["code"]),
        (401, &json!("unauthenticated"))
    );
    let request = gateway.client.post(format!("{}/v1/messages", gateway.url));
    let body = json!({"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]});
    let response = request
        .header("x-api-key", "one")
        .json(&body)
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
}

#[tokio::test]
async fn who_asks_and_how_urgently_reaches_the_queue() {
    let worker = Worker::start(|_| says(&["hi"])).await;
    let (plain, controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    drop(plain);
    let args = ["--api-key", "one,two", "--admin-api-key", "admin"];
    let gateway = Gateway::start_with("127.0.0.1:0", &controller.address, &args).await;
    let ask = async |key: &str, user: &str, priority: &str| {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        if !user.is_empty() {
            body["user"] = json!(user);
        }
        let request = gateway
            .client
            .post(format!("{}/v1/chat/completions", gateway.url));
        let request = request
            .header("x-api-key", key)
            .header("x-muster-priority", priority);
        let response = request.json(&body).send().await.unwrap();
        if response.status() != 200 {
            return Err(read(response).await);
        }
        let start = worker.starts().pop().unwrap();
        Ok((start.fairness_key, start.fairness_user, start.priority))
    };
    let (one, ..) = ask("one", "", "0").await.unwrap();
    let (two, ..) = ask("two", "", "0").await.unwrap();
    assert!(
        !one.is_empty() && one != two && !one.contains("one"),
        "{one} and {two}"
    );
    // A user is one within the key, whatever it is called.
    for user in ["ann", ""] {
        let asked = ask("one", user, "0").await.unwrap();
        assert_eq!((asked.0, asked.1.as_str()), (one.clone(), user));
    }
    // Anybody may stand back; where there is an admin key, only its holder goes first.
    assert_eq!(ask("one", "", "-3").await.unwrap().2, -3);
    assert_eq!(ask("one", "", "3").await.unwrap().2, 0);
    assert_eq!(ask("admin", "", "3").await.unwrap().2, 3);
    for wrong in ["5", "high", ""] {
        let (status, error) = ask("one", "", wrong).await.unwrap_err();
        assert_eq!(
            (status.as_u16(), &error["error"]["param"]),
            (400, &json!("x-muster-priority")),
            "{wrong}"
        );
    }
}

#[tokio::test]
async fn nobody_else_may_ask_without_a_key() {
    let refused = |args: &'static [&'static str]| async move {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_muster-gateway"));
        command.args(["--controller", "unix:/nonexistent"]).args(args);
        let output = crate::within(command.output()).await.unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = refused(&["--listen", "0.0.0.0:0"]).await;
    assert!(said.contains("--api-key"), "{said}");
    let said = refused(&["--listen", "127.0.0.1:0", "--api-key-file", "/nonexistent/key"]).await;
    assert!(said.contains("/nonexistent/key"), "{said}");
}

/// A page in a browser on this machine may chat, but not load, pull, delete or configure, unless it is ours.
#[tokio::test]
async fn a_page_of_another_origin_changes_nothing_without_a_key() {
    let worker = Worker::start(|_| says(&["hi"])).await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    let own = gateway.url.clone();
    let ask = async |path: &str, origin: &str, body: &str| {
        let request = gateway.client.post(format!("{}{path}", gateway.url));
        let request = request
            .header("origin", origin)
            .header("content-type", "text/plain");
        read(request.body(body.to_owned()).send().await.unwrap()).await
    };
    for path in [
        "/internal/set",
        "/internal/pin",
        "/v1/load",
        "/api/v1/pull",
        "/v1/delete",
        "/v1/admin/models/m/unload",
        "/models/unload",
    ] {
        for origin in ["http://evil.example", "null"] {
            let (status, answer) = ask(path, origin, "{}").await;
            assert_eq!(status, 403, "{path} {origin}: {answer}");
        }
    }
    // `/docs` sends its requests with the gateway's own origin.
    assert_eq!(
        ask("/internal/set", &own, r#"{"log_level": "info"}"#).await.0,
        200
    );
    let chat = r#"{"model": "m", "messages": [{"role": "user", "content": "hi"}]}"#;
    assert_eq!(
        ask("/v1/chat/completions", "http://app.example", chat).await.0,
        200
    );
}

#[tokio::test]
async fn a_clients_trace_reaches_the_worker() {
    let worker = Worker::start(|_| says(&["hi"])).await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    let trace = async |parent: &str| {
        let request = gateway
            .client
            .post(format!("{}/v1/chat/completions", gateway.url));
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        let request = request.header("traceparent", parent).json(&body);
        assert_eq!(request.send().await.unwrap().status(), 200);
        worker.starts().pop().unwrap().trace
    };
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    assert_eq!(trace(parent).await["traceparent"], parent);
    assert!(trace("made up").await.is_empty());
}
