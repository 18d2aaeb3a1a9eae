//! Lemonade's settings that can change while the gateway runs: `POST log-level`, `GET /internal/config`, `POST /internal/set`, `POST
//! /internal/pin` (Lemonade's public documentation). Callers must be on this machine or have a key that allows it.
//!
//! The log level is the gateway's own. What is set for the fleet is the controller's to keep (`Control.Adjust`).

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_core::{Code, Error};
use muster_proto::process::{self, LogLevel};
use serde_json::{Map, Value, json};

use super::{
    answers::{Config, FleetSettings, LevelSet, LlamaCppShown, Pinned, SUCCESS, SettingsSet},
    requests::{LevelBody, PinBody, Section, SetBody},
};
use crate::{
    fleet::control::Pin,
    translate::{
        object::{self, Object},
        read::Fields as _,
    },
    web::{
        App,
        access::Access,
        reply::{self, Refusal},
        route::Route,
        run::ClientRequest,
    },
};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/v1/log-level", Access::Admin, log_level)
            .summary("Change the log level of this gateway")
            .takes::<LevelBody>()
            .answers::<LevelSet>("It is changed.")
            .change_errors(),
        Route::get("/internal/config", Access::Internal, config)
            .summary("Settings of this gateway, and those of the fleet that can be set")
            .answers::<Config>("As they are now.")
            .fails("The controller is away."),
        Route::post("/internal/set", Access::Internal, set)
            .summary("Change settings of this gateway and of the fleet, all or none")
            .takes::<SetBody>()
            .answers::<SettingsSet>("What was changed.")
            .change_errors(),
        Route::post("/internal/pin", Access::Internal, pin)
            .summary("Keep a model from being evicted, or no longer")
            .takes::<PinBody>()
            .answers::<Pinned>("Whether the model is pinned now.")
            .change_errors(),
    ]
}

/// Sets the log level of this gateway until it ends.
async fn log_level(request: ClientRequest) -> Result<Response, Refusal> {
    let LevelBody { level } = LevelBody::body(&request.body)?;
    process::set_log_level(level);
    let answer = LevelSet {
        status: SUCCESS,
        level: level.as_str(),
        message: format!("Log level set to: {level}"),
    };
    Ok(reply::value(StatusCode::OK, &answer))
}

/// Shows the settings of this gateway and those of the fleet that can be set, without secrets.
async fn config(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    let autoload = app.dispatcher.autoload;
    let fleet = app.dispatcher.fleet.control().adjust(Map::new()).await?;
    let fleet: FleetSettings = serde_json::from_value(Value::Object(fleet))
        .map_err(|error| Code::Internal.error(error.to_string()))?;
    let config = Config {
        log_level: process::log_level().as_str(),
        autoload: autoload.on,
        lock_autoload: autoload.locked,
        max_body_bytes: app.max_body,
        auto_evict: true,
        llamacpp: LlamaCppShown {
            args: fleet.llamacpp_args.clone(),
        },
        fleet,
    };
    Ok(reply::value(StatusCode::OK, &config))
}

/// Changes settings. If one is refused, none is changed.
async fn set(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    let (level, changes) = settings(&request.body)?;
    let mut updated = changes.clone();
    if !changes.is_empty() {
        app.dispatcher.fleet.control().adjust(changes).await?;
    }
    if let Some(level) = level {
        process::set_log_level(level);
        updated.insert("log_level".to_owned(), level.as_str().into());
    }
    let answer = SettingsSet {
        status: SUCCESS,
        updated,
    };
    Ok(reply::value(StatusCode::OK, &answer))
}

/// When Lemonade begins to evict before anything needs the room.
const THRESHOLD: &str = "auto_evict_threshold_pct";

