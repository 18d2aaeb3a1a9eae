//! The hub's HTTP: what a repository has, what a file is, and its content.
//!
//! ```text
//! GET  /api/models/ORG/NAME/revision/REVISION?blobs=true    commit, files
//! HEAD /ORG/NAME/resolve/COMMIT/FILE                    etag, size (not redirected: the content's server knows neither)
//! GET  /ORG/NAME/resolve/COMMIT/FILE                    content or a range of it, maybe from elsewhere
//! ```

use std::{ops::Range, time::Duration};

use muster_core::{Code, Error};
use muster_proto::hub::Revision;
use reqwest::{
    Client, Method, RequestBuilder, Response, StatusCode,
    header::{ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, LOCATION, RANGE, RETRY_AFTER},
    redirect::Policy,
};
use serde::Deserialize;

use super::{
    HubConfig,
    limit::Limit,
    repo::is_etag,
    select::RepoFile,
    tries::{Again, Patience, Tries, Trouble},
};
use crate::tls;

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Longest silence while something is read.
const SILENCE: Duration = Duration::from_secs(60);
/// Content that goes in the way of errors: pages in HTML may be long.
const SHOWN: usize = 200;
/// Redirects that are followed.
const REDIRECTS: usize = 10;

/// A client of a hub; cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Remote {
    config: HubConfig,
    client: Client,
    /// Follows no redirects.
    direct: Client,
}

/// A repository at one commit.
#[derive(Clone, Debug)]
pub(super) struct Listing {
    pub(super) commit: String,
    pub(super) files: Vec<RepoFile>,
}

/// What the hub says of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileInfo {
    /// Names its content.
    pub(super) etag: String,
    /// Bytes.
    pub(super) size: u64,
}

/// Content on its way.
#[derive(Debug)]
pub(super) enum Content {
    /// The range that was asked for.
    Part(Response),
    /// All of it, from its beginning.
    Whole(Response),
}

#[derive(Debug, Deserialize)]
struct ModelInfo {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Debug, Deserialize)]
struct Sibling {
    rfilename: String,
    #[serde(default)]
    size: Option<u64>,
    /// Git's own name of the content.
    #[serde(default, rename = "blobId")]
    blob_id: Option<String>,
    /// Large files are known by their sum.
    #[serde(default)]
    lfs: Option<Lfs>,
}

#[derive(Debug, Deserialize)]
struct Lfs {
    sha256: String,
}

