//! The prompts that `echo` shows before their outputs: text as it came, tokens as the model's own text for them.

use muster_core::Error;
use muster_proto::v1::{DetokenizeCall, Prompt, prompt_piece::Kind};

use crate::web::App;

/// Each prompt as text. To be asked once the request is admitted: then there is an instance that knows the tokens.
///
/// # Errors
/// What the worker says, for example of a token that is in no vocabulary.
pub(super) async fn texts(app: &App, model: &str, prompts: Vec<Prompt>) -> Result<Vec<String>, Error> {
    let mut texts = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        let mut text = String::new();
        for piece in prompt.pieces {
            match piece.kind {
                Some(Kind::Text(piece)) => text.push_str(&piece),
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
