//! A hub as huggingface.co is one, on a port of this machine: listings, files with their etags behind redirects, ranges.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    ops::RangeInclusive,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use axum::{
    Router,
    body::Body,
    extract::{Path, State},
    http::{HeaderMap, Method, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use bytes::Bytes;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};

/// The commit of every repository.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A running hub. It ends with its handle.
#[derive(Debug)]
pub struct Hub {
    shared: Arc<Shared>,
    address: SocketAddr,
    serving: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    files: Mutex<BTreeMap<String, Bytes>>,
    open: watch::Sender<bool>,
    downloads: AtomicU32,
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Hub {
    /// Starts an empty hub.
    ///
    /// # Panics
    /// It cannot listen.
    pub async fn start() -> Self {
        let shared = Arc::new(Shared {
            files: Mutex::default(),
            open: watch::Sender::new(true),
            downloads: AtomicU32::new(0),
        });
        let app = Router::new()
            .route("/api/models/{org}/{name}/revision/main", get(listing))
            .route("/{org}/{name}/resolve/{commit}/{*path}", get(resolve))
            .route("/lfs/{sum}", get(content))
            .with_state(Arc::clone(&shared));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.expect("a server") });
        Self {
            shared,
            address,
            serving,
        }
    }

    /// What `HF_ENDPOINT` is to be.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Puts a file into a repository.
    ///
    /// # Panics
    /// A request panicked.
    pub fn put(&self, repo: &str, path: &str, content: impl Into<Bytes>) {
        let mut files = self.shared.files.lock().expect("no request panicked");
        files.insert(format!("{repo}/{path}"), content.into());
    }

    /// Holds content back, or lets it go.
    pub fn hold(&self, hold: bool) {
        self.shared.open.send_replace(!hold);
    }

    /// Files whose content was asked for.
    #[must_use]
    pub fn downloads(&self) -> u32 {
        self.shared.downloads.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn of(&self, repo: &str) -> Vec<(String, Bytes)> {
        let files = self.files.lock().expect("no request panicked");
        let own = files.iter().filter_map(|(path, content)| {
            let path = path.strip_prefix(repo)?.strip_prefix('/')?;
            Some((path.to_owned(), content.clone()))
        });
        own.collect()
    }
}

fn sum(content: &[u8]) -> String {
    Sha256::digest(content)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

async fn listing(State(shared): State<Arc<Shared>>, Path((org, name)): Path<(String, String)>) -> Response {
    let files = shared.of(&format!("{org}/{name}"));
    if files.is_empty() {
        // As huggingface.co answers for what does not exist, or is private.
        return (StatusCode::UNAUTHORIZED, "Invalid username or password.").into_response();
    }
    let siblings: Vec<_> = files
        .iter()
        .map(|(path, content)| json!({"rfilename": path, "size": content.len()}))
        .collect();
    let body = json!({"id": format!("{org}/{name}"), "sha": COMMIT, "siblings": siblings});
    ([(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

async fn resolve(
    State(shared): State<Arc<Shared>>,
    Path((org, name, commit, path)): Path<(String, String, String, String)>,
) -> Response {
    let files = shared.of(&format!("{org}/{name}"));
    let found = files.iter().find(|(known, _)| *known == path);
    let Some((_, content)) = found.filter(|_| commit == COMMIT || commit == "main") else {
        return (StatusCode::NOT_FOUND, "Entry not found").into_response();
    };
    let sum = sum(content);
    let headers = [
        ("x-repo-commit", COMMIT.to_owned()),
        ("x-linked-etag", format!("\"{sum}\"")),
        ("x-linked-size", content.len().to_string()),
        ("location", format!("/lfs/{sum}")),
    ];
    (StatusCode::FOUND, headers).into_response()
}

async fn content(
    State(shared): State<Arc<Shared>>,
    Path(wanted): Path<String>,
    method: Method,
    headers: HeaderMap,
) -> Response {
    let content = {
        let files = shared.files.lock().expect("no request panicked");
        files.values().find(|content| sum(content) == wanted).cloned()
    };
    let Some(content) = content else {
        return StatusCode::NOT_FOUND.into_response();
    };
    if method == Method::GET {
        shared.downloads.fetch_add(1, Ordering::Relaxed);
        let mut open = shared.open.subscribe();
        // The sender lives as long as the server.
        drop(open.wait_for(|open| *open).await);
    }
    let etag = (header::ETAG, format!("\"{wanted}\""));
    match headers
        .get(header::RANGE)
        .and_then(|range| ranged(range.to_str().ok()?, content.len()))
    {
        Some(range) => {
            let about = format!("bytes {}-{}/{}", range.start(), range.end(), content.len());
            let part = content.slice(range);
            let headers = [etag, (header::CONTENT_RANGE, about)];
            (StatusCode::PARTIAL_CONTENT, headers, Body::from(part)).into_response()
        }
        None => ([etag], Body::from(content)).into_response(),
    }
}

/// `bytes=FIRST-LAST` or `bytes=FIRST-`.
fn ranged(text: &str, length: usize) -> Option<RangeInclusive<usize>> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let first = first.parse().ok()?;
    let end = length.checked_sub(1)?;
    let last = if last.is_empty() { end } else { last.parse().ok()? };
    (first <= end).then(|| first..=last.min(end))
}
