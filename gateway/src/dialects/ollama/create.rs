//! `POST /api/create`: a model made from another one, with parameters, a system prompt or a chat template of its own.
//!
//! Its files are never a path: only the configuration names files of a machine (proto/README.md, Trust).

use std::{convert::Infallible, sync::Arc};

use axum::{extract::State, response::Response};
use futures::stream;
use http::StatusCode;
use http_body::Frame;
use http_body_util::StreamBody;
use muster_core::{
    Code, Error,
    name::{LATEST, USER},
};
use muster_proto::{parameters::SAMPLING, v1::ModelDefinition};
use serde_json::{Map, Value, json};

use super::{
    manage::{OllamaStatus, known, line},
    modelfile,
    requests::{CreateBody, Options},
};
use crate::{
    translate::{
        object::{Field, Kind},
        output::Stop,
        read::{Fields as _, Int, Uint},
    },
    web::{
        App,
        access::Access,
        reply::{self, Refusal},
        route::{JSON_LINES, Route},
        run::ClientRequest,
    },
};

/// What a client is told while a model is made, in Ollama's words.
const STEPS: [&str; 3] = ["reading model metadata", "writing manifest", "success"];

/// The route.
pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/api/create", Access::Admin, create)
            .summary(
                "Make a model from another one, with parameters, a system prompt or a template of its own",
            )
            .takes::<CreateBody<'_>>()
            .answers::<OllamaStatus>("It is made; lines of JSON unless `stream` is false.")
            .answers_as::<OllamaStatus>(JSON_LINES)
            .refuses("There is no such model to make it from, or the name is another model's.")
            .fails("501: uploaded files, adapters and quantisation."),
    ]
}

/// A model to make.
#[derive(Debug, PartialEq)]
struct Creation {
    /// The new model, as the client calls it.
    name: String,
    /// The model that it is made from, as the client calls it.
    from: String,
    /// What its requests get where they say nothing themselves.
    defaults: Map<String, Value>,
    template: String,
    /// Context of its loads.
    context: Option<u32>,
    stream: bool,
}

impl Creation {
    fn parse(body: &[u8]) -> Result<Self, Error> {
        let request = CreateBody::body(body)?;
        let Some(text) = &request.modelfile else {
            return Self::read(request);
        };
        let mut whole = modelfile::body(text)?;
        whole.insert("model".to_owned(), request.model.0.clone().into());
        whole.insert("stream".to_owned(), request.stream.into());
        Self::read(CreateBody::body(Value::Object(whole).to_string().as_bytes())?)
    }

    fn read(request: CreateBody<'_>) -> Result<Self, Error> {
        let wrong = |field: &str, message: &str| Code::InvalidRequest.error(message).with_param(field);
        let not_done = [
            ("files", given(request.files.as_ref()), "uploaded files"),
            ("adapters", given(request.adapters.as_ref()), "adapters"),
            (
                "messages",
                given(request.messages.as_ref()),
                "messages before each chat",
            ),
            ("quantize", request.quantize.is_some(), "quantisation"),
        ];
        if let Some((field, _, what)) = not_done.into_iter().find(|(_, given, _)| *given) {
            let error = format!("models are not made with {what} here");
            return Err(Code::NotImplemented.error(error).with_param(field));
        }
        let template = request.template.unwrap_or_default();
        if is_go(&template) {
            let message =
                "the template is in Go's form, and Muster renders Jinja: leave it out to use the model's own";
            return Err(wrong("template", message));
        }
        let from = request.from.filter(|from| !from.is_empty());
        let from = from.ok_or_else(|| wrong("from", "`from` is required: the name of a model"))?;
        let mut defaults = Map::new();
        let system = request.system.filter(|system| !system.is_empty());
        defaults.extend(system.map(|system| ("system_prompt".to_owned(), system.into())));
        let context = request
            .parameters
            .and_then(|options| read(options, &mut defaults));
        Ok(Self {
            name: request.model.0,
            from,
            defaults,
            template,
            context,
            stream: request.stream.unwrap_or(true),
        })
    }
}

/// Reads parameters into a model's defaults; the context that its loads have.
fn read(options: Options, defaults: &mut Map<String, Value>) -> Option<u32> {
    let Options {
        sampling,
        num_predict,
        stop,
        num_ctx,
    } = options;
    for row in SAMPLING.iter() {
        if let Some(value) = (row.get)(&sampling.0) {
            defaults.insert(row.name.to_owned(), value.into());
        }
    }
    // -1 and -2: until the context is full.
    let most = num_predict.and_then(|Int(most)| u32::try_from(most).ok());
    let most = most.filter(|most| *most > 0);
    defaults.extend(most.map(|most| ("max_tokens".to_owned(), most.into())));
    if let Some(Stop(stop)) = stop.filter(|Stop(stop)| !stop.is_empty()) {
        defaults.insert("stop".to_owned(), stop.into());
    }
    num_ctx.map(|Uint(tokens)| tokens)
}

