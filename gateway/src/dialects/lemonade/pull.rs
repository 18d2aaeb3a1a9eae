//! `POST pull` and `GET pull/variants` (seed 000; Lemonade's public documentation for variants).

use std::{convert::Infallible, sync::Arc};

use axum::{extract::State, response::Response};
use bytes::Bytes;
use futures::stream;
use http::StatusCode;
use http_body::Frame;
use http_body_util::StreamBody;
use muster_core::Error;
use muster_proto::v1::{FetchProgress, HubListing, PullModelRequest, pull_model_event::Kind};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    answers::{Done, Variant, Variants},
    error::FORM,
    load::{not_found, success},
    register,
    requests::{ModelName, PullBody},
};
use crate::{
    fleet::models::Pull,
    translate::{object, read::Fields as _},
    web::{
        App,
        access::Access,
        extract::Query,
        reply::{self, Refusal},
        route::Route,
        run::ClientRequest,
    },
};

/// Largest number of variants shown, as in Lemonade.
const SHOWN: usize = 5;

/// The contents of a pull's body.
#[derive(Debug, PartialEq)]
struct PullCall {
    request: PullModelRequest,
    stream: bool,
}

impl PullCall {
    fn parse(body: &[u8]) -> Result<Self, Error> {
        let PullBody {
            definition,
            model_name: ModelName(model),
            stream,
        } = PullBody::body(body)?;
        let definition = definition.map(|definition| register::define(model.clone(), definition));
        Ok(Self {
            request: PullModelRequest {
                model,
                definition: definition.transpose()?,
            },
            stream: stream.unwrap_or_default(),
        })
    }
}

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/v1/pull", Access::Admin, pull)
            .summary("Download a model, and register it first if it is a user's")
            .description("`model_name`; to register: `checkpoint` (`ORG/NAME:VARIANT`), `recipe`, and optionally `reasoning`, `vision`, `embedding`, `reranking`, \
                   `mmproj`, `labels`, `revision`. Of files that are here newer ones are fetched. With `stream` the answer is server-sent events `progress`, then `complete` or `error`. The download goes on without its caller.")
            .takes::<PullBody>()
            .answers::<Done>("All files are there; with `stream`, server-sent events.")
            .streams()
            .refuses("The request is wrong, or the hub has no such files.")
            .fails("The files cannot be downloaded."),
        Route::get("/v1/pull/variants", Access::Admin, variants)
            .summary("GGUF variants of a repository of the hub")
            .needs_query::<String>("checkpoint", "`ORG/NAME`.")
            .answers::<Variants>("The usual ones first, five at most.")
            .refuses("There is no such repository.")
            .fails("The hub cannot be asked."),
    ]
}

async fn pull(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    let PullCall { request, stream } = PullCall::parse(&request.body)?;
    let name = request.model.clone();
    let pull = app
        .dispatcher
        .fleet
        .models()
        .pull(request)
        .await
        .map_err(not_found)?;
    if stream {
        return Ok(events(pull));
    }
    pull.done().await?;
    Ok(success(&format!("Installed model: {name}")))
}

/// Streams a download as seed 000's events.
fn events(pull: Pull) -> Response {
    let frames = stream::unfold(Some((pull, FetchProgress::default())), |state| async {
        let (mut pull, mut last) = state?;
        let (text, next) = match pull.next().await {
            Ok(Kind::Progress(progress)) => {
                last.clone_from(&progress);
                (event("progress", &shown(&progress)), Some((pull, last)))
            }
            Ok(Kind::Done(_)) => {
                let files = last.total_files.max(last.file_index);
                let complete = json!({"file_index": files, "total_files": files, "percent": 100});
                (event("complete", &complete), None)
            }
            Err(error) => {
                // Seed 000 has only the message; the other fields are added beside it.
                let mut whole: Value = serde_json::from_slice(&FORM.body(&error)).unwrap_or_default();
                let details = whole["error"].take();
                let body = json!({"error": error.message, "details": details});
                (event("error", &body), None)
            }
        };
        Some((Ok::<_, Infallible>(Frame::data(text)), next))
    });
    reply::events(StreamBody::new(frames))
}

fn event(kind: &str, data: &Value) -> Bytes {
    format!("event: {kind}\ndata: {data}\n\n").into()
}

