//! `truncate`: inputs of vectors that are too long are cut, as Ollama's clients expect.
//!
//! Only who reads tokens knows what is too long: all is sent as it is, and cut if it is refused.

use muster_core::{Code, Error};
use muster_proto::v1::{EmbedRequest, Prompt, PromptPiece, TokenIds, TokenizeCall, prompt_piece::Kind};

use crate::{dispatch::loaded::Loaded, web::App};

/// The inputs, each as long as the model takes, if that is why they were refused.
///
/// # Errors
/// `refused`, if it was refused for another reason; or why its tokens cannot be counted.
pub(super) async fn shorter(
    app: &App,
    model: &str,
    work: EmbedRequest,
    refused: Error,
) -> Result<EmbedRequest, Error> {
    let room = refused
        .details
        .get("context_length")
        .and_then(|room| room.parse().ok());
    let Some(room) = room.filter(|room| *room > 0 && refused.code == Code::ContextLengthExceeded) else {
        return Err(refused);
    };
    let mut loaded = app.dispatcher.loaded(model)?;
    let mut inputs = Vec::with_capacity(work.inputs.len());
    for input in work.inputs {
        let whole = tokens(&mut loaded, &input, true).await?;
        if whole.len() <= room {
            inputs.push(input);
            continue;
        }
        let plain = tokens(&mut loaded, &input, false).await?;
        inputs.push(as_prompt(cut(&whole, &plain, room)));
    }
    Ok(EmbedRequest { inputs, ..work })
}

async fn tokens(loaded: &mut Loaded, input: &Prompt, add_special: bool) -> Result<Vec<i32>, Error> {
    let call = TokenizeCall {
        instance: loaded.instance.clone(),
        content: Some(input.clone()),
        add_special,
        parse_special: true,
        ..TokenizeCall::default()
    };
    Ok(loaded.tokenize(call).await?.tokens)
}

/// So many tokens: what the vocabulary puts before and behind a text stays, the text's end goes.
fn cut(whole: &[i32], plain: &[i32], room: usize) -> Vec<i32> {
    let added = whole.len().saturating_sub(plain.len());
    let before = (0..=added).find(|before| whole[*before..].starts_with(plain));
    let Some(before) = before.filter(|_| !plain.is_empty() && added < room) else {
        return whole[..room.min(whole.len())].to_vec();
    };
    let (head, tail) = (&whole[..before], &whole[before + plain.len()..]);
    let text = &plain[..plain.len().min(room - added)];
    [head, text, tail].concat()
}

fn as_prompt(ids: Vec<i32>) -> Prompt {
    let tokens = PromptPiece {
        kind: Some(Kind::Tokens(TokenIds { ids })),
    };
    Prompt {
        pieces: vec![tokens],
        add_special: Some(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_and_what_the_vocabulary_adds_stays() {
        assert_eq!(cut(&[1, 5, 6, 7, 2], &[5, 6, 7], 4), [1, 5, 6, 2]);
        assert_eq!(cut(&[1, 5, 6, 7], &[5, 6, 7], 2), [1, 5]);
        assert_eq!(cut(&[5, 6, 7], &[5, 6, 7], 2), [5, 6]);
        // Nothing of the text would stay, or it is read otherwise alone.
        assert_eq!(cut(&[1, 5, 6, 2], &[5, 6], 2), [1, 5]);
        assert_eq!(cut(&[1, 8, 6, 2], &[5, 6], 3), [1, 8, 6]);
    }
}