impl Remote {
    /// Connects when needed.
    ///
    /// # Errors
    /// No client can be made, for want of TLS.
    pub(super) fn new(config: HubConfig) -> Result<Self, Error> {
        let build = |policy: Policy| {
            let builder = tls::client()
                .user_agent(concat!("muster/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(CONNECT)
                .read_timeout(SILENCE)
                .redirect(policy);
            builder.build().map_err(|error| {
                Code::HubUnavailable.error(format!("no client for the hub can be made: {error}"))
            })
        };
        Ok(Self {
            client: build(Policy::limited(REDIRECTS))?,
            direct: build(Policy::none())?,
            config,
        })
    }

    /// How fast content may come.
    pub(super) fn limit(&self) -> &Limit {
        &self.config.limit
    }

    /// How often to ask again.
    pub(super) fn patience(&self) -> Patience {
        self.config.patience
    }

    /// What a repository has now, in one of its revisions.
    ///
    /// # Errors
    /// `checkpoint_not_found`, `checkpoint_forbidden`, `hub_unavailable`.
    pub(super) async fn list(&self, repo: &str, revision: &Revision) -> Result<Listing, Error> {
        let mut tries = self.questions();
        loop {
            match self.listing(repo, revision).await {
                Ok(listing) => return Ok(listing),
                Err(trouble) => tries.again(trouble).await?,
            }
        }
    }

    /// What a file is.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub(super) async fn info(&self, repo: &str, commit: &str, path: &str) -> Result<FileInfo, Error> {
        let mut tries = self.questions();
        loop {
            match self.about(repo, commit, path).await {
                Ok(info) => return Ok(info),
                Err(trouble) => tries.again(trouble).await?,
            }
        }
    }

    /// The content of a file of `size` bytes: all of it, or a range.
    ///
    /// # Errors
    /// As [`list`](Self::list), and `download_corrupt` for another size or range.
    pub(super) async fn content(
        &self,
        repo: &str,
        (commit, path, size): (&str, &str, u64),
        range: Option<&Range<u64>>,
    ) -> Result<Content, Trouble> {
        let mut request = self.request(&self.client, Method::GET, &resolve(repo, commit, path));
        if let Some(range) = range {
            request = request.header(RANGE, format!("bytes={}-{}", range.start, range.end - 1));
        }
        let response = self.send(request, repo).await?;
        if response.status() != StatusCode::PARTIAL_CONTENT {
            // What is encoded has another length.
            return match response.content_length() {
                Some(length) if length != size => Err(Trouble::never(other_size(path, size, length))),
                Some(_) | None => Ok(Content::Whole(response)),
            };
        }
        let said = text(response.headers(), CONTENT_RANGE.as_str()).unwrap_or_default();
        match range {
            Some(range) if is_range(&said, range, size) => Ok(Content::Part(response)),
            Some(_) | None => {
                let error = format!("of `{path}` another part came than was asked for: `{said}`");
                Err(Trouble::never(Code::DownloadCorrupt.error(error)))
            }
        }
    }

    fn questions(&self) -> Tries {
        let patience = self.config.patience;
        Tries::new(patience.questions, patience.pauses)
    }

    async fn listing(&self, repo: &str, revision: &Revision) -> Result<Listing, Trouble> {
        // The name's own slashes are none of the path's.
        let escaped = escaped(revision.as_str()).replace('/', "%2F");
        let path = format!("/api/models/{repo}/revision/{escaped}?blobs=true");
        let request = self.request(&self.client, Method::GET, &path);
        let response = self.send(request, repo).await?;
        let body = response.bytes().await.map_err(|error| broken(&error, repo))?;
        let info: ModelInfo = serde_json::from_slice(&body)
            .map_err(|error| Trouble::never(strange(repo, &format!("what is no listing: {error}"))))?;
        if !is_etag(&info.sha) {
            return Err(Trouble::never(strange(repo, "a commit without a name")));
        }
        let file = |sibling: Sibling| RepoFile {
            path: sibling.rfilename,
            size: sibling.size.unwrap_or(0),
            etag: sibling.lfs.map(|lfs| lfs.sha256).or(sibling.blob_id),
        };
        Ok(Listing {
            commit: info.sha,
            files: info.siblings.into_iter().map(file).collect(),
        })
    }

    async fn about(&self, repo: &str, commit: &str, path: &str) -> Result<FileInfo, Trouble> {
        let mut url = resolve(repo, commit, path);
        for _ in 0..REDIRECTS {
            let request = self.request(&self.direct, Method::HEAD, &url);
            let response = self.send(request, repo).await?;
            let header = |name: &str| {
                let value = text(response.headers(), name)?;
                Some(value.trim_start_matches("W/").trim_matches('"').to_owned())
            };
            let linked = header("x-linked-etag");
            // A repository that was renamed: the hub says where it is now.
            if let Some(moved) = header(LOCATION.as_str())
                .filter(|to| linked.is_none() && response.status().is_redirection() && to.starts_with('/'))
            {
                url = moved;
                continue;
            }
            // Of large files the hub says what it links to, and answers with a redirect of its own size.
            let etag = linked.or_else(|| header(ETAG.as_str()));
            let size = header("x-linked-size").or_else(|| header(CONTENT_LENGTH.as_str()));
            let size = size.and_then(|size| size.parse().ok());
            return match (etag, size) {
                (Some(etag), Some(size)) if is_etag(&etag) => Ok(FileInfo { etag, size }),
                (Some(_) | None, _) => {
                    let what = format!("no usable etag or size for `{path}`");
                    Err(Trouble::never(strange(repo, &what)))
                }
            };
        }
        Err(Trouble::never(strange(
            repo,
            &format!("`{path}` is ever elsewhere"),
        )))
    }

    fn request(&self, client: &Client, method: Method, path: &str) -> RequestBuilder {
        let request = client.request(method, format!("{}{path}", self.config.endpoint));
        self.signed(request.header(ACCEPT_ENCODING, "identity"))
    }

    async fn send(&self, request: RequestBuilder, repo: &str) -> Result<Response, Trouble> {
        if self.config.offline {
            let message = format!("{repo} is not in the cache, and HF_HUB_OFFLINE forbids to ask the hub");
            return Err(Trouble::never(Code::HubUnavailable.error(message)));
        }
        let response = request.send().await.map_err(|error| broken(&error, repo))?;
        let status = response.status();
        if status.is_success() || status.is_redirection() {
            return Ok(response);
        }
        let kind = Refusal::read(text(response.headers(), "x-error-code").as_deref());
        let again = again(status, text(response.headers(), RETRY_AFTER.as_str()).as_deref());
        let said = response.text().await.unwrap_or_default();
        Err(Trouble {
            error: refused(status, kind, repo, &said),
            again,
        })
    }

    fn signed(&self, request: RequestBuilder) -> RequestBuilder {
        // reqwest takes it off again where a redirect leads to another host.
        match &self.config.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }
}

fn resolve(repo: &str, commit: &str, path: &str) -> String {
    format!("/{repo}/resolve/{commit}/{}", escaped(path))
}

/// As a part of a URL's path; slashes stay.
fn escaped(path: &str) -> String {
    let mut escaped = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                escaped.push(char::from(byte));
            }
            byte => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_owned())
}

