//! A client that reads slowly holds up nobody else, and loses nothing.

use std::time::{Duration, Instant};

use muster_tests::{Engine, Stack, http};
use serde_json::json;

crate::for_each_runtime!(a_slow_reader_holds_up_nobody_and_loses_nothing);

async fn a_slow_reader_holds_up_nobody_and_loses_nothing(engine: Engine) {
    let more = if engine == Engine::Stub {
        ""
    } else {
        "ctx_size = 8192"
    };
    let stack = Stack::with(engine.model("m", 2, more)).start().await;
    let tokens = if engine == Engine::Stub { 60_000 } else { 3_000 };
    let body = json!({"max_tokens": tokens, "ignore_eos": true, "stream_options": {"include_usage": true}});
    let mut slow = stack.http().chat_stream("m", body).await;
    let mut chat = http::Chat::default();
    slow.chunks(&mut chat, 1).await;
    // Nobody reads `slow` now; its buffers fill and it stops. Others go on.
    let started = Instant::now();
    for _ in 0..3 {
        stack
            .http()
            .chat_stream("m", json!({"max_tokens": 20}))
            .await
            .chat()
            .await
            .whole();
    }
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "others took {:?}",
        started.elapsed()
    );
    // Everything is still there, in order, once it is read.
    let rest = slow.chat().await;
    assert!(rest.error.is_none() && rest.done, "{:?}", rest.error);
    let usage = rest.usage.expect("usage");
    assert_eq!(usage["completion_tokens"], tokens, "{usage}");
}
