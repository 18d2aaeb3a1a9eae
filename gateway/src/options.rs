//! The gateway's command line.

use std::{io, num::NonZeroUsize, thread, time::Duration};

use clap::Parser;
use muster_proto::{
    net::{self, Address},
    process::LogLevel,
    trust::{KeyOptions, Keys, TokenOptions, place},
};

use crate::{
    dispatch::{
        autoload::{Autoload, on_off},
        media::MediaHosts,
    },
    web::host::Hosts,
};

/// Less than the limit of an internal message, because an encoded request is hardly larger than its JSON.
const MAX_BODY_BYTES: i64 = 60 << 20;

/// Muster's HTTP gateway: the APIs of OpenAI, Anthropic, Ollama, llama.cpp and Lemonade in front of Muster's workers.
#[derive(Clone, Debug, Parser)]
#[command(name = "muster-gateway", version, max_term_width = 100)]
pub struct Options {
    /// Address of the controller: unix:PATH, or HOST:PORT with --token-file.
    #[arg(long, env = "MUSTER_GATEWAY_CONTROLLER", default_value_t = place::controller())]
    pub controller: Address,

    /// Address to listen on for HTTP: HOST:PORT (port 0 = any free port) or unix:PATH.
    #[arg(long, env = "MUSTER_GATEWAY_LISTEN", default_value = "127.0.0.1:8000")]
    pub listen: Address,

    /// Number of I/O threads, each with its own listener and sessions [default: number of cores].
    #[arg(long, env = "MUSTER_GATEWAY_IO_THREADS")]
    pub io_threads: Option<NonZeroUsize>,

    /// Largest request body in bytes, at most 60 MiB: a request must fit one message to a worker.
    #[arg(long, env = "MUSTER_GATEWAY_MAX_BODY_BYTES", default_value_t = 32 << 20,
          value_parser = clap::value_parser!(u32).range(1..=MAX_BODY_BYTES))]
    pub max_body_bytes: u32,

    /// Largest total size in bytes of request bodies held at the same time; more are refused with 429. Bodies up to 64 KiB do not count.
    #[arg(long, env = "MUSTER_GATEWAY_MAX_BODIES_BYTES", default_value_t = 256 << 20)]
    pub max_bodies_bytes: u64,

    /// Largest number of connections; more wait. Never more than half of the files that the process may open.
    #[arg(long, env = "MUSTER_GATEWAY_MAX_CONNECTIONS", default_value_t = 16_384, value_parser = connections)]
    pub max_connections: usize,

    /// API keys.
    #[command(flatten)]
    pub keys: KeyOptions,

    /// Token between Muster's own processes on different machines.
    #[command(flatten)]
    pub token: TokenOptions,

    /// Whether a request loads its model when it is not loaded: on or off. A model's own `autoload` overrides this, and a request's
    /// `?autoload=` overrides both.
    #[arg(long, env = "MUSTER_AUTOLOAD", default_value = "on", value_parser = switch, action = clap::ArgAction::Set)]
    pub autoload: bool,

    /// Ignore `?autoload=` in requests.
    #[arg(long, env = "MUSTER_LOCK_AUTOLOAD")]
    pub lock_autoload: bool,

    /// Allow listening beyond this machine without an API key.
    #[arg(long, env = "MUSTER_ALLOW_NO_API_KEY")]
    pub allow_no_api_key: bool,

    /// Further host names under which requests may come if no API key is required. Loopback addresses and localhost are always allowed.
    #[arg(long, env = "MUSTER_ALLOWED_HOST", value_delimiter = ',', value_name = "NAME")]
    pub allowed_host: Vec<String>,

    /// Whether the prompt cache is shared between API keys: on or off. Sharing makes common beginnings faster, but lets each key's users
    /// find out what others asked [default: on, but off with several keys].
    #[arg(long, env = "MUSTER_SHARE_PREFIXES", value_parser = switch, value_name = "on|off")]
    pub share_prefixes: Option<bool>,

    /// Hosts from which engines may fetch images and audio by URL; engines follow their redirects. By default only `data:` URLs are
    /// allowed.
    #[arg(
        long,
        env = "MUSTER_ALLOWED_MEDIA_HOST",
        value_delimiter = ',',
        value_name = "NAME"
    )]
    pub allowed_media_host: Vec<String>,

    /// Longest time in seconds that a request waits for its model to load [default: no limit].
    #[arg(long, env = "MUSTER_GATEWAY_LOAD_WAIT_SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub load_wait_seconds: Option<u32>,

    /// Time in seconds for running streams to finish after SIGTERM.
    #[arg(long, env = "MUSTER_GATEWAY_DRAIN_SECONDS", default_value_t = 30)]
    pub drain_seconds: u64,

    /// Log level: critical, error, warning, info, debug or trace. RUST_LOG overrides it.
    #[arg(long, env = "MUSTER_LOG_LEVEL", default_value_t)]
    pub log_level: LogLevel,
}

