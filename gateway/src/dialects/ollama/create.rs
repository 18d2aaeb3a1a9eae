//! `POST /api/create`: a model made from another one or from uploaded files, with parameters, a system prompt or a chat template of its own.
//!
//! Its files are never a path: only the configuration names files of a machine (proto/README.md, Trust).

use std::{collections::BTreeMap, convert::Infallible, sync::Arc};

use axum::{extract::State, response::Response};
use futures::stream;
use http::StatusCode;
use http_body::Frame;
use http_body_util::StreamBody;
use muster_core::{
    Code, Error,
    name::{LATEST, USER},
};
use muster_proto::{hub::Sum, parameters::SAMPLING, v1::ModelDefinition};
use serde_json::{Map, Value};

use super::{
    blobs,
    manage::{OllamaStatus, RECIPE, known, line},
    modelfile,
    requests::{CreateBody, Options},
    wants::Wants,
};
use crate::{
    translate::{
        object::{Field, Kind},
        output::Stop,
        read::{Fields as _, Int},
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
            .fails("501: adapters, messages and quantisation."),
    ]
}

/// A model to make.
#[derive(Debug, PartialEq)]
struct Creation {
    /// The new model, as the client calls it.
    name: String,
    from: Source,
    /// What its requests get where they say nothing themselves.
    defaults: Map<String, Value>,
    template: String,
    /// What its loads have.
    wants: Wants,
    stream: bool,
}

/// What a model is made from.
#[derive(Debug, PartialEq)]
enum Source {
    /// Another one, as the client calls it.
    Model(String),
    /// Files that were uploaded.
    Files { model: Sum, mmproj: Option<Sum> },
}

impl Source {
    fn read(from: Option<String>, files: Option<&Field<'_>>) -> Result<Self, Error> {
        let files = files.map(uploads).transpose()?.unwrap_or_default();
        let (projectors, models): (Vec<_>, Vec<_>) = files
            .into_iter()
            .partition(|(name, _)| name.to_ascii_lowercase().contains("mmproj"));
        let from = from.filter(|from| !from.is_empty());
        let digest = from.as_deref().and_then(|from| from.strip_prefix('@'));
        let digest = digest.map(|digest| blobs::sum(digest, "from")).transpose()?;
        let mut models = models.into_iter().map(|(_, sum)| sum).chain(digest.clone());
        let mut projectors = projectors.into_iter().map(|(_, sum)| sum);
        match (
            from.filter(|_| digest.is_none()),
            models.next(),
            projectors.next(),
        ) {
            (Some(from), None, None) => Ok(Self::Model(from)),
            (None, Some(model), mmproj) if models.next().is_none() && projectors.next().is_none() => {
                Ok(Self::Files { model, mmproj })
            }
            (None, None, None) => Err(wrong(
                "from",
                "`from` is required: the name of a model; or `files`",
            )),
            (Some(_) | None, _, _) => {
                let message = "a model is made from another one, or from one GGUF and one more whose name says `mmproj`";
                Err(wrong("files", message))
            }
        }
    }
}

/// Uploaded files by their names.
fn uploads(files: &Field<'_>) -> Result<Vec<(String, Sum)>, Error> {
    if !given(Some(files)) {
        return Ok(Vec::new());
    }
    let files: BTreeMap<String, String> = serde_json::from_str(&files.json())
        .map_err(|_| wrong("files", "`files` must be an object: digests by the files' names"))?;
    let read = |(name, digest): (String, String)| Ok((name, blobs::sum(&digest, "files")?));
    files.into_iter().map(read).collect()
}

fn wrong(field: &str, message: &str) -> Error {
    Code::InvalidRequest.error(message).with_param(field)
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
        let not_done = [
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
        let from = Source::read(request.from, request.files.as_ref())?;
        let mut defaults = Map::new();
        let system = request.system.filter(|system| !system.is_empty());
        defaults.extend(system.map(|system| ("system_prompt".to_owned(), system.into())));
        let wants = request
            .parameters
            .map_or_else(Wants::default, |options| read(options, &mut defaults));
        Ok(Self {
            name: request.model.0,
            from,
            defaults,
            template,
            wants,
            stream: request.stream.unwrap_or(true),
        })
    }
}

/// Reads parameters into a model's defaults; what its loads have.
fn read(options: Options, defaults: &mut Map<String, Value>) -> Wants {
    let Options {
        sampling,
        load,
        num_predict,
        stop,
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
    Wants::of(&load)
}

/// Options that are saved for the loads of a model; none if there are none.
fn saved(wants: &Wants) -> Option<String> {
    let mut options = Map::new();
    options.extend(wants.context.map(|tokens| ("ctx_size".to_owned(), tokens.into())));
    let none = Vec::new();
    let words = wants
        .exactly
        .iter()
        .fold(none, |words, setting| setting.put(&words));
    if !words.is_empty() {
        options.insert("llamacpp_args".to_owned(), shell_words::join(words).into());
    }
    (!options.is_empty()).then(|| Value::Object(options).to_string())
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
        wants,
        stream: _,
    } = creation;
    let bare = name.strip_suffix(LATEST).unwrap_or(&name);
    let model = format!("{USER}{}", bare.strip_prefix(USER).unwrap_or(bare));
    if let Some(other) = known(app, &name).filter(|known| *known != model) {
        let error = format!("`{name}` is another model's name: {other}");
        return Err(Code::InvalidRequest.error(error).with_param("model"));
    }
    let brought = matches!(from, Source::Files { .. });
    let source = match from {
        Source::Model(from) => made_from(app, &from)?,
        Source::Files { model, mmproj } => uploaded(app, &model, mmproj.as_ref()).await?,
    };
    let models = || app.dispatcher.fleet.models();
    let definition = ModelDefinition {
        model: model.clone(),
        defaults_json: Value::Object(defaults).to_string(),
        chat_template: template,
        ..source
    };
    models().register(definition).await?;
    if let Some(options) = saved(&wants) {
        models().set_options(&model, options).await?;
    }
    if brought {
        // Its header says what the model is for: until it is read, one of vectors passes for one that chats.
        app.dispatcher.fleet.shows_file(&model).await;
    }
    Ok(())
}