/// Whether `said` (`bytes FIRST-LAST/SIZE`) is the range that was asked for, or its beginning.
fn is_range(said: &str, range: &Range<u64>, size: u64) -> bool {
    let read = || {
        let (part, all) = said.strip_prefix("bytes ")?.split_once('/')?;
        let (first, last) = part.split_once('-')?;
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        let same = all == "*" || all.parse() == Ok(size);
        Some(same && first == range.start && last < range.end)
    };
    read() == Some(true)
}

/// Whether a refusal may be another answer later.
fn again(status: StatusCode, retry_after: Option<&str>) -> Again {
    let later = matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT
    );
    if !later && !status.is_server_error() {
        return Again::Never;
    }
    match retry_after.and_then(|seconds| seconds.trim().parse().ok()) {
        Some(seconds) => Again::After(Duration::from_secs(seconds)),
        None => Again::Soon,
    }
}

/// What came has another size than was announced.
pub(super) fn other_size(path: &str, announced: u64, received: u64) -> Error {
    Code::DownloadCorrupt
        .error(format!(
            "`{path}` should have {announced} bytes, but {received} came"
        ))
        .with_detail("announced_bytes", announced)
        .with_detail("received_bytes", received)
}

/// What a hub says of its refusal, beside the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    Gated,
    Revision,
    /// Nothing, or what the status says already.
    Plain,
}

impl Refusal {
    fn read(code: Option<&str>) -> Self {
        match code {
            Some("GatedRepo") => Self::Gated,
            Some("RevisionNotFound") => Self::Revision,
            Some(_) | None => Self::Plain,
        }
    }
}

