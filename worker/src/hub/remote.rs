//! The hub's HTTP: what a repository has, what a file is, and its content.
//!
//! ```text
//! GET  /api/models/ORG/NAME/revision/main?blobs=true    commit, files
//! HEAD /ORG/NAME/resolve/COMMIT/FILE                    etag, size (not redirected: the content's server knows neither)
//! GET  /ORG/NAME/resolve/COMMIT/FILE                    content, maybe from elsewhere
//! ```

use std::time::Duration;

use muster_core::{Code, Error};
use reqwest::{
    Client, Method, RequestBuilder, Response, StatusCode,
    header::{ACCEPT_ENCODING, CONTENT_LENGTH, ETAG},
    redirect::Policy,
};
use serde::Deserialize;

use super::{HubConfig, cache::is_etag, select::RepoFile};
use crate::tls;

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Longest silence while something is read.
const SILENCE: Duration = Duration::from_secs(60);
/// Content that goes in the way of errors: pages in HTML may be long.
const SHOWN: usize = 200;

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
            client: build(Policy::limited(10))?,
            direct: build(Policy::none())?,
            config,
        })
    }

    /// What a repository has now.
    ///
    /// # Errors
    /// `checkpoint_not_found`, `checkpoint_forbidden`, `hub_unavailable`.
    pub(super) async fn list(&self, repo: &str) -> Result<Listing, Error> {
        let path = format!("/api/models/{repo}/revision/main?blobs=true");
        let response = self.send(&self.client, Method::GET, &path, repo).await?;
        let info: ModelInfo = response.json().await.map_err(|error| broken(&error, repo))?;
        if !is_etag(&info.sha) {
            return Err(strange(repo, "a commit without a name"));
        }
        let file = |sibling: Sibling| RepoFile {
            path: sibling.rfilename,
            size: sibling.size.unwrap_or(0),
        };
        Ok(Listing {
            commit: info.sha,
            files: info.siblings.into_iter().map(file).collect(),
        })
    }

    /// What a file is.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub(super) async fn info(&self, repo: &str, commit: &str, path: &str) -> Result<FileInfo, Error> {
        let url = resolve(repo, commit, path);
        let response = self.send(&self.direct, Method::HEAD, &url, repo).await?;
        let header = |name: &str| {
            let value = response.headers().get(name)?.to_str().ok()?;
            Some(value.trim_start_matches("W/").trim_matches('"').to_owned())
        };
        // Of large files the hub says what it links to, and answers with a redirect of its own size.
        let etag = header("x-linked-etag").or_else(|| header(ETAG.as_str()));
        let size = header("x-linked-size").or_else(|| header(CONTENT_LENGTH.as_str()));
        let size = size.and_then(|size| size.parse().ok());
        match (etag, size) {
            (Some(etag), Some(size)) if is_etag(&etag) => Ok(FileInfo { etag, size }),
            (Some(_) | None, _) => Err(strange(repo, &format!("no usable etag or size for `{path}`"))),
        }
    }

    /// The content of a file, from its beginning.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub(super) async fn content(&self, repo: &str, commit: &str, path: &str) -> Result<Response, Error> {
        let url = resolve(repo, commit, path);
        self.send(&self.client, Method::GET, &url, repo).await
    }

    async fn send(&self, client: &Client, method: Method, path: &str, repo: &str) -> Result<Response, Error> {
        if self.config.offline {
            let message = format!("{repo} is not in the cache, and HF_HUB_OFFLINE forbids to ask the hub");
            return Err(Code::HubUnavailable.error(message));
        }
        let request = client
            .request(method, format!("{}{path}", self.config.endpoint))
            .header(ACCEPT_ENCODING, "identity");
        let response = self
            .signed(request)
            .send()
            .await
            .map_err(|error| broken(&error, repo))?;
        let status = response.status();
        if status.is_success() || status.is_redirection() {
            return Ok(response);
        }
        let code = response.headers().get("x-error-code").cloned();
        let gated = code.is_some_and(|code| code.as_bytes() == b"GatedRepo");
        let said = response.text().await.unwrap_or_default();
        Err(refused(status, gated, repo, &said))
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
    let mut escaped = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                escaped.push(char::from(byte));
            }
            byte => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    format!("/{repo}/resolve/{commit}/{escaped}")
}

fn refused(status: StatusCode, gated: bool, repo: &str, said: &str) -> Error {
    let said: String = said.chars().take(SHOWN).collect();
    let (code, message) = match status {
        StatusCode::NOT_FOUND => (
            Code::CheckpointNotFound,
            format!("the hub has no {repo}, or not that file of it"),
        ),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if gated => (
            Code::CheckpointForbidden,
            format!(
                "{repo} is gated: accept its terms at the hub, and give the worker that account's HF_TOKEN"
            ),
        ),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => (
            Code::CheckpointForbidden,
            format!("the hub does not show {repo}: it does not exist, or wants another HF_TOKEN"),
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
pub(super) fn broken(error: &reqwest::Error, repo: &str) -> Error {
    let mut text = format!("the hub cannot be read for {repo}: {error}");
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text.push_str(&format!(": {inner}"));
        cause = inner.source();
    }
    Code::HubUnavailable.error(text)
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
        let kind = |status, gated| refused(status, gated, "o/n", "").code;
        assert_eq!(kind(StatusCode::NOT_FOUND, false), Code::CheckpointNotFound);
        assert_eq!(kind(StatusCode::UNAUTHORIZED, false), Code::CheckpointForbidden);
        assert_eq!(kind(StatusCode::FORBIDDEN, true), Code::CheckpointForbidden);
        assert_eq!(kind(StatusCode::BAD_GATEWAY, false), Code::HubUnavailable);
        assert_eq!(kind(StatusCode::TOO_MANY_REQUESTS, false), Code::HubUnavailable);
    }
}
