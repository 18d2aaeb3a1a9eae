//! `audio/*` and `images/*`: OpenAI's routes for models of these types (seed 002, Max Loaded Models). The gateway forwards the request to
//! the engine unchanged and returns its answer unchanged.
//!
//! ```text
//!  model's name (JSON or form) ─► its type ─► its runtime has the route ─► loaded ─► the engine
//!        400                        400            400, before any load
//! ```

use std::{convert::Infallible, sync::Arc};

use axum::{extract::State, response::Response};
use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, HeaderValue, header::CONTENT_TYPE};
use multer::Multipart;
use muster_core::{Code, Error, runtime::Family};
use muster_proto::{
    engine_http,
    v1::{EngineHttpCall, ModelType},
};

use super::requests::MediaBody;
use crate::{
    dispatch::{check_kind, media::MediaHosts, unknown_model},
    translate::{self, object, read::Fields as _},
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

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/v1/audio/{task}", Access::User, audio)
            .summary("Transcribe, translate or speak with a model of type audio, where its runtime can")
            .part::<String>("task", "`transcriptions`, `translations` or `speech`.")
            .takes_as::<MediaBody>("multipart/form-data")
            .takes::<MediaBody>()
            .body_text("As OpenAI has it: a form with the sound, or for `speech` a JSON object.")
            .answer_text("As the engine answers.")
            .refuses("The request is wrong; `unsupported_by_runtime`: the model is of another type, or its runtime cannot.")
            .fails("The model cannot be loaded or failed."),
        Route::post("/v1/images/{task}", Access::User, images)
            .summary("Draw, edit or vary images with a model of type image, where its runtime can")
            .part::<String>("task", "`generations`, `edits` or `variations`.")
            .takes::<MediaBody>()
            .takes_as::<MediaBody>("multipart/form-data")
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

fn action(tasks: &[(&str, &'static str)], what: &str, task: &str) -> Result<&'static str, Error> {
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
    let form = match multer::parse_boundary(&content_type) {
        Ok(boundary) => Some(Form::read(request.body.clone(), boundary).await?),
        Err(_) => None,
    };
    let model = match &form {
        Some(form) => form.model()?.to_owned(),
        None => MediaBody::body(&request.body)?.model.0,
    };
    let model = check(app, &model, kind, does, path)?;
    let media = &app.dispatcher.media;
    match form {
        Some(form) => form.check_addresses(media)?,
        None => media.check_json(&request.body)?,
    }
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

/// The model's id. Refuses what the model or its runtime cannot do, before any load.
fn check(app: &App, model: &str, kind: ModelType, does: &str, path: &str) -> Result<String, Error> {
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

/// What of a form is read here (RFC 7578); the engine is sent the whole as it came.
#[derive(Debug, Default)]
struct Form {
    model: Option<String>,
    /// Parts that name an address, all of them: which one an engine takes is its own affair.
    addresses: Vec<(&'static str, String)>,
}

impl Form {
    const PIECE: usize = 64 << 10;
    /// Names of parts that an engine may take for addresses.
    const ADDRESSES: [&'static str; 4] = ["url", "file_url", "audio_url", "image_url"];

    /// Reads all parts. What cannot be read as a form is refused: an engine might read it otherwise.
    async fn read(body: Bytes, boundary: String) -> Result<Self, Error> {
        let wrong =
            |error: multer::Error| Code::InvalidRequest.error(format!("the form cannot be read: {error}"));
        // In pieces: what is not wanted of it is dropped as it is read.
        let pieces = (0..body.len()).step_by(Self::PIECE);
        let pieces =
            pieces.map(move |at| Ok::<_, Infallible>(body.slice(at..body.len().min(at + Self::PIECE))));
        let mut parts = Multipart::new(stream::iter(pieces), boundary);
        let mut form = Self::default();
        while let Some(part) = parts.next_field().await.map_err(wrong)? {
            let address = Self::ADDRESSES.into_iter().find(|name| part.name() == Some(name));
            if let Some(name) = address {
                form.addresses.push((name, part.text().await.map_err(wrong)?));
            } else if part.name() == Some("model") && form.model.is_none() {
                form.model = Some(part.text().await.map_err(wrong)?);
            }
        }
        Ok(form)
    }

    fn model(&self) -> Result<&str, Error> {
        let model = self
            .model
            .as_deref()
            .ok_or_else(|| object::invalid("model", "is required"))?;
        let model = model.trim();
        if model.is_empty() || model.len() > translate::LONGEST_NAME {
            return Err(object::invalid("model", "must be the name of a model"));
        }
        Ok(model)
    }

    /// Refuses addresses of images and sounds that are not to be fetched.
    fn check_addresses(&self, media: &MediaHosts) -> Result<(), Error> {
        self.addresses.iter().try_for_each(|(name, address)| {
            let checked = media.check_url(address.trim());
            checked.map_err(|error| error.with_param(*name))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str, text: &str) -> String {
        format!("--xX\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{text}\r\n")
    }

    async fn read(form: String) -> Result<Form, Error> {
        Form::read(form.into(), "xX".to_owned()).await
    }

    #[tokio::test]
    async fn a_forms_model_is_found_beside_its_file() {
        let file = "--xX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"model\"\r\nContent-Type: audio/wav\r\n\r\nRIFF\r\n\r\n--x\r\n";
        let form = read(format!("{file}{}--xX--\r\n", part("model", "whisper")))
            .await
            .unwrap();
        assert_eq!(form.model().unwrap(), "whisper");
        assert!(form.addresses.is_empty());
        let empty = read("--xX--\r\n".to_owned()).await.unwrap();
        assert_eq!(empty.model().unwrap_err().param.unwrap_or_default(), "model");
        for broken in ["", "--xX", "--xX\r\n\r\n"] {
            assert_eq!(
                read(broken.to_owned()).await.unwrap_err().code,
                Code::InvalidRequest
            );
        }
    }

    /// Only the first part of a name was judged, whichever an engine takes.
    #[tokio::test]
    async fn every_address_of_a_form_is_judged() {
        let twice = part("url", "data:audio/wav;base64,AA==") + &part("url", "http://10.0.0.1/");
        let form = read(format!("{twice}--xX--\r\n")).await.unwrap();
        let refused = form.check_addresses(&MediaHosts::default()).unwrap_err();
        assert_eq!(
            (refused.code, refused.param.as_deref().unwrap_or_default()),
            (Code::MediaUrlRefused, "url")
        );
    }
}