/// The log level, and what is the fleet's.
fn settings(body: &[u8]) -> Result<(Option<LogLevel>, Map<String, Value>), Error> {
    let mut body = Object::body(object::text(body)?)?;
    let SetBody {
        log_level,
        max_loaded_models,
        ctx_size,
        llamacpp_args,
        llamacpp,
        extra_models_dir,
        auto_evict,
    } = SetBody::take_from(&mut body)?;
    if auto_evict == Some(false) {
        let error = object::invalid(
            "auto_evict",
            "is always true: pin a model to keep it, or set `max_loaded_models`",
        );
        return Err(error);
    }
    if body.peek(THRESHOLD).is_some() {
        let error = object::invalid(
            THRESHOLD,
            "is not done: models make room when a load needs it; what stays free of each device is `policy.margin_mib` of the configuration",
        );
        return Err(error);
    }
    let (nested, below) = match llamacpp {
        Some(Section { known, unknown }) => (known.args.0, unknown),
        None => (None, Vec::new()),
    };
    let unknown: Vec<String> = body.keys().map(str::to_owned).chain(below).collect();
    if let Some(first) = unknown.first() {
        let error = format!("unknown settings: {}", unknown.join(", "));
        return Err(Code::InvalidRequest.error(error).with_param(first));
    }
    let args = match (llamacpp_args.0, nested) {
        (Some(one), Some(other)) if one != other => {
            return Err(object::invalid(
                "llamacpp_args",
                "says something else than `llamacpp.args`",
            ));
        }
        (one, other) => one.or(other),
    };
    // -1 is the automatic context, the same as none.
    let automatic = |value| if value == json!(-1) { Value::Null } else { value };
    // Lemonade's word for none.
    let folder = extra_models_dir
        .0
        .map(|folder| if folder == json!("") { Value::Null } else { folder });
    let given = [
        ("max_loaded_models", max_loaded_models.0),
        ("ctx_size", ctx_size.0.map(automatic)),
        ("llamacpp_args", args),
        ("extra_models_dir", folder),
    ];
    let given = given
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value?)));
    Ok((log_level, given.collect()))
}

/// Pins or unpins a model.
async fn pin(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    let PinBody {
        model_name: name,
        pinned,
    } = PinBody::body(&request.body)?;
    let pin = if pinned { Pin::Always } else { Pin::Not };
    let model = app.dispatcher.fleet.control().pin(&name, pin).await;
    let model = model.map_err(super::load::not_found)?;
    let answer = Pinned {
        status: SUCCESS,
        model_name: name,
        pinned: model.pinned,
    };
    Ok(reply::value(StatusCode::OK, &answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_settings_are_named_all_of_them_and_none_is_half_read() {
        let read = |body: Value| settings(body.to_string().as_bytes());
        let error = read(json!({"ctx_size": 512, "port": 1, "host": "x"})).unwrap_err();
        assert!(
            error.message.contains("port") && error.message.contains("host"),
            "{error}"
        );
        let error = read(json!({"auto_evict": false})).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("auto_evict"));
        let error = read(json!({"auto_evict_threshold_pct": 0.8})).unwrap_err();
        assert!(error.message.contains("margin_mib"), "{error}");
        let error = read(json!({"llamacpp": {"backend": "vulkan", "args": "-b 64"}})).unwrap_err();
        assert!(error.message.ends_with("llamacpp.backend"), "{error}");
        // As `config` shows it.
        assert!(read(json!({"auto_evict": true})).unwrap().1.is_empty());
        let (level, given) =
            read(json!({"log_level": "debug", "ctx_size": -1, "llamacpp_args": "-b 64"})).unwrap();
        assert_eq!(level, Some(LogLevel::Debug));
        assert_eq!(
            Value::Object(given),
            json!({"ctx_size": null, "llamacpp_args": "-b 64"})
        );
    }

    #[test]
    fn lemonades_nested_arguments_are_the_flat_ones() {
        let read = |body: Value| settings(body.to_string().as_bytes()).map(|(_, given)| Value::Object(given));
        for body in [
            json!({"llamacpp": {"args": "-b 64"}}),
            json!({"llamacpp": {"args": "-b 64"}, "llamacpp_args": "-b 64"}),
        ] {
            assert_eq!(read(body).unwrap(), json!({"llamacpp_args": "-b 64"}));
        }
        let taken_back = read(json!({"llamacpp": {"args": null}})).unwrap();
        assert_eq!(taken_back, json!({"llamacpp_args": null}));
        let none = read(json!({"extra_models_dir": ""})).unwrap();
        assert_eq!(none, json!({"extra_models_dir": null}));
        let two = json!({"llamacpp": {"args": "-b 64"}, "llamacpp_args": "-b 32"});
        assert_eq!(read(two).unwrap_err().param.as_deref(), Some("llamacpp_args"));
    }
}
