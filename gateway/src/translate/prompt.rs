//! Reads plain input: text, tokens, or both; or text with images ([`prompt_media`]).

use muster_core::Error;
use muster_proto::v1::{Prompt, PromptPiece, TokenIds, prompt_piece};

use super::{
    object::{Field, Kind},
    prompt_media,
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
                    Some(prompt_piece::Kind::Text(_) | prompt_piece::Kind::Media(_)) | None => {
                        pieces.push(PromptPiece {
                            kind: Some(prompt_piece::Kind::Tokens(TokenIds { ids: vec![token] })),
                        })
                    }
                }
            }
            Kind::Object => pieces.extend(prompt_media::of_object(item)?),
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
