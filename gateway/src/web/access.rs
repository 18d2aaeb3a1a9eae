//! Who may send which request: users, administrators, or everybody if no key is configured.
//!
//! [`muster_proto::trust`] says what keys are and what each opens, for HTTP and gRPC alike.
//!
//! Without keys, any page in a browser on this machine could send simple POST requests here. So requests that change something are then
//! refused if they come from pages of other origins, which browsers name truthfully.

use std::sync::Arc;

use axum::{
    extract::Request,
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use http::{HeaderMap, HeaderValue, header, uri::Authority};
use muster_core::{Code, Error};
use muster_proto::trust::{Holder, Keys, Need, sent};
use sha2::{Digest as _, Sha256};

use super::reply::Refusal;

/// Who may use a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Everybody: whether the gateway is up, and what a seed makes public.
    Open,
    /// Users: inference and questions about models.
    User,
    /// Administrators: changes of what is loaded, stored or configured.
    Admin,
    /// Administrators: changes of the gateway itself. Without keys only from this machine.
    Internal,
}

impl Access {
    /// The access in the OpenAPI document.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::User => "user",
            Self::Admin => "admin",
            Self::Internal => "internal",
        }
    }
}

/// Where a request comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Peer {
    /// From this machine.
    Here,
    /// From another machine, or unknown.
    #[default]
    Elsewhere,
}

/// The sender of a request that passed the check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Derived from the caller's key without revealing it, to tell callers apart; empty if no key is required.
    pub(crate) key: String,
    /// It may send requests of higher priority.
    pub(crate) may_hurry: bool,
    /// It may change what is loaded, like an administrator.
    pub(crate) administers: bool,
    /// It may see the requests of others: it is the operator, or the only user.
    pub(crate) oversees: bool,
}

/// Decides on a request.
///
/// # Errors
/// `unauthenticated`; `forbidden` if an administrator's key is required, or if no key is configured and the caller is on another machine.
fn admit(
    keys: &Keys,
    access: Access,
    peer: Peer,
    headers: &HeaderMap,
    authority: Option<&str>,
) -> Result<(), Error> {
    let nobody = !keys.guard_changes();
    let changes = matches!(access, Access::Admin | Access::Internal);
    if nobody && changes && is_foreign(headers, authority) {
        return Err(Code::Forbidden.error("without a key pages of other origins may not ask this"));
    }
    match access {
        Access::Open => Ok(()),
        Access::User => keys.check(Need::User, sent(headers)),
        Access::Internal if nobody && peer == Peer::Elsewhere => {
            Err(Code::Forbidden.error("without an admin key only this machine may ask this"))
        }
        Access::Admin | Access::Internal => keys.check(Need::Admin, sent(headers)),
    }
}

/// The sender of a request that passed the check. If there is an admin key, only its holder may send requests of higher priority.
fn caller(keys: &Keys, headers: &HeaderMap, authority: Option<&str>) -> Caller {
    let key = sent(headers);
    let Holder { user, admin } = keys.holder(key);
    let known = key.filter(|_| user || admin).map(Sha256::digest);
    let start = known.iter().flat_map(|digest| digest.iter().take(8));
    Caller {
        key: start.map(|byte| format!("{byte:02x}")).collect(),
        may_hurry: admin || !keys.guard_admins(),
        oversees: admin || !keys.are_several(),
        administers: admit(keys, Access::Admin, Peer::Elsewhere, headers, authority).is_ok(),
    }
}

/// Whether a page of another origin sent the request. `authority` is HTTP/2's form of `Host`. An origin without a host (`null`) counts as
/// another.
fn is_foreign(headers: &HeaderMap, authority: Option<&str>) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else {
        return false;
    };
    let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    match (origin, authority.or(host)) {
        (Some((_, origin)), Some(host)) => !origin.eq_ignore_ascii_case(host),
        (None, _) | (_, None) => true,
    }
}

