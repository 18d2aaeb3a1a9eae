//! HTTP as clients speak it: requests, replies, and server-sent events read one by one.

use std::time::{Duration, Instant};

use futures::StreamExt as _;
use muster_proto::net::Address;
use reqwest::{Method, StatusCode, header::CONTENT_TYPE};
use serde_json::{Value, json};

use crate::wait::within;

/// Longest wait for one reply or event.
const LIMIT: Duration = Duration::from_secs(60);

/// A client of one gateway.
#[derive(Clone, Debug)]
pub struct Http {
    base: String,
    client: reqwest::Client,
}

/// A client without connections, and without proxies.
///
/// # Panics
/// It cannot be made.
#[must_use]
pub fn client() -> reqwest::Client {
    // reqwest chooses none by itself; only the first counts.
    rustls::crypto::ring::default_provider().install_default().ok();
    reqwest::Client::builder()
        .no_proxy()
        .tcp_nodelay(true)
        .build()
        .expect("a client can be made")
}

impl Http {
    /// Nothing is dialled yet.
    ///
    /// # Panics
    /// No client can be made.
    #[must_use]
    pub fn new(address: &Address) -> Self {
        Self {
            base: format!("http://{address}"),
            client: client(),
        }
    }

    /// The address without a path.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// GET.
    pub async fn get(&self, path: &str) -> Reply {
        self.send(Method::GET, path, String::new()).await
    }

    /// POST of JSON.
    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.send(Method::POST, path, body.to_string()).await
    }

    /// Any method with any body, as `application/json`.
    ///
    /// # Panics
    /// There is no reply.
    pub async fn send(&self, method: Method, path: &str, body: String) -> Reply {
        let what = format!("a reply to {method} {path}");
        within(&what, LIMIT, async {
            let response = self.request(method, path, body).await.expect("a reply");
            let status = response.status();
            let headers = response.headers().clone();
            let text = response.text().await.expect("a whole body");
            Reply {
                status,
                headers,
                text,
            }
        })
        .await
    }

    /// POST of JSON whose answer is an event stream.
    ///
    /// # Panics
    /// The answer is no event stream.
    pub async fn stream(&self, path: &str, body: &Value) -> Sse {
        let what = format!("a stream from {path}");
        let response = within(&what, LIMIT, self.request(Method::POST, path, body.to_string()))
            .await
            .expect("a reply");
        let status = response.status();
        let kind = response.headers().get(CONTENT_TYPE).cloned();
        if status != StatusCode::OK
            || kind
                .as_ref()
                .is_none_or(|kind| !kind.as_bytes().starts_with(b"text/event-stream"))
        {
            panic!(
                "no event stream but {status} {kind:?}: {}",
                response.text().await.unwrap_or_default()
            );
        }
        Sse::new(response)
    }

    async fn request(&self, method: Method, path: &str, body: String) -> reqwest::Result<reqwest::Response> {
        self.client
            .request(method, format!("{}{path}", self.base))
            .header(CONTENT_TYPE, "application/json")
            .body(body)
            .send()
            .await
    }

    /// A chat of one question, answered whole; `more` overrides fields of the body.
    pub async fn chat(&self, model: &str, more: Value) -> Reply {
        self.post("/v1/chat/completions", &chat_body(model, false, more))
            .await
    }

    /// A chat of one question, streamed; `more` overrides fields of the body.
    pub async fn chat_stream(&self, model: &str, more: Value) -> Sse {
        self.stream("/v1/chat/completions", &chat_body(model, true, more))
            .await
    }
}

/// A chat body; greedy, so that answers can be compared.
///
/// # Panics
/// `more` is no object.
#[must_use]
pub fn chat_body(model: &str, stream: bool, more: Value) -> Value {
    let mut body = json!({
        "model": model,
        "stream": stream,
        "temperature": 0,
        "messages": [{"role": "user", "content": "Say something about ships."}],
    });
    let Value::Object(more) = more else {
        panic!("more fields come as an object")
    };
    for (key, value) in more {
        body[key] = value;
    }
    body
}

/// A whole reply.
#[derive(Debug)]
pub struct Reply {
    /// Status.
    pub status: StatusCode,
    /// Headers.
    pub headers: reqwest::header::HeaderMap,
    /// Body.
    pub text: String,
}

impl Reply {
    /// The body of a success.
    ///
    /// # Panics
    /// It was none, or is no JSON.
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, StatusCode::OK, "{}", self.text);
        self.json()
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// It is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("no JSON ({error}): {}", self.text))
    }

    /// The `error` object of a failure with this status; its shape is checked.
    ///
    /// # Panics
    /// It was a success, another failure, or has another shape.
    pub fn error(&self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        let error = self.json()["error"].clone();
        for key in ["message", "type", "code"] {
            assert!(
                error[key].as_str().is_some_and(|text| !text.is_empty()),
                "`{key}` is missing: {}",
                self.text
            );
        }
        assert!(error.get("param").is_some(), "`param` is missing: {}", self.text);
        error
    }

    /// The text of a whole chat answer, reasoning included.
    #[must_use]
    pub fn chat_text(&self) -> String {
        let message = &self.ok()["choices"][0]["message"];
        format!(
            "{}{}",
            message["reasoning_content"].as_str().unwrap_or_default(),
            message["content"].as_str().unwrap_or_default()
        )
    }
}

