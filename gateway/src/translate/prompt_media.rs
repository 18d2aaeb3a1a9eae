//! Images and sounds in plain prompts: llama.cpp's prompts in object form, and seed 004's `image_data`. A client sends files, never addresses.

use muster_core::Error;
use muster_proto::v1::{Prompt, PromptPiece, prompt_piece::Kind as Piece};
use utoipa::openapi::{RefOr, Schema};

use super::{
    object::{Field, invalid},
    read::Read,
};

/// What stands for an image or a sound in the text of a prompt in object form. `/props` tells it to clients. Engines have marks of their own,
/// which nobody can write into a prompt.
pub(crate) const MARKER: &str = "<__media__>";
/// Most images and sounds in one prompt.
const MOST: usize = 64;
/// Most bytes of one as base64 text.
const MOST_BYTES: usize = 20 << 20;

/// The pieces of a prompt in object form: `prompt_string`, and in `multimodal_data` what stands at its markers; or `content`, the parts of a message.
///
/// # Errors
/// `invalid_request` naming the field: not as many markers as data, or data that is no base64.
pub(super) fn of_object(item: &Field<'_>) -> Result<Vec<PromptPiece>, Error> {
    let mut object = item.object()?;
    if let Some(parts) = object.take("content") {
        return of_parts(&parts);
    }
    let media = object.take("multimodal_data");
    let text = object.need("prompt_string")?.string()?;
    let Some(media) = media else {
        return Ok(vec![piece(Piece::Text(text))]);
    };
    let files = media.list()?;
    let texts: Vec<&str> = if files.is_empty() {
        vec![&text]
    } else {
        text.split(MARKER).collect()
    };
    if texts.len() != files.len() + 1 {
        return Err(media.wrong(format_args!(
            "has {} for {} `{MARKER}` in the text",
            files.len(),
            texts.len() - 1
        )));
    }
    bounded(&media, files.len())?;
    let mut pieces = Vec::new();
    let mut files = files.iter();
    for text in texts {
        push_text(&mut pieces, text);
        if let Some(field) = files.next() {
            pieces.push(piece(Piece::Media(file(field)?)));
        }
    }
    Ok(pieces)
}

fn of_parts(parts: &Field<'_>) -> Result<Vec<PromptPiece>, Error> {
    let list = parts.list()?;
    let mut pieces: Vec<PromptPiece> = Vec::new();
    for part in &list {
        let mut object = part.object()?;
        let kind = object.need("type")?;
        match kind.string()?.as_str() {
            "text" => {
                let text = object.need("text")?.string()?;
                match pieces.last_mut().and_then(|piece| piece.kind.as_mut()) {
                    // Read in one go, so that its tokens are those of the whole text.
                    Some(Piece::Text(before)) => before.push_str(&text),
                    Some(Piece::Tokens(_) | Piece::Media(_)) | None => push_text(&mut pieces, &text),
                }
            }
            "image_url" => {
                let url = object.need("image_url")?.object()?.need("url")?;
                let text = url.string()?;
                let data = text
                    .strip_prefix("data:")
                    .and_then(|rest| rest.split_once(";base64,"));
                let (_, data) = data.ok_or_else(|| url.wrong("must be a `data:` URL in base64"))?;
                pieces.push(piece(Piece::Media(checked(&url, data.to_owned())?)));
            }
            "input_audio" => {
                let data = object.need("input_audio")?.object()?.need("data")?;
                pieces.push(piece(Piece::Media(file(&data)?)));
            }
            _ => return Err(kind.wrong("must be `text`, `image_url` or `input_audio`")),
        }
    }
    bounded(
        parts,
        pieces
            .iter()
            .filter(|piece| matches!(piece.kind, Some(Piece::Media(_))))
            .count(),
    )?;
    Ok(pieces)
}

/// Whether a prompt has an image or a sound.
pub(crate) fn has_media(prompt: &Prompt) -> bool {
    let media = |piece: &PromptPiece| matches!(piece.kind, Some(Piece::Media(_)));
    prompt.pieces.iter().any(media)
}

/// Images of plain prompts (seed 004, `image_data`), each with the id that `[img-ID]` names in a prompt.
#[derive(Debug, Default)]
pub(crate) struct Images(Vec<Image>);

#[derive(Debug)]
struct Image {
    /// Where the request has it.
    path: String,
    mark: String,
    data: String,
}

