//! llama-server's chunks as typed events. Each request has a [`Reply`], which gets the data of each server-sent event in order.
//!
//! ```text
//!   chunk ─► delta, progress ─► events        finish_reason / stop ─► choice_finished
//!                                             all choices finished (and their usage, in chats) ─► finished
//! ```

use muster_core::{Code, Error};
use muster_proto::{
    parameters::SAMPLING,
    v1::{
        ChoiceFinished, Delta, Event, FinishReason, Finished, GenerateRequest, LogitBias, PromptProgress,
        Sampling, StopKind, Timings, TokenLogprob, ToolCallDelta, TopLogprob, Usage, event, logit_bias,
    },
};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    client::EngineError,
    request::{Dialect, wants_logprobs},
};

/// The state of one request's reply.
#[derive(Debug)]
pub(super) struct Reply {
    dialect: Dialect,
    logprobs: bool,
    /// The caller asked for progress. Long prompts report it in any case.
    progress: bool,
    tops: usize,
    /// The caller asked for the sampling parameters.
    shows_sampling: bool,
    stops: bool,
    /// Only read the prompt. llama-server generates a token nevertheless, which is dropped.
    mute: bool,
    choices: usize,
    finished: usize,
    /// The end of a chat's choice, whose usage comes in the next chunk.
    ending: Option<ChoiceFinished>,
    usage: Usage,
    timings: Timings,
    id_slot: Option<u32>,
    extra_json: String,
    over: bool,
}

impl Reply {
    /// A reply of which nothing was read yet.
    pub(super) fn new(dialect: Dialect, request: &GenerateRequest) -> Self {
        Self {
            dialect,
            logprobs: wants_logprobs(request),
            progress: request.return_progress,
            tops: usize::try_from(request.top_logprobs).unwrap_or(usize::MAX),
            shows_sampling: request.return_sampling,
            stops: !request.stop.is_empty(),
            mute: request.max_tokens == Some(0),
            choices: usize::try_from(request.n.max(1)).unwrap_or(usize::MAX),
            finished: 0,
            ending: None,
            usage: Usage::default(),
            timings: Timings::default(),
            id_slot: None,
            extra_json: String::new(),
            over: false,
        }
    }

    /// Reads the data of one server-sent event.
    ///
    /// # Errors
    /// The server's own error, or `runtime_error` for data that cannot be parsed.
    pub(super) fn read(&mut self, data: &[u8], events: &mut Vec<Event>) -> Result<(), Error> {
        if data == b"[DONE]" || self.over {
            return Ok(());
        }
        match self.dialect {
            Dialect::Chat => self.chat(parse(data)?, events),
            Dialect::LlamaCpp => self.completion(data, parse(data)?, events),
        }
    }

    /// Handles the end of the stream.
    ///
    /// # Errors
    /// `runtime_error` if the reply was not complete.
    pub(super) fn end(&mut self, events: &mut Vec<Event>) -> Result<(), Error> {
        if let Some(end) = self.ending.take() {
            self.finish_choice(end, events);
        }
        if self.over {
            return Ok(());
        }
        Err(Code::RuntimeError.error("llama-server's stream ended early"))
    }

