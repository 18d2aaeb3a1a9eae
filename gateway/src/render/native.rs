//! An answer as llama.cpp's own completion shows it (seed 004): on its routes, and beside OpenAI's where `verbose` asks for it.

use bytes::BytesMut;
use muster_proto::v1::{
    ChoiceFinished, Finished, GenerateRequest, Sampling, StopKind, Timings, TokenLogprob, Usage,
};
use serde_json::{Map, Value, json};

use super::{
    answer::Choice,
    json::raw,
    logprobs,
    settings::{generation_settings, put_sampling, put_speculation},
    usage,
};
use crate::translate::View;

/// The model that answers.
#[derive(Debug, Default)]
pub(crate) struct Answerer {
    /// Its id.
    pub(crate) model: String,
    /// Tokens that its requests may have.
    pub(crate) context: u32,
    /// How tokens are guessed ahead (`Capabilities.speculation`).
    pub(crate) speculation: String,
}

/// What is known of an answer before it comes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Native {
    model: String,
    /// As asked for.
    settings: Map<String, Value>,
    /// By answer.
    pub(crate) prompts: Vec<Value>,
}

impl Native {
    /// The answer to `work`; `prompts` as they came.
    pub(crate) fn of(work: &GenerateRequest, prompts: Vec<Value>) -> Self {
        Self {
            model: String::new(),
            settings: generation_settings(work, &Sampling::default()),
            prompts,
        }
    }

    /// Who answers, shown in `generation_settings` too.
    pub(crate) fn answered_by(&mut self, who: Answerer) {
        self.settings.insert("model".to_owned(), who.model.clone().into());
        self.settings.insert("n_ctx".to_owned(), who.context.into());
        put_speculation(&mut self.settings, &who.speculation);
        self.model = who.model;
    }

    /// A whole choice.
    pub(crate) fn whole(
        &self,
        view: View,
        index: u32,
        choice: &Choice,
        finished: &Finished,
    ) -> Map<String, Value> {
        let line = choice.content.contains('\n');
        let mut object = self.ended(index, line, &choice.end, finished);
        object.insert(
            "content".into(),
            [&*choice.reasoning, &*choice.content].concat().into(),
        );
        // Some engines tell them unasked.
        let tokens = if view.tokens {
            choice.tokens.as_slice()
        } else {
            &[]
        };
        object.insert("tokens".into(), tokens.into());
        if view.logprobs {
            object.insert(
                "completion_probabilities".into(),
                probabilities(&choice.logprobs, view),
            );
        }
        object
    }

    /// What is known at the end of a choice whose text was shown before; `line`: it had a line break.
    pub(crate) fn ended(
        &self,
        index: u32,
        line: bool,
        end: &ChoiceFinished,
        finished: &Finished,
    ) -> Map<String, Value> {
        let tokens = finished.usage.unwrap_or_default();
        let kind = match StopKind::try_from(end.stop).unwrap_or_default() {
            StopKind::Eos => "eos",
            StopKind::Word => "word",
            StopKind::Limit => "limit",
            StopKind::Unspecified => "none",
        };
        let object = json!({
            "index": index,
            "content": "",
            "tokens": [],
            "id_slot": finished.id_slot.map_or(-1, i64::from),
            "stop": true,
            "model": self.model,
            "tokens_predicted": end.generated,
            "tokens_evaluated": tokens.prompt_tokens,
            "generation_settings": self.settings(end),
            "prompt": self.prompt(index, end),
            "has_new_line": line,
            "truncated": end.truncated,
            "stop_type": kind,
            "stopping_word": end.stopping_word,
            "tokens_cached": tokens.cached_tokens,
            "timings": finished.timings.map(|timings| times(&timings, &tokens)),
        });
        serde_json::from_value(object).unwrap_or_default()
    }

    /// What was in force for a choice.
    fn settings(&self, end: &ChoiceFinished) -> Map<String, Value> {
        let mut settings = self.settings.clone();
        if let Some(sampling) = &end.sampling {
            put_sampling(&mut settings, sampling);
        }
        settings
    }

    /// The prompt as the model saw it, or as it came if the engine did not say.
    fn prompt(&self, index: u32, end: &ChoiceFinished) -> Value {
        if !end.prompt.is_empty() {
            return end.prompt.as_str().into();
        }
        self.prompts.get(index as usize).cloned().unwrap_or_default()
    }
}

/// An engine's times in llama.cpp's form.
fn times(timings: &Timings, usage: &Usage) -> Value {
    let mut out = BytesMut::new();
    usage::times(&mut out, timings, usage);
    serde_json::from_slice(&out).unwrap_or_default()
}

fn probabilities(tokens: &[TokenLogprob], view: View) -> Value {
    let mut out = BytesMut::new();
    raw(&mut out, "[");
    logprobs::chat(&mut out, tokens, view.post_sampling);
    raw(&mut out, "]");
    serde_json::from_slice(&out).unwrap_or_default()
}