/// Lets a request pass, or answers it with an error.
pub(super) async fn check(access: Access, keys: Arc<Keys>, mut request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<Peer>().copied().unwrap_or_default();
    let authority = request.uri().authority().map(Authority::as_str);
    match admit(&keys, access, peer, request.headers(), authority) {
        Ok(()) => {
            let caller = caller(&keys, request.headers(), authority);
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(error) => {
            let mut response = Refusal(error).into_response();
            let challenge = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
            response
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn answer(keys: &Keys, access: Access, header: &'static str, value: &str) -> Option<Code> {
        let mut headers = HeaderMap::new();
        if !value.is_empty() {
            headers.insert(header, value.parse().unwrap());
        }
        let peer = Peer::Elsewhere;
        admit(keys, access, peer, &headers, None)
            .err()
            .map(|error| error.code)
    }

    fn bearer(keys: &Keys, access: Access, value: &str) -> Option<Code> {
        answer(keys, access, "authorization", value)
    }

    const NONE: [&str; 0] = [];

    #[test]
    fn without_keys_everybody_may_do_everything() {
        let keys = Keys::new(NONE, [""]);
        for access in [Access::Open, Access::User, Access::Admin] {
            assert_eq!(bearer(&keys, access, ""), None);
        }
        assert!(!keys.guard_users());
    }

    #[test]
    fn one_key_serves_everything_unless_there_is_an_admin_key() {
        let keys = Keys::new(["u", "v"], NONE);
        for access in [Access::User, Access::Admin] {
            assert_eq!(bearer(&keys, access, "Bearer u"), None);
            assert_eq!(bearer(&keys, access, "bearer v"), None);
            assert_eq!(answer(&keys, access, "x-api-key", "v"), None);
            for wrong in [
                "",
                "u",
                "Bearer",
                "Bearer ",
                "Bearer uu",
                "Basic u",
                "Bearer \u{fc}",
            ] {
                assert_eq!(
                    bearer(&keys, access, wrong),
                    Some(Code::Unauthenticated),
                    "{wrong}"
                );
            }
        }
        assert_eq!(bearer(&keys, Access::Open, ""), None);
    }

    #[test]
    fn an_admin_key_is_needed_where_there_is_one() {
        let keys = Keys::new(["u"], ["a"]);
        assert_eq!(bearer(&keys, Access::User, "Bearer u"), None);
        assert_eq!(bearer(&keys, Access::User, "Bearer a"), None);
        assert_eq!(bearer(&keys, Access::Admin, "Bearer u"), Some(Code::Forbidden));
        assert_eq!(bearer(&keys, Access::Admin, "Bearer a"), None);
        assert_eq!(
            bearer(&keys, Access::Admin, "Bearer x"),
            Some(Code::Unauthenticated)
        );
        let only_admin = Keys::new(NONE, ["a"]);
        assert_eq!(bearer(&only_admin, Access::User, ""), None);
        assert_eq!(
            bearer(&only_admin, Access::Admin, ""),
            Some(Code::Unauthenticated)
        );
    }

    #[test]
    fn callers_are_told_apart_by_keys_that_count() {
        let caller = |keys: &Keys, key: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("x-api-key", key.parse().unwrap());
            caller(keys, &headers, None)
        };
        let keys = Keys::new(["u", "v"], ["a"]);
        let [u, v, a] = ["u", "v", "a"].map(|key| caller(&keys, key));
        assert!(u.key.len() == 16 && u.key != v.key && v.key != a.key);
        assert_eq!((u.may_hurry, v.may_hurry, a.may_hurry), (false, false, true));
        // If no key is required, a key in a request identifies nobody.
        let nobody = caller(&Keys::new(NONE, NONE), "made-up");
        assert_eq!((nobody.key.as_str(), nobody.may_hurry), ("", true));
        assert!(caller(&Keys::new(["u"], NONE), "u").may_hurry);
        // With several keys only the operator sees the requests of others; without an admin key nobody does.
        assert_eq!((u.oversees, a.oversees), (false, true));
        assert!(nobody.oversees && caller(&Keys::new(["u"], NONE), "u").oversees);
        assert!(!caller(&Keys::new(["u", "v"], NONE), "u").oversees);
        assert!(!caller(&Keys::new(NONE, ["a"]), "").oversees);
        assert!(!Keys::new(["u", "u"], ["u"]).are_several());
    }

    #[test]
    fn without_keys_only_this_machine_changes_the_gateway() {
        let admit = |keys: &Keys, peer, key: &str| {
            let mut headers = HeaderMap::new();
            if !key.is_empty() {
                headers.insert("x-api-key", key.parse().unwrap());
            }
            let verdict = admit(keys, Access::Internal, peer, &headers, None);
            verdict.err().map(|error| error.code)
        };
        let open = Keys::new(NONE, NONE);
        assert_eq!(admit(&open, Peer::Here, ""), None);
        assert_eq!(admit(&open, Peer::Elsewhere, ""), Some(Code::Forbidden));
        let keys = Keys::new(["u"], ["a"]);
        for peer in [Peer::Here, Peer::Elsewhere] {
            assert_eq!(admit(&keys, peer, ""), Some(Code::Unauthenticated));
            assert_eq!(admit(&keys, peer, "u"), Some(Code::Forbidden));
            assert_eq!(admit(&keys, peer, "a"), None);
        }
    }

    /// Regression: any page could send a simple POST to `/internal/set` or `/load` through a browser on this machine.
    #[test]
    fn without_keys_pages_of_other_origins_change_nothing() {
        let admit = |keys: &Keys, access, origin: &str, authority: Option<&str>| {
            let mut headers = HeaderMap::new();
            if !origin.is_empty() {
                headers.insert("origin", origin.parse().unwrap());
            }
            if authority.is_none() {
                headers.insert("host", "localhost:8000".parse().unwrap());
            }
            let verdict = admit(keys, access, Peer::Here, &headers, authority);
            verdict.err().map(|error| error.code)
        };
        let open = Keys::new(NONE, NONE);
        let foreign = [
            "http://evil.example",
            "http://localhost",
            "http://localhost:80000",
            "http://evil.localhost:8000",
            "null",
            "localhost:8000",
        ];
        for access in [Access::Admin, Access::Internal] {
            for origin in foreign {
                assert_eq!(
                    admit(&open, access, origin, None),
                    Some(Code::Forbidden),
                    "{origin}"
                );
            }
            for own in ["", "http://localhost:8000", "https://LOCALHOST:8000"] {
                assert_eq!(admit(&open, access, own, None), None, "{own}");
            }
            // HTTP/2 has no `Host` header.
            assert_eq!(admit(&open, access, "http://box:1", Some("box:1")), None);
            assert_eq!(
                admit(&open, access, "http://box:2", Some("box:1")),
                Some(Code::Forbidden)
            );
            // If a key is required, a page without it can do nothing.
            let keys = Keys::new(["u"], NONE);
            assert_eq!(
                admit(&keys, access, "http://evil.example", None),
                Some(Code::Unauthenticated)
            );
        }
        for access in [Access::User, Access::Open] {
            assert_eq!(admit(&open, access, "http://evil.example", None), None);
        }
    }
}