    fn chat(&mut self, chunk: ChatChunk, events: &mut Vec<Event>) -> Result<(), Error> {
        if let Some(error) = chunk.error {
            return Err(error.into_info());
        }
        if let Some(progress) = chunk.prompt_progress {
            self.progress(progress, events);
        }
        // Requested times come with each chunk; those that follow the last choice's end are the answer's.
        let goes_on = chunk.choices.iter().any(|choice| choice.finish_reason.is_none());
        let so_far = chunk.timings.as_ref().filter(|_| goes_on).map(Timings::from);
        for choice in chunk.choices {
            let mut delta = self.chat_delta(choice.index, choice.delta, choice.logprobs);
            delta.timings = so_far;
            if !self.mute && !is_empty(&delta) {
                events.push(kind(event::Kind::Delta(delta)));
            }
            if let Some(reason) = choice.finish_reason {
                // The previous choice's end came without usage.
                if let Some(end) = self.ending.replace(self.chat_end(choice.index, &reason)) {
                    self.finish_choice(end, events);
                }
            }
        }
        if let Some(shown) = chunk.shown {
            self.id_slot = u32::try_from(shown.id_slot).ok();
            if let Some(end) = &mut self.ending {
                end.sampling = Some(in_force(&shown.generation_settings));
                end.prompt = shown.prompt;
                end.truncated = shown.truncated;
                end.stopping_word = shown.stopping_word;
            }
        }
        if let Some(timings) = chunk.timings.filter(|_| !goes_on) {
            self.add_timings(&timings);
        }
        if let Some(usage) = chunk.usage {
            self.usage.prompt_tokens = usage.prompt_tokens;
            self.usage.cached_tokens = self
                .usage
                .cached_tokens
                .max(usage.prompt_tokens_details.cached_tokens);
            self.usage.completion_tokens += usage.completion_tokens;
            if let Some(mut end) = self.ending.take() {
                end.generated = usage.completion_tokens;
                self.finish_choice(end, events);
            }
        }
        Ok(())
    }

    fn progress(&self, progress: WireProgress, events: &mut Vec<Event>) {
        if self.progress {
            events.push(kind(event::Kind::Progress(progress.into())));
        }
    }

    fn chat_delta(&self, choice: u32, delta: ChatDelta, logprobs: Option<Logprobs>) -> Delta {
        Delta {
            choice,
            content: delta.content.unwrap_or_default(),
            reasoning: delta.reasoning_content.unwrap_or_default(),
            tool_calls: delta
                .tool_calls
                .unwrap_or_default()
                .into_iter()
                .map(Into::into)
                .collect(),
            logprobs: self.logprobs(logprobs.and_then(|logprobs| logprobs.content)),
            ..Delta::default()
        }
    }

    fn chat_end(&self, choice: u32, reason: &str) -> ChoiceFinished {
        let ended = if self.stops {
            StopKind::Unspecified
        } else {
            StopKind::Eos
        };
        let (reason, stop) = match reason {
            "length" => (FinishReason::Length, StopKind::Limit),
            "tool_calls" => (FinishReason::ToolCalls, ended),
            "content_filter" => (FinishReason::ContentFilter, StopKind::Unspecified),
            _ => (FinishReason::Stop, ended),
        };
        ChoiceFinished {
            choice,
            reason: reason.into(),
            stop: stop.into(),
            ..ChoiceFinished::default()
        }
    }

    fn completion(
        &mut self,
        data: &[u8],
        chunk: CompletionChunk,
        events: &mut Vec<Event>,
    ) -> Result<(), Error> {
        if let Some(error) = chunk.error {
            return Err(error.into_info());
        }
        if let Some(progress) = chunk.prompt_progress {
            // Such a chunk has a token 0 that was not generated.
            self.progress(progress, events);
            return Ok(());
        }
        let delta = Delta {
            choice: chunk.index,
            content: chunk.content,
            logprobs: self.logprobs(chunk.completion_probabilities),
            tokens: chunk.tokens,
            generated: chunk.tokens_predicted,
            // Requested timings come with each chunk; those of the last chunk are the whole answer's.
            timings: chunk.timings.as_ref().filter(|_| !chunk.stop).map(Into::into),
            ..Delta::default()
        };
        if !self.mute && !is_empty(&delta) {
            events.push(kind(event::Kind::Delta(delta)));
        }
        if chunk.stop {
            self.id_slot = u32::try_from(chunk.id_slot).ok();
            self.usage.prompt_tokens = chunk.tokens_evaluated;
            self.usage.completion_tokens += chunk.tokens_predicted;
            if let Some(timings) = chunk.timings {
                self.add_timings(&timings);
                self.usage.cached_tokens = self.usage.cached_tokens.max(timings.cache_n);
            }
            self.extra_json = unmodelled(data);
            let (reason, stop) = match chunk.stop_type.as_str() {
                "eos" => (FinishReason::Stop, StopKind::Eos),
                "word" => (FinishReason::Stop, StopKind::Word),
                "limit" => (FinishReason::Length, StopKind::Limit),
                _ => (FinishReason::Stop, StopKind::Unspecified),
            };
            let end = ChoiceFinished {
                choice: chunk.index,
                reason: reason.into(),
                stop: stop.into(),
                stopping_word: chunk.stopping_word,
                truncated: chunk.truncated,
                generated: chunk.tokens_predicted,
                prompt: chunk.prompt,
                sampling: self.shows_sampling.then(|| in_force(&chunk.generation_settings)),
            };
            self.finish_choice(end, events);
        }
        Ok(())
    }

