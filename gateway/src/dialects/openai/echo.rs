//! The prompts that `echo` shows before the output. A prompt of tokens is shown as the model's text for them.

use muster_core::Error;
use muster_proto::v1::{DetokenizeCall, Prompt, prompt_piece::Kind};

use crate::{translate::prompt_media::MARKER, web::App};

/// Each prompt as text. Call it after the request was admitted: then an instance that knows the tokens is loaded.
///
/// # Errors
/// The worker's errors, for example about a token outside the vocabulary.
pub(super) async fn texts(app: &App, model: &str, prompts: Vec<Prompt>) -> Result<Vec<String>, Error> {
    let mut texts = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        let mut text = String::new();
        for piece in prompt.pieces {
            match piece.kind {
                Some(Kind::Text(piece)) => text.push_str(&piece),
                Some(Kind::Media(_)) => text.push_str(MARKER),
                Some(Kind::Tokens(piece)) => {
                    let mut loaded = app.dispatcher.loaded(model)?;
                    let call = DetokenizeCall {
                        instance: loaded.instance.clone(),
                        model: model.to_owned(),
                        tokens: piece.ids,
                    };
                    text.push_str(&loaded.detokenize(call).await?.text);
                }
                None => {}
            }
        }
        texts.push(text);
    }
    Ok(texts)
}
