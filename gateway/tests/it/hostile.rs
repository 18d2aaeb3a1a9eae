//! Bad input at every route that the gateway's own document names: a clear 4xx in time, never a 5xx, a panic or a hang.

use std::time::{Duration, Instant};

use reqwest::Response;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    gateway::Gateway,
    within,
    worker::{Worker, says},
};

/// Longest answer to anything; the machine may be busy.
const SOON: Duration = Duration::from_secs(10);
const ROUNDS: usize = 60;

/// Every route that takes a body; those that only order the controller about are answered by it, not here.
async fn post_routes(gateway: &Gateway) -> Vec<String> {
    let (status, document) = gateway.get("/openapi.json").await;
    assert_eq!(status, 200);
    let paths = document["paths"].as_object().unwrap();
    let posts = paths.iter().filter(|(_, item)| item.get("post").is_some());
    let routes: Vec<_> = posts
        .filter(|(_, item)| item["post"]["requestBody"].is_object())
        .flat_map(|(path, _)| {
            let path = path
                .replace("{name}", "m")
                .replace("{id}", "m")
                .replace("{digest}", "sha256:0");
            // Some have several tasks; one of them is nobody's.
            let tasks = ["speech", "edits", "nonsense"];
            let all = tasks.map(|task| path.replace("{task}", task));
            all.into_iter().take(if path.contains("{task}") { 3 } else { 1 })
        })
        .collect();
    assert!(routes.len() >= 10, "{routes:?}");
    routes
}

/// Nobody's fault but the client's; llama.cpp says 501 to what an engine cannot do (seed 004).
fn is_fine(status: u16) -> bool {
    status < 500 || status == 501
}

async fn send(gateway: &Gateway, route: &str, body: Vec<u8>) -> Response {
    let began = Instant::now();
    let request = gateway.client.post(format!("{}{route}", gateway.url)).body(body);
    let response = within(request.send()).await.unwrap();
    assert!(began.elapsed() < SOON, "{route} took {:?}", began.elapsed());
    response
}