fn made_from(app: &App, from: &str) -> Result<ModelDefinition, Error> {
    let base = known(app, from).ok_or_else(|| {
        let error = format!("there is no model `{from}` to make it from: pull it first; paths are not read");
        Code::UnknownModel.error(error).with_param("from")
    })?;
    Ok(ModelDefinition {
        base,
        ..ModelDefinition::default()
    })
}

async fn uploaded(app: &App, model: &Sum, mmproj: Option<&Sum>) -> Result<ModelDefinition, Error> {
    for sum in [Some(model), mmproj].into_iter().flatten() {
        if !app.dispatcher.uploaded(sum).await? {
            let message = format!("the file sha256:{} has not been uploaded", sum.hex());
            return Err(wrong("files", &message));
        }
    }
    let labels = mmproj.map(|_| "vision".to_owned());
    Ok(ModelDefinition {
        checkpoint: model.checkpoint().to_string(),
        recipe: RECIPE.to_owned(),
        mmproj: mmproj.map(Sum::file).unwrap_or_default(),
        labels: labels.into_iter().collect(),
        ..ModelDefinition::default()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const FIRST: &str = "0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a";
    const SECOND: &str = "0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b";

    fn parsed(body: &Value) -> Result<Creation, Error> {
        Creation::parse(body.to_string().as_bytes())
    }

    #[test]
    fn a_body_and_its_modelfile_say_the_same() {
        let fields = json!({
            "model": "mario",
            "from": "tiny",
            "system": "You are Mario.",
            "parameters": {"temperature": 0.5, "num_ctx": 256, "num_thread": 2, "num_predict": 9, "stop": ["END"]},
        });
        let file = "FROM tiny\nSYSTEM You are Mario.\nPARAMETER temperature 0.5\nPARAMETER num_ctx 256\nPARAMETER num_thread 2\n\
                    PARAMETER num_predict 9\nPARAMETER stop END";
        let creation = parsed(&fields).unwrap();
        assert_eq!(
            (&creation.from, saved(&creation.wants)),
            (
                &Source::Model("tiny".to_owned()),
                Some(r#"{"ctx_size":256,"llamacpp_args":"-t 2"}"#.to_owned())
            )
        );
        let expected =
            json!({"system_prompt": "You are Mario.", "temperature": 0.5, "max_tokens": 9, "stop": ["END"]});
        assert_eq!(Value::from(creation.defaults.clone()), expected);
        let former = parsed(&json!({"name": "mario", "modelfile": file})).unwrap();
        assert_eq!(Value::from(former.defaults), expected);
        assert_eq!((former.name, former.wants), (creation.name, creation.wants));
    }

    #[test]
    fn what_is_not_done_is_refused_and_names_its_field() {
        let go = "{{ if .System }}{{ .System }}{{ end }}";
        let refusals = [
            (
                json!({"from": "t", "files": {"a": format!("sha256:{FIRST}")}}),
                "files",
            ),
            (json!({"files": {"a": "sha256:0"}}), "files"),
            (json!({"files": {"a": FIRST, "b": SECOND}}), "files"),
            (json!({"files": {"mmproj": FIRST}}), "files"),
            (json!({"files": ["a"]}), "files"),
            (json!({"from": "@/etc/passwd"}), "from"),
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
    fn uploaded_files_are_a_model_and_at_most_one_projector() {
        let of = |body: Value| {
            let mut whole = json!({"model": "m"});
            whole
                .as_object_mut()
                .unwrap()
                .extend(body.as_object().unwrap().clone());
            parsed(&whole).unwrap().from
        };
        let files = |mmproj: Option<&str>| Source::Files {
            model: FIRST.parse().unwrap(),
            mmproj: mmproj.map(|mmproj| mmproj.parse().unwrap()),
        };
        let digest = format!("sha256:{FIRST}");
        assert_eq!(of(json!({"files": {"m.gguf": digest}})), files(None));
        assert_eq!(
            of(json!({"files": {"m.gguf": digest, "mmproj-m.gguf": SECOND}})),
            files(Some(SECOND))
        );
        assert_eq!(of(json!({"modelfile": format!("FROM @{digest}")})), files(None));
    }

    #[test]
    fn jinja_is_no_go() {
        assert!(is_go("{{- .Prompt }}") && is_go("a {{ range .Messages }}"));
        let jinja = "{% for m in messages %}{{ m.content if m else '' }}{{- '.' }}{% endfor %}";
        assert!(!is_go(jinja));
    }
}
