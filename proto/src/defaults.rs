//! What requests to a model get where they say nothing themselves (`RequestDefaults`): one rule for requests over a model's defaults, and for the
//! defaults of a model that is made from another over those of that one.

use serde_json::{Map, Value};

use crate::{
    parameters::SAMPLING,
    v1::{
        Chat, ChatMessage, ContentPart, GenerateRequest, RequestDefaults, Sampling, content_part,
        generate_request,
    },
};

/// Roles that a system prompt may have.
const SYSTEM: [&str; 2] = ["system", "developer"];
/// The template's switch that requests also have as a field of their own.
const THINKING: &str = "enable_thinking";

impl RequestDefaults {
    /// Whether nothing is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Fills in what a request does not say.
    pub fn fill(&self, request: &mut GenerateRequest) {
        if let Some(sampling) = &self.sampling {
            fill(request.sampling.get_or_insert_default(), sampling);
        }
        if request.stop.is_empty() {
            request.stop.clone_from(&self.stop);
        }
        request.max_tokens = request.max_tokens.or(self.max_tokens);
        if let Some(generate_request::Input::Chat(chat)) = &mut request.input {
            self.fill_chat(chat);
        }
    }

    /// Fills in what makes a chat's prompt.
    pub fn fill_chat(&self, chat: &mut Chat) {
        let has = |turn: &ChatMessage| SYSTEM.contains(&turn.role.as_str());
        if !self.system_prompt.is_empty() && !chat.messages.iter().any(has) {
            let text = content_part::Kind::Text(self.system_prompt.clone());
            let turn = ChatMessage {
                role: "system".to_owned(),
                parts: vec![ContentPart { kind: Some(text) }],
                ..ChatMessage::default()
            };
            chat.messages.insert(0, turn);
        }
        let mut kwargs = object(&self.template_kwargs_json);
        if chat.enable_thinking.is_some() {
            kwargs.remove(THINKING);
        }
        chat.template_kwargs_json = merged(kwargs, &chat.template_kwargs_json);
    }

    /// The sampling parameters in force for a request that sets none: these over those of an engine, as far as that tells.
    #[must_use]
    pub fn sampling_over(&self, engine: Option<Sampling>) -> Option<Sampling> {
        let (Some(own), Some(engine)) = (&self.sampling, &engine) else {
            return engine;
        };
        let mut sampling = own.clone();
        fill(&mut sampling, engine);
        Some(sampling)
    }

    /// These defaults, and those of `base` where nothing is said here.
    #[must_use]
    pub fn over(mut self, base: &Self) -> Self {
        if let Some(sampling) = &base.sampling {
            fill(self.sampling.get_or_insert_default(), sampling);
        }
        if self.system_prompt.is_empty() {
            self.system_prompt.clone_from(&base.system_prompt);
        }
        self.template_kwargs_json = merged(object(&base.template_kwargs_json), &self.template_kwargs_json);
        if self.stop.is_empty() {
            self.stop.clone_from(&base.stop);
        }
        self.max_tokens = self.max_tokens.or(base.max_tokens);
        self
    }
}

fn fill(sampling: &mut Sampling, defaults: &Sampling) {
    for row in SAMPLING.iter().filter(|row| (row.get)(defaults).is_some()) {
        if (row.get)(sampling).is_none()
            && let Some(value) = (row.get)(defaults)
        {
            (row.set)(sampling, value);
        }
    }
}

/// The members of an object; none of what is no object.
fn object(json: &str) -> Map<String, Value> {
    serde_json::from_str(json).unwrap_or_default()
}

/// The members of `own` over others, as text; empty if there are none.
fn merged(mut others: Map<String, Value>, own: &str) -> String {
    if others.is_empty() {
        return own.to_owned();
    }
    others.extend(object(own));
    Value::Object(others).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaults() -> RequestDefaults {
        RequestDefaults {
            sampling: Some(Sampling {
                temperature: Some(0.25),
                top_k: Some(7),
                ..Sampling::default()
            }),
            system_prompt: "Be kind.".into(),
            template_kwargs_json: r#"{"enable_thinking": false, "tone": "dry"}"#.into(),
            stop: vec!["END".into()],
            max_tokens: Some(9),
        }
    }

    fn turn(role: &str) -> ChatMessage {
        ChatMessage {
            role: role.into(),
            ..ChatMessage::default()
        }
    }

    fn chat(chat: Chat) -> GenerateRequest {
        GenerateRequest {
            input: Some(generate_request::Input::Chat(chat)),
            ..GenerateRequest::default()
        }
    }

    fn filled(mut request: GenerateRequest) -> (GenerateRequest, Chat) {
        defaults().fill(&mut request);
        let Some(generate_request::Input::Chat(chat)) = request.input.clone() else {
            panic!("a chat");
        };
        (request, chat)
    }

    #[test]
    fn what_a_request_does_not_say_is_the_models() {
        let (request, chat) = filled(chat(Chat {
            messages: vec![turn("user")],
            ..Chat::default()
        }));
        assert_eq!(request.sampling, defaults().sampling);
        assert_eq!(
            (request.stop, request.max_tokens),
            (vec!["END".to_owned()], Some(9))
        );
        let roles: Vec<&str> = chat.messages.iter().map(|turn| turn.role.as_str()).collect();
        assert_eq!(roles, ["system", "user"]);
        assert_eq!(
            chat.template_kwargs_json,
            r#"{"enable_thinking":false,"tone":"dry"}"#
        );
    }

    #[test]
    fn what_a_request_says_stays() {
        let own = Sampling {
            temperature: Some(0.0),
            ..Sampling::default()
        };
        let (request, chat) = filled(GenerateRequest {
            sampling: Some(own),
            stop: vec!["x".into()],
            max_tokens: Some(0),
            ..chat(Chat {
                messages: vec![turn("developer"), turn("user")],
                enable_thinking: Some(true),
                template_kwargs_json: r#"{"tone": "warm"}"#.into(),
                ..Chat::default()
            })
        });
        let sampling = request.sampling.unwrap();
        assert_eq!((sampling.temperature, sampling.top_k), (Some(0.0), Some(7)));
        assert_eq!(
            (request.stop, request.max_tokens),
            (vec!["x".to_owned()], Some(0))
        );
        assert_eq!(chat.messages.len(), 2);
        assert_eq!(chat.template_kwargs_json, r#"{"tone":"warm"}"#);
    }

    #[test]
    fn a_model_made_from_another_keeps_what_it_does_not_say_itself() {
        let own = RequestDefaults {
            sampling: Some(Sampling {
                top_k: Some(1),
                ..Sampling::default()
            }),
            template_kwargs_json: r#"{"tone": "warm"}"#.into(),
            ..RequestDefaults::default()
        };
        let both = own.over(&defaults());
        let sampling = both.sampling.unwrap();
        assert_eq!((sampling.temperature, sampling.top_k), (Some(0.25), Some(1)));
        assert_eq!(both.system_prompt, "Be kind.");
        assert_eq!(
            both.template_kwargs_json,
            r#"{"enable_thinking":false,"tone":"warm"}"#
        );
        assert!(RequestDefaults::default().is_empty());
    }
}
