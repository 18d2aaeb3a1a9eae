//! HTTP to a `llama-server` on its unix socket, and its errors as ours.

use std::{collections::HashMap, path::Path, sync::Arc};

use muster_core::{Code, Error};
use muster_proto::trace;
use reqwest::{
    Method, RequestBuilder, Response, StatusCode,
    header::{HeaderMap, HeaderValue},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::tls;

/// A client of one server; cheap to clone.
///
/// Every request has a connection of its own. llama-server closes the connection after each streamed answer without announcing it (its
/// content provider returns false after `sink.done()`, server-http.cpp), and idle ones after 5 s. A request on a reused connection could
/// meet that moment.
#[derive(Clone, Debug)]
pub(super) struct Http {
    client: reqwest::Client,
    key: Arc<str>,
    /// Trace headers of its requests.
    trace: HeaderMap,
}

impl Http {
    /// A client for the server on `socket` with the API key `key`. Connects when needed.
    ///
    /// # Errors
    /// The client cannot be built.
    pub(super) fn new(socket: &Path, key: &str) -> Result<Self, reqwest::Error> {
        let client = tls::client()
            .unix_socket(socket)
            .no_proxy()
            // A unix socket is not encrypted, so the system's certificates need not be read.
            .tls_certs_only([])
            .tcp_nodelay(true)
            .pool_max_idle_per_host(0)
            .build()?;
        Ok(Self {
            client,
            key: key.into(),
            trace: HeaderMap::new(),
        })
    }

    /// A client whose requests carry a trace (`Start.trace`).
    pub(super) fn in_trace(&self, trace: &HashMap<String, String>) -> Self {
        let header = |name: &&'static str| Some((*name, HeaderValue::from_str(trace.get(*name)?).ok()?));
        let headers = trace::HEADERS.iter().filter_map(header);
        let mut traced = self.clone();
        for (name, value) in headers {
            traced.trace.insert(name, value);
        }
        traced
    }

    /// A request; `path` begins with `/`.
    pub(super) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client
            .request(method, format!("http://llama-server{path}"))
            .bearer_auth(&self.key)
            .headers(self.trace.clone())
    }

    /// Whether the server has loaded its model.
    pub(super) async fn ready(&self) -> bool {
        let answer = self.request(Method::GET, "/health").send().await;
        answer.is_ok_and(|answer| answer.status() == StatusCode::OK)
    }

    /// Sends a GET request and parses the answer's JSON.
    ///
    /// # Errors
    /// As [`send`], and `runtime_error` if the answer has another form.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        parse(send(self.request(Method::GET, path)).await?).await
    }

    /// Sends a POST request with JSON and parses the answer's JSON.
    ///
    /// # Errors
    /// As [`send`], and `runtime_error` if the answer has another form.
    pub(super) async fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, Error> {
        parse(send(self.request(Method::POST, path).json(body)).await?).await
    }
}

async fn parse<T: DeserializeOwned>(answer: Response) -> Result<T, Error> {
    let bytes = answer.bytes().await.map_err(|error| broken(&error))?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Code::RuntimeError.error(format!("llama-server's answer: {error}")))
}

/// Sends a request and waits for the head of the answer.
///
/// # Errors
/// The server's error, by its type; `runtime_crashed` if the connection breaks.
pub(super) async fn send(request: RequestBuilder) -> Result<Response, Error> {
    let answer = request.send().await.map_err(|error| broken(&error))?;
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let body = answer.bytes().await.map_err(|error| broken(&error))?;
    match serde_json::from_slice(&body) {
        Ok(ErrorBody { error }) => Err(error.into_info()),
        Err(_) => Err(Code::RuntimeError.error(format!("llama-server answered {status}"))),
    }
}

/// The error for a connection that broke.
pub(super) fn broken(error: &reqwest::Error) -> Error {
    let cause = std::error::Error::source(error)
        .map(|source| format!(": {source}"))
        .unwrap_or_default();
    Code::RuntimeCrashed.error(format!("the connection to llama-server broke: {error}{cause}"))
}

/// `{"error": …}`, as a body and as a streamed event.
#[derive(Debug, Deserialize)]
pub(super) struct ErrorBody {
    pub(super) error: EngineError,
}

/// llama-server's error object (`format_error_response` in its server-common.cpp).
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct EngineError {
    message: String,
    r#type: String,
    n_prompt_tokens: u64,
    n_ctx: u64,
}

impl EngineError {
    /// The error in our catalogue.
    pub(super) fn into_info(self) -> Error {
        let code = match self.r#type.as_str() {
            "exceed_context_size_error" => {
                return Code::ContextLengthExceeded
                    .error(self.message)
                    .with_detail("prompt_tokens", self.n_prompt_tokens)
                    .with_detail("context_length", self.n_ctx);
            }
            "invalid_request_error" => Code::InvalidRequest,
            // A route or an ability that this build or model does not have.
            "not_supported_error" | "not_found_error" => Code::UnsupportedByRuntime,
            _ => Code::RuntimeError,
        };
        code.error(self.message)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[test]
    fn errors_are_told_apart_by_their_type() {
        let info = |text: &str| serde_json::from_str::<ErrorBody>(text).unwrap().error.into_info();
        let overflow = info(
            r#"{"error":{"code":400,"message":"too long","type":"exceed_context_size_error","n_prompt_tokens":6002,"n_ctx":4096}}"#,
        );
        assert_eq!(overflow.code, Code::ContextLengthExceeded);
        assert_eq!(overflow.details["prompt_tokens"], "6002");
        let code = |kind: &str| info(&format!(r#"{{"error":{{"message":"m","type":"{kind}"}}}}"#)).code;
        assert_eq!(code("invalid_request_error"), Code::InvalidRequest);
        assert_eq!(code("not_supported_error"), Code::UnsupportedByRuntime);
        assert_eq!(code("server_error"), Code::RuntimeError);
    }

    #[tokio::test]
    async fn a_requests_trace_reaches_the_server() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("server.sock");
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let trace = HashMap::from([("traceparent".to_owned(), parent.to_owned())]);
        let http = Http::new(&socket, "key").unwrap().in_trace(&trace);
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = vec![0; 4096];
            let read = stream.read(&mut head).await.unwrap();
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                .await
                .unwrap();
            String::from_utf8_lossy(&head[..read]).into_owned()
        };
        let (ready, head) = tokio::join!(http.ready(), server);
        assert!(ready);
        assert!(head.contains(&format!("traceparent: {parent}\r\n")), "{head}");
    }
}
