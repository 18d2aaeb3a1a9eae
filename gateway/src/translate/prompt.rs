//! Reads plain input: text, tokens, or both.

use muster_core::{Code, Error};
use muster_proto::v1::{Prompt, PromptPiece, TokenIds, prompt_piece};
use utoipa::openapi::{RefOr, Schema};

use super::{
    object::{Field, Kind},
    read::Read,
};

/// Reads a string, a list of strings, tokens, lists of tokens, or a mixture (seed 004, `prompt`); at most `most` prompts.
pub(crate) fn prompts(field: &Field<'_>, most: usize) -> Result<Vec<Prompt>, Error> {
    if field.kind() != Kind::Array {
        return Ok(vec![one(std::slice::from_ref(field))?]);
    }
    let list = field.list()?;
    if list.is_empty() {
        return Err(field.wrong("must not be empty"));
    }
    let has = |kind| list.iter().any(|item| item.kind() == kind);
    if has(Kind::Number) && !has(Kind::Array) {
        return Ok(vec![one(&list)?]);
    }
    if list.len() > most {
        return Err(field.wrong(format_args!("must not hold more than {most} inputs")));
    }
    let prompt = |item: &Field<'_>| match item.kind() {
        Kind::Array => one(&item.list()?),
        Kind::Null | Kind::Bool | Kind::Number | Kind::String | Kind::Object => {
            one(std::slice::from_ref(item))
        }
    };
    list.iter().map(prompt).collect()
}

/// Reads one prompt of text and tokens.
pub(crate) fn one(items: &[Field<'_>]) -> Result<Prompt, Error> {
    let mut pieces: Vec<PromptPiece> = Vec::new();
    for item in items {
        match item.kind() {
            Kind::String => pieces.push(PromptPiece {
                kind: Some(prompt_piece::Kind::Text(item.string()?)),
            }),
            Kind::Number => {
                let token = item.i32(0, i32::MAX)?;
                match pieces.last_mut().and_then(|piece| piece.kind.as_mut()) {
                    Some(prompt_piece::Kind::Tokens(tokens)) => tokens.ids.push(token),
                    Some(prompt_piece::Kind::Text(_)) | None => pieces.push(PromptPiece {
                        kind: Some(prompt_piece::Kind::Tokens(TokenIds { ids: vec![token] })),
                    }),
                }
            }
            Kind::Object => pieces.push(PromptPiece {
                kind: Some(prompt_piece::Kind::Text(prompt_string(item)?)),
            }),
            Kind::Null | Kind::Bool | Kind::Array => {
                return Err(item.want("a string, an array of strings, or token ids"));
            }
        }
    }
    Ok(Prompt {
        pieces,
        add_special: None,
    })
}

/// Images of a plain prompt (seed 004, `image_data`), which no engine of today takes there: never dropped in silence.
#[derive(Debug)]
pub(crate) struct Images;

impl Read<'_> for Images {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        if field.list()?.is_empty() {
            return Ok(Self);
        }
        let error = Code::UnsupportedByRuntime
            .error("no runtime here takes images in a plain prompt; a chat's content parts may hold them");
        Err(error.with_param(field.path()))
    }

    fn schema() -> RefOr<Schema> {
        Vec::<Field<'_>>::schema()
    }
}

/// The text of a prompt in object form (seed 004, `prompt_string`), which may name no media: nothing is dropped in silence.
fn prompt_string(item: &Field<'_>) -> Result<String, Error> {
    let mut object = item.object()?;
    if let Some(media) = object.take("multimodal_data") {
        Images::read(&media)?;
    }
    object.need("prompt_string")?.string()
}

/// The text of a prompt that is only text.
pub(crate) fn text(prompt: &Prompt) -> Option<&str> {
    match prompt.pieces.as_slice() {
        [
            PromptPiece {
                kind: Some(prompt_piece::Kind::Text(text)),
            },
        ] => Some(text),
        _ => None,
    }
}
