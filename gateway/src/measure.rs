//! Access for the benchmarks to what they measure.

use bytes::BytesMut;
use muster_proto::v1::{Delta, Event, TokenLogprob, TopLogprob, event::Kind};

use crate::{
    dialects::{anthropic, llamacpp, ollama, openai},
    render::{Head, Render},
    translate::View,
};

/// A stream that renders the same piece of text again and again.
#[allow(missing_debug_implementations, reason = "only for benches")]
pub struct Chunks {
    render: Box<dyn Render>,
    event: Event,
    out: BytesMut,
}

impl Chunks {
    /// A stream of a dialect: `chat`, `completion`, `response`, `message`, `ollama` or `llamacpp`. With `logprobs`, each token has its
    /// probability and two alternatives, in dialects that show them.
    ///
    /// # Panics
    /// Never; other names are chats.
    #[must_use]
    pub fn of(dialect: &str, logprobs: bool) -> Self {
        let head = Head {
            id: "chatcmpl-01a1fde8-9a5a-77b2-9458-b198cfc4f48a".into(),
            model: "Qwen3-0.6B-GGUF".into(),
            created: 1_700_000_000,
        };
        let view = View {
            stream: true,
            choices: 1,
            logprobs,
            ..View::default()
        };
        let render: Box<dyn Render> = match dialect {
            "completion" => Box::new(openai::render::completion::stream(&head, view, None, None)),
            "response" => Box::new(openai::render::response::stream(
                head,
                openai::translate::Echo::default(),
                view,
                || 0,
            )),
            "message" => Box::new(anthropic::render::stream(head)),
            "ollama" => Box::new(ollama::render::stream(
                head.model,
                ollama::render::Kind::Chat,
                0,
                false,
            )),
            "llamacpp" => Box::new(llamacpp::render::stream(Default::default(), view)),
            _ => Box::new(openai::render::chat::stream(&head, view, None)),
        };
        let event = Event {
            kind: Some(Kind::Delta(Delta {
                content: " population".into(),
                logprobs: if logprobs { vec![probability()] } else { Vec::new() },
                ..Delta::default()
            })),
            extra_json: String::new(),
        };
        Self {
            render,
            event,
            out: BytesMut::with_capacity(4096),
        }
    }

    /// Renders one chunk; returns its size in bytes.
    pub fn render(&mut self) -> usize {
        self.render_this(self.event.clone())
    }

    /// `count` events as a worker sends them, for [`render_this`](Self::render_this).
    #[must_use]
    pub fn events(&self, count: usize) -> Vec<Event> {
        vec![self.event.clone(); count]
    }

    /// Renders one event, drops its frame as a body does, and returns the frame's size in bytes.
    pub fn render_this(&mut self, event: Event) -> usize {
        self.render.event(event, &mut self.out);
        self.out.split().freeze().len()
    }
}

fn probability() -> TokenLogprob {
    let other = |text: &'static str| TopLogprob {
        token: 7,
        bytes: text.into(),
        logprob: -1.25,
    };
    TokenLogprob {
        token: 5,
        bytes: " population".into(),
        logprob: -0.25,
        top: vec![other(" population"), other(" people")],
    }
}
