//! The command line.

use std::{fs, io, net::ToSocketAddrs as _, num::NonZeroUsize, path::PathBuf, thread, time::Duration};

use clap::Parser;
use muster_proto::{net::Address, process::LogLevel};

use crate::{dispatch::autoload::Autoload, routes::access::Keys};

/// Below the limit of one internal message, since an encoded request is hardly larger than its JSON.
const MAX_BODY_BYTES: i64 = 60 << 20;

/// HTTP in front of Muster's workers.
#[derive(Clone, Debug, Parser)]
#[command(name = "muster-gateway", version, max_term_width = 100)]
pub struct Options {
    /// Where the controller is: HOST:PORT or unix:PATH.
    #[arg(long, env = "MUSTER_GATEWAY_CONTROLLER", default_value = "127.0.0.1:8100")]
    pub controller: Address,

    /// Where to listen for HTTP: HOST:PORT (port 0 = any free one) or unix:PATH.
    #[arg(long, env = "MUSTER_GATEWAY_LISTEN", default_value = "127.0.0.1:8000")]
    pub listen: Address,

    /// I/O threads, each with its own listener and sessions [default: the machine's cores].
    #[arg(long, env = "MUSTER_GATEWAY_IO_THREADS")]
    pub io_threads: Option<NonZeroUsize>,

    /// Largest request body in bytes, at most 60 MiB: a request must fit one message to a worker.
    #[arg(long, env = "MUSTER_GATEWAY_MAX_BODY_BYTES", default_value_t = 32 << 20,
          value_parser = clap::value_parser!(u32).range(1..=MAX_BODY_BYTES))]
    pub max_body_bytes: u32,

    /// Most bytes of request bodies held at once; what comes on top is refused with 429. Bodies up to 64 KiB do not count.
    #[arg(long, env = "MUSTER_GATEWAY_MAX_BODIES_BYTES", default_value_t = 256 << 20)]
    pub max_bodies_bytes: u64,

    /// Keys of users; with one, every request but /health and /live needs it. Several are separated by commas.
    #[arg(
        long,
        env = "MUSTER_API_KEY",
        hide_env_values = true,
        value_delimiter = ',',
        value_name = "KEY"
    )]
    pub api_key: Vec<String>,

    /// Files with further keys of users, one a line.
    #[arg(long, env = "MUSTER_API_KEY_FILE", value_delimiter = ',', value_name = "FILE")]
    pub api_key_file: Vec<PathBuf>,

    /// Keys for loading, unloading, pulling, deleting and configuring [default: the users' keys].
    #[arg(
        long,
        env = "MUSTER_ADMIN_API_KEY",
        hide_env_values = true,
        value_delimiter = ',',
        value_name = "KEY"
    )]
    pub admin_api_key: Vec<String>,

    /// Files with further admin keys, one a line.
    #[arg(
        long,
        env = "MUSTER_ADMIN_API_KEY_FILE",
        value_delimiter = ',',
        value_name = "FILE"
    )]
    pub admin_api_key_file: Vec<PathBuf>,

    /// Whether a request loads its model when it is not loaded: on or off. A model's own `autoload` wins over this, and a request's
    /// `?autoload=` over both.
    #[arg(long, env = "MUSTER_AUTOLOAD", default_value = "on", value_parser = autoload, action = clap::ArgAction::Set)]
    pub autoload: bool,

    /// Requests may not say `?autoload=`.
    #[arg(long, env = "MUSTER_LOCK_AUTOLOAD")]
    pub lock_autoload: bool,

    /// Listen beyond this machine although nobody needs a key.
    #[arg(long, env = "MUSTER_ALLOW_NO_API_KEY")]
    pub allow_no_api_key: bool,

    /// Longest time in seconds that a request waits for its model to be loaded [default: as long as its client does].
    #[arg(long, env = "MUSTER_GATEWAY_LOAD_WAIT_SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub load_wait_seconds: Option<u32>,

    /// Seconds that running streams get to end after SIGTERM.
    #[arg(long, env = "MUSTER_GATEWAY_DRAIN_SECONDS", default_value_t = 30)]
    pub drain_seconds: u64,

    /// critical, error, warning, info, debug or trace; RUST_LOG wins.
    #[arg(long, env = "MUSTER_LOG_LEVEL", default_value_t)]
    pub log_level: LogLevel,
}

