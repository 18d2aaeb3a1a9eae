//! A hub as huggingface.co is one, on a port of this machine: listings, files with their etags behind redirects, ranges. What it does wrong is the test's
//! to say.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    ops::RangeInclusive,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{Path, Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse as _, Response},
    routing::get,
};
use bytes::Bytes;
use futures::stream;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle, time::sleep};

/// The commit of every repository, unless a test says otherwise.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// Bytes of content that are sent at once.
const CHUNK: usize = 16 << 10;

/// A running hub. It ends with its handle.
#[derive(Debug)]
pub struct Hub {
    shared: Arc<Shared>,
    address: SocketAddr,
    serving: JoinHandle<()>,
}

/// Something that a hub does wrong, or asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It refuses a request so, and maybe says when to come again, in seconds.
    Refuse(u16, Option<u64>),
    /// The connection breaks after so many bytes of content.
    Break(usize),
    /// Content lacks its last byte, and says so.
    Short,
    /// Content is not what was announced.
    Corrupt,
    /// The way to content leads in circles.
    Circles,
    /// Ranges are not known: all comes, whatever was asked for.
    NoRanges,
    /// Content comes slowly: so long a pause after each 16 KiB.
    Slow(Duration),
    /// A token is wanted.
    Token(&'static str),
    /// Content is to be had at this other hub, of another address.
    Elsewhere(String),
}

#[derive(Clone, Debug)]
struct HubFile {
    content: Bytes,
    sum: String,
}