fn refused(status: StatusCode, kind: Refusal, repo: &str, said: &str) -> Error {
    let said: String = said.chars().take(SHOWN).collect();
    let (code, message) = match status {
        StatusCode::NOT_FOUND if kind == Refusal::Revision => (
            Code::CheckpointNotFound,
            format!("the hub has {repo}, but not this revision of it"),
        ),
        StatusCode::NOT_FOUND => (
            Code::CheckpointNotFound,
            format!("the hub has no {repo}, or not that file of it"),
        ),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if kind == Refusal::Gated => (
            Code::CheckpointForbidden,
            format!(
                "{repo} is gated: accept its terms at the hub, and give the worker that account's HF_TOKEN"
            ),
        ),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => (
            Code::CheckpointForbidden,
            format!("the hub does not show {repo}: it does not exist, or wants another HF_TOKEN"),
        ),
        StatusCode::TOO_MANY_REQUESTS => (
            Code::HubUnavailable,
            format!("the hub lets nobody ask so often ({repo}): an HF_TOKEN may ask more often"),
        ),
        _ => (
            Code::HubUnavailable,
            format!("the hub answered {status} for {repo}"),
        ),
    };
    let error = code.error(message).with_detail("status", status.as_u16());
    if said.is_empty() {
        error
    } else {
        error.with_detail("said", said)
    }
}

fn strange(repo: &str, what: &str) -> Error {
    Code::HubUnavailable.error(format!("the hub says of {repo}: {what}"))
}

/// A connection that failed, with all causes.
pub(super) fn broken(error: &reqwest::Error, repo: &str) -> Trouble {
    let mut text = format!("the hub cannot be read for {repo}: {error}");
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text.push_str(&format!(": {inner}"));
        cause = inner.source();
    }
    Trouble {
        error: Code::HubUnavailable.error(text),
        // One that leads in circles does so tomorrow.
        again: if error.is_redirect() {
            Again::Never
        } else {
            Again::Soon
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_escaped() {
        assert_eq!(
            resolve("o/n", "c", "a b/ü?.gguf"),
            "/o/n/resolve/c/a%20b/%C3%BC%3F.gguf"
        );
    }

    #[test]
    fn refusals_are_told_apart() {
        let kind = |status, gated: bool| {
            let kind = Refusal::read(gated.then_some("GatedRepo"));
            refused(status, kind, "o/n", "").code
        };
        let error = refused(
            StatusCode::NOT_FOUND,
            Refusal::read(Some("RevisionNotFound")),
            "o/n",
            "",
        );
        assert_eq!(error.code, Code::CheckpointNotFound);
        assert!(error.message.contains("revision"), "{}", error.message);
        assert_eq!(kind(StatusCode::NOT_FOUND, false), Code::CheckpointNotFound);
        assert_eq!(kind(StatusCode::UNAUTHORIZED, false), Code::CheckpointForbidden);
        assert_eq!(kind(StatusCode::FORBIDDEN, true), Code::CheckpointForbidden);
        assert_eq!(kind(StatusCode::BAD_GATEWAY, false), Code::HubUnavailable);
        assert_eq!(kind(StatusCode::TOO_MANY_REQUESTS, false), Code::HubUnavailable);
    }

    #[test]
    fn what_may_come_later_is_asked_for_again() {
        let later = |status, after| again(status, after);
        assert_eq!(
            later(StatusCode::TOO_MANY_REQUESTS, Some("7")),
            Again::After(Duration::from_secs(7))
        );
        assert_eq!(later(StatusCode::BAD_GATEWAY, None), Again::Soon);
        assert_eq!(
            later(StatusCode::SERVICE_UNAVAILABLE, Some("Fri, 1 Jan")),
            Again::Soon
        );
        for status in [
            StatusCode::NOT_FOUND,
            StatusCode::FORBIDDEN,
            StatusCode::RANGE_NOT_SATISFIABLE,
        ] {
            assert_eq!(later(status, Some("1")), Again::Never, "{status}");
        }
    }

    #[test]
    fn another_range_is_not_taken() {
        let asked = 10..20;
        assert!(is_range("bytes 10-19/100", &asked, 100));
        assert!(is_range("bytes 10-15/*", &asked, 100));
        for said in [
            "bytes 0-19/100",
            "bytes 10-20/100",
            "bytes 10-19/99",
            "10-19/100",
            "",
        ] {
            assert!(!is_range(said, &asked, 100), "{said}");
        }
    }
}
