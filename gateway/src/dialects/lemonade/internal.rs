//! Lemonade's settings that can change while the gateway runs: `POST log-level`, `GET /internal/config`, `POST /internal/set`, `POST
//! /internal/pin` (Lemonade's public documentation). Callers must be on this machine or have a key that allows it.
//!
//! They are settings of the gateway itself. The fleet follows the controller's configuration.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_proto::process::{self, LogLevel};

use super::{
    answers::{Config, LevelSet, Pinned, SUCCESS, SettingsSet, Updated},
    requests::{LevelBody, PinBody, SetBody},
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
            .summary("Settings of this gateway")
            .answers::<Config>("As they are now."),
        Route::post("/internal/set", Access::Internal, set)
            .summary("Change settings of this gateway, all or none")
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

/// Shows the settings that this gateway was started with, without secrets.
async fn config(State(app): State<Arc<App>>) -> Response {
    let autoload = app.dispatcher.autoload;
    let config = Config {
        log_level: process::log_level().as_str(),
        autoload: autoload.on,
        lock_autoload: autoload.locked,
        max_body_bytes: app.max_body,
    };
    reply::value(StatusCode::OK, &config)
}

/// Changes settings. If one is refused, none is changed.
async fn set(request: ClientRequest) -> Result<Response, Refusal> {
    let mut body = Object::body(object::text(&request.body)?)?;
    let SetBody { log_level: level } = SetBody::take_from(&mut body)?;
    if let Some(key) = body.first() {
        return Err(object::invalid(key, "cannot be set while the gateway runs").into());
    }
    if let Some(level) = level {
        process::set_log_level(level);
    }
    let answer = SettingsSet {
        status: SUCCESS,
        updated: Updated {
            log_level: level.map(LogLevel::as_str),
        },
    };
    Ok(reply::value(StatusCode::OK, &answer))
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
