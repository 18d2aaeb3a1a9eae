//! A generation of the stub: planned at the start, emitted as credits and time allow.

use std::time::{Duration, Instant};

use muster_core::{Code, Error};
use muster_proto::v1::{
    ChoiceFinished, Delta, Event, FinishReason, Finished, GenerateRequest, PromptProgress, SequencePhase,
    SequenceState, StopKind, Timings, ToolCallDelta, ToolChoiceMode, Usage, event, generate_request::Input,
    tool_choice,
};

use super::{settings::Behaviour, text};

/// Largest number of events of a sequence in one tick, at full speed.
const BURST: u32 = 8;
/// Largest number of tokens of reasoning.
const THINKING: u32 = 8;

/// A running generation.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) handle: u64,
    credit: u32,
    prompt_tokens: u32,
    /// When the prompt has been read.
    begin: Instant,
    begun: bool,
    progress: bool,
    tokens: bool,
    thinking: u32,
    tool: Option<String>,
    interval: u32,
    token_time: Duration,
    due: Instant,
    started: Instant,
    choices: Vec<Choice>,
    turn: usize,
}

#[derive(Debug)]
struct Choice {
    seed: u64,
    position: u32,
    length: u32,
    /// The part of the last token before a stop string.
    rest: Option<String>,
    end: ChoiceFinished,
    finished: bool,
}

impl Sequence {
    /// Plans an answer.
    ///
    /// # Errors
    /// The stub does not have a requested feature, or the prompt is longer than the context.
    pub(super) fn plan(
        handle: u64,
        credit: u32,
        request: &GenerateRequest,
        behaviour: &Behaviour,
        now: Instant,
    ) -> Result<Self, Error> {
        refuse(request)?;
        let prompt = request.input.as_ref().and_then(text::render);
        let prompt = prompt
            .ok_or_else(|| Code::UnsupportedByRuntime.error("the stub knows chats and prompts only"))?;
        let prompt_tokens = text::words_of(&prompt);
        if prompt_tokens >= behaviour.context {
            let message = format!(
                "the prompt has {prompt_tokens} tokens, the context {}",
                behaviour.context
            );
            return Err(Code::ContextLengthExceeded
                .error(message)
                .with_detail("prompt_tokens", prompt_tokens)
                .with_detail("context_length", behaviour.context));
        }
        let begin = now + behaviour.word_time * prompt_tokens;
        let room = behaviour.context - prompt_tokens;
        let sequence = Self {
            handle,
            credit,
            prompt_tokens,
            begin,
            begun: false,
            progress: request.return_progress,
            tokens: request.return_tokens,
            thinking: thinking(request),
            tool: tool(request),
            interval: behaviour.interval,
            token_time: behaviour.token_time * behaviour.interval,
            due: begin,
            started: now,
            choices: Vec::new(),
            turn: 0,
        };
        let seed = text::hash(&prompt);
        let choices =
            (0..request.n.max(1)).map(|index| sequence.choice(index, seed, request, behaviour, room));
        Ok(Self {
            choices: choices.collect(),
            ..sequence
        })
    }

    fn choice(
        &self,
        index: u32,
        seed: u64,
        request: &GenerateRequest,
        behaviour: &Behaviour,
        room: u32,
    ) -> Choice {
        let seed = seed.wrapping_add(u64::from(index) << 32);
        let (length, reason, stop) = match (&self.tool, request.max_tokens) {
            (Some(_), _) => (3, FinishReason::ToolCalls, StopKind::Eos),
            (None, Some(max)) if max <= room => (max, FinishReason::Length, StopKind::Limit),
            (None, None) if behaviour.tokens <= room => (behaviour.tokens, FinishReason::Stop, StopKind::Eos),
            (None, _) => (room, FinishReason::Length, StopKind::Limit),
        };
        let truncated = length == room && self.tool.is_none();
        let end = ChoiceFinished {
            choice: index,
            reason: reason.into(),
            stop: stop.into(),
            truncated,
            generated: length,
            ..ChoiceFinished::default()
        };
        let mut choice = Choice {
            seed,
            position: 0,
            length,
            rest: None,
            end,
            finished: false,
        };
        if self.tool.is_none() {
            choice.cut(&request.stop);
        }
        choice
    }