    fn finish_choice(&mut self, mut end: ChoiceFinished, events: &mut Vec<Event>) {
        if self.mute {
            end.reason = FinishReason::Length.into();
            end.stop = StopKind::Limit.into();
            end.generated = 0;
            self.usage.completion_tokens = 0;
        }
        events.push(kind(event::Kind::ChoiceFinished(end)));
        self.finished += 1;
        if self.finished == self.choices {
            self.over = true;
            let finished = Finished {
                usage: Some(self.usage),
                timings: Some(self.timings),
                id_slot: self.id_slot,
            };
            let extra_json = std::mem::take(&mut self.extra_json);
            events.push(Event {
                kind: Some(event::Kind::Finished(finished)),
                extra_json,
            });
        }
    }

    /// Adds the timings of a choice. Choices share the prompt and run side by side.
    fn add_timings(&mut self, timings: &WireTimings) {
        let sum = &mut self.timings;
        sum.prompt_n = sum.prompt_n.max(timings.prompt_n);
        sum.prompt_ms = sum.prompt_ms.max(timings.prompt_ms);
        sum.cache_n = sum.cache_n.max(timings.cache_n);
        sum.predicted_n += timings.predicted_n;
        sum.predicted_ms = sum.predicted_ms.max(timings.predicted_ms);
        self.usage.draft_tokens += timings.draft_n;
        self.usage.draft_accepted_tokens += timings.draft_n_accepted;
    }

    fn logprobs(&self, tokens: Option<Vec<WireLogprob>>) -> Vec<TokenLogprob> {
        if !self.logprobs {
            return Vec::new();
        }
        let top = |top: WireTop| TopLogprob {
            token: top.id,
            bytes: top.bytes.into(),
            logprob: top.logprob,
        };
        let token = |token: WireLogprob| TokenLogprob {
            token: token.id,
            bytes: token.bytes.into(),
            logprob: token.logprob,
            top: token.top_logprobs.into_iter().take(self.tops).map(top).collect(),
        };
        tokens.unwrap_or_default().into_iter().map(token).collect()
    }
}

/// How tokens were chosen, as `generation_settings` say.
fn in_force(settings: &Map<String, Value>) -> Box<Sampling> {
    let bias = |one: &Value| {
        let token = i32::try_from(one.get("token")?.as_i64()?).ok()?;
        let bias = one.get("bias").and_then(Value::as_f64);
        Some(LogitBias {
            target: Some(logit_bias::Target::Token(token)),
            #[allow(clippy::cast_possible_truncation, reason = "it was a float")]
            bias: bias.unwrap_or_default() as f32,
            // The logarithm of nothing is no number in JSON.
            never: bias.is_none(),
        })
    };
    let biases = settings.get("logit_bias").and_then(Value::as_array);
    Box::new(Sampling {
        logit_bias: biases.into_iter().flatten().filter_map(bias).collect(),
        ..SAMPLING.read(settings)
    })
}

/// An event of this kind without extra fields.
pub(super) fn kind(kind: event::Kind) -> Event {
    Event {
        kind: Some(kind),
        extra_json: String::new(),
    }
}

fn is_empty(delta: &Delta) -> bool {
    delta.content.is_empty()
        && delta.reasoning.is_empty()
        && delta.tool_calls.is_empty()
        && delta.logprobs.is_empty()
        && delta.tokens.is_empty()
}

