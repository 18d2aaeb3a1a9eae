//! The access rule of a door, checked for each request.

use std::{
    convert::Infallible,
    fmt,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{HeaderMap, Request, Response, uri::Authority};
use muster_core::Error;
use tonic::{Status, body::Body};
use tower::{Layer, Service};

use super::{
    credentials::Token,
    keys::{Keys, Need, sent},
};

/// The process at the other end of a connection, as the kernel tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A process of this user or of root, on a unix socket.
    Own,
    /// Any other process.
    Stranger,
}

/// The callers that a method is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Everybody: whether the server is up.
    Anyone,
    /// Callers that may load and unload models.
    Operators,
    /// Muster's own processes.
    Parts,
}

/// Services and methods by the beginning of their path; the first match counts. Anything else is only for Muster's own processes.
const AUDIENCES: [(&str, Audience); 7] = [
    ("/grpc.health.v1.Health/", Audience::Anyone),
    ("/grpc.reflection.v1.ServerReflection/", Audience::Operators),
    ("/grpc.reflection.v1alpha.ServerReflection/", Audience::Operators),
    // Used by gateways.
    ("/muster.v1.Control/WatchRoutes", Audience::Parts),
    ("/muster.v1.Control/EnsureLoaded", Audience::Parts),
    ("/muster.v1.Control/", Audience::Operators),
    ("/muster.v1.Models/", Audience::Operators),
];

/// The callers that a method is for, by its path `/SERVICE/METHOD`.
#[must_use]
pub fn audience(path: &str) -> Audience {
    let entry = AUDIENCES.iter().find(|(start, _)| path.starts_with(start));
    entry.map_or(Audience::Parts, |(_, audience)| *audience)
}

/// The callers that a door admits.
#[derive(Debug)]
pub(super) enum Rule {
    /// Muster's own processes, and on a network operators as well.
    Parts { token: Option<Token>, keys: Keys },
    /// Operators.
    Operators { keys: Keys, tcp: bool },
}

impl Rule {
    /// Whether any caller may call such a method here.
    pub(super) fn offers(&self, audience: Audience) -> bool {
        match (self, audience) {
            (Self::Parts { .. }, _) | (Self::Operators { .. }, Audience::Anyone | Audience::Operators) => {
                true
            }
            (Self::Operators { .. }, Audience::Parts) => false,
        }
    }

    /// Decides on a request.
    ///
    /// # Errors
    /// The door does not offer the method; `unauthenticated`; or `forbidden`.
    fn admit(
        &self,
        peer: Peer,
        path: &str,
        headers: &HeaderMap,
        authority: Option<&Authority>,
    ) -> Result<(), Status> {
        let audience = audience(path);
        if !self.offers(audience) {
            return Err(Status::permission_denied(format!(
                "{path} is for processes of Muster, which come in by the controller's own socket (--listen)"
            )));
        }
        if peer == Peer::Own || audience == Audience::Anyone {
            return Ok(());
        }
        let key = sent(headers);
        // Without typed details, so that our own processes see a failure of the connection and not an answer of the service.
        let plain = |error: Error| Status::new(crate::error::grpc(error.code), error.message);
        match self {
            Self::Parts { token, .. } if token.as_ref().is_some_and(|token| token.accepts(key)) => Ok(()),
            Self::Parts { keys, .. } if audience == Audience::Operators && keys.guard_changes() => {
                keys.check(Need::Admin, key).map_err(plain)
            }
            Self::Parts { .. } => Err(Status::unauthenticated(
                "the token of --token-file is needed here",
            )),
            Self::Operators { keys, tcp } => {
                if *tcp
                    && !keys.guard_changes()
                    && !authority.is_some_and(|name| is_this_machine(name.host()))
                {
                    return Err(Status::permission_denied(
                        "without a key only localhost may be asked",
                    ));
                }
                keys.check(Need::Admin, key).map_err(plain)
            }
        }
    }
}

/// Whether a host name in a request can only mean this machine. A page that makes its own name resolve to this machine must not pass for a
/// local program.
#[must_use]
pub fn is_this_machine(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let address = bare.parse::<IpAddr>();
    address.map_or_else(
        |_| host.eq_ignore_ascii_case("localhost") || host.to_ascii_lowercase().ends_with(".localhost"),
        |address| address.to_canonical().is_loopback(),
    )
}

/// The rule as a layer around a server's services.
#[derive(Clone)]
pub struct Guard(pub(super) Arc<Rule>);

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<S> Layer<S> for Guard {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded {
            guard: self.clone(),
            inner,
        }
    }
}

/// Services behind a rule.
#[derive(Clone, Debug)]
pub struct Guarded<S> {
    guard: Guard,
    inner: S,
}