    /// Allows more events.
    pub(super) fn grant(&mut self, events: u32, now: Instant) {
        if self.credit == 0 {
            self.due = self.due.max(now);
        }
        self.credit = self.credit.saturating_add(events);
    }

    /// When the next event is due; `None` while it waits for credits.
    pub(super) fn due(&self) -> Option<Instant> {
        let owes =
            self.credit > 0 || (!self.progress && self.choices.iter().all(|choice| choice.length == 0));
        owes.then(|| self.due.max(self.begin))
    }

    /// Takes the events that are due. Returns the number of tokens and whether the sequence is finished.
    pub(super) fn take(&mut self, now: Instant, events: &mut Vec<Event>) -> (u32, bool) {
        if self.due().is_none_or(|due| due > now) {
            return (0, false);
        }
        if !self.begun {
            self.begun = true;
            if self.progress {
                self.progress = false;
                self.credit -= 1;
                events.push(kind(event::Kind::Progress(self.prompt_progress())));
            }
        }
        let mut tokens = 0;
        self.end_choices(events);
        for _ in 0..BURST {
            if self.credit == 0 || self.due > now || self.over() {
                break;
            }
            self.credit -= 1;
            self.due += self.token_time;
            let (delta, generated) = self.next_delta();
            tokens += generated;
            events.push(kind(event::Kind::Delta(delta)));
            self.end_choices(events);
        }
        // The end needs no credit: it is sent with the last token.
        if self.over() {
            events.push(kind(event::Kind::Finished(self.finish(now))));
        }
        (tokens, self.over())
    }

    fn over(&self) -> bool {
        self.choices.iter().all(|choice| choice.finished)
    }

    fn end_choices(&mut self, events: &mut Vec<Event>) {
        events.extend(
            self.choices
                .iter_mut()
                .filter_map(Choice::end)
                .map(event::Kind::ChoiceFinished)
                .map(kind),
        );
    }

    /// The next delta of the choice whose turn it is. At least one choice is not finished.
    fn next_delta(&mut self) -> (Delta, u32) {
        while self.choices[self.turn].finished {
            self.turn = (self.turn + 1) % self.choices.len();
        }
        let next = (self.turn + 1) % self.choices.len();
        let choice = &mut self.choices[std::mem::replace(&mut self.turn, next)];
        let mut delta = Delta {
            choice: choice.end.choice,
            ..Delta::default()
        };
        let before = choice.position;
        if let Some(name) = &self.tool {
            delta.tool_calls.push(tool_piece(choice, name));
            choice.position += 1;
        } else {
            for _ in 0..self.interval.min(choice.length - choice.position) {
                let token = text::token(choice.seed, choice.position);
                if self.tokens {
                    delta.tokens.push(token);
                }
                let thought = choice.position < self.thinking;
                let piece = choice.piece(token);
                if thought {
                    &mut delta.reasoning
                } else {
                    &mut delta.content
                }
                .push_str(&piece);
                choice.position += 1;
            }
        }
        delta.generated = choice.position;
        (delta, choice.position - before)
    }

    fn prompt_progress(&self) -> PromptProgress {
        PromptProgress {
            total: self.prompt_tokens,
            cached: 0,
            processed: self.prompt_tokens,
            elapsed_ms: (self.begin - self.started).as_secs_f64() * 1e3,
        }
    }

