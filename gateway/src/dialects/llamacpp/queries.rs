//! Tokens, templates and vectors in llama.cpp's own form (seed 004). Tokens and templates are answered by a loaded instance and load nothing;
//! vectors load their model (gateway/README.md, Autoload).

use std::sync::Arc;

use axum::{extract::State, response::Response};
use bytes::Bytes;
use http::StatusCode;
use muster_core::{Code, Error};
use muster_proto::v1::{
    ApplyTemplateCall, DetokenizeCall, TokenizeCall, TokenizeResult, generate_request::Input, start::Work,
};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    requests::{DetokenizeBody, TokenizeBody},
    schema,
    translate::refuse_images,
};
use crate::{
    dialects::openai::{self, render::rerank as scores},
    translate::{
        object::{self, Object},
        read::{Fields as _, Int},
    },
    web::{
        App,
        access::Access,
        engine::ModelQuery,
        extract::Query,
        reply::{self, Refusal},
        route::Route,
        run::{self, ClientRequest},
    },
};

/// The body with the model in it, for readers that want one there.
fn with_model(query: ModelQuery, app: &App, body: &[u8]) -> Result<Vec<u8>, Error> {
    let mut fields = Object::body(object::text(body)?)?;
    let model = query.model(&app.dispatcher.fleet.table(), Some(&mut fields))?;
    let rest = fields.rest();
    let rest = rest.strip_prefix('{').unwrap_or("}");
    let comma = if rest == "}" { "" } else { "," };
    Ok(format!("{{\"model\":{}{comma}{rest}", object::quoted(&model)).into_bytes())
}

/// The routes.
pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/tokenize", Access::User, tokenize)
            .summary("Turn text into tokens, on a model that is loaded")
            .takes::<TokenizeBody>()
            .answers::<Tokens>("`tokens`.")
            .refuses("The request is wrong, or the model is not loaded."),
        Route::post("/detokenize", Access::User, detokenize)
            .summary("Turn tokens into text, on a model that is loaded")
            .takes::<DetokenizeBody>()
            .answers::<Content>("`content`.")
            .refuses("The request is wrong, or the model is not loaded."),
        Route::post("/apply-template", Access::User, apply_template)
            .summary("Show the prompt that a conversation makes, on a model that is loaded")
            .takes::<schema::TemplateRequest>()
            .answers::<TemplatePrompt>("`prompt`.")
            .refuses("The request is wrong, or the model is not loaded."),
        Route::post("/embedding", Access::User, embedding)
            .also("/embeddings")
            .summary("Compute vectors, each input's a list of vectors")
            .takes::<schema::LlamaCppEmbeddingRequest>()
            .answers_list::<Vectors>("A list of `index` and `embedding`.")
            .inference_errors(),
        Route::post("/reranking", Access::User, rerank)
            .also("/rerank")
            .summary("Score documents against a query")
            .takes::<openai::requests::RerankBody<'_>>()
            .answers::<openai::schema::answers::RerankList>("Scores.")
            .inference_errors(),
    ]
}

pub(super) async fn tokenize(
    State(app): State<Arc<App>>,
    Query(query): Query<ModelQuery>,
    request: ClientRequest,
) -> Result<Response, Refusal> {
    let body = TokenizeBody::body(&request.body)?;
    let model = query.named(&app.dispatcher.fleet.table(), body.model)?;
    let mut loaded = app.dispatcher.loaded(&model)?;
    let call = TokenizeCall {
        instance: loaded.instance.clone(),
        model,
        content: Some(body.content.0),
        add_special: body.add_special.unwrap_or(false),
        parse_special: body.parse_special.unwrap_or(true),
    };
    let result = loaded.tokenize(call).await?;
    Ok(reply::value(
        StatusCode::OK,
        &Tokens::of(&result, body.with_pieces.unwrap_or(false)),
    ))
}

/// Tokens.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Tokens<'a> {
    /// In the order of the text.
    tokens: Vec<LlamaCppToken<'a>>,
}

/// A token: its id, or with `with_pieces` an object.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
enum LlamaCppToken<'a> {
    Id(i32),
    Piece {
        /// In the vocabulary.
        id: i32,
        /// What it stands for.
        piece: LlamaCppPiece<'a>,
    },
}

/// What a token stands for: text, or bytes where it is a part of a character.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
enum LlamaCppPiece<'a> {
    Text(&'a str),
    Bytes(Vec<u8>),
}

impl<'a> Tokens<'a> {
    fn of(result: &'a TokenizeResult, with_pieces: bool) -> Self {
        let ids = result.tokens.iter();
        let piece = |(id, bytes): (&i32, &'a Bytes)| LlamaCppToken::Piece {
            id: *id,
            piece: std::str::from_utf8(bytes)
                .map_or_else(|_| LlamaCppPiece::Bytes(bytes.to_vec()), LlamaCppPiece::Text),
        };
        let tokens = if with_pieces {
            ids.zip(&result.pieces).map(piece).collect()
        } else {
            ids.copied().map(LlamaCppToken::Id).collect()
        };
        Self { tokens }
    }
}