impl Images {
    /// Puts each image where its mark is. Each belongs in one place: else a small request would become a large one.
    ///
    /// # Errors
    /// `invalid_request` naming the image whose mark is in no prompt, or in several places, or beside tokens.
    pub(crate) fn place(self, prompts: &mut [Prompt]) -> Result<(), Error> {
        for Image { path, mark, data } in self.0 {
            let mut places = prompts
                .iter()
                .enumerate()
                .flat_map(|(index, prompt)| marks(prompt, &mark).map(move |(piece, at)| (index, piece, at)));
            let (Some((index, at_piece, at)), None) = (places.next(), places.next()) else {
                return Err(invalid(
                    &path,
                    format_args!("`{mark}` must be in one place of the prompt"),
                ));
            };
            drop(places);
            let pieces = &mut prompts[index].pieces;
            let whole = pieces[at_piece].kind.take();
            let Some(Piece::Text(whole)) = whole else { continue };
            let mut parts = Vec::new();
            push_text(&mut parts, &whole[..at]);
            parts.push(piece(Piece::Media(data)));
            push_text(&mut parts, &whole[at + mark.len()..]);
            pieces.splice(at_piece..=at_piece, parts);
            if pieces
                .iter()
                .any(|piece| matches!(piece.kind, Some(Piece::Tokens(_))))
            {
                return Err(invalid(&path, "an image goes into text, not beside tokens"));
            }
        }
        Ok(())
    }
}

/// Where a mark is in a prompt: the piece, and the place in its text.
fn marks<'a>(prompt: &'a Prompt, mark: &'a str) -> impl Iterator<Item = (usize, usize)> + 'a {
    prompt.pieces.iter().enumerate().flat_map(move |(piece, found)| {
        let text = match &found.kind {
            Some(Piece::Text(text)) => text.as_str(),
            Some(Piece::Tokens(_) | Piece::Media(_)) | None => "",
        };
        text.match_indices(mark).map(move |(at, _)| (piece, at))
    })
}

impl Read<'_> for Images {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        let list = field.list()?;
        bounded(field, list.len())?;
        let image = |item: &Field<'_>| {
            let mut object = item.object()?;
            let id = object.need("id")?.integer(0, i64::from(u32::MAX))?;
            Ok(Image {
                path: item.path().to_owned(),
                mark: format!("[img-{id}]"),
                data: file(&object.need("data")?)?,
            })
        };
        list.iter().map(image).collect::<Result<_, Error>>().map(Self)
    }

    fn schema() -> RefOr<Schema> {
        Vec::<Field<'_>>::schema()
    }
}

fn bounded(field: &Field<'_>, count: usize) -> Result<(), Error> {
    if count > MOST {
        return Err(field.wrong(format_args!("must not hold more than {MOST}")));
    }
    Ok(())
}

/// A file as base64 text.
fn file(field: &Field<'_>) -> Result<String, Error> {
    checked(field, field.string()?)
}

fn checked(field: &Field<'_>, data: String) -> Result<String, Error> {
    if data.len() > MOST_BYTES {
        return Err(field.wrong(format_args!("must not be longer than {MOST_BYTES} bytes")));
    }
    let digits = data.trim_end_matches('=');
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/';
    if digits.is_empty() || data.len() - digits.len() > 2 || !digits.bytes().all(is_digit) {
        return Err(field
            .wrong("must be a file as base64 text, without an address or the beginning of a `data:` URL"));
    }
    Ok(data)
}

fn piece(kind: Piece) -> PromptPiece {
    PromptPiece { kind: Some(kind) }
}

