//! Tokens, templates and vectors in llama.cpp's own form (seed 004). Tokens and templates are answered by a loaded instance and load nothing;
//! vectors load their model (gateway/README.md, Autoload).

use std::sync::Arc;

use axum::{extract::State, response::Response};
use bytes::Bytes;
use http::StatusCode;
use muster_core::Code;
use muster_proto::v1::{
    ApplyTemplateCall, DetokenizeCall, EmbedRequest, TokenizeCall, TokenizeResult, start::Work,
};
use serde::Serialize;
use utoipa::ToSchema;

use super::requests::{DetokenizeBody, EmbeddingBody, TokenizeBody};
use crate::{
    dialects::openai::{self, render::rerank as scores},
    translate::{
        Asked,
        prompt::prompts,
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
            .takes::<openai::requests::ChatPrompt<'_>>()
            .answers::<TemplatePrompt>("`prompt`.")
            .refuses("The request is wrong, or the model is not loaded."),
        Route::post("/embedding", Access::User, embedding)
            .also("/embeddings")
            .summary("Compute vectors, each input's a list of vectors")
            .takes::<EmbeddingBody<'_>>()
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
    let model = app
        .dispatcher
        .fleet
        .table()
        .meant(query.or(body.model).as_deref())?;
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
    let model = app
        .dispatcher
        .fleet
        .table()
        .meant(query.or(body.model).as_deref())?;
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
    let prompt = openai::requests::ChatPrompt::body(&request.body)?;
    let (asked, chat) = openai::translate::chat_prompt(prompt)?;
    let model = app
        .dispatcher
        .fleet
        .table()
        .meant(query.or(asked.model).as_deref())?;
    let mut loaded = app.dispatcher.loaded(&model)?;
    let template = ApplyTemplateCall {
        instance: loaded.instance.clone(),
        model,
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
    let EmbeddingBody {
        model,
        content,
        embd_normalize,
        image_data,
    } = EmbeddingBody::body(&request.body)?;
    let mut inputs = prompts(&content, openai::translate::MAX_INPUTS)?;
    image_data.unwrap_or_default().place(&mut inputs)?;
    let work = EmbedRequest {
        inputs,
        normalize: embd_normalize.map(|Int(norm)| norm),
        dimensions: 0,
    };
    let asked = Asked {
        model: query.or(model),
        ..Asked::default()
    };
    let answers = request
        .dispatch(&app, app.common(asked)?, Work::Embed(work), 1)
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
    let mut call = openai::translate::rerank(&request.body)?;
    call.asked.model = query.or(call.asked.model.take());
    let (common, work) = (app.common(call.asked.clone())?, Work::Rerank(call.work.clone()));
    let model = common.model.clone();
    let answer = run::gather(request.dispatch(&app, common, work, 1).await?).await?;
    Ok(reply::ok(scores::body(&model, &call, &answer)))
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
