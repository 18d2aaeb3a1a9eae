//! What Lemonade does and Muster does not: 501 with the reason. `gateway/README.md` has the reasons for users.

use http::Method;

use crate::web::{access::Access, route::Route};

const ENGINES: &str = "engines come with Muster or with the system, and are named in the configuration: none is installed or removed while it runs";
const CLOUD: &str = "Muster serves models of its own machines, and keeps no keys of others' services: name the service to the client instead";
const COLLECTIONS: &str = "a request names the model that answers it: Muster has no collections of models, and no policy that chooses one by the prompt";
const JOBS: &str = "requests are answered on their own connections: there are no jobs to ask for later";
const SEARCH: &str = "the hub is not searched: `GET pull/variants` lists what one of its repositories has";
const KINDS: &str = "no engine here does this";
const SYNC: &str =
    "models are updated by pulling them again: `models/check-updates` says which have newer files";
const SHOWN: &str = "settings are shown as they are in force: `GET /internal/config`";
const KEPT: &str = "no file is removed that nobody asked to remove: delete a model to have its files gone";
const MEASURED: &str = "memory is measured, not simulated: `muster explain` says what a load would evict";
const DESCRIBED: &str = "the routes are described at `/openapi.json`, and at `/docs` for people";
const STOPPED: &str = "whoever started Muster stops it: no request does";
const TRACES: &str = "no traces are collected here";
const FIGURES: &str = "what processors do is not measured: `system-info` and `/metrics` have what is";
const FILES: &str =
    "files are told of as a whole: `GET models/{id}` has their size and whether they are here";

/// Paths, and why they are not done.
const BEYOND: [(Method, &str, &str); 29] = [
    (Method::POST, "/v1/install", ENGINES),
    (Method::POST, "/v1/install/dry-run", ENGINES),
    (Method::POST, "/v1/uninstall", ENGINES),
    (Method::POST, "/v1/cloud/auth", CLOUD),
    (Method::DELETE, "/v1/cloud/auth/{provider}", CLOUD),
    (Method::POST, "/v1/routing/validate", COLLECTIONS),
    (Method::POST, "/v1/jobs", JOBS),
    (Method::GET, "/v1/jobs", JOBS),
    (Method::GET, "/v1/jobs/{job}", JOBS),
    (Method::DELETE, "/v1/jobs/{job}", JOBS),
    (Method::POST, "/v1/jobs/{job}/pause", JOBS),
    (Method::POST, "/v1/jobs/{job}/interrupt", JOBS),
    (Method::POST, "/v1/jobs/{job}/resume", JOBS),
    (Method::GET, "/v1/registry/search", SEARCH),
    (Method::POST, "/v1/classify", KINDS),
    (Method::POST, "/v1/3d/generations", KINDS),
    (Method::POST, "/v1/images/upscale", KINDS),
    (Method::GET, "/v1/models/{*id}/files", FILES),
    (Method::GET, "/v1/docs", DESCRIBED),
    (Method::GET, "/v1/docs/{page}", DESCRIBED),
    (Method::GET, "/v1/system-stats", FIGURES),
    (Method::GET, "/internal/config/defaults", SHOWN),
    (Method::GET, "/internal/routes", DESCRIBED),
    (Method::POST, "/internal/cleanup-cache", KEPT),
    (Method::POST, "/internal/simulate-vram-pressure", MEASURED),
    (Method::POST, "/internal/models/sync", SYNC),
    (Method::GET, "/internal/models/sync/status", SYNC),
    (Method::POST, "/internal/shutdown", STOPPED),
    (Method::POST, "/internal/telemetry/flush", TRACES),
];

/// The routes.
pub(super) fn routes() -> Vec<Route> {
    let route = |(method, path, why): (Method, &'static str, &'static str)| {
        let access = match path.starts_with("/internal/") {
            true => Access::Internal,
            false => Access::Admin,
        };
        let route = Route::not_done(&method, path, access, why);
        let name = path.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
        match name {
            Some((name, _)) => route.part::<String>(name.trim_start_matches('*'), "Any."),
            None => route,
        }
    };
    BEYOND.into_iter().map(route).collect()
}
