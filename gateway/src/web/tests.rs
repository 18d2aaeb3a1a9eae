//! The router, asked without a network.

use std::sync::Arc;

use axum::body::Body;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use muster_core::Code;
use muster_proto::{
    net::Address,
    trust::{Credentials, Keys},
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::{
    App, Surface,
    access::Access,
    budget::Budget,
    extract::Path,
    lists::Lists,
    reply::Refusal,
    route::{Dialect, Named, Route},
    surface,
};
use crate::{
    dialects,
    dispatch::{Dispatcher, autoload::Autoload},
    fleet::Fleet,
    openapi,
    render::error::ErrorForm,
    session::Pool,
};

/// A router without a controller.
fn alone(stopping: &CancellationToken) -> Surface {
    guarded(stopping, Keys::default())
}

fn guarded(stopping: &CancellationToken, keys: Keys) -> Surface {
    surface(
        Arc::new(app(stopping, keys)),
        dialects::routes(),
        dialects::form_at,
    )
}

fn app(stopping: &CancellationToken, keys: Keys) -> App {
    let nowhere = Address::Unix("/nonexistent/controller.sock".into());
    App {
        dispatcher: Dispatcher {
            fleet: Fleet::new(&nowhere, &Credentials::none(), None),
            pool: Arc::new(Pool::default()),
            autoload: Autoload::default(),
            media: Arc::default(),
            private_prefixes: false,
        },
        max_body: 1000,
        bodies: Budget::new(1000),
        keys: Arc::new(keys),
        hosts: Arc::default(),
        lists: Lists::default(),
        stats: Arc::default(),
        stopping: stopping.clone(),
    }
}

async fn ask(method: &str, path: &str, body: impl Into<Body>) -> Response<Body> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .body(body.into())
        .unwrap();
    alone(&CancellationToken::new()).oneshot(request).await.unwrap()
}

async fn json(response: Response<Body>) -> Value {
    assert_eq!(response.headers()["content-type"], "application/json");
    serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap()
}

