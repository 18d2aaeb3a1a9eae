//! `audio/*` and `images/*`: OpenAI's routes for models of these types (seed 002, Max Loaded Models). They go to the engine as they come, and its
//! answer comes back as it is: nothing of it is ours to render.
//!
//! ```text
//!  model's name (JSON or form) ─► its type ─► its runtime has the route ─► loaded ─► the engine
//!        400                        400            400, before any load
//! ```

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::{HeaderMap, HeaderValue, header::CONTENT_TYPE};
use memchr::memmem;
use muster_core::runtime::Family;
use muster_proto::{
    Code, ErrorExt as _, engine_http,
    v1::{EngineHttpCall, ErrorInfo, ModelType},
};

use super::schema::requests::MediaRequest;
use crate::{
    dispatch::{check_kind, unknown_model},
    translate::{
        self,
        object::{self, Object},
    },
    web::{App, access::Access, engine, extract::Path, reply::Refusal, route::Route, run::ClientRequest},
};

/// Tasks with what they do, in words.
const AUDIO: [(&str, &str); 3] = [
    ("transcriptions", "transcribe"),
    ("translations", "translate speech"),
    ("speech", "speak"),
];
const IMAGES: [(&str, &str); 3] = [
    ("generations", "draw images"),
    ("edits", "edit images"),
    ("variations", "vary images"),
];

/// The routes.
pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/v1/audio/{task}", Access::User, audio)
            .summary("Transcribe, translate or speak with a model of type audio, where its runtime can")
            .part::<String>("task", "`transcriptions`, `translations` or `speech`.")
            .takes_as::<MediaRequest>("multipart/form-data")
            .takes::<MediaRequest>()
            .body_text("As OpenAI has it: a form with the sound, or for `speech` a JSON object.")
            .answer_text("As the engine answers.")
            .refuses("The request is wrong; `unsupported_by_runtime`: the model is of another type, or its runtime cannot.")
            .fails("The model cannot be loaded or failed."),
        Route::post("/v1/images/{task}", Access::User, images)
            .summary("Draw, edit or vary images with a model of type image, where its runtime can")
            .part::<String>("task", "`generations`, `edits` or `variations`.")
            .takes::<MediaRequest>()
            .takes_as::<MediaRequest>("multipart/form-data")
            .body_text("As OpenAI has it: a JSON object, or a form with the image.")
            .answer_text("As the engine answers.")
            .refuses("The request is wrong; `unsupported_by_runtime`: the model is of another type, or its runtime cannot.")
            .fails("The model cannot be loaded or failed."),
    ]
}

async fn audio(
    State(app): State<Arc<App>>,
    Path(task): Path<String>,
    headers: HeaderMap,
    request: ClientRequest,
) -> Result<Response, Refusal> {
    let does = action(&AUDIO, "audio", &task)?;
    forward(
        &app,
        ModelType::Audio,
        does,
        &format!("/v1/audio/{task}"),
        &headers,
        request,
    )
    .await
}

async fn images(
    State(app): State<Arc<App>>,
    Path(task): Path<String>,
    headers: HeaderMap,
    request: ClientRequest,
) -> Result<Response, Refusal> {
    let does = action(&IMAGES, "images", &task)?;
    forward(
        &app,
        ModelType::Image,
        does,
        &format!("/v1/images/{task}"),
        &headers,
        request,
    )
    .await
}

