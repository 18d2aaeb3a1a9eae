//! A key for requests of the same conversation: a hash of the model and the beginning of the prompt.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use muster_proto::v1::{Prompt, content_part, generate_request::Input, prompt_piece, start::Work};

/// Number of bytes at a prompt's beginning that are hashed.
const BYTES: usize = 512;

/// The key of a request; none if no cache would help the next request. It is the same in all gateways, because `DefaultHasher::new` has
/// fixed keys.
pub(super) fn key(model: &str, work: &Work) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    model.hash(&mut hasher);
    let mut feed = Feed { hasher, left: BYTES };
    match work {
        Work::Generate(generate) => match &generate.input {
            Some(Input::Chat(chat)) => {
                // Up to the first turn of the user: this part stays the same as the conversation goes on.
                let first = chat.messages.iter().position(|message| message.role == "user");
                let turns = first.map_or(chat.messages.len(), |index| index + 1);
                let said = chat.messages.iter().take(turns);
                for part in said.flat_map(|message| &message.parts) {
                    if let Some(content_part::Kind::Text(text)) = &part.kind {
                        feed.bytes(text.as_bytes());
                    }
                }
            }
            Some(Input::Prompt(prompt)) => feed.prompt(prompt),
            Some(Input::Infill(infill)) => feed.bytes(infill.prefix.as_bytes()),
            None => {}
        },
        Work::Embed(_) | Work::Rerank(_) => return None,
    }
    Some(feed.hasher.finish())
}

/// Hashes text until enough bytes were seen.
struct Feed {
    hasher: DefaultHasher,
    left: usize,
}

impl Feed {
    fn bytes(&mut self, bytes: &[u8]) {
        let part = &bytes[..bytes.len().min(self.left)];
        part.hash(&mut self.hasher);
        self.left -= part.len();
    }

    fn prompt(&mut self, prompt: &Prompt) {
        for piece in &prompt.pieces {
            match &piece.kind {
                Some(prompt_piece::Kind::Text(text) | prompt_piece::Kind::Media(text)) => {
                    self.bytes(text.as_bytes())
                }
                Some(prompt_piece::Kind::Tokens(tokens)) => {
                    let ids = tokens.ids.iter().take(BYTES / 4);
                    ids.for_each(|id| self.bytes(&id.to_le_bytes()));
                }
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialects::openai::translate;

    fn of(messages: &str) -> u64 {
        let body = format!("{{\"model\": \"m\", \"messages\": {messages}}}");
        let call = translate::chat(body.as_bytes()).unwrap();
        key("m", &Work::Generate(call.work)).unwrap()
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
            key("m", &Work::Generate(call.work[0].clone()))
        };
        assert_eq!(of("[1, 2]"), of("[1, 2]"));
        assert_ne!(of("[1, 2]"), of("[1, 3]"));
        assert_ne!(of("\"a\""), of("\"b\""));
    }
}
