//! Checks the host name of a request. Without keys only names of this machine are allowed.
//!
//! A web page can make its own name resolve to this machine after it was loaded (DNS rebinding). To its browser, requests to that name have
//! the same origin: `Host` and `Origin` agree, and only the name tells the request from an operator's. So if no key is required, the name
//! must be one that nobody else can own: a loopback address, `localhost`, or a name that the operator lists (proto/README.md, Trust).

use std::{net::IpAddr, sync::Arc};

use axum::{extract::Request, middleware::Next, response::Response};
use http::{HeaderMap, Uri, header::HOST, uri::Authority};
use muster_core::{Code, Error};
use muster_proto::{net::Address, trust::guard::is_this_machine};

use super::FormAt;

/// The host names that requests may have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hosts {
    names: Names,
    /// Names in lower case, without a port.
    listed: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Names {
    /// Names of this machine and listed names.
    #[default]
    Own,
    /// IP addresses as well: they cannot be made to resolve elsewhere. For a listener that other machines can reach.
    OwnAndAddresses,
    /// Any name: a key is required, which no page has, or the listener is a socket file, which no browser opens.
    Any,
}

impl Hosts {
    /// The names for a gateway that listens on `listen`. `guarded`: inference requires a key.
    pub(crate) fn new(listen: &Address, local: bool, guarded: bool, listed: &[String]) -> Self {
        let names = match listen {
            Address::Tcp(_) if guarded => Names::Any,
            Address::Unix(_) => Names::Any,
            Address::Tcp(_) if local => Names::Own,
            Address::Tcp(_) => Names::OwnAndAddresses,
        };
        let listed = listed.iter().map(|name| plain(name)).collect();
        Self { names, listed }
    }

    /// Checks all names of a request. A request without any is not a browser's.
    ///
    /// # Errors
    /// `forbidden`.
    fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Error> {
        if matches!(self.names, Names::Any) {
            return Ok(());
        }
        let target = uri.authority().map(|authority| authority.as_str().as_bytes());
        let named = headers.get_all(HOST).into_iter().map(http::HeaderValue::as_bytes);
        for name in target.into_iter().chain(named) {
            let authority = Authority::try_from(name).ok().filter(|_| !name.contains(&b'@'));
            if !authority.is_some_and(|authority| self.takes(authority.host())) {
                let name = String::from_utf8_lossy(name);
                return Err(Code::Forbidden.error(format!(
                    "without a key requests for the host `{name}` are refused: name it with --allowed-host, or set --api-key"
                )));
            }
        }
        Ok(())
    }

    fn takes(&self, host: &str) -> bool {
        let host = plain(host);
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let address = matches!(self.names, Names::OwnAndAddresses) && bare.parse::<IpAddr>().is_ok();
        address || is_this_machine(&host) || self.listed.contains(&host)
    }
}

/// A name in the form in which names are compared: lower case, without the dot of the root.
fn plain(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// Lets a request pass to any route, or answers it with an error.
pub(super) async fn check(hosts: Arc<Hosts>, form_at: FormAt, request: Request, next: Next) -> Response {
    match hosts.check(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => super::refused(form_at(request.uri().path()), error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(listen: &str, local: bool, guarded: bool) -> Hosts {
        let listed = ["Box.example".to_owned(), "192.0.2.7".to_owned()];
        Hosts::new(&listen.parse().unwrap(), local, guarded, &listed)
    }

    fn passes(hosts: &Hosts, uri: &str, names: &[&str]) -> bool {
        let mut headers = HeaderMap::new();
        for name in names {
            headers.append(HOST, name.parse().unwrap());
        }
        hosts.check(&uri.parse().unwrap(), &headers).is_ok()
    }

    /// Regression (issue 10, 3.3): with `Host` and `Origin` both `evil.test:PORT`, loads, unloads and configuration answered 200.
    #[test]
    fn without_keys_a_request_comes_by_a_name_of_this_machine() {
        let own = hosts("127.0.0.1:8000", true, false);
        for name in [
            "127.0.0.1",
            "127.0.0.1:8000",
            "127.1.2.3:1",
            "[::1]:8000",
            "[::ffff:127.0.0.1]",
            "localhost:8000",
            "LOCALHOST.",
            "app.localhost",
            "box.example:8000",
            "192.0.2.7",
        ] {
            assert!(passes(&own, "/v1/load", &[name]), "{name}");
        }
        for name in [
            "evil.test:8000",
            "evil.test",
            "localhost.evil.test",
            "notlocalhost",
            "127.0.0.1.evil.test",
            "localhost@evil.test",
            "evil.test@localhost:1",
            "0.0.0.0:8000",
            "192.0.2.8",
            "[::]",
            "",
            "a b",
        ] {
            assert!(!passes(&own, "/v1/load", &[name]), "{name}");
        }
    }

    #[test]
    fn every_name_of_a_request_counts_and_none_is_no_browser() {
        let own = hosts("127.0.0.1:8000", true, false);
        assert!(passes(&own, "/x", &[]), "HTTP/1.0 may leave it out");
        assert!(!passes(&own, "/x", &["localhost", "evil.test"]));
        // The absolute form of the URI, and HTTP/2's `:authority`.
        assert!(!passes(&own, "http://evil.test/x", &["localhost"]));
        assert!(!passes(&own, "http://localhost/x", &["evil.test"]));
        assert!(passes(&own, "http://localhost:8000/x", &["localhost:8000"]));
    }

    #[test]
    fn beyond_this_machine_addresses_are_no_names_and_with_keys_any_name_will_do() {
        let open = hosts("0.0.0.0:8000", false, false);
        assert!(passes(&open, "/x", &["192.0.2.8:8000"]) && passes(&open, "/x", &["[2001:db8::1]"]));
        assert!(!passes(&open, "/x", &["evil.test"]));
        for any in [
            hosts("0.0.0.0:8000", false, true),
            hosts("unix:/run/x", true, false),
        ] {
            assert!(passes(&any, "/x", &["evil.test"]));
        }
    }
}