#[derive(Debug)]
struct Shared {
    /// By repository, commit and path.
    files: Mutex<BTreeMap<(String, String, String), HubFile>>,
    /// Commits by repository and revision.
    revisions: Mutex<BTreeMap<(String, String), String>>,
    /// Each with how often it still happens.
    faults: Mutex<Vec<(Fault, u32)>>,
    open: watch::Sender<bool>,
    requests: AtomicU32,
    downloads: AtomicU32,
    sent: AtomicU64,
    /// The last request for content had credentials.
    credentials: Mutex<Option<bool>>,
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
            revisions: Mutex::default(),
            faults: Mutex::default(),
            open: watch::Sender::new(true),
            requests: AtomicU32::new(0),
            downloads: AtomicU32::new(0),
            sent: AtomicU64::new(0),
            credentials: Mutex::default(),
        });
        let app = Router::new()
            .route("/api/models/{org}/{name}/revision/{revision}", get(listing))
            .route("/{org}/{name}/resolve/{commit}/{*path}", get(resolve))
            .route("/lfs/{sum}", get(content))
            .layer(from_fn_with_state(Arc::clone(&shared), refuse))
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
    pub fn put(&self, repo: &str, path: &str, content: impl Into<Bytes>) {
        let commit = self.shared.commit(repo, "main").unwrap_or_else(|| {
            self.publish(repo, "main", COMMIT, &[]);
            COMMIT.to_owned()
        });
        self.add(repo, &commit, path, content.into());
    }

    /// From now on a revision of a repository is this commit, which has these files.
    pub fn publish(&self, repo: &str, revision: &str, commit: &str, files: &[(&str, &[u8])]) {
        lock(&self.shared.revisions).insert((repo.to_owned(), revision.to_owned()), commit.to_owned());
        for (path, content) in files {
            self.add(repo, commit, path, Bytes::copy_from_slice(content));
        }
    }

    fn add(&self, repo: &str, commit: &str, path: &str, content: Bytes) {
        let sum = sum(&content);
        let key = (repo.to_owned(), commit.to_owned(), path.to_owned());
        lock(&self.shared.files).insert(key, HubFile { content, sum });
    }

    /// Holds content back, or lets it go.
    pub fn hold(&self, hold: bool) {
        self.shared.open.send_replace(!hold);
    }

    /// From now on this happens the next `times` times that it can.
    pub fn fault(&self, fault: Fault, times: u32) {
        lock(&self.shared.faults).push((fault, times));
    }

    /// All is well again.
    pub fn mend(&self) {
        lock(&self.shared.faults).clear();
    }

    /// Requests so far.
    #[must_use]
    pub fn requests(&self) -> u32 {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// Requests for content from its first byte on, so far: however many more ranges are asked for, a file counts once.
    #[must_use]
    pub fn downloads(&self) -> u32 {
        self.shared.downloads.load(Ordering::Relaxed)
    }

    /// Bytes of content that were sent so far.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }

    /// Whether the last request for content had credentials; none if there was none.
    #[must_use]
    pub fn saw_credentials(&self) -> Option<bool> {
        *lock(&self.shared.credentials)
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().expect("no request panicked")
}

impl Shared {
    /// The commit that a revision of a repository is: a branch, a tag or a commit.
    fn commit(&self, repo: &str, revision: &str) -> Option<String> {
        let revisions = lock(&self.revisions);
        if let Some(commit) = revisions.get(&(repo.to_owned(), revision.to_owned())) {
            return Some(commit.clone());
        }
        let files = lock(&self.files);
        let known = files
            .keys()
            .any(|(of, commit, _)| of == repo && commit == revision);
        known.then(|| revision.to_owned())
    }

    fn of(&self, repo: &str, commit: &str) -> Vec<(String, HubFile)> {
        let files = lock(&self.files);
        let own = files.iter().filter(|((of, at, _), _)| of == repo && at == commit);
        own.map(|((_, _, path), file)| (path.clone(), file.clone()))
            .collect()
    }

    fn knows(&self, repo: &str) -> bool {
        lock(&self.revisions).keys().any(|(known, _)| known == repo)
    }

    /// The first fault that `of` takes, if it is to happen once more.
    fn happens<T>(&self, of: impl Fn(&Fault) -> Option<T>) -> Option<T> {
        let mut faults = lock(&self.faults);
        let (found, times) = faults
            .iter_mut()
            .find_map(|(fault, times)| Some((of(fault)?, times)).filter(|(_, times)| **times > 0))?;
        *times -= 1;
        Some(found)
    }

    fn is(&self, wanted: &Fault) -> bool {
        self.happens(|fault| (fault == wanted).then_some(())).is_some()
    }
}

async fn refuse(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    shared.requests.fetch_add(1, Ordering::Relaxed);
    let refused = shared.happens(|fault| match fault {
        Fault::Refuse(status, later) => Some((*status, *later)),
        _ => None,
    });
    if let Some((status, later)) = refused {
        let mut response = StatusCode::from_u16(status).expect("a status").into_response();
        if let Some(seconds) = later {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        return response;
    }
    let token = lock(&shared.faults).iter().find_map(|(fault, _)| match fault {
        Fault::Token(token) => Some(format!("Bearer {token}")),
        _ => None,
    });
    let shown = request.headers().get(header::AUTHORIZATION);
    if let Some(token) = token
        && shown.is_none_or(|shown| shown.as_bytes() != token.as_bytes())
    {
        let status = if shown.is_some() {
            StatusCode::FORBIDDEN
        } else {
            StatusCode::UNAUTHORIZED
        };
        return (status, [("x-error-code", "GatedRepo")], "Access is restricted.").into_response();
    }
    next.run(request).await
}

fn sum(content: &[u8]) -> String {
    Sha256::digest(content)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

async fn listing(
    State(shared): State<Arc<Shared>>,
    Path((org, name, revision)): Path<(String, String, String)>,
) -> Response {
    let repo = format!("{org}/{name}");
    if !shared.knows(&repo) {
        // As huggingface.co answers for what does not exist, or is private.
        return (StatusCode::UNAUTHORIZED, "Invalid username or password.").into_response();
    }
    let Some(commit) = shared.commit(&repo, &revision) else {
        let error = json!({"error": format!("Invalid rev id: {revision}")});
        return (
            StatusCode::NOT_FOUND,
            [("x-error-code", "RevisionNotFound")],
            error.to_string(),
        )
            .into_response();
    };
    let siblings: Vec<_> = shared
        .of(&repo, &commit)
        .iter()
        .map(|(path, HubFile { content, sum })| {
            let size = content.len();
            json!({"rfilename": path, "size": size, "blobId": &sum[..40], "lfs": {"sha256": sum, "size": size, "pointerSize": 134}})
        })
        .collect();
    let body = json!({"id": repo, "sha": commit, "siblings": siblings});
    ([(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

async fn resolve(
    State(shared): State<Arc<Shared>>,
    Path((org, name, commit, path)): Path<(String, String, String, String)>,
    headers: HeaderMap,
) -> Response {
    let repo = format!("{org}/{name}");
    let commit = shared.commit(&repo, &commit).unwrap_or(commit);
    let files = shared.of(&repo, &commit);
    let found = files.iter().find(|(known, _)| *known == path);
    let Some((_, HubFile { content, sum })) = found else {
        return (StatusCode::NOT_FOUND, "Entry not found").into_response();
    };
    let elsewhere = shared.happens(|fault| match fault {
        Fault::Elsewhere(endpoint) => Some(endpoint.clone()),
        _ => None,
    });
    let location = match elsewhere {
        Some(endpoint) => format!("{endpoint}/lfs/{sum}"),
        None if shared.is(&Fault::Circles) => format!("/{org}/{name}/resolve/{commit}/{path}"),
        None => {
            // Content is on another host, as the real one's is; a proxy finds its own way.
            let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
            match host.and_then(|host| host.rsplit_once(':')) {
                Some((_, port)) => format!("http://localhost:{port}/lfs/{sum}"),
                None => format!("/lfs/{sum}"),
            }
        }
    };
    let headers = [
        ("x-repo-commit", commit),
        ("x-linked-etag", format!("\"{sum}\"")),
        ("x-linked-size", content.len().to_string()),
        ("location", location),
    ];
    (StatusCode::FOUND, headers).into_response()
}

async fn content(
    State(shared): State<Arc<Shared>>,
    Path(wanted): Path<String>,
    method: Method,
    headers: HeaderMap,
) -> Response {
    let found = {
        let files = lock(&shared.files);
        let file = files.values().find(|file| file.sum == wanted);
        file.map(|file| file.content.clone())
    };
    let Some(mut content) = found else {
        return StatusCode::NOT_FOUND.into_response();
    };
    if method == Method::GET {
        *lock(&shared.credentials) = Some(headers.contains_key(header::AUTHORIZATION));
        let begins = |range: &HeaderValue| range.as_bytes().starts_with(b"bytes=0-");
        if headers.get(header::RANGE).is_none_or(begins) {
            shared.downloads.fetch_add(1, Ordering::Relaxed);
        }
        let mut open = shared.open.subscribe();
        // The sender lives as long as the server.
        drop(open.wait_for(|open| *open).await);
    }
    if shared.is(&Fault::Corrupt) {
        let mut other = content.to_vec();
        other[0] ^= 1;
        content = other.into();
    }
    if shared.is(&Fault::Short) {
        content.truncate(content.len() - 1);
    }
    let etag = (header::ETAG, format!("\"{wanted}\""));
    let range = headers
        .get(header::RANGE)
        .filter(|_| !shared.is(&Fault::NoRanges));
    match range.and_then(|range| ranged(range.to_str().ok()?, content.len())) {
        Some(range) => {
            let about = format!("bytes {}-{}/{}", range.start(), range.end(), content.len());
            let part = content.slice(range);
            let length = (header::CONTENT_LENGTH, part.len().to_string());
            let headers = [etag, length, (header::CONTENT_RANGE, about)];
            (StatusCode::PARTIAL_CONTENT, headers, flow(shared, part)).into_response()
        }
        None => {
            let length = (header::CONTENT_LENGTH, content.len().to_string());
            ([etag, length], flow(shared, content)).into_response()
        }
    }
}

/// Content as it is sent.
fn flow(shared: Arc<Shared>, content: Bytes) -> Body {
    let breaks = shared.happens(|fault| match fault {
        Fault::Break(after) => Some(*after),
        _ => None,
    });
    let pause = lock(&shared.faults).iter().find_map(|(fault, _)| match fault {
        Fault::Slow(pause) => Some(*pause),
        _ => None,
    });
    let ends = breaks.map_or(content.len(), |after| after.min(content.len()));
    let chunks = stream::unfold((0, shared), move |(at, shared)| {
        let content = content.clone();
        async move {
            if at == content.len() {
                return None;
            }
            if at == ends {
                return Some((Err(std::io::Error::other("cut")), (content.len(), shared)));
            }
            if let Some(pause) = pause {
                sleep(pause).await;
            }
            let next = (at + CHUNK).min(ends);
            shared.sent.fetch_add((next - at) as u64, Ordering::Relaxed);
            Some((Ok(content.slice(at..next)), (next, shared)))
        }
    });
    Body::from_stream(chunks)
}

/// `bytes=FIRST-LAST` or `bytes=FIRST-`.
fn ranged(text: &str, length: usize) -> Option<RangeInclusive<usize>> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let first = first.parse().ok()?;
    let end = length.checked_sub(1)?;
    let last = if last.is_empty() { end } else { last.parse().ok()? };
    (first <= end).then(|| first..=last.min(end))
}