    fn finish(&self, now: Instant) -> Finished {
        let generated = self.choices.iter().map(|choice| choice.position).sum();
        let usage = Usage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens: generated,
            reasoning_tokens: self
                .choices
                .iter()
                .map(|choice| choice.position.min(self.thinking))
                .sum(),
            ..Usage::default()
        };
        let timings = Timings {
            prompt_n: self.prompt_tokens,
            prompt_ms: (self.begin - self.started).as_secs_f64() * 1e3,
            predicted_n: generated,
            predicted_ms: now.saturating_duration_since(self.begin).as_secs_f64() * 1e3,
            ..Timings::default()
        };
        Finished {
            usage: Some(usage),
            timings: Some(timings),
            id_slot: None,
        }
    }

    /// The state of the sequence, for people.
    pub(super) fn state(&self, id: u32, now: Instant) -> SequenceState {
        let phase = match () {
            () if now < self.begin => SequencePhase::Prefill,
            () if self.credit == 0 => SequencePhase::Blocked,
            () => SequencePhase::Decode,
        };
        let generated = self.choices.iter().map(|choice| choice.position).sum();
        SequenceState {
            id,
            phase: phase.into(),
            cached_tokens: self.prompt_tokens + generated,
            prompt_tokens: self.prompt_tokens,
            generated,
            handle: self.handle,
            request: None,
            owner: String::new(),
        }
    }
}

impl Choice {
    /// Shortens the plan to where a stop string ends it.
    fn cut(&mut self, stops: &[String]) {
        if stops.is_empty() {
            return;
        }
        let mut whole = String::new();
        for position in 0..self.length {
            let start = whole.len();
            whole.push_str(text::piece(text::token(self.seed, position), position == 0));
            let found = stops
                .iter()
                .filter(|stop| !stop.is_empty())
                .filter_map(|stop| Some((whole.find(stop.as_str())?, stop)));
            let Some((at, stop)) = found.min() else { continue };
            self.end.reason = FinishReason::Stop.into();
            self.end.stop = StopKind::Word.into();
            self.end.stopping_word.clone_from(stop);
            self.end.truncated = false;
            // The whole answer is known, so tokens that would be held back are left out, and the last one is shortened.
            let mut kept = 0;
            let mut end = 0;
            while end < at {
                let piece = text::piece(text::token(self.seed, kept), kept == 0);
                if end + piece.len() > at {
                    self.rest = Some(whole[end..at].to_owned());
                }
                end += piece.len();
                kept += 1;
            }
            debug_assert!(kept <= position + 1 && at <= start + whole.len());
            self.length = kept;
            self.end.generated = kept;
            return;
        }
    }

    fn piece(&mut self, token: i32) -> std::borrow::Cow<'static, str> {
        if self.position + 1 == self.length
            && let Some(rest) = self.rest.take()
        {
            return rest.into();
        }
        text::piece(token, self.position == 0).into()
    }

    /// The end of the choice, returned once after its last token.
    fn end(&mut self) -> Option<ChoiceFinished> {
        let over = !self.finished && self.position == self.length;
        self.finished |= over;
        over.then(|| self.end.clone())
    }
}

/// An event of this kind without extra fields.
pub(super) fn kind(kind: event::Kind) -> Event {
    Event {
        kind: Some(kind),
        extra_json: String::new(),
    }
}

fn refuse(request: &GenerateRequest) -> Result<(), Error> {
    let param = match () {
        () if request.constraint.is_some() => "response_format",
        () if request.logprobs || request.top_logprobs > 0 => "logprobs",
        () => return Ok(()),
    };
    Err(Code::UnsupportedByRuntime
        .error(format!("the stub cannot do `{param}`"))
        .with_param(param))
}

fn thinking(request: &GenerateRequest) -> u32 {
    match &request.input {
        Some(Input::Chat(chat)) if chat.enable_thinking == Some(true) => THINKING,
        Some(Input::Chat(_) | Input::Prompt(_) | Input::Infill(_)) | None => 0,
    }
}

/// The tool that a request insists on.
fn tool(request: &GenerateRequest) -> Option<String> {
    let Some(Input::Chat(chat)) = &request.input else {
        return None;
    };
    match chat.tool_choice.as_ref()?.kind.as_ref()? {
        tool_choice::Kind::Function(name) => Some(name.clone()),
        tool_choice::Kind::Mode(mode) if *mode == i32::from(ToolChoiceMode::Required) => {
            chat.tools.first().map(|tool| tool.name.clone())
        }
        tool_choice::Kind::Mode(_) => None,
    }
}