/// Text.
#[derive(Debug, Serialize, ToSchema)]
struct Content {
    /// The text.
    content: String,
}

/// The prompt of a conversation.
#[derive(Debug, Serialize, ToSchema)]
struct TemplatePrompt {
    /// The prompt.
    prompt: String,
}

async fn detokenize(
    State(app): State<Arc<App>>,
    Query(query): Query<ModelQuery>,
    request: ClientRequest,
) -> Result<Response, Refusal> {
    let body = DetokenizeBody::body(&request.body)?;
    let model = query.named(&app.dispatcher.fleet.table(), body.model)?;
    let mut loaded = app.dispatcher.loaded(&model)?;
    let call = DetokenizeCall {
        instance: loaded.instance.clone(),
        model,
        tokens: body.tokens.into_iter().map(|Int(token)| token).collect(),
    };
    let result = loaded.detokenize(call).await?;
    Ok(reply::value(StatusCode::OK, &Content { content: result.text }))
}

async fn apply_template(
    State(app): State<Arc<App>>,
    Query(query): Query<ModelQuery>,
    request: ClientRequest,
) -> Result<Response, Refusal> {
    let call = openai::translate::chat(&with_model(query, &app, &request.body)?)?;
    let Some(Input::Chat(chat)) = call.work.input else {
        return Err(Code::Internal.error("a chat without messages").into());
    };
    let mut loaded = app.dispatcher.loaded(&call.common.model)?;
    let template = ApplyTemplateCall {
        instance: loaded.instance.clone(),
        model: call.common.model,
        chat: Some(chat),
    };
    let result = loaded.apply_template(template).await?;
    Ok(reply::value(
        StatusCode::OK,
        &TemplatePrompt {
            prompt: result.prompt,
        },
    ))
}

async fn embedding(
    State(app): State<Arc<App>>,
    Query(query): Query<ModelQuery>,
    request: ClientRequest,
) -> Result<Response, Refusal> {
    refuse_images(&mut Object::body(object::text(&request.body)?)?)?;
    let call = openai::translate::embeddings(&with_model(query, &app, &request.body)?)?;
    let answers = request
        .dispatch(&app, call.common, Work::Embed(call.work), 1)
        .await?;
    let answer = run::gather(answers).await?;
    let embedded = answer
        .embedded
        .ok_or_else(|| Code::RuntimeError.error("the engine sent no vectors"))?;
    let list = (0..).zip(&embedded.embeddings).map(|(index, one)| Vectors {
        index,
        embedding: one
            .vectors
            .iter()
            .map(|vector| vector.values.as_slice())
            .collect(),
    });
    Ok(reply::value(StatusCode::OK, &list.collect::<Vec<_>>()))
}

// From `f32`s: on the way through `Value` their digits would become those of an `f64`.
/// The vectors of one input.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LlamaCppEmbedding)]
struct Vectors<'a> {
    /// Which input, from 0.
    index: u32,
    /// One vector; of a model that does not pool, one for each token.
    embedding: Vec<&'a [f32]>,
}

async fn rerank(
    State(app): State<Arc<App>>,
    Query(query): Query<ModelQuery>,
    request: ClientRequest,
) -> Result<Response, Refusal> {
    let call = openai::translate::rerank(&with_model(query, &app, &request.body)?)?;
    let (common, work) = (call.common.clone(), Work::Rerank(call.work.clone()));
    let answer = run::gather(request.dispatch(&app, common, work, 1).await?).await?;
    Ok(reply::ok(scores::body(&call, &answer)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn vectors_have_the_digits_of_their_floats() {
        let vectors = Vectors {
            index: 0,
            embedding: vec![&[0.595_319_15, -1.0]],
        };
        assert_eq!(
            serde_json::to_string(&vectors).unwrap(),
            r#"{"index":0,"embedding":[[0.59531915,-1.0]]}"#
        );
    }

    #[test]
    fn seed_004_pieces_are_text_or_bytes() {
        let result = TokenizeResult {
            tokens: vec![123, 198, 164],
            pieces: vec!["Hello".into(), vec![0xC3].into(), vec![0xA1].into()],
        };
        let shown = |with_pieces| serde_json::to_value(Tokens::of(&result, with_pieces)).unwrap();
        assert_eq!(shown(false), json!({"tokens": [123, 198, 164]}));
        assert_eq!(
            shown(true),
            json!({"tokens": [{"id": 123, "piece": "Hello"}, {"id": 198, "piece": [195]}, {"id": 164, "piece": [161]}]})
        );
    }
}
