//! `POST models/register`: a user's model without its files (Lemonade's public documentation); and the definition in a `pull` (seed 000).

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_proto::v1::{ErrorInfo, ModelDefinition};

use super::{
    answers::{Registered, RegisteredModel, SUCCESS},
    load::model_name,
    requests::RegisterBody,
};
use crate::{
    translate::object::{self, Object},
    web::{
        App,
        access::Access,
        reply::{self, Refusal},
        route::Route,
        run::ClientRequest,
    },
};

/// Flags that stand for labels (seed 000, `pull`).
const FLAGS: [(&str, &str); 4] = [
    ("reasoning", "reasoning"),
    ("vision", "vision"),
    ("embedding", "embeddings"),
    ("reranking", "reranking"),
];

/// Reads a definition of `model`.
///
/// # Errors
/// `invalid_request`: a field of another type, or two checkpoints that disagree.
pub(super) fn definition(model: String, body: &mut Object<'_>) -> Result<ModelDefinition, ErrorInfo> {
    let mut string = |key: &str| -> Result<String, ErrorInfo> {
        let value = body.take(key).map(|value| value.string()).transpose()?;
        Ok(value.unwrap_or_default())
    };
    let (mut checkpoint, recipe, mut mmproj) = (string("checkpoint")?, string("recipe")?, string("mmproj")?);
    if let Some(parts) = body.take("checkpoints") {
        for (role, value) in parts.entries()? {
            let part = match role.as_str() {
                "main" => &mut checkpoint,
                "mmproj" => &mut mmproj,
                _ => return Err(value.wrong("is a checkpoint of no known kind: want main or mmproj")),
            };
            if !part.is_empty() {
                return Err(value.wrong("is given twice"));
            }
            *part = value.string()?;
        }
    }
    let mut labels = match body.take("labels") {
        Some(labels) => labels.strings()?,
        None => Vec::new(),
    };
    for (flag, label) in FLAGS {
        let on = body.take(flag).map(|flag| flag.bool()).transpose()?;
        if on == Some(true) {
            labels.push(label.to_owned());
        }
    }
    // `embedding` and `embeddings` are one label (gateway/README.md, Lemonade).
    for label in &mut labels {
        if label == "embedding" {
            "embeddings".clone_into(label);
        }
    }
    let mut seen = std::collections::HashSet::new();
    labels.retain(|label| seen.insert(label.clone()));
    Ok(ModelDefinition {
        model,
        checkpoint,
        recipe,
        mmproj,
        labels,
    })
}

/// The routes.
pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/v1/models/register", Access::Admin, register)
            .summary("Register a user's model, or change it; nothing is downloaded")
            .takes::<RegisterBody>()
            .answers::<Registered>("It is registered.")
            .refuses("The definition is wrong.")
            .fails("It could not be done."),
    ]
}

async fn register(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    let mut body = Object::body(object::text(&request.body)?)?;
    let name = model_name(&mut body)?.ok_or_else(|| object::invalid("model_name", "is required"))?;
    let definition = definition(name, &mut body)?;
    let model = app.dispatcher.fleet.models().register(definition).await?;
    let shown = Registered {
        status: SUCCESS,
        model_name: model.id.clone(),
        canonical_model_name: model.id.clone(),
        model: RegisteredModel {
            id: model.id,
            recipe: model.recipe,
            checkpoint: model.checkpoint,
            downloaded: model.downloaded,
        },
    };
    Ok(reply::value(StatusCode::OK, &shown))
}

#[cfg(test)]
mod tests {
    use muster_proto::{Code, ErrorExt as _};
    use serde_json::{Value, json};

    use super::*;

    fn read(body: &Value) -> Result<ModelDefinition, ErrorInfo> {
        let text = body.to_string();
        definition("user.m".to_owned(), &mut Object::body(&text)?)
    }

    #[test]
    fn seed_000_flags_are_labels() {
        let read = read(&json!({
            "checkpoint": "o/n:Q4_0", "recipe": "llamacpp", "mmproj": "mmproj.gguf",
            "reasoning": true, "vision": true, "embedding": true, "reranking": false,
            "labels": ["embedding", "coding", "vision"]
        }));
        let read = read.unwrap();
        assert_eq!(read.labels, ["embeddings", "coding", "vision", "reasoning"]);
        assert_eq!(
            (read.mmproj.as_str(), read.recipe.as_str()),
            ("mmproj.gguf", "llamacpp")
        );
    }

    #[test]
    fn named_checkpoints_say_the_same() {
        let named = read(&json!({
            "checkpoints": {"main": "o/n:Q4_0", "mmproj": "o/n:mmproj.gguf"}, "recipe": "llamacpp"
        }));
        let named = named.unwrap();
        assert_eq!(
            (named.checkpoint.as_str(), named.mmproj.as_str()),
            ("o/n:Q4_0", "o/n:mmproj.gguf")
        );
        for body in [
            json!({"checkpoint": "o/n", "checkpoints": {"main": "o/n"}}),
            json!({"checkpoints": {"vae": "o/n"}}),
            json!({"checkpoints": "o/n"}),
            json!({"vision": "yes"}),
            json!({"labels": 3}),
        ] {
            assert_eq!(read(&body).unwrap_err().kind(), Code::InvalidRequest, "{body}");
        }
    }
}