impl Options {
    /// Largest request body in bytes.
    pub(crate) fn max_body(&self) -> usize {
        usize::try_from(self.max_body_bytes).unwrap_or(usize::MAX)
    }

    /// Most bytes of request bodies at once, at least one body's.
    pub(crate) fn max_bodies(&self) -> usize {
        usize::try_from(self.max_bodies_bytes)
            .unwrap_or(usize::MAX)
            .max(self.max_body())
    }

    /// Longest wait for a load.
    pub(crate) fn load_wait(&self) -> Option<Duration> {
        self.load_wait_seconds
            .map(|seconds| Duration::from_secs(seconds.into()))
    }

    /// Threads to start.
    pub(crate) fn threads(&self) -> usize {
        let cores = || thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.io_threads.map_or_else(cores, NonZeroUsize::get)
    }

    /// Longest drain.
    pub(crate) fn drain(&self) -> Duration {
        Duration::from_secs(self.drain_seconds)
    }

    /// When requests load models.
    pub(crate) fn autoload(&self) -> Autoload {
        Autoload {
            on: self.autoload,
            locked: self.lock_autoload,
        }
    }

    /// Who may ask.
    ///
    /// # Errors
    /// A key file cannot be read or holds no key, or nobody needs a key although others than this machine can ask.
    pub(crate) fn keys(&self) -> io::Result<Keys> {
        let user = all(&self.api_key, &self.api_key_file)?;
        let admin = all(&self.admin_api_key, &self.admin_api_key_file)?;
        let keys = Keys::new(user, admin);
        if keys.guard_users() || self.allow_no_api_key || is_local(&self.listen)? {
            return Ok(keys);
        }
        let message = format!(
            "listening on {} lets others than this machine ask: give --api-key or --api-key-file, or say --allow-no-api-key",
            self.listen
        );
        Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
    }
}

fn autoload(text: &str) -> Result<bool, String> {
    on_off(text).ok_or_else(|| "want on or off".to_owned())
}

/// A switch, as people write it.
pub(crate) fn on_off(text: &str) -> Option<bool> {
    match text {
        "on" | "true" | "1" => Some(true),
        "off" | "false" | "0" => Some(false),
        _ => None,
    }
}

/// Keys as given and those in files.
fn all(given: &[String], files: &[PathBuf]) -> io::Result<Vec<String>> {
    let mut keys = given.to_vec();
    for file in files {
        let wrong = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.display()));
        let text = fs::read_to_string(file).map_err(wrong)?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let before = keys.len();
        keys.extend(lines.map(str::to_owned));
        if keys.len() == before {
            return Err(wrong(io::Error::other("there is no key in it")));
        }
    }
    Ok(keys)
}

/// Whether only this machine can reach an address.
fn is_local(address: &Address) -> io::Result<bool> {
    match address {
        Address::Unix(_) => Ok(true),
        Address::Tcp(text) => Ok(text.to_socket_addrs()?.all(|address| address.ip().is_loopback())),
    }
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

    #[test]
    fn keys_come_from_files_too_and_an_empty_file_is_a_mistake() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("keys");
        fs::write(&file, "\n  one \ntwo\n").unwrap();
        let given = all(&["zero".into()], std::slice::from_ref(&file)).unwrap();
        assert_eq!(given, ["zero", "one", "two"]);
        fs::write(&file, " \n").unwrap();
        assert!(all(&[], std::slice::from_ref(&file)).is_err());
        assert!(all(&[], &[directory.path().join("none")]).is_err());
    }
}
