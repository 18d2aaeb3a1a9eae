//! The routes of engines' own HTTP that callers may reach, by family of runtimes. The gateway and the worker both pass on nothing else,
//! because engines also have routes that run commands and read files.

use muster_core::runtime::Family;

/// A route of an engine's HTTP.
struct Route {
    family: Family,
    method: &'static str,
    /// Path segments; `{}` stands for a number.
    path: &'static str,
    /// The queries that are allowed, each as a whole.
    queries: &'static [&'static str],
}

const fn route(method: &'static str, path: &'static str, queries: &'static [&'static str]) -> Route {
    Route {
        family: Family::LlamaServer,
        method,
        path,
        queries,
    }
}

const ROUTES: [Route; 7] = [
    route("GET", "/props", &[]),
    route("GET", "/slots", &["fail_on_no_slot=1"]),
    route(
        "POST",
        "/slots/{}",
        &["action=save", "action=restore", "action=erase"],
    ),
    route("GET", "/lora-adapters", &[]),
    route("POST", "/lora-adapters", &[]),
    route("GET", "/metrics", &[]),
    route("POST", "/v1/audio/transcriptions", &[]),
];

/// Whether a request to an engine of this family is passed on. `target` is a path with its query.
#[must_use]
pub fn allows(family: Family, method: &str, target: &str) -> bool {
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    ROUTES.iter().any(|route| {
        route.family == family
            && route.method == method
            && query.is_none_or(|query| route.queries.contains(&query))
            && same(route.path, path)
    })
}

/// Compares segment by segment, so that dots, escapes or doubled slashes cannot be read in two ways.
fn same(pattern: &str, path: &str) -> bool {
    let number =
        |text: &str| !text.is_empty() && text.len() < 10 && text.bytes().all(|byte| byte.is_ascii_digit());
    let mut wanted = pattern.split('/');
    let mut given = path.split('/');
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return true,
            (Some("{}"), Some(segment)) if number(segment) => {}
            (Some(wanted), Some(segment)) if wanted == segment => {}
            (_, _) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_gateway_asks_is_passed_on() {
        for (method, target) in [
            ("GET", "/props"),
            ("GET", "/slots"),
            ("GET", "/slots?fail_on_no_slot=1"),
            ("POST", "/slots/12?action=save"),
            ("POST", "/lora-adapters"),
            ("POST", "/v1/audio/transcriptions"),
        ] {
            assert!(allows(Family::LlamaServer, method, target), "{method} {target}");
            assert!(!allows(Family::LlamaCpp, method, target), "{method} {target}");
        }
    }

    /// Regression (issue 10, holes, 1): `POST /tools` ran any command.
    #[test]
    fn an_engines_tools_and_files_are_out_of_reach() {
        for (method, target) in [
            ("POST", "/tools"),
            ("GET", "/tools"),
            ("POST", "/props"),
            ("POST", "/models/load"),
            ("GET", "/"),
            ("POST", "/v1/images/generations"),
            ("GET", "/slots/../tools"),
            ("POST", "/slots/1/../../tools?action=save"),
            ("POST", "/slots/1?action=save&x=1"),
            ("POST", "/slots/x?action=save"),
            ("POST", "/slots/?action=save"),
            ("POST", "//lora-adapters"),
            ("POST", "/lora-adapters/"),
            ("POST", "/lora%2dadapters"),
            ("POST", "http://elsewhere/lora-adapters"),
            ("get", "/props"),
            ("GET", "/props#x"),
        ] {
            assert!(!allows(Family::LlamaServer, method, target), "{method} {target}");
        }
    }
}
