//! Images of requests: found, read, and put into the prompt.

use std::sync::Arc;

use muster_core::Error;
use muster_proto::v1::{Chat, Prompt, PromptPiece, content_part, prompt_piece};

use super::convert::{invalid, native, unsupported};
use crate::{
    content::Content,
    limits::Limits,
    media::{IMAGES, PIXELS, Pixels, Projector},
};

/// Whether a prompt has images or sounds.
pub(super) fn any(prompt: &Prompt) -> bool {
    let media = |piece: &PromptPiece| matches!(piece.kind, Some(prompt_piece::Kind::Media(_)));
    prompt.pieces.iter().any(media)
}

/// A prompt with images: text with the projector's marker for each, and the images.
pub(super) fn of_prompt(
    prompt: &Prompt,
    param: &'static str,
    projector: &Projector,
) -> Result<(String, Vec<Pixels>), Error> {
    let (mut text, mut images) = (String::new(), Images::new(param));
    for piece in &prompt.pieces {
        match &piece.kind {
            None => {}
            Some(prompt_piece::Kind::Text(piece)) => text.push_str(piece),
            Some(prompt_piece::Kind::Media(file)) => {
                images.add(|left| Pixels::of_base64(file, left))?;
                text.push_str(projector.marker());
            }
            Some(prompt_piece::Kind::Tokens(_)) => {
                return Err(invalid(param, "images go into text alone, not beside token ids"));
            }
        }
    }
    Ok((text, images.all))
}

/// The images of a chat, in their order.
pub(super) fn of_chat(chat: &Chat) -> Result<Vec<Pixels>, Error> {
    let mut images = Images::new("messages");
    for part in chat.messages.iter().flat_map(|message| &message.parts) {
        if let Some(content_part::Kind::ImageUrl(url)) = &part.kind {
            images.add(|left| Pixels::of_url(url, left))?;
        }
    }
    Ok(images.all)
}

/// The images of a request: no more than it may have.
struct Images {
    param: &'static str,
    /// Pixels that the rest of them may have.
    left: u64,
    all: Vec<Pixels>,
}

impl Images {
    const fn new(param: &'static str) -> Self {
        Self {
            param,
            left: PIXELS,
            all: Vec::new(),
        }
    }

    fn add(&mut self, read: impl FnOnce(&mut u64) -> Result<Pixels, String>) -> Result<(), Error> {
        if self.all.len() >= IMAGES {
            let message = format!("a request may have no more than {IMAGES} images");
            return Err(invalid(self.param, message));
        }
        let image = read(&mut self.left).map_err(|error| invalid(self.param, error))?;
        self.all.push(image);
        Ok(())
    }
}

/// A text with images at the projector's markers. Something that can be answered must follow the last one.
pub(super) fn split(
    projector: &Arc<Projector>,
    limits: &Limits,
    (text, images): (&str, &[Pixels]),
    special: (bool, bool),
    param: &'static str,
) -> Result<Content, Error> {
    if !projector.info().vision {
        return Err(unsupported(param, "this model takes no images"));
    }
    if text.matches(projector.marker()).count() != images.len() {
        return Err(invalid(
            param,
            "the model's chat template has no place for images here",
        ));
    }
    let content = projector.split(text, special, images).map_err(native(param))?;
    if content.ends_with_part() {
        return Err(invalid(param, "text must follow the last image"));
    }
    match content.largest_whole_part() {
        cells if cells > limits.ubatch => Err(invalid(
            param,
            format!(
                "an image takes {cells} cells, which must be read at once: the model must be loaded with a `ubatch_size` of at least as many"
            ),
        )),
        _ => Ok(content),
    }
}