/// One server-sent event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SseEvent {
    /// `event:` field, empty if none.
    pub kind: String,
    /// `data:` lines.
    pub data: String,
}

/// An event stream that is being read. Dropping it disconnects.
#[derive(Debug)]
pub struct Sse {
    response: Option<reqwest::Response>,
    buffer: Vec<u8>,
}

impl Sse {
    fn new(response: reqwest::Response) -> Self {
        Self {
            response: Some(response),
            buffer: Vec::new(),
        }
    }

    /// The next event; `None` at the end of the body.
    ///
    /// # Panics
    /// Nothing comes for long, the body is cut, or a frame is empty.
    pub async fn next(&mut self) -> Option<SseEvent> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let frame: Vec<u8> = self.buffer.drain(..end + 2).collect();
                let frame = String::from_utf8(frame).expect("frames are UTF-8");
                // Comments keep a connection alive and mean nothing.
                match parse(&frame) {
                    Some(event) => return Some(event),
                    None => continue,
                }
            }
            let response = self.response.as_mut()?;
            let chunk = within("the next event", LIMIT, response.chunk()).await;
            let Some(bytes) = chunk.expect("the body goes on") else {
                self.response = None;
                assert!(
                    self.buffer.is_empty(),
                    "the stream ends in the middle of a frame: {:?}",
                    String::from_utf8_lossy(&self.buffer)
                );
                return None;
            };
            // Pieces end where the network likes, in the middle of a character too.
            self.buffer.extend_from_slice(&bytes);
        }
    }

    /// Reads a chat stream to its end.
    pub async fn chat(mut self) -> Chat {
        let mut chat = Chat::default();
        while let Some(event) = self.next().await {
            chat.add(&event);
        }
        chat
    }

    /// Reads until `chunks` chunks of a chat have come.
    ///
    /// # Panics
    /// The stream ends before.
    pub async fn chunks(&mut self, chat: &mut Chat, chunks: usize) {
        while chat.chunks.len() < chunks {
            let event = self
                .next()
                .await
                .unwrap_or_else(|| panic!("the stream ended early: {chat:?}"));
            chat.add(&event);
        }
    }
}

fn parse(frame: &str) -> Option<SseEvent> {
    let mut event = SseEvent {
        kind: String::new(),
        data: String::new(),
    };
    let mut any = false;
    for line in frame.lines() {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => {
                if any {
                    event.data.push('\n');
                }
                event.data.push_str(value);
                any = true;
            }
            "event" => value.clone_into(&mut event.kind),
            _ => {}
        }
    }
    assert!(!any || !event.data.is_empty(), "an empty frame");
    any.then_some(event)
}

/// What a chat stream said, gathered.
#[derive(Debug, Default)]
pub struct Chat {
    /// Every chunk.
    pub chunks: Vec<Value>,
    /// When each chunk came.
    pub times: Vec<Instant>,
    /// Visible text and reasoning of the first choice.
    pub text: String,
    /// `finish_reason` of the first choice.
    pub finish: Option<String>,
    /// `usage`, if a chunk carried one.
    pub usage: Option<Value>,
    /// The error that ended it, if one did.
    pub error: Option<Value>,
    /// `[DONE]` came.
    pub done: bool,
}

impl Chat {
    fn add(&mut self, event: &SseEvent) {
        assert!(!self.done, "something after [DONE]: {event:?}");
        assert!(
            self.error.is_none() || event.data == "[DONE]",
            "something after the error: {event:?}"
        );
        if event.data == "[DONE]" {
            self.done = true;
            return;
        }
        let chunk: Value = serde_json::from_str(&event.data)
            .unwrap_or_else(|error| panic!("no JSON ({error}): {}", event.data));
        if let Some(error) = chunk.get("error") {
            self.error = Some(error.clone());
            return;
        }
        if let Some(usage) = chunk.get("usage").filter(|usage| !usage.is_null()) {
            self.usage = Some(usage.clone());
        }
        let choice = &chunk["choices"][0];
        for key in ["reasoning_content", "content"] {
            self.text
                .push_str(choice["delta"][key].as_str().unwrap_or_default());
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            assert!(self.finish.is_none(), "two finish reasons");
            self.finish = Some(reason.to_owned());
        }
        self.chunks.push(chunk);
        self.times.push(Instant::now());
    }

    /// Fails unless the stream ended well.
    ///
    /// # Panics
    /// It did not.
    pub fn whole(self) -> Self {
        assert!(self.error.is_none(), "ended by an error: {:?}", self.error);
        assert!(self.finish.is_some(), "no finish reason: {self:?}");
        assert!(self.done, "no [DONE]: {self:?}");
        assert!(!self.text.is_empty(), "no text: {self:?}");
        self
    }
}

/// Runs `count` futures at once and gives their results in order.
pub async fn all<T>(count: usize, each: impl Fn(usize) -> T) -> Vec<T::Output>
where
    T: Future,
{
    let running: futures::stream::FuturesOrdered<T> = (0..count).map(each).collect();
    running.collect().await
}
