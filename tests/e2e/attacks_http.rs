//! Attacks by requests: a user with an ordinary key, a web page, anybody who reaches the gateway (issue 10, 3). Each was done to the running
//! product; DECISIONS.md, Trust, says what holds instead.

use muster_tests::{Stack, engines};
use serde_json::json;

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
        ("--top-k", "--top-k 3".to_owned()),
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
