//! Lemonade's settings at runtime: `POST log-level`, `GET /internal/config`, `POST /internal/set`, `POST /internal/pin` (Lemonade's public
//! documentation of today). Callers are on this machine or have a key that allows it.
//!
//! Settings are those of the gateway itself; what the fleet does is the controller's configuration.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_proto::{
    process::{self, LogLevel},
    v1::ErrorInfo,
};

use super::{
    answers::{Config, LemonadeError, LevelSet, Pinned, SUCCESS, SettingsSet, Updated},
    shapes::{LevelBody, PinBody, SetBody},
};
use crate::{
    translate::object::{self, Field, Object},
    web::{
        App,
        reply::{self, Refusal},
        run::Asked,
    },
};

/// Sets the log level of this gateway until it ends.
#[utoipa::path(
    post,
    path = "/v1/log-level",
    tag = "Lemonade",
    summary = "Change the log level of this gateway",
    request_body = LevelBody,
    responses(
        (status = 200, description = "It is changed.", body = LevelSet),
        (status = "4XX", description = "The request is wrong or refused.", body = LemonadeError),
        (status = "5XX", description = "It could not be done.", body = LemonadeError),
    )
)]
pub(super) async fn log_level(asked: Asked) -> Result<Response, Refusal> {
    let mut body = Object::body(object::text(&asked.body)?)?;
    let level = level(&body.need("level")?)?;
    process::set_log_level(level);
    let answer = LevelSet {
        status: SUCCESS,
        level: level.as_str(),
        message: format!("Log level set to: {level}"),
    };
    Ok(reply::value(StatusCode::OK, &answer))
}

fn level(field: &Field<'_>) -> Result<LogLevel, ErrorInfo> {
    field.string()?.parse().map_err(|why| field.wrong(why))
}

/// What this gateway was started with, secrets left out.
#[utoipa::path(
    get,
    path = "/internal/config",
    tag = "Lemonade",
    summary = "Settings of this gateway",
    responses(
        (status = 200, description = "As they are now.", body = Config),
    )
)]
pub(super) async fn config(State(app): State<Arc<App>>) -> Response {
    let autoload = app.dispatcher.autoload;
    let config = Config {
        log_level: process::log_level().as_str(),
        autoload: autoload.on,
        lock_autoload: autoload.locked,
        max_body_bytes: app.max_body,
    };
    reply::value(StatusCode::OK, &config)
}

/// Changes settings; all or none of them.
#[utoipa::path(
    post,
    path = "/internal/set",
    tag = "Lemonade",
    summary = "Change settings of this gateway, all or none",
    request_body = SetBody,
    responses(
        (status = 200, description = "What was changed.", body = SettingsSet),
        (status = "4XX", description = "The request is wrong or refused.", body = LemonadeError),
        (status = "5XX", description = "It could not be done.", body = LemonadeError),
    )
)]
pub(super) async fn set(asked: Asked) -> Result<Response, Refusal> {
    let mut body = Object::body(object::text(&asked.body)?)?;
    let level = body.take("log_level").map(|field| level(&field)).transpose()?;
    let rest = body.rest();
    let unknown: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&rest).unwrap_or_default();
    if let Some(key) = unknown.keys().next() {
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
#[utoipa::path(
    post,
    path = "/internal/pin",
    tag = "Lemonade",
    summary = "Keep a model from being evicted, or no longer",
    request_body = PinBody,
    responses(
        (status = 200, description = "It is.", body = Pinned),
        (status = "4XX", description = "The request is wrong or refused.", body = LemonadeError),
        (status = "5XX", description = "It could not be done.", body = LemonadeError),
    )
)]
pub(super) async fn pin(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Refusal> {
    let mut body = Object::body(object::text(&asked.body)?)?;
    let name = body.take_any(&["model_name", "model"]);
    let name = name
        .ok_or_else(|| object::invalid("model_name", "is required"))?
        .string()?;
    let pinned = body.need("pinned")?.bool()?;
    let model = app.dispatcher.fleet.control().pin(&name, pinned).await;
    let model = model.map_err(super::load::not_found)?;
    let answer = Pinned {
        status: SUCCESS,
        model_name: name,
        pinned: model.pinned,
    };
    Ok(reply::value(StatusCode::OK, &answer))
}
