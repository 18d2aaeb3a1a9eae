//! Addresses of processes, workers and instances.

use std::{
    fmt,
    hash::{Hash, Hasher},
    path::PathBuf,
    str::FromStr,
    sync::Arc,
};

use crate::id::{BootId, InstanceId, Missing, WorkerId};

/// Address of a process: `HOST:PORT` or `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// Host name or IP address, and port.
    Tcp(String),
    /// Path of a unix socket.
    Unix(PathBuf),
}

/// The text is not an address.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is no address: want HOST:PORT or unix:PATH")]
pub struct AddressError(String);

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() {
                Err(wrong())
            } else {
                Ok(Self::Unix(path.into()))
            };
        }
        let bare = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
        let (host, port) = bare.rsplit_once(':').ok_or_else(wrong)?;
        if host.is_empty() || port.parse::<u16>().is_err() {
            return Err(wrong());
        }
        Ok(Self::Tcp(bare.to_owned()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(text) => f.write_str(text),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The addresses of a worker, the best first. Parsed once; cheap to clone and to look up.
#[derive(Clone, Debug)]
pub struct WorkerAddress(Arc<Joined>);

#[derive(Debug)]
struct Joined {
    first: Address,
    others: Vec<Address>,
    text: String,
}

impl WorkerAddress {
    /// Parses the addresses that a worker reported. Those that cannot be parsed are left out.
    ///
    /// # Errors
    /// None can be parsed.
    pub fn read(texts: &[String]) -> Result<Self, Missing> {
        let mut addresses = texts.iter().filter_map(|text| text.parse::<Address>().ok());
        let first = addresses.next().ok_or(Missing("worker's address"))?;
        let others: Vec<Address> = addresses.collect();
        let text = others
            .iter()
            .fold(first.to_string(), |text, next| format!("{text},{next}"));
        Ok(Self(Arc::new(Joined { first, others, text })))
    }

    /// The best address.
    #[must_use]
    pub fn first(&self) -> &Address {
        &self.0.first
    }

    /// All addresses, the best first.
    pub fn all(&self) -> impl Iterator<Item = &Address> {
        std::iter::once(&self.0.first).chain(&self.0.others)
    }
}

impl PartialEq for WorkerAddress {
    fn eq(&self, other: &Self) -> bool {
        self.0.text == other.0.text
    }
}

impl Eq for WorkerAddress {}

impl Hash for WorkerAddress {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.text.hash(state);
    }
}

impl fmt::Display for WorkerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.text)
    }
}

/// The ids of an instance and the address of its worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InstanceAddress {
    pub instance: InstanceId,
    pub worker: WorkerId,
    /// The worker's process; another process refuses the instance's requests.
    pub boot: BootId,
    /// Addresses of the worker.
    pub at: WorkerAddress,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_parse_and_print() {
        for text in ["127.0.0.1:8000", "[::1]:80", "host.example:1", "unix:/run/x.sock"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!(
            "http://localhost:1/".parse::<Address>().unwrap().to_string(),
            "localhost:1"
        );
        for text in ["", "nohost", ":80", "host:", "host:99999", "unix:"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_workers_addresses_are_those_that_mean_something_and_never_none() {
        let read = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            WorkerAddress::read(&texts)
        };
        let address = read(&["unix:/run/w", "nonsense", "10.0.0.1:8200"]).unwrap();
        assert_eq!(address.to_string(), "unix:/run/w,10.0.0.1:8200");
        assert_eq!(address.all().count(), 2);
        assert_eq!(address, read(&["unix:/run/w", "10.0.0.1:8200"]).unwrap());
        assert_eq!(read(&["nonsense"]).unwrap_err(), Missing("worker's address"));
        assert!(read(&[]).is_err());
    }
}
