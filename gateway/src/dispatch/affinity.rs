//! What makes requests belong to one conversation: the model and the prompt's beginning.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use muster_proto::v1::{GenerateRequest, content_part, generate_request::Input, prompt_piece};

/// Bytes of a prompt that count.
const BYTES: usize = 512;

/// A hash of the model and the prompt's beginning. The same in all gateways: `DefaultHasher::new` has fixed keys.
pub(super) fn key(model: &str, work: &GenerateRequest) -> u64 {
    let mut hasher = DefaultHasher::new();
    model.hash(&mut hasher);
    let mut left = BYTES;
    let mut feed = |bytes: &[u8]| {
        let part = &bytes[..bytes.len().min(left)];
        part.hash(&mut hasher);
        left -= part.len();
    };
    match work.input.as_ref() {
        Some(Input::Chat(chat)) => {
            // Up to the first thing the user said: that stays the same when the conversation goes on.
            let first = chat.messages.iter().position(|message| message.role == "user");
            let turns = first.map_or(chat.messages.len(), |index| index + 1);
            for part in chat
                .messages
                .iter()
                .take(turns)
                .flat_map(|message| &message.parts)
            {
                if let Some(content_part::Kind::Text(text)) = &part.kind {
                    feed(text.as_bytes());
                }
            }
        }
        Some(Input::Prompt(prompt)) => {
            for piece in &prompt.pieces {
                match &piece.kind {
                    Some(prompt_piece::Kind::Text(text)) => feed(text.as_bytes()),
                    Some(prompt_piece::Kind::Tokens(tokens)) => {
                        tokens
                            .ids
                            .iter()
                            .take(BYTES / 4)
                            .for_each(|id| feed(&id.to_le_bytes()));
                    }
                    None => {}
                }
            }
        }
        Some(Input::Infill(infill)) => feed(infill.prefix.as_bytes()),
        None => {}
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translate;

    fn of(messages: &str) -> u64 {
        let body = format!("{{\"model\": \"m\", \"messages\": {messages}}}");
        let call = translate::chat(body.as_bytes()).unwrap();
        key(&call.common.model, &call.work)
    }

    #[test]
    fn a_conversation_that_goes_on_keeps_its_key() {
        let first = of(r#"[{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]"#);
        let later = of(
            r#"[{"role": "system", "content": "s"}, {"role": "user", "content": "a"},
             {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]"#,
        );
        assert_eq!(first, later);
        assert_ne!(
            first,
            of(r#"[{"role": "system", "content": "s"}, {"role": "user", "content": "z"}]"#)
        );
    }

    #[test]
    fn prompts_of_tokens_have_keys_too() {
        let of = |prompt: &str| {
            let body = format!("{{\"model\": \"m\", \"prompt\": {prompt}}}");
            let call = translate::completions(body.as_bytes()).unwrap();
            key(&call.common.model, &call.work[0])
        };
        assert_eq!(of("[1, 2]"), of("[1, 2]"));
        assert_ne!(of("[1, 2]"), of("[1, 3]"));
        assert_ne!(of("\"a\""), of("\"b\""));
    }
}