/// Bodies that broke somebody's server once.
fn nasty() -> Vec<Vec<u8>> {
    let nested = |open: &str, close: &str, depth: usize| {
        let (open, close) = (open.repeat(depth), close.repeat(depth));
        format!("{{\"model\": \"m\", \"messages\": {open}1{close}}}").into_bytes()
    };
    let mut list: Vec<Vec<u8>> = [
        "",
        " ",
        "null",
        "0",
        "\"\"",
        "[]",
        "{}",
        "{",
        "{\"model\"",
        "{\"model\": \"m\",}",
        "\u{feff}{}",
        "{\"model\": NaN}",
        "{\"model\": Infinity}",
        "{\"model\": \"m\", \"temperature\": 1e999}",
        "{\"model\": \"m\", \"n\": 99999999999999999999999999}",
        "{\"model\": \"m\", \"max_tokens\": -1e308}",
        "{\"model\": \"m\", \"model\": 3}",
        "{\"model\": \"\\ud800\"}",
        "{\"model\": \"m\\u0000\"}",
        "{\"model\": \"../../etc/passwd\"}",
        "{\"model\": \"m\", \"messages\": [[[]]], \"input\": {}, \"prompt\": {}}",
        "{\"\": \"\", \"model\": \"\"}",
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .collect();
    list.extend([
        nested("[", "]", 50),
        nested("[", "]", 20_000),
        nested("{\"a\":", "}", 15_000),
    ]);
    list.push(vec![0xff, 0xfe, 0x00]);
    list.push(b"{\"model\": \"\xff\"}".to_vec());
    list.push(vec![0; 1000]);
    list.push(format!("{{\"model\": \"{}\"}}", "m".repeat(50_000)).into_bytes());
    list
}

#[tokio::test]
async fn nasty_bodies_are_refused_at_every_route() {
    let worker = Worker::start(|_| says(&["hi"])).await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    for route in post_routes(&gateway).await {
        for body in nasty() {
            let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
            let status = send(&gateway, &route, body).await.status().as_u16();
            assert!(is_fine(status), "{route} {shown}: {status}");
        }
    }
}

/// Keys that routes know, so that what is made of them gets past the first check.
const KEYS: [&str; 30] = [
    "model",
    "messages",
    "input",
    "prompt",
    "role",
    "content",
    "type",
    "text",
    "tools",
    "function",
    "name",
    "parameters",
    "input_schema",
    "tool_choice",
    "stop",
    "stream",
    "n",
    "max_tokens",
    "temperature",
    "logprobs",
    "response_format",
    "schema",
    "options",
    "format",
    "images",
    "query",
    "documents",
    "system",
    "thinking",
    "echo",
];

fn any_value(random: &mut fastrand::Rng, depth: usize) -> Value {
    match random.u8(..if depth == 0 { 7 } else { 10 }) {
        0 => Value::Null,
        1 => random.bool().into(),
        2 => random.i64(..).into(),
        3 => (random.f64() * 1e12).into(),
        4 => random.i32(-3..300).into(),
        5 => KEYS[random.usize(..KEYS.len())].into(),
        6 => std::iter::repeat_with(|| random.char(..))
            .take(3)
            .collect::<String>()
            .into(),
        7 => (0..random.usize(..4))
            .map(|_| any_value(random, depth - 1))
            .collect(),
        _ => any_object(random, depth - 1),
    }
}

fn any_object(random: &mut fastrand::Rng, depth: usize) -> Value {
    let field = |random: &mut fastrand::Rng| {
        let key = KEYS[random.usize(..KEYS.len())].to_owned();
        (key, any_value(random, depth))
    };
    Value::Object((0..random.usize(..6)).map(|_| field(random)).collect())
}

#[tokio::test]
async fn any_json_is_answered_or_refused_at_every_route() {
    let worker = Worker::start(|_| says(&["hi"])).await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    for route in post_routes(&gateway).await {
        for _ in 0..ROUNDS {
            let mut body = any_object(&mut random, 4);
            body["model"] = "m".into();
            if random.bool() {
                body["messages"] = json!([{"role": "user", "content": any_value(&mut random, 2)}]);
                body["input"] = any_value(&mut random, 3);
            }
            let text = body.to_string();
            let response = send(&gateway, &route, text.clone().into_bytes()).await;
            let status = response.status().as_u16();
            assert!(is_fine(status), "seed {seed}: {route} {text}: {status}");
            within(response.bytes()).await.unwrap();
        }
    }
}

#[tokio::test]
async fn any_bytes_are_refused_at_every_route() {
    let (gateway, _controller) = Gateway::with(vec![]).await;
    let mut random = fastrand::Rng::new();
    for route in post_routes(&gateway).await {
        for _ in 0..ROUNDS {
            let size = random.usize(..64);
            let body: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(size).collect();
            let status = send(&gateway, &route, body.clone()).await.status().as_u16();
            assert!(is_fine(status), "{route} {body:?}: {status}");
        }
    }
}

/// What stands where a path has a name, and queries of which each breaks somebody's reader.
const NAMES: [&str; 6] = ["%ff", "%00", "%", "..%2f..", "%F0%9F", "m%2fm"];
const QUERIES: [&str; 9] = [
    "model=a&model=b",
    "checkpoint=a&checkpoint=b",
    "show_all=1&show_all=2",
    "instance=a&instance=b",
    "model=%ff",
    "%ff=%ff",
    "=&=",
    "autoload=maybe",
    "action=%00",
];

/// axum's own refusals are plain text, in no dialect's form.
#[tokio::test]
async fn bad_paths_and_queries_are_refused_in_json_at_every_route() {
    let worker = Worker::start(|_| says(&["hi"])).await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    let (_, document) = gateway.get("/openapi.json").await;
    let mut refused = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            let method = reqwest::Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let named = |name| {
                ["{name}", "{id}", "{task}", "{alias}", "{digest}"]
                    .iter()
                    .fold(path.clone(), |path, part| path.replace(part, name))
            };
            let names = NAMES.map(&named).into_iter().filter(|_| path.contains('{'));
            let queries = QUERIES.map(|query| format!("{}?{query}", named("m")));
            for target in names.chain(queries) {
                let request = gateway
                    .client
                    .request(method.clone(), format!("{}{target}", gateway.url));
                let response = within(request.body("{}").send()).await.unwrap();
                if response.status().is_success() {
                    continue;
                }
                let status = response.status();
                let kind = response.headers().get("content-type").cloned();
                assert!(
                    kind.is_some_and(|kind| kind == "application/json"),
                    "{method} {target}: {status}"
                );
                refused += 1;
                if method == reqwest::Method::HEAD {
                    continue;
                }
                let body: Value = within(response.json()).await.unwrap();
                assert!(
                    body["error"].is_object() || body["error"].is_string(),
                    "{method} {target}: {body}"
                );
            }
        }
    }
    assert!(refused > 100, "{refused}");
}