fn tool_piece(choice: &Choice, name: &str) -> ToolCallDelta {
    let word = text::piece(text::token(choice.seed, 0), true);
    match choice.position {
        0 => ToolCallDelta {
            index: 0,
            id: format!("call_{:x}", choice.seed),
            name: name.to_owned(),
            arguments: String::new(),
        },
        1 => ToolCallDelta {
            arguments: "{\"text\":".into(),
            ..ToolCallDelta::default()
        },
        _ => ToolCallDelta {
            arguments: format!("\"{word}\"}}"),
            ..ToolCallDelta::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::{ModelSettings, Prompt, PromptPiece, StubSettings, prompt_piece};

    use super::*;

    fn request(prompt: &str) -> GenerateRequest {
        let piece = PromptPiece {
            kind: Some(prompt_piece::Kind::Text(prompt.into())),
        };
        GenerateRequest {
            input: Some(Input::Prompt(Prompt {
                pieces: vec![piece],
                add_special: None,
            })),
            ..Default::default()
        }
    }

    fn plan(request: &GenerateRequest, credit: u32) -> Sequence {
        let stub = StubSettings {
            tokens: 20,
            ..Default::default()
        };
        let behaviour = Behaviour::read(&ModelSettings {
            stub: Some(stub),
            ..Default::default()
        })
        .unwrap();
        Sequence::plan(1, credit, request, &behaviour, Instant::now()).unwrap()
    }

    fn drain(mut sequence: Sequence) -> (String, Vec<Event>) {
        let mut events = Vec::new();
        while !sequence.take(Instant::now(), &mut events).1 {}
        let text = events.iter().filter_map(|event| match &event.kind {
            Some(event::Kind::Delta(delta)) => Some(delta.content.as_str()),
            _ => None,
        });
        (text.collect(), events)
    }

    #[test]
    fn credits_are_counted_and_the_end_is_free() {
        let mut sequence = plan(&request("a b c"), 20);
        let mut events = Vec::new();
        while !sequence.take(Instant::now(), &mut events).1 {}
        assert_eq!(events.len(), 22);
        let mut sequence = plan(&request("a b c"), 3);
        let mut events = Vec::new();
        assert_eq!(sequence.take(Instant::now(), &mut events), (3, false));
        assert!(sequence.due().is_none());
        sequence.grant(1, Instant::now());
        assert_eq!(sequence.take(Instant::now(), &mut events), (1, false));
    }

    #[test]
    fn a_stop_string_ends_the_text_before_it() {
        let (whole, _) = drain(plan(&request("stop me"), 100));
        let stop = whole[10..14].to_owned();
        let (cut, events) = drain(plan(
            &GenerateRequest {
                stop: vec![stop.clone()],
                ..request("stop me")
            },
            100,
        ));
        assert_eq!(cut, whole[..whole.find(&stop).unwrap()]);
        let [.., end, _] = events.as_slice() else {
            panic!("no end")
        };
        let Some(event::Kind::ChoiceFinished(end)) = &end.kind else {
            panic!("no choice end")
        };
        assert_eq!((end.stop(), &end.stopping_word), (StopKind::Word, &stop));
    }

    #[test]
    fn choices_end_once_each() {
        let request = GenerateRequest {
            n: 3,
            max_tokens: Some(5),
            ..request("x")
        };
        let (_, events) = drain(plan(&request, 100));
        let ends = events
            .iter()
            .filter(|event| matches!(event.kind, Some(event::Kind::ChoiceFinished(_))));
        assert_eq!(ends.count(), 3);
        assert_eq!(events.len(), 15 + 3 + 1);
        let (text, events) = drain(plan(
            &GenerateRequest {
                max_tokens: Some(0),
                ..request
            },
            0,
        ));
        assert_eq!((text.as_str(), events.len()), ("", 4));
    }
}
