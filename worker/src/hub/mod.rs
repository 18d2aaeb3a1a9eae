//! Files of models from a hub: the cache that all hf-hub clients of a host share, and downloads into it (PROTOCOL.md 15).
//!
//! ```text
//!   controller ──FilesOrder──► desk ──look, remove──► cache ◄──── load (names become paths)
//!        ▲                      │ └──fetch─► fetch ──► remote (HTTP)
//!        └─────FilesNews────────┘              └────► cache
//! ```
//!
//! * [`select`]: which files of a repository a checkpoint means. Pure.
//! * [`cache`]: what is on disk. * [`repo`]: one repository's layout there. * [`partial`]: a file that is coming.
//! * [`remote`]: the hub's HTTP. * [`tries`]: how often it is asked. * [`limit`]: how fast it may answer. * [`meter`]: how far it is.
//! * [`check`]: is there anything newer? * [`fetch`]: one download. * [`transfer`]: one file of it. * [`desk`]: orders of the controller.
//! * [`upload`]: a file that a client brings.
//!
//! The crate hf-hub does none of what this is about: without xet it fetches a file by one request from its beginning, and checks no sum.
//!
//! Invariants: a file is in the cache under its name only once all of it is there and is what the hub announced; nothing is ever written
//! outside the cache, whatever names a repository has.
//!
//! Architecture invariant: knows no instance and no runtime.

pub(crate) mod cache;
mod check;
pub(crate) mod desk;
mod fetch;
mod limit;
mod meter;
mod partial;
mod remote;
mod repo;
mod select;
mod transfer;
mod tries;
pub(crate) mod upload;

use std::{fmt, path::PathBuf};

use bytesize::ByteSize;
use cache::Cache;
use limit::Limit;
use tries::Patience;

/// Where huggingface.co is.
const ENDPOINT: &str = "https://huggingface.co";

/// Which hub, and where its files are kept: as hf-hub and `huggingface_hub` say it.
#[derive(Clone)]
pub(crate) struct HubConfig {
    /// Base URL, without a slash at its end (`HF_ENDPOINT`).
    pub(crate) endpoint: String,
    /// The cache (`HF_HUB_CACHE`, else `hub` in `HF_HOME`).
    pub(crate) cache: Cache,
    /// Who we are (`HF_TOKEN`, else the file of a login); never logged.
    token: Option<String>,
    /// The network is not to be used (`HF_HUB_OFFLINE`).
    pub(crate) offline: bool,
    /// How fast downloads may be, all together.
    pub(crate) limit: Limit,
    /// How often the hub is asked again.
    patience: Patience,
}

impl fmt::Debug for HubConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            endpoint,
            cache,
            token,
            offline,
            limit,
            patience,
        } = self;
        f.debug_struct("HubConfig")
            .field("endpoint", endpoint)
            .field("cache", cache)
            .field("token", &token.as_ref().map(|_| "…"))
            .field("offline", offline)
            .field("limit", limit)
            .field("patience", patience)
            .finish()
    }
}

impl HubConfig {
    /// Downloads together bring so many bytes per second at most.
    pub(crate) fn limited(self, bytes_per_second: Option<ByteSize>) -> Self {
        let limit = Limit::new(bytes_per_second.map(|limit| limit.as_u64()));
        Self { limit, ..self }
    }

    /// Reads the variables that hf-hub and `huggingface_hub` read, through `get`.
    pub(crate) fn read(get: impl Fn(&str) -> Option<String>) -> Self {
        let get = |name| get(name).filter(|value| !value.is_empty());
        let home = || {
            let cache = get("XDG_CACHE_HOME").map(PathBuf::from).unwrap_or_else(|| {
                get("HOME")
                    .map_or_else(std::env::temp_dir, PathBuf::from)
                    .join(".cache")
            });
            get("HF_HOME").map_or_else(|| cache.join("huggingface"), PathBuf::from)
        };
        let cache = get("HF_HUB_CACHE")
            .or_else(|| get("HUGGINGFACE_HUB_CACHE"))
            .map_or_else(|| home().join("hub"), PathBuf::from);
        // Symbolic links are relative to the cache, but engines want absolute paths.
        let cache = std::path::absolute(&cache).unwrap_or(cache);
        let login = || {
            let file = get("HF_TOKEN_PATH").map_or_else(|| home().join("token"), PathBuf::from);
            std::fs::read_to_string(file).ok()
        };
        let token = get("HF_TOKEN").or_else(login);
        let endpoint = get("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            cache: Cache::new(cache),
            token: token
                .map(|token| token.trim().to_owned())
                .filter(|token| !token.is_empty()),
            offline: get("HF_HUB_OFFLINE").is_some_and(|value| {
                matches!(value.to_ascii_lowercase().as_str(), "1" | "on" | "yes" | "true")
            }),
            limit: Limit::default(),
            patience: Patience::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> HubConfig {
        let pairs: Vec<(String, String)> = pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        HubConfig::read(|name| {
            let found = pairs.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| value.clone())
        })
    }

    #[test]
    fn the_variables_of_hf_hub_are_honoured() {
        let plain = read(&[("HOME", "/h")]);
        assert_eq!(plain.endpoint, ENDPOINT);
        assert_eq!(plain.cache, Cache::new("/h/.cache/huggingface/hub".into()));
        assert!(plain.token.is_none() && !plain.offline);
        let home = read(&[("HOME", "/h"), ("HF_HOME", "/data/hf"), ("HF_TOKEN", " t\n")]);
        assert_eq!(home.cache, Cache::new("/data/hf/hub".into()));
        assert_eq!(home.token.as_deref(), Some("t"));
        let all = read(&[
            ("HF_HOME", "/data/hf"),
            ("HF_HUB_CACHE", "/c"),
            ("HF_ENDPOINT", "http://127.0.0.1:1/"),
            ("HF_HUB_OFFLINE", "1"),
        ]);
        assert_eq!(all.cache, Cache::new("/c".into()));
        assert_eq!(all.endpoint, "http://127.0.0.1:1");
        assert!(all.offline);
        assert!(!format!("{home:?}").contains("\"t\""), "a token is never logged");
    }
}