fn action(tasks: &[(&str, &'static str)], what: &str, task: &str) -> Result<&'static str, ErrorInfo> {
    let found = tasks.iter().find(|(name, _)| *name == task);
    let unknown = || Code::RouteNotFound.error(format!("there is no route POST /v1/{what}/{task}"));
    found.map(|(_, does)| *does).ok_or_else(unknown)
}

async fn forward(
    app: &Arc<App>,
    kind: ModelType,
    does: &str,
    path: &str,
    headers: &HeaderMap,
    request: ClientRequest,
) -> Result<Response, Refusal> {
    let content_type = content_type(headers);
    let model = match boundary(&content_type) {
        Some(boundary) => form_model(&request.body, boundary)?,
        None => translate::model(&mut Object::body(object::text(&request.body)?)?)?,
    };
    let model = check(app, &model, kind, does, path)?;
    check_addresses(app, &request.body, boundary(&content_type))?;
    // The hold ends once the engine has the request: from then on that keeps the instance.
    let (mut loaded, hold) = app.dispatcher.loaded_for(&model, request.autoload).await?;
    let call = EngineHttpCall {
        instance: loaded.instance.clone(),
        model,
        method: "POST".to_owned(),
        path: path.to_owned(),
        content_type,
        body: request.body,
        work: true,
    };
    let chunks = loaded.engine_http(call).await?;
    drop(hold);
    engine::response(chunks).await
}

/// Refuses addresses of images and sounds that are not to be fetched, in a JSON body's fields or a form's.
fn check_addresses(app: &App, body: &[u8], boundary: Option<&str>) -> Result<(), ErrorInfo> {
    let media = &app.dispatcher.media;
    let Some(boundary) = boundary else {
        return media.check_json(body);
    };
    for name in ["url", "file_url", "audio_url", "image_url"] {
        if let Some(address) = field(body, boundary, name) {
            let address = String::from_utf8_lossy(address);
            media
                .check_url(address.trim())
                .map_err(|error| error.with_param(name))?;
        }
    }
    Ok(())
}

/// The model's id. Refuses what the model or its runtime cannot do, before any load.
fn check(app: &App, model: &str, kind: ModelType, does: &str, path: &str) -> Result<String, ErrorInfo> {
    let table = app.dispatcher.fleet.table();
    let Some(summary) = table.model(model) else {
        return Err(unknown_model(model));
    };
    check_kind(summary, kind, does)?;
    if engine_http::allows(Family::of(&summary.runtime), "POST", path) {
        return Ok(summary.id.clone());
    }
    let message = format!(
        "model {model} is hosted by {}, which cannot {does}",
        summary.runtime
    );
    Err(Code::UnsupportedByRuntime.error(message).with_param("model"))
}

fn content_type(headers: &HeaderMap) -> String {
    let value = headers.get(CONTENT_TYPE).map(HeaderValue::to_str);
    value
        .and_then(Result::ok)
        .unwrap_or("application/json")
        .to_owned()
}

/// The boundary of a form's parts; none if it is no form.
fn boundary(content_type: &str) -> Option<&str> {
    let mut parts = content_type.split(';').map(str::trim);
    if !parts.next()?.eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let mut parameters = parts.filter_map(|part| part.split_once('='));
    let boundary = parameters.find(|(name, _)| name.trim().eq_ignore_ascii_case("boundary"));
    boundary.map(|(_, value)| value.trim_matches('"'))
}

/// The form's `model`.
fn form_model(body: &[u8], boundary: &str) -> Result<String, ErrorInfo> {
    let text = field(body, boundary, "model").ok_or_else(|| object::invalid("model", "is required"))?;
    let text = std::str::from_utf8(text).unwrap_or_default().trim();
    if text.is_empty() || text.len() > translate::LONGEST_NAME {
        return Err(object::invalid("model", "must be the name of a model"));
    }
    Ok(text.to_owned())
}

/// The content of a form's part (RFC 7578).
fn field<'a>(body: &'a [u8], boundary: &str, wanted: &str) -> Option<&'a [u8]> {
    let delimiter = format!("--{boundary}");
    let finder = memmem::Finder::new(&delimiter);
    let mut starts = finder.find_iter(body).map(|at| at + delimiter.len()).peekable();
    while let Some(start) = starts.next() {
        let end = starts.peek().map_or(body.len(), |next| next - delimiter.len());
        let part = body.get(start..end)?;
        let Some(blank) = memmem::find(part, b"\r\n\r\n") else {
            continue;
        };
        let (head, content) = part.split_at(blank);
        let head = String::from_utf8_lossy(head);
        let mut lines = head.lines().filter_map(|line| line.split_once(':'));
        let disposition = lines.find(|(name, _)| name.eq_ignore_ascii_case("content-disposition"));
        let mut parameters = disposition.map_or("", |(_, value)| value).split(';').skip(1);
        let is = |parameter: &str| {
            parameter
                .trim()
                .strip_prefix("name=")
                .is_some_and(|name| name.trim_matches('"') == wanted)
        };
        if parameters.any(is) {
            let content = content.get(4..)?;
            return Some(content.strip_suffix(b"\r\n").unwrap_or(content));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: &[u8] = b"--xX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"model\"\r\nContent-Type: audio/wav\r\n\r\nRIFF\r\n\r\n--x\r\n\
        --xX\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nwhisper\r\n--xX--\r\n";

    #[test]
    fn a_forms_model_is_found_beside_its_file() {
        assert_eq!(boundary("multipart/form-data; boundary=xX"), Some("xX"));
        assert_eq!(
            boundary("Multipart/Form-Data; charset=utf-8; boundary=\"xX\""),
            Some("xX")
        );
        assert_eq!(boundary("application/json"), None);
        assert_eq!(form_model(FORM, "xX").unwrap(), "whisper");
        assert_eq!(field(FORM, "xX", "file").unwrap(), b"RIFF\r\n\r\n--x");
        for broken in [&FORM[..20], b"", b"--xX", b"--xX\r\n\r\n", b"--xX--"] {
            assert_eq!(form_model(broken, "xX").unwrap_err().param, "model");
        }
    }
}