fn push_text(pieces: &mut Vec<PromptPiece>, text: &str) {
    if !text.is_empty() {
        pieces.push(piece(Piece::Text(text.to_owned())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translate::{object::Object, prompt::prompts, read::Fields as _};

    crate::translate::read::body! {
        /// A body of these tests.
        struct Body<'a> as PromptMediaTest {
            /// The prompt.
            prompt: Field<'a>,
            /// Its images.
            image_data: Option<Images>,
        }
    }

    /// Each prompt as `text`, `[tokens]` and `!media` in a row.
    fn read(text: &str) -> Result<Vec<String>, (String, String)> {
        let placed = || {
            let body = Body::take_from(&mut Object::body(text)?)?;
            let mut prompts = prompts(&body.prompt, 8)?;
            body.image_data.unwrap_or_default().place(&mut prompts)?;
            Ok(prompts)
        };
        let shown = |prompt: &Prompt| {
            let pieces = prompt
                .pieces
                .iter()
                .map(|piece| match piece.kind.as_ref().unwrap() {
                    Piece::Text(text) => format!("({text})"),
                    Piece::Tokens(tokens) => format!("{:?}", tokens.ids),
                    Piece::Media(data) => format!("!{data}"),
                });
            pieces.collect()
        };
        let placed: Result<Vec<Prompt>, Error> = placed();
        placed
            .map(|prompts| prompts.iter().map(shown).collect())
            .map_err(|error| (error.param.clone().unwrap_or_default(), error.message))
    }

    #[test]
    fn media_stand_where_their_markers_are() {
        for (body, wanted) in [
            (r#"{"prompt": {"prompt_string": "a"}}"#, "(a)"),
            // Without data a marker is text like any other.
            (
                r#"{"prompt": {"prompt_string": "a<__media__>", "multimodal_data": []}}"#,
                "(a<__media__>)",
            ),
            (
                r#"{"prompt": {"prompt_string": "<__media__>a<__media__><__media__>b", "multimodal_data": ["AAA=", "BB==", "CCCC"]}}"#,
                "!AAA=(a)!BB==!CCCC(b)",
            ),
            (
                r#"{"prompt": "x [img-12] y [img-7]", "image_data": [{"data": "AAAA", "id": 7}, {"data": "BBBB", "id": 12}]}"#,
                "(x )!BBBB( y )!AAAA",
            ),
            (
                r#"{"prompt": {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, {"type": "input_audio", "input_audio": {"data": "BBBB", "format": "wav"}}, {"type": "text", "text": "c"}]}}"#,
                "(ab)!AAAA!BBBB(c)",
            ),
            (r#"{"prompt": "x [img-1]"}"#, "(x [img-1])"),
            (r#"{"prompt": "x", "image_data": []}"#, "(x)"),
        ] {
            assert_eq!(read(body), Ok(vec![wanted.to_owned()]), "{body}");
        }
        let several = r#"{"prompt": ["a", {"prompt_string": "<__media__>", "multimodal_data": ["AAAA"]}, [1, 2], "[img-3]"], "image_data": [{"data": "BBBB", "id": 3}]}"#;
        assert_eq!(read(several).unwrap(), ["(a)", "!AAAA", "[1, 2]", "!BBBB"]);
    }

    #[test]
    fn what_has_no_place_or_is_no_file_is_refused_by_name() {
        let many = format!(
            r#"{{"prompt": {{"prompt_string": "{}", "multimodal_data": [{}]}}}}"#,
            MARKER.repeat(MOST + 1),
            vec![r#""AAAA""#; MOST + 1].join(",")
        );
        let large = format!(
            r#"{{"prompt": "[img-1]", "image_data": [{{"id": 1, "data": "{}"}}]}}"#,
            "A".repeat(MOST_BYTES + 1)
        );
        for (body, param) in [
            (r#"{"prompt": {"multimodal_data": []}}"#, "prompt.prompt_string"),
            (
                r#"{"prompt": {"prompt_string": "a", "multimodal_data": ["AAAA"]}}"#,
                "prompt.multimodal_data",
            ),
            (
                r#"{"prompt": {"prompt_string": "<__media__>", "multimodal_data": ["AAAA", "AAAA"]}}"#,
                "prompt.multimodal_data",
            ),
            (
                r#"{"prompt": {"prompt_string": "<__media__>", "multimodal_data": ["http://192.0.2.1/x"]}}"#,
                "prompt.multimodal_data[0]",
            ),
            (
                r#"{"prompt": {"prompt_string": "<__media__>", "multimodal_data": [7]}}"#,
                "prompt.multimodal_data[0]",
            ),
            (
                r#"{"prompt": "a", "image_data": [{"data": "AAAA", "id": 1}]}"#,
                "image_data[0]",
            ),
            (
                r#"{"prompt": ["[img-1]", "[img-1]"], "image_data": [{"data": "AAAA", "id": 1}]}"#,
                "image_data[0]",
            ),
            (
                r#"{"prompt": [1, "[img-1]"], "image_data": [{"data": "AAAA", "id": 1}]}"#,
                "image_data[0]",
            ),
            (
                r#"{"prompt": "[img-1]", "image_data": [{"data": "data:image/png;base64,AAAA", "id": 1}]}"#,
                "image_data[0].data",
            ),
            (
                r#"{"prompt": "[img-1]", "image_data": [{"data": "AAAA"}]}"#,
                "image_data[0].id",
            ),
            (r#"{"prompt": {"content": "a"}}"#, "prompt.content"),
            (
                r#"{"prompt": {"content": [{"type": "video"}]}}"#,
                "prompt.content[0].type",
            ),
            (
                r#"{"prompt": {"content": [{"type": "image_url", "image_url": {"url": "http://192.0.2.1/x"}}]}}"#,
                "prompt.content[0].image_url.url",
            ),
            (many.as_str(), "prompt.multimodal_data"),
            (large.as_str(), "image_data[0].data"),
        ] {
            let (named, message) = read(body).unwrap_err();
            assert_eq!(named, param, "{message}");
            assert!(message.len() < 300, "{} bytes", message.len());
        }
    }
}