#[tokio::test]
async fn unknown_paths_and_wrong_methods_are_errors_of_the_catalogue() {
    for (method, path, status, code) in [
        ("GET", "/nowhere", 404, "route_not_found"),
        ("GET", "/v1", 404, "route_not_found"),
        ("POST", "/v2/chat/completions", 404, "route_not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("PUT", "/api/v1/completions", 405, "method_not_allowed"),
        ("POST", "/health", 405, "method_not_allowed"),
    ] {
        let response = ask(method, path, Body::empty()).await;
        assert_eq!(response.status().as_u16(), status, "{method} {path}");
        assert_eq!(
            response.headers().contains_key("allow"),
            status == 405,
            "{method} {path}"
        );
        assert!(response.headers().contains_key("x-request-id"));
        assert_eq!(json(response).await["error"]["code"], code, "{method} {path}");
    }
}

#[tokio::test]
async fn a_body_of_the_largest_size_passes_and_one_more_byte_does_not() {
    let fits = ask("POST", "/v1/completions", " ".repeat(1000)).await;
    assert_eq!(json(fits).await["error"]["code"], "invalid_json");
    let large = ask("POST", "/v1/completions", " ".repeat(1001)).await;
    assert_eq!(large.status(), StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn readiness_begins_with_the_first_routes_and_ends_with_the_shutdown_and_liveness_does_not() {
    let stopping = CancellationToken::new();
    let get = |path| Request::get(path).body(Body::empty()).unwrap();
    let router = alone(&stopping);
    let unready = async |why: &str| {
        let response = router.clone().oneshot(get("/health")).await.unwrap();
        assert_eq!(response.status(), 503);
        assert_eq!(json(response).await["error"]["message"], why);
    };
    unready("Loading model").await;
    stopping.cancel();
    unready("shutting down").await;
    assert_eq!(router.clone().oneshot(get("/live")).await.unwrap().status(), 200);
}

#[tokio::test]
async fn lemonades_health_is_well_without_any_model() {
    for path in ["/v1/health", "/api/v1/health"] {
        let response = ask("GET", path, Body::empty()).await;
        assert_eq!(response.status(), 200);
        let body = json(response).await;
        assert_eq!(body["status"], "ok");
        assert_eq!(body["model_loaded"], Value::Null);
        assert_eq!(body["all_models_loaded"], serde_json::json!([]));
    }
}

/// Every path of every route, under all prefixes.
#[tokio::test]
async fn each_route_lets_in_whom_it_names() {
    tokio::time::pause();
    let guarded = guarded(&CancellationToken::new(), Keys::new(["u"], ["a"]));
    let open = alone(&CancellationToken::new());
    let ask = async |router: &Surface, method: &Method, path: &str, key: &str| {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .header("x-api-key", key)
            .body(Body::empty())
            .unwrap();
        router.clone().oneshot(request).await.unwrap().status().as_u16()
    };
    let mut asked = 0;
    for (_, route) in dialects::routes() {
        for path in route.paths() {
            let path = path.pattern().replace(['{', '}'], "");
            let told = format!("{} {path}", route.method);
            let by = async |key| ask(&guarded, &route.method, &path, key).await;
            let refused = [by("").await, by("x").await, by("u").await]
                .map(|status| Some(status).filter(|status| [401, 403].contains(status)));
            let elsewhere = ask(&open, &route.method, &path, "").await == 403;
            let (expected, here_only) = match route.access {
                Access::Open => ([None, None, None], false),
                Access::User => ([Some(401), Some(401), None], false),
                Access::Admin => ([Some(401), Some(401), Some(403)], false),
                Access::Internal => ([Some(401), Some(401), Some(403)], true),
            };
            assert_eq!((refused, elsewhere), (expected, here_only), "{told}");
            asked += 1;
        }
    }
    assert!(asked > 150, "{asked}");
}

/// A dialect's errors.
#[derive(utoipa::ToSchema)]
#[allow(dead_code, reason = "read by the derive only")]
struct ToyError {
    /// What is wrong.
    oh: String,
}

static TOY_ERRORS: ErrorForm = ErrorForm {
    object: |out, error| out.extend_from_slice(format!("{{\"oh\":\"{}\"}}", error.code).as_bytes()),
    status: |_| StatusCode::IM_A_TEAPOT,
};

/// A dialect as its folder has it; `dialects/mod.rs` would name it.
static TOY: Dialect = Dialect {
    name: "Toy",
    errors: &TOY_ERRORS,
    error: Named::of::<ToyError>(),
    routes: || {
        let show = async |Path(name): Path<String>| match name.as_str() {
            "none" => Err(Refusal(Code::UnknownModel.error("no such toy"))),
            _ => Ok(name),
        };
        let route = Route::get("/v1/toys/{*name}/color", Access::User, show);
        vec![
            route
                .also("/toys/{*name}")
                .summary("A toy")
                .part::<String>("name", "Its name.")
                .answers_text("text/plain", "Its name.")
                .refuses("There is none."),
        ]
    },
};

#[tokio::test]
async fn a_dialect_is_what_it_says_of_itself() {
    let routes = || (TOY.routes)().into_iter().map(|route| (&TOY, route));
    let app = app(&CancellationToken::new(), Keys::new(["u"], [""; 0]));
    let surface = surface(Arc::new(app), routes(), |_| &TOY_ERRORS);
    for (path, key, status, said) in [
        ("/api/v0/toys/a/b/color", "u", 200, "a/b"),
        ("/toys/a/b", "u", 200, "a/b"),
        ("/toys/none", "u", 418, r#"{"oh":"unknown_model"}"#),
        ("/toys/none", "", 418, r#"{"oh":"unauthenticated"}"#),
        ("/toys", "u", 418, r#"{"oh":"route_not_found"}"#),
    ] {
        let request = Request::get(path).header("x-api-key", key).body(Body::empty());
        let response = surface.clone().oneshot(request.unwrap()).await.unwrap();
        assert_eq!(response.status(), status, "{path}");
        let text = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(text, said, "{path}");
    }
    let document = serde_json::to_value(openapi::document(routes())).unwrap();
    for path in ["/v1/toys/{name}/color", "/toys/{name}"] {
        let operation = &document["paths"][path]["get"];
        assert_eq!(
            (&operation["tags"][0], &operation["x-access"]),
            (&"Toy".into(), &"user".into())
        );
    }
    assert!(document["components"]["schemas"]["ToyError"].is_object());
}

/// Issue 10, 3.3: whatever the route, and in the form of whoever is asked.
#[tokio::test]
async fn without_keys_no_route_answers_a_name_that_others_can_own() {
    for (method, path) in [
        ("GET", "/"),
        ("GET", "/health"),
        ("GET", "/metrics"),
        ("GET", "/docs/"),
        ("GET", "/nowhere"),
        ("OPTIONS", "/v1/chat/completions"),
        ("POST", "/v1/load"),
        ("POST", "/internal/set"),
        ("POST", "/api/chat"),
    ] {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "evil.test:8000")
            .header("origin", "http://evil.test:8000")
            .body(Body::empty())
            .unwrap();
        let response = alone(&CancellationToken::new()).oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::FORBIDDEN, "{method} {path}");
        let text = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&text);
        assert!(text.contains("--allowed-host"), "{method} {path}: {text}");
    }
}

/// Whatever the page of the document names is the gateway's own, and is there.
#[tokio::test]
async fn the_page_of_the_document_needs_nothing_from_outside() {
    let surface = alone(&CancellationToken::new());
    let get = async |path: &str| {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = surface.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        (parts, body.collect().await.unwrap().to_bytes())
    };
    let (moved, _) = get("/docs").await;
    assert_eq!(
        (moved.status.as_u16(), &moved.headers["location"]),
        (308, &"docs/".parse().unwrap())
    );
    let (page, text) = get("/docs/").await;
    assert_eq!(page.headers["content-type"], "text/html");
    let text = String::from_utf8(text.to_vec()).unwrap();
    let named = text
        .split(['"', '\''])
        .filter(|word| word.ends_with(".js") || word.ends_with(".css"));
    let named: Vec<&str> = named.map(|name| name.trim_start_matches("./")).collect();
    assert!(named.len() >= 4 && !text.contains("//"), "{text}");
    for name in named {
        let (parts, body) = get(&format!("/docs/{name}")).await;
        assert_eq!(parts.status, StatusCode::OK, "{name}");
        let policy = parts.headers["content-security-policy"].to_str().unwrap();
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self';"),
            "{policy}"
        );
        if name == "swagger-initializer.js" {
            let text = String::from_utf8(body.to_vec()).unwrap();
            assert!(
                text.contains(r#""url": "../openapi.json""#) && !text.contains("https:"),
                "{text}"
            );
        }
    }
    assert_eq!(get("/docs/../main.rs").await.0.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn any_content_type_is_read() {
    let body = r#"{"model": "m", "messages": [{"role": "user", "content": 3}]}"#;
    let request = Request::post("/v1/chat/completions")
        .header("content-type", "text/plain")
        .body(Body::from(body))
        .unwrap();
    let response = alone(&CancellationToken::new()).oneshot(request).await.unwrap();
    assert_eq!(json(response).await["error"]["param"], "messages[0].content");
}