impl Options {
    /// Largest request body in bytes.
    pub(crate) fn max_body(&self) -> usize {
        usize::try_from(self.max_body_bytes).unwrap_or(usize::MAX)
    }

    /// Largest total size of request bodies in bytes, at least that of one body.
    pub(crate) fn max_bodies(&self) -> usize {
        usize::try_from(self.max_bodies_bytes)
            .unwrap_or(usize::MAX)
            .max(self.max_body())
    }

    /// How long a request waits for a load; none = no limit.
    pub(crate) fn load_wait(&self) -> Option<Duration> {
        self.load_wait_seconds
            .map(|seconds| Duration::from_secs(seconds.into()))
    }

    /// Number of I/O threads to start.
    pub(crate) fn threads(&self) -> usize {
        let cores = || thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.io_threads.map_or_else(cores, NonZeroUsize::get)
    }

    /// How long running streams may go on after SIGTERM.
    pub(crate) fn drain(&self) -> Duration {
        Duration::from_secs(self.drain_seconds)
    }

    /// Whether requests load models.
    pub(crate) fn autoload(&self) -> Autoload {
        Autoload {
            on: self.autoload,
            locked: self.lock_autoload,
        }
    }

    /// Whether cached prompts serve only requests with the same API key.
    pub(crate) fn private_prefixes(&self, keys: &Keys) -> bool {
        !self.share_prefixes.unwrap_or(!keys.are_several())
    }

    /// Host names under which requests may come.
    ///
    /// # Errors
    /// As [`keys`](Self::keys).
    pub(crate) fn hosts(&self) -> io::Result<Hosts> {
        let (local, guarded) = (net::is_local(&self.listen)?, self.keys()?.guard_users());
        Ok(Hosts::new(&self.listen, local, guarded, &self.allowed_host))
    }

    /// The hosts from which engines may fetch images and audio.
    pub(crate) fn media(&self) -> MediaHosts {
        MediaHosts::new(&self.allowed_media_host)
    }

    /// The API keys.
    ///
    /// # Errors
    /// A key file cannot be read or has no key, or no key is required although other machines can connect.
    pub(crate) fn keys(&self) -> io::Result<Keys> {
        let keys = self.keys.read()?;
        if keys.guard_users() || self.allow_no_api_key || net::is_local(&self.listen)? {
            return Ok(keys);
        }
        let message = format!(
            "listening on {} lets others than this machine ask: give --api-key or --api-key-file, or say --allow-no-api-key",
            self.listen
        );
        Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
    }
}

fn connections(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("want a positive number".to_owned()),
        Ok(number) => Ok(number),
    }
}

fn switch(text: &str) -> Result<bool, String> {
    on_off(text).ok_or_else(|| "want on or off".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(args: &[&str]) -> Options {
        Options::parse_from(["muster-gateway"].iter().chain(args))
    }

    fn user_keys(args: &[&str]) -> io::Result<bool> {
        options(args).keys().map(|keys| keys.guard_users())
    }

    #[test]
    fn without_a_key_only_this_machine_may_ask_unless_told_so() {
        for local in ["127.0.0.1:0", "[::1]:0", "unix:/tmp/x", "localhost:0"] {
            assert!(!user_keys(&["--listen", local]).unwrap(), "{local}");
        }
        for open in ["0.0.0.0:0", "[::]:0", "192.0.2.1:80"] {
            let error = user_keys(&["--listen", open]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{open}");
            assert!(user_keys(&["--listen", open, "--api-key", "k"]).unwrap());
            assert!(!user_keys(&["--listen", open, "--allow-no-api-key"]).unwrap());
            // An admin key does not keep strangers from asking.
            assert!(user_keys(&["--listen", open, "--admin-api-key", "k"]).is_err());
        }
    }

    /// Regression (issue 10, 3.13): see proto/README.md, Trust.
    #[test]
    fn prompts_are_shared_between_several_keys_only_where_the_operator_says_so() {
        let private = |args: &[&str]| {
            let options = options(args);
            options.private_prefixes(&options.keys().unwrap())
        };
        assert!(!private(&[]) && !private(&["--api-key", "u"]));
        assert!(private(&["--api-key", "u,v"]) && private(&["--api-key", "u", "--admin-api-key", "a"]));
        assert!(!private(&["--api-key", "u,v", "--share-prefixes", "on"]));
        assert!(private(&["--share-prefixes", "off"]));
    }
}