impl<S> Service<Request<Body>> for Guarded<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // A connection without a known peer counts as a stranger's.
        let peer = request.extensions().get().copied().unwrap_or(Peer::Stranger);
        let uri = request.uri();
        match self
            .guard
            .0
            .admit(peer, uri.path(), request.headers(), uri.authority())
        {
            Ok(()) => Box::pin(self.inner.call(request)),
            Err(status) => {
                tracing::debug!(reason = status.message(), path = uri.path(), "refused a call");
                Box::pin(std::future::ready(Ok(status.into_http())))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    const LOAD: &str = "/muster.v1.Control/LoadModel";
    const INSIDE: [&str; 6] = [
        "/muster.v1.Fleet/Join",
        "/muster.v1.Control/WatchRoutes",
        "/muster.v1.Control/EnsureLoaded",
        "/muster.v1.Inference/EngineHttp",
        "/muster.v1.Host/Unload",
        "/of.a.service/ThatNobodyNamed",
    ];
    const TOKEN: &str = "0123456789abcdef";

    fn ask(rule: &Rule, peer: Peer, path: &str, key: &str, authority: &str) -> Option<Code> {
        let mut headers = HeaderMap::new();
        if !key.is_empty() {
            headers.insert("authorization", format!("Bearer {key}").parse().unwrap());
        }
        let authority: Authority = authority.parse().unwrap();
        rule.admit(peer, path, &headers, Some(&authority))
            .err()
            .map(|status| status.code())
    }

    fn from_network(rule: &Rule, path: &str, key: &str) -> Option<Code> {
        ask(rule, Peer::Stranger, path, key, "localhost:8100")
    }

    fn keys() -> Keys {
        Keys::new(["user"], ["admin"])
    }

    #[test]
    fn operators_are_offered_nothing_of_what_parts_say_to_each_other() {
        for keys in [Keys::default(), keys()] {
            let rule = Rule::Operators { keys, tcp: true };
            for path in INSIDE {
                for key in ["", "user", "admin"] {
                    assert_eq!(
                        from_network(&rule, path, key),
                        Some(Code::PermissionDenied),
                        "{path}"
                    );
                }
            }
        }
    }

    #[test]
    fn operators_need_the_admin_key_where_there_is_one() {
        let open = Rule::Operators {
            keys: Keys::default(),
            tcp: true,
        };
        let closed = Rule::Operators {
            keys: keys(),
            tcp: true,
        };
        for path in [
            LOAD,
            "/muster.v1.Models/PullModel",
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        ] {
            assert_eq!(from_network(&open, path, ""), None);
            assert_eq!(from_network(&closed, path, ""), Some(Code::Unauthenticated));
            assert_eq!(from_network(&closed, path, "user"), Some(Code::PermissionDenied));
            assert_eq!(from_network(&closed, path, "admin"), None);
            assert_eq!(ask(&closed, Peer::Own, path, "", "localhost"), None);
        }
        assert_eq!(from_network(&closed, "/grpc.health.v1.Health/Check", ""), None);
    }

    #[test]
    fn without_keys_a_name_that_leads_here_is_not_enough() {
        let open = Rule::Operators {
            keys: Keys::default(),
            tcp: true,
        };
        for own in [
            "localhost:8100",
            "127.0.0.1:1",
            "[::1]:1",
            "LOCALHOST",
            "a.localhost:1",
            "127.8.8.8",
        ] {
            assert_eq!(ask(&open, Peer::Stranger, LOAD, "", own), None, "{own}");
        }
        for foreign in [
            "evil.test:8100",
            "localhost.evil.test",
            "10.0.0.1:8100",
            "127.0.0.1.evil.test",
        ] {
            assert_eq!(
                ask(&open, Peer::Stranger, LOAD, "", foreign),
                Some(Code::PermissionDenied),
                "{foreign}"
            );
        }
    }

    #[test]
    fn parts_need_the_same_user_or_the_token() {
        let socket = Rule::Parts {
            token: None,
            keys: keys(),
        };
        let network = Rule::Parts {
            token: Some(Token::new(&[TOKEN.to_owned()]).unwrap()),
            keys: keys(),
        };
        for path in INSIDE.into_iter().chain([LOAD]) {
            assert_eq!(ask(&socket, Peer::Own, path, "", "x"), None);
            assert_eq!(from_network(&network, path, TOKEN), None);
            assert_eq!(from_network(&network, path, ""), Some(Code::Unauthenticated));
        }
        for path in INSIDE {
            assert_eq!(from_network(&socket, path, "admin"), Some(Code::Unauthenticated));
            assert_eq!(from_network(&network, path, "admin"), Some(Code::Unauthenticated));
        }
        assert_eq!(
            from_network(&network, LOAD, "admin"),
            None,
            "operators come in here too"
        );
        let keyless = Rule::Parts {
            token: Some(Token::new(&[TOKEN.to_owned()]).unwrap()),
            keys: Keys::default(),
        };
        assert_eq!(from_network(&keyless, LOAD, ""), Some(Code::Unauthenticated));
    }
}