fn shown(progress: &FetchProgress) -> Value {
    let FetchProgress {
        file,
        file_index,
        total_files,
        bytes_downloaded,
        bytes_total,
        ..
    } = progress;
    let percent = match bytes_total {
        0 => 0,
        total => bytes_downloaded.saturating_mul(100) / total,
    };
    json!({
        "file": file,
        "file_index": file_index,
        "total_files": total_files,
        "bytes_downloaded": bytes_downloaded,
        "bytes_total": bytes_total,
        "percent": percent,
    })
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct VariantsQuery {
    /// Repository on the hub, `ORG/NAME`.
    #[serde(default)]
    checkpoint: String,
}

async fn variants(
    State(app): State<Arc<App>>,
    Query(query): Query<VariantsQuery>,
) -> Result<Response, Refusal> {
    if query.checkpoint.is_empty() {
        return Err(object::invalid("checkpoint", "is required").into());
    }
    let repo = query.checkpoint.split(':').next().unwrap_or_default();
    let listing = app.dispatcher.fleet.models().variants(repo).await?;
    Ok(reply::value(StatusCode::OK, &listed(query.checkpoint, listing)))
}

fn listed(checkpoint: String, listing: HubListing) -> Variants {
    let lower = listing.repo.to_ascii_lowercase();
    let mut labels = Vec::new();
    if !listing.mmproj_files.is_empty() {
        labels.push("vision");
    }
    if lower.contains("rerank") {
        labels.push("reranking");
    } else if lower.contains("embed") {
        labels.push("embeddings");
    }
    let variants = listing.variants.into_iter().take(SHOWN).map(|variant| Variant {
        name: variant.name,
        primary_file: variant.files.first().cloned(),
        sharded: variant.files.len() > 1,
        files: variant.files,
        size_bytes: variant.size_bytes,
    });
    Variants {
        checkpoint,
        recipe: "llamacpp",
        suggested_name: listing.repo.rsplit('/').next().unwrap_or_default().to_owned(),
        suggested_labels: labels,
        mmproj_files: listing.mmproj_files,
        variants: variants.collect(),
    }
}

#[cfg(test)]
mod tests {
    use muster_core::Code;
    use muster_proto::v1::{HubVariant, ModelDefinition};

    use super::*;

    fn parse(body: &Value) -> Result<PullCall, Error> {
        PullCall::parse(body.to_string().as_bytes())
    }

    #[test]
    fn seed_000_example_pulls() {
        let known = parse(&json!({"model_name": "Qwen2.5-0.5B-Instruct-CPU"})).unwrap();
        assert_eq!(known.request.model, "Qwen2.5-0.5B-Instruct-CPU");
        assert!(known.request.definition.is_none() && !known.stream);
        let new = parse(&json!({
            "model_name": "user.Phi-4-Mini-GGUF",
            "checkpoint": "unsloth/Phi-4-mini-instruct-GGUF:Q4_K_M",
            "recipe": "llamacpp",
            "stream": true
        }));
        let new = new.unwrap();
        assert!(new.stream);
        let definition = ModelDefinition {
            model: "user.Phi-4-Mini-GGUF".into(),
            checkpoint: "unsloth/Phi-4-mini-instruct-GGUF:Q4_K_M".into(),
            recipe: "llamacpp".into(),
            ..ModelDefinition::default()
        };
        assert_eq!(new.request.definition, Some(definition));
    }

    #[test]
    fn a_pull_without_a_name_or_with_wrong_types_is_refused() {
        for (body, param) in [
            (json!({}), "model_name"),
            (json!({"model_name": ""}), "model_name"),
            (json!({"model_name": "m", "stream": "yes"}), "stream"),
            (json!({"model_name": "m", "checkpoint": 3}), "checkpoint"),
        ] {
            let error = parse(&body).unwrap_err();
            assert_eq!(
                (error.code, error.param.as_deref().unwrap_or_default()),
                (Code::InvalidRequest, param),
                "{body}"
            );
        }
    }

    #[test]
    fn seed_000_progress_has_the_seeds_fields() {
        let progress = FetchProgress {
            file: "model.gguf".into(),
            file_index: 1,
            total_files: 2,
            bytes_downloaded: 1_073_741_824,
            bytes_total: 2_684_354_560,
            ..FetchProgress::default()
        };
        let text = String::from_utf8(event("progress", &shown(&progress)).to_vec()).unwrap();
        let (head, data) = text.trim_end().split_once('\n').unwrap();
        assert_eq!(head, "event: progress");
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(
            data,
            json!({"file":"model.gguf","file_index":1,"total_files":2,"bytes_downloaded":1_073_741_824_u64,"bytes_total":2_684_354_560_u64,"percent":40})
        );
    }

    #[test]
    fn variants_have_lemonades_fields() {
        let listing = HubListing {
            repo: "org/Bge-Reranker-GGUF".into(),
            mmproj_files: vec!["mmproj.gguf".into()],
            variants: (0..7)
                .map(|n| HubVariant {
                    name: format!("Q{n}_0"),
                    files: vec![format!("{n}-1.gguf"), format!("{n}-2.gguf")],
                    size_bytes: 7,
                })
                .collect(),
        };
        let shown = serde_json::to_value(listed("org/Bge-Reranker-GGUF".into(), listing)).unwrap();
        assert_eq!(shown["suggested_name"], "Bge-Reranker-GGUF");
        assert_eq!(shown["suggested_labels"], json!(["vision", "reranking"]));
        assert_eq!(shown["variants"].as_array().unwrap().len(), SHOWN);
        assert_eq!(
            shown["variants"][0],
            json!({"name": "Q0_0", "primary_file": "0-1.gguf", "files": ["0-1.gguf", "0-2.gguf"], "sharded": true, "size_bytes": 7})
        );
    }
}
