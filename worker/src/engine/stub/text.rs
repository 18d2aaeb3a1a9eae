//! The stub's answers: words, vectors and scores that depend only on the input.

use muster_proto::v1::{Chat, Prompt, content_part, generate_request::Input, prompt_piece};

/// The stub's vocabulary. A token id is an index into it.
const WORDS: [&str; 32] = [
    " amber", " birch", " cedar", " delta", " ember", " fjord", " grove", " heron", " inlet", " jade",
    " kelp", " larch", " maple", " north", " ochre", " pine", " quartz", " river", " slate", " tidal",
    " umber", " vale", " willow", " xenon", " yarrow", " zephyr", " basalt", " copper", " dune", " flint",
    " marsh", " reed",
];

/// Length of the stub's vectors.
pub(super) const VECTOR_LENGTH: usize = 16;

/// Number of words in the vocabulary.
pub(super) const VOCABULARY: u32 = 32;

/// The FNV-1a hash of a text.
pub(super) fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The token at a position of an answer.
pub(super) fn token(seed: u64, position: u32) -> i32 {
    i32::try_from(mix(seed.wrapping_add(u64::from(position))) % u64::from(VOCABULARY)).unwrap_or(0)
}

/// The text of a token. Words are separated by spaces.
pub(super) fn piece(token: i32, first: bool) -> &'static str {
    let word = usize::try_from(token)
        .ok()
        .and_then(|token| WORDS.get(token))
        .copied()
        .unwrap_or(" ?");
    if first { &word[1..] } else { word }
}

/// A vector of length 1 for a text.
#[allow(clippy::cast_precision_loss, reason = "any number will do")]
pub(super) fn vector(text: &str, length: usize) -> Vec<f32> {
    let seed = hash(text);
    let raw: Vec<f32> = (0..length as u64)
        .map(|i| (mix(seed ^ i) >> 40) as f32 / (1 << 24) as f32 - 0.5)
        .collect();
    let norm = raw
        .iter()
        .map(|x| x * x)
        .sum::<f32>()
        .sqrt()
        .max(f32::MIN_POSITIVE);
    raw.into_iter().map(|x| x / norm).collect()
}

/// The share of the query's words that occur in the document, reduced a little for its length.
#[allow(clippy::cast_precision_loss, reason = "a score")]
pub(super) fn score(query: &str, document: &str) -> f32 {
    let words: Vec<&str> = query.split_whitespace().collect();
    let found = words
        .iter()
        .filter(|word| document.split_whitespace().any(|other| other == **word))
        .count();
    found as f32 / words.len().max(1) as f32 - words_of(document) as f32 * 1e-4
}

/// Number of tokens in a prompt: its words, at least one.
pub(super) fn words_of(text: &str) -> u32 {
    u32::try_from(text.split_whitespace().count())
        .unwrap_or(u32::MAX)
        .max(1)
}

/// An input as one text; `None` for a kind that the stub does not have.
pub(super) fn render(input: &Input) -> Option<String> {
    match input {
        Input::Chat(chat) => Some(render_chat(chat)),
        Input::Prompt(prompt) => Some(render_prompt(prompt)),
        Input::Infill(_) => None,
    }
}

/// The stub's chat template: a line `role: text` per turn.
pub(super) fn render_chat(chat: &Chat) -> String {
    let mut prompt = String::new();
    for message in &chat.messages {
        prompt.push_str(&message.role);
        prompt.push_str(": ");
        for part in &message.parts {
            match &part.kind {
                Some(content_part::Kind::Text(text) | content_part::Kind::OtherJson(text)) => {
                    prompt.push_str(text)
                }
                Some(content_part::Kind::ImageUrl(url)) => prompt.push_str(url),
                Some(content_part::Kind::InputAudio(audio)) => prompt.push_str(&audio.data),
                None => {}
            }
        }
        prompt.push('\n');
    }
    prompt
}

/// The text of a prompt; tokens are looked up.
pub(super) fn render_prompt(prompt: &Prompt) -> String {
    let mut text = String::new();
    for piece in &prompt.pieces {
        match &piece.kind {
            Some(prompt_piece::Kind::Text(piece)) => text.push_str(piece),
            Some(prompt_piece::Kind::Tokens(tokens)) => text.push_str(&detokenize(&tokens.ids)),
            // As of chats, the stub reads text only.
            Some(prompt_piece::Kind::Media(_)) | None => {}
        }
    }
    text
}

/// One token per byte, numbered after the words.
pub(super) fn tokenize(text: &str) -> Vec<i32> {
    text.bytes().map(|byte| i32::from(byte) + 32).collect()
}

/// The text of tokens, which may be words or bytes.
pub(super) fn detokenize(tokens: &[i32]) -> String {
    let mut bytes = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        match u8::try_from(*token - 32) {
            Ok(byte) => bytes.push(byte),
            Err(_) => bytes.extend_from_slice(piece(*token, i == 0).as_bytes()),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The last step of splitmix64.
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_input_gives_the_same_output() {
        let answer = |prompt| {
            (0..8)
                .map(|i| piece(token(hash(prompt), i), i == 0))
                .collect::<String>()
        };
        assert_eq!(answer("a"), answer("a"));
        assert_ne!(answer("a"), answer("b"));
        assert!(!answer("a").starts_with(' '));
    }

    #[test]
    fn vectors_have_length_one_and_scores_follow_the_words() {
        let length: f32 = vector("x", VECTOR_LENGTH).iter().map(|x| x * x).sum();
        assert!((length - 1.0).abs() < 1e-5);
        assert!(score("red fox", "a red fox") > score("red fox", "a red car"));
    }

    #[test]
    fn text_survives_its_tokens() {
        assert_eq!(detokenize(&tokenize("grüße")), "grüße");
        assert_eq!(detokenize(&[0, 1]), "amber birch");
        assert_eq!(detokenize(&[-5]), "?");
    }
}