/// The fields of a completion's last chunk that our events do not have, without the prompt, which the caller knows.
fn unmodelled(data: &[u8]) -> String {
    const MODELLED: [&str; 14] = [
        "index",
        "content",
        "tokens",
        "stop",
        "id_slot",
        "tokens_predicted",
        "tokens_evaluated",
        "timings",
        "truncated",
        "stop_type",
        "stopping_word",
        "completion_probabilities",
        "prompt",
        "model",
    ];
    let Ok(mut fields) = serde_json::from_slice::<Map<String, Value>>(data) else {
        return String::new();
    };
    fields.retain(|key, _| !MODELLED.contains(&key.as_str()));
    if fields.is_empty() {
        String::new()
    } else {
        Value::Object(fields).to_string()
    }
}

fn parse<'a, T: Deserialize<'a>>(data: &'a [u8]) -> Result<T, Error> {
    serde_json::from_slice(data)
        .map_err(|error| Code::RuntimeError.error(format!("llama-server's stream: {error}")))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ChatChunk {
    choices: Vec<ChatChoice>,
    usage: Option<WireUsage>,
    timings: Option<WireTimings>,
    prompt_progress: Option<WireProgress>,
    error: Option<EngineError>,
    /// As its own route shows the answer, if it was asked to (`verbose`).
    #[serde(rename = "__verbose")]
    shown: Option<CompletionChunk>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ChatChoice {
    index: u32,
    finish_reason: Option<String>,
    delta: ChatDelta,
    logprobs: Option<Logprobs>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ChatDelta {
    content: Option<String>,
    reasoning_content: Option<String>,
    tool_calls: Option<Vec<WireToolCall>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WireToolCall {
    index: u32,
    id: Option<String>,
    function: WireFunction,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WireFunction {
    name: Option<String>,
    arguments: Option<String>,
}

impl From<WireToolCall> for ToolCallDelta {
    fn from(call: WireToolCall) -> Self {
        Self {
            index: call.index,
            id: call.id.unwrap_or_default(),
            name: call.function.name.unwrap_or_default(),
            arguments: call.function.arguments.unwrap_or_default(),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Logprobs {
    content: Option<Vec<WireLogprob>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WireLogprob {
    id: i32,
    bytes: Vec<u8>,
    #[serde(alias = "prob")]
    logprob: f32,
    #[serde(alias = "top_probs")]
    top_logprobs: Vec<WireTop>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WireTop {
    id: i32,
    bytes: Vec<u8>,
    #[serde(alias = "prob")]
    logprob: f32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CompletionChunk {
    index: u32,
    content: String,
    tokens: Vec<i32>,
    stop: bool,
    id_slot: i64,
    tokens_predicted: u32,
    tokens_evaluated: u32,
    truncated: bool,
    stop_type: String,
    stopping_word: String,
    prompt: String,
    generation_settings: Map<String, Value>,
    timings: Option<WireTimings>,
    prompt_progress: Option<WireProgress>,
    completion_probabilities: Option<Vec<WireLogprob>>,
    error: Option<EngineError>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WireUsage {
    prompt_tokens: u32,
    completion_tokens: u32,
    prompt_tokens_details: WireDetails,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WireDetails {
    cached_tokens: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WireTimings {
    cache_n: u32,
    prompt_n: u32,
    prompt_ms: f64,
    predicted_n: u32,
    predicted_ms: f64,
    draft_n: u32,
    draft_n_accepted: u32,
}

impl From<&WireTimings> for Timings {
    fn from(timings: &WireTimings) -> Self {
        Self {
            prompt_n: timings.prompt_n,
            prompt_ms: timings.prompt_ms,
            predicted_n: timings.predicted_n,
            predicted_ms: timings.predicted_ms,
            cache_n: timings.cache_n,
            queue_ms: 0.0,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WireProgress {
    total: u32,
    cache: u32,
    processed: u32,
    time_ms: f64,
}

impl From<WireProgress> for PromptProgress {
    fn from(progress: WireProgress) -> Self {
        Self {
            total: progress.total,
            cached: progress.cache,
            processed: progress.processed,
            elapsed_ms: progress.time_ms,
        }
    }
}

#[cfg(test)]
mod tests;