/// Whether a field says anything.
fn given(field: Option<&Field<'_>>) -> bool {
    field.is_some_and(|field| match field.kind() {
        Kind::Null => false,
        Kind::Array | Kind::Object => !matches!(field.json().trim(), "[]" | "{}"),
        Kind::Bool | Kind::Number | Kind::String => true,
    })
}

/// Whether a template is in Go's form: a tag of it is an action of Go's.
fn is_go(template: &str) -> bool {
    const ACTIONS: [&str; 7] = ["if", "range", "end", "else", "with", "template", "block"];
    let tags = template.split("{{").skip(1);
    let mut tags = tags.map(|tag| tag.trim_start_matches('-').trim_start());
    tags.any(|tag| {
        let mut words = tag.split(|c: char| c.is_whitespace() || c == '}');
        tag.starts_with(['.', '$']) || ACTIONS.contains(&words.next().unwrap_or_default())
    })
}

async fn create(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    let creation = Creation::parse(&request.body)?;
    let streamed = creation.stream;
    make(&app, creation).await?;
    if !streamed {
        return Ok(reply::value(StatusCode::OK, &OllamaStatus::word("success")));
    }
    let lines = STEPS.map(|step| Ok::<_, Infallible>(Frame::data(line(&OllamaStatus::word(step)))));
    Ok(reply::lines(StreamBody::new(stream::iter(lines))))
}

async fn make(app: &App, creation: Creation) -> Result<(), Error> {
    let Creation {
        name,
        from,
        defaults,
        template,
        context,
        stream: _,
    } = creation;
    let bare = name.strip_suffix(LATEST).unwrap_or(&name);
    let model = format!("{USER}{}", bare.strip_prefix(USER).unwrap_or(bare));
    if let Some(other) = known(app, &name).filter(|known| *known != model) {
        let error = format!("`{name}` is another model's name: {other}");
        return Err(Code::InvalidRequest.error(error).with_param("model"));
    }
    let base = known(app, &from).ok_or_else(|| {
        let error = format!("there is no model `{from}` to make it from: pull it first; paths are not read");
        Code::UnknownModel.error(error).with_param("from")
    })?;
    let models = || app.dispatcher.fleet.models();
    let definition = ModelDefinition {
        model: model.clone(),
        base,
        defaults_json: Value::Object(defaults).to_string(),
        chat_template: template,
        ..ModelDefinition::default()
    };
    models().register(definition).await?;
    if let Some(context) = context {
        let options = json!({"ctx_size": context}).to_string();
        models().set_options(&model, options).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(body: &Value) -> Result<Creation, Error> {
        Creation::parse(body.to_string().as_bytes())
    }

    #[test]
    fn a_body_and_its_modelfile_say_the_same() {
        let fields = json!({
            "model": "mario",
            "from": "tiny",
            "system": "You are Mario.",
            "parameters": {"temperature": 0.5, "num_ctx": 256, "num_predict": 9, "stop": ["END"]},
        });
        let file = "FROM tiny\nSYSTEM You are Mario.\nPARAMETER temperature 0.5\nPARAMETER num_ctx 256\n\
                    PARAMETER num_predict 9\nPARAMETER stop END";
        let creation = parsed(&fields).unwrap();
        assert_eq!((creation.from.as_str(), creation.context), ("tiny", Some(256)));
        let expected =
            json!({"system_prompt": "You are Mario.", "temperature": 0.5, "max_tokens": 9, "stop": ["END"]});
        assert_eq!(Value::from(creation.defaults.clone()), expected);
        let former = parsed(&json!({"name": "mario", "modelfile": file})).unwrap();
        assert_eq!(Value::from(former.defaults), expected);
        assert_eq!((former.name, former.context), (creation.name, creation.context));
    }

    #[test]
    fn what_is_not_done_is_refused_and_names_its_field() {
        let go = "{{ if .System }}{{ .System }}{{ end }}";
        let refusals = [
            (json!({"from": "t", "files": {"a": "sha256:0"}}), "files"),
            (json!({"from": "t", "adapters": {"a": "sha256:0"}}), "adapters"),
            (json!({"from": "t", "quantize": "q4_0"}), "quantize"),
            (json!({"from": "t", "template": go}), "template"),
            (json!({"system": "s"}), "from"),
        ];
        for (mut body, field) in refusals {
            body["model"] = "m".into();
            assert_eq!(parsed(&body).unwrap_err().param.as_deref(), Some(field));
        }
        let empty = json!({"model": "m", "from": "t", "files": {}, "messages": [], "adapters": null});
        assert!(parsed(&empty).is_ok());
    }

    #[test]
    fn jinja_is_no_go() {
        assert!(is_go("{{- .Prompt }}") && is_go("a {{ range .Messages }}"));
        let jinja = "{% for m in messages %}{{ m.content if m else '' }}{{- '.' }}{% endfor %}";
        assert!(!is_go(jinja));
    }
}
