//! Paths with names that may contain slashes.

use http::{Method, Request, Uri};

use super::Route;

/// A path at which a route is served.
#[derive(Clone, Debug)]
pub(crate) struct Path(pub(super) String);

impl Path {
    /// The path in the router's syntax.
    pub(crate) fn pattern(&self) -> String {
        self.0.replace("{*", "{")
    }

    /// The parts before and after a name that may contain slashes; none if there is no such name.
    fn around(&self) -> Option<(&str, &str)> {
        let (before, name) = self.0.split_once("{*")?;
        Some((before, name.split_once('}')?.1))
    }
}

/// All paths with names that may contain slashes (`models/ORG/NAME/options`). A router takes a name as one part of a path, so the name's
/// slashes are encoded before the router sees them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slashes(Vec<(Method, Path)>);

impl Slashes {
    /// Adds those paths of a route that have such names.
    pub(crate) fn learn(&mut self, route: &Route) {
        let named = route.paths().into_iter().filter(|path| path.around().is_some());
        self.0.extend(named.map(|path| (route.method.clone(), path)));
    }

    /// Encodes the slashes of the name in a request's path.
    pub(crate) fn encode<B>(&self, request: &mut Request<B>) {
        let Some(mut path) = self.encoded(request.method(), request.uri().path()) else {
            return;
        };
        if let Some(query) = request.uri().query() {
            path.push('?');
            path.push_str(query);
        }
        let mut parts = request.uri().clone().into_parts();
        parts.path_and_query = path.parse().ok();
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
    }

    /// The path with the name's slashes encoded; none if nothing has to be encoded.
    fn encoded(&self, method: &Method, path: &str) -> Option<String> {
        let method = if method == Method::HEAD {
            &Method::GET
        } else {
            method
        };
        let found = self
            .0
            .iter()
            .filter(|(known, _)| known == method)
            .filter_map(|(_, known)| {
                let (before, after) = known.around()?;
                let name = path.strip_prefix(before)?.strip_suffix(after)?;
                (!name.is_empty()).then_some((before, name, after))
            });
        // `NAME/options` wins over a model whose name ends in `/options`.
        let (before, name, after) = found.max_by_key(|(_, _, after)| after.len())?;
        name.contains('/')
            .then(|| format!("{before}{}{after}", name.replace('/', "%2F")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::web::access::Access;

    #[test]
    fn a_names_slashes_are_its_own() {
        let route = |path| Route::get(path, Access::User, async || "");
        let mut slashes = Slashes::default();
        slashes.learn(&route("/v1/models/{*id}"));
        slashes.learn(&route("/v1/models/{*id}/options"));
        slashes.learn(&Route::delete(
            "/internal/aliases/{*alias}",
            Access::User,
            async || "",
        ));
        let encoded = |method: Method, path| slashes.encoded(&method, path);
        for (path, expected) in [
            ("/v1/models/org/name", Some("/v1/models/org%2Fname")),
            (
                "/api/v0/models/org/name/options",
                Some("/api/v0/models/org%2Fname/options"),
            ),
            ("/v1/models//a/", Some("/v1/models/%2Fa%2F")),
            // A name without slashes stays as it is.
            ("/v1/models/name", None),
            ("/v1/models/name/options", None),
            ("/v1/models/", None),
            ("/v2/models/org/name", None),
        ] {
            assert_eq!(encoded(Method::GET, path).as_deref(), expected, "{path}");
            assert_eq!(encoded(Method::HEAD, path).as_deref(), expected, "{path}");
            assert_eq!(encoded(Method::POST, path), None, "{path}");
        }
        let alias = encoded(Method::DELETE, "/internal/aliases/a/b");
        assert_eq!(alias.as_deref(), Some("/internal/aliases/a%2Fb"));
    }
}
