//! `POST models/register`: registers a user's model without downloading its files (Lemonade's public documentation). Also reads the
//! definition in a `pull` (seed 000).

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_core::Error;
use muster_proto::v1::ModelDefinition;

use super::{
    answers::{Registered, RegisteredModel, SUCCESS},
    requests::{Definition, ModelName, RegisterBody},
};
use crate::{
    translate::read::Fields as _,
    web::{
        App,
        access::Access,
        reply::{self, Refusal},
        route::Route,
        run::ClientRequest,
    },
};

/// The definition of `model`.
///
/// # Errors
/// `invalid_request`: the checkpoint is of no known kind, or two checkpoints disagree.
pub(super) fn define(model: String, definition: Definition<'_>) -> Result<ModelDefinition, Error> {
    let mut checkpoint = definition.checkpoint.unwrap_or_default();
    let mut mmproj = definition.mmproj.unwrap_or_default();
    if let Some(parts) = definition.checkpoints {
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
    let flags = [
        (definition.reasoning, "reasoning"),
        (definition.vision, "vision"),
        (definition.embedding, "embeddings"),
        (definition.reranking, "reranking"),
    ];
    let flags = flags.into_iter().filter(|(on, _)| *on == Some(true));
    let mut labels = definition.labels.unwrap_or_default().0;
    labels.extend(flags.map(|(_, label)| label.to_owned()));
    // `embedding` and `embeddings` are the same label (gateway/README.md, Lemonade).
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
        recipe: definition.recipe.unwrap_or_default(),
        mmproj,
        labels,
        revision: definition.revision.unwrap_or_default(),
        ..ModelDefinition::default()
    })
}

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
    let RegisterBody {
        definition,
        model_name: ModelName(name),
    } = RegisterBody::body(&request.body)?;
    let definition = define(name, definition)?;
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
    use muster_core::Code;
    use serde_json::{Value, json};

    use super::*;

    fn read(body: &Value) -> Result<ModelDefinition, Error> {
        let text = body.to_string();
        define("user.m".to_owned(), Definition::body(text.as_bytes())?)
    }

    #[test]
    fn seed_000_flags_are_labels() {
        let read = read(&json!({
            "checkpoint": "o/n:Q4_0", "recipe": "llamacpp", "mmproj": "mmproj.gguf", "revision": "v1",
            "reasoning": true, "vision": true, "embedding": true, "reranking": false,
            "labels": ["embedding", "coding", "vision"]
        }));
        let read = read.unwrap();
        assert_eq!(read.labels, ["embeddings", "coding", "vision", "reasoning"]);
        assert_eq!(
            (read.mmproj.as_str(), read.recipe.as_str(), read.revision.as_str()),
            ("mmproj.gguf", "llamacpp", "v1")
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
            assert_eq!(read(&body).unwrap_err().code, Code::InvalidRequest, "{body}");
        }
    }
}