/// What a server says to raw bytes, as far as it says anything.
async fn says_to(gateway: &Gateway, bytes: &[u8]) -> String {
    let address = gateway.url.strip_prefix("http://").unwrap();
    let mut socket = TcpStream::connect(address).await.unwrap();
    // It may hang up before all is sent.
    drop(socket.write_all(bytes).await);
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(size @ 1..) = within(socket.read(&mut buffer)).await {
        answer.extend_from_slice(&buffer[..size]);
        if answer.windows(4).any(|window| window == b"\r\n\r\n") {
            break;
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn floods_of_headers_are_refused_and_the_gateway_lives_on() {
    let (gateway, _controller) = Gateway::with(vec![]).await;
    let mut many = b"GET /live HTTP/1.1\r\nhost: localhost\r\n".to_vec();
    for index in 0..10_000 {
        many.extend(format!("x-{index}: y\r\n").into_bytes());
    }
    many.extend(b"\r\n");
    let long = format!(
        "GET /live HTTP/1.1\r\nhost: localhost\r\nx-long: {}\r\n\r\n",
        "y".repeat(5_000_000)
    );
    let target = format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "y".repeat(200_000));
    for bytes in [many, long.into_bytes(), target.into_bytes()] {
        let answer = says_to(&gateway, &bytes).await;
        let refused = answer.is_empty() || answer.starts_with("HTTP/1.1 4");
        assert!(refused, "{}", &answer[..answer.len().min(80)]);
    }
    assert_eq!(gateway.get("/live").await.0, 200);
}

/// Bodies of 100 MB, announced or not, several at once: refused, and never in memory as a whole.
#[tokio::test]
async fn bodies_of_100_mb_are_refused_in_bounded_memory() {
    const SIZE: usize = 100 << 20;
    const AT_ONCE: usize = 4;
    let (gateway, _controller) = Gateway::with(vec![]).await;
    assert_eq!(gateway.get("/live").await.0, 200);
    let before = gateway.peak_memory();
    let send = |announced: bool| {
        let address = gateway.url.strip_prefix("http://").unwrap().to_owned();
        async move {
            let mut socket = TcpStream::connect(address).await.unwrap();
            let length = if announced {
                format!("content-length: {SIZE}")
            } else {
                "transfer-encoding: chunked".to_owned()
            };
            let head = format!("POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n{length}\r\n\r\n");
            socket.write_all(head.as_bytes()).await.unwrap();
            let (mut read, mut write) = socket.split();
            let body = async {
                let piece = vec![b' '; 1 << 16];
                for _ in 0..SIZE / piece.len() {
                    if !announced && write.write_all(b"10000\r\n").await.is_err() {
                        return;
                    }
                    let ended = if announced { &b""[..] } else { b"\r\n" };
                    // It may hang up before all is sent.
                    if write.write_all(&piece).await.is_err() || write.write_all(ended).await.is_err() {
                        return;
                    }
                }
            };
            let answer = async {
                let mut answer = vec![0; 12];
                match read.read_exact(&mut answer).await {
                    Ok(_) => String::from_utf8(answer).unwrap(),
                    Err(_) => String::new(),
                }
            };
            within(async { tokio::join!(body, answer) }).await.1
        }
    };
    for announced in [true, false] {
        let answers = futures::future::join_all((0..AT_ONCE).map(|_| send(announced))).await;
        for answer in answers {
            assert!(answer.is_empty() || answer == "HTTP/1.1 413", "{answer}");
        }
    }
    let grown = gateway.peak_memory() - before;
    assert!(grown < 32 << 20, "it took {} MiB", grown >> 20);
    assert_eq!(gateway.get("/live").await.0, 200);
}

/// Fifty unfinished bodies, each below the limit, once took 1.5 GB.
#[tokio::test]
async fn unfinished_bodies_are_bounded_together_and_chats_still_get_in() {
    const SIZE: usize = 12 << 20;
    const AT_ONCE: usize = 16;
    let worker = Worker::start(|_| says(&["hi"])).await;
    let (plain, controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    drop(plain);
    let args = ["--max-body-bytes", "16777216", "--max-bodies-bytes", "33554432"];
    let gateway = Gateway::start_with("127.0.0.1:0", &controller.address, &args).await;
    assert_eq!(gateway.chat(json!({})).await.status(), 200);
    let before = gateway.peak_memory();
    let address = gateway.url.strip_prefix("http://").unwrap();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
        SIZE + 1
    );
    let body = vec![b' '; SIZE];
    // All but the last byte.
    let mut sockets = Vec::new();
    for _ in 0..AT_ONCE {
        let mut socket = TcpStream::connect(address).await.unwrap();
        within(socket.write_all(head.as_bytes())).await.unwrap();
        within(socket.write_all(&body)).await.unwrap();
        sockets.push(socket);
    }
    let grown = gateway.peak_memory() - before;
    assert!(grown < 96 << 20, "it took {} MiB", grown >> 20);
    assert_eq!(gateway.chat(json!({})).await.status(), 200);
    let mut answers = Vec::new();
    for socket in &mut sockets {
        // It hears of a refusal once it has sent the rest, or by then already.
        drop(socket.write_all(b" ").await);
        let mut answer = vec![0; 2000];
        let size = within(socket.read(&mut answer)).await.unwrap_or_default();
        answers.push(String::from_utf8_lossy(&answer[..size]).to_lowercase());
    }
    let said = |status: &str| answers.iter().filter(|answer| answer.starts_with(status)).count();
    // Spaces are no JSON: these were read.
    let (read, refused) = (said("http/1.1 400"), said("http/1.1 429"));
    assert!(
        read >= 2 && refused >= AT_ONCE / 2 && read + refused == AT_ONCE,
        "{answers:?}"
    );
    let told = |answer: &&String| answer.contains("retry-after: 1") && answer.contains("queue_full");
    assert_eq!(answers.iter().filter(told).count(), refused, "{answers:?}");
    // What they held was given back.
    assert_eq!(send(&gateway, "/v1/completions", body).await.status(), 400);
}
