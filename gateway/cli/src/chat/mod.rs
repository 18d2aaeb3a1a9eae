//! `muster chat`: a conversation with a model. The CLI talks to the worker directly: EnsureLoaded at the controller returns the route, then
//! it calls `Inference.Generate`.
//!
//! ```text
//!   read ──line──► say ──► answer streams ──► read …      Ctrl-C: cancels the answer
//!     └─ Ctrl-D, /bye ──► end
//! ```

mod turn;

use std::io::{self, IsTerminal as _, Read as _};

use muster_proto::v1::{
    Chat, ChatMessage, ContentPart, FinishReason, GenerateRequest, Sampling, Timings, Usage, content_part,
    generate_request,
};
use rustyline::{DefaultEditor, error::ReadlineError};
use serde_json::json;

use crate::{args::ChatOptions, client::Controller, failure::Failure, output::Output};

const HELP: &str = "/clear forgets the conversation, /bye or Ctrl-D ends, Ctrl-C cancels an answer";

/// The answer of a model.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    content: String,
    reasoning: String,
    finish: Option<FinishReason>,
    usage: Usage,
    timings: Option<Timings>,
}

/// Runs a conversation, or asks a single question.
pub(crate) async fn run(
    controller: &Controller,
    output: Output,
    options: ChatOptions,
) -> Result<(), Failure> {
    let question = match &options.message {
        Some(text) => Some(text.clone()),
        None if io::stdin().is_terminal() => None,
        None => Some(all_input()?),
    };
    let mut conversation = Conversation::new(options);
    match question {
        Some(text) => once(controller, output, &mut conversation, text).await,
        None if output.is_json() => Err(Failure::Usage(
            "chat --json wants its question with -m or on standard input".to_owned(),
        )),
        None => converse(controller, output, &mut conversation).await,
    }
}

fn all_input() -> Result<String, Failure> {
    let mut text = String::new();
    io::stdin().lock().read_to_string(&mut text)?;
    let text = text.trim_end();
    if text.is_empty() {
        return Err(Failure::Usage(
            "nothing to say: standard input is empty, and no -m".to_owned(),
        ));
    }
    Ok(text.to_owned())
}

async fn once(
    controller: &Controller,
    output: Output,
    conversation: &mut Conversation,
    text: String,
) -> Result<(), Failure> {
    conversation.push("user", text);
    let shown = if output.is_json() { None } else { Some(output) };
    let answer = tokio::select! {
        answer = turn::ask(controller, conversation, shown) => answer?,
        signal = tokio::signal::ctrl_c() => {
            signal?;
            return Err(Failure::Interrupted);
        }
    };
    if output.is_json() {
        return output.line(as_json(&conversation.options.model, &answer));
    }
    output.text("\n")?;
    conversation.stats(&answer);
    Ok(())
}

async fn converse(
    controller: &Controller,
    output: Output,
    conversation: &mut Conversation,
) -> Result<(), Failure> {
    let mut editor = DefaultEditor::new().map_err(terminal)?;
    output.line(format_args!("talking to {}; {HELP}", conversation.options.model))?;
    loop {
        let line;
        (editor, line) = read(editor).await?;
        let Some(line) = line else { return Ok(()) };
        match line.trim() {
            "" => continue,
            "/bye" | "/exit" | "/quit" => return Ok(()),
            "/clear" => {
                conversation.clear();
                output.line("forgotten")?;
                continue;
            }
            "/help" | "/?" => {
                output.line(HELP)?;
                continue;
            }
            text => conversation.push("user", text.to_owned()),
        }
        let result = tokio::select! {
            result = turn::ask(controller, conversation, Some(output)) => result,
            signal = tokio::signal::ctrl_c() => {
                signal?;
                Err(Failure::Interrupted)
            }
        };
        output.text("\n")?;
        match result {
            Ok(answer) => {
                conversation.stats(&answer);
                conversation.push("assistant", answer.content);
            }
            Err(failure) => {
                // Remove the question, so that it can be asked again.
                conversation.messages.pop();
                output.line(failure.report())?;
            }
        }
    }
}

/// Reads a line with editing; `None` at the end of input. Ctrl-C only clears the line.
async fn read(mut editor: DefaultEditor) -> Result<(DefaultEditor, Option<String>), Failure> {
    let reading = tokio::task::spawn_blocking(move || {
        loop {
            match editor.readline("› ") {
                Ok(line) => {
                    // It fails only for duplicates, which are ignored.
                    drop(editor.add_history_entry(line.as_str()));
                    return Ok((editor, Some(line)));
                }
                Err(ReadlineError::Interrupted) => {}
                Err(ReadlineError::Eof) => return Ok((editor, None)),
                Err(error) => return Err(terminal(error)),
            }
        }
    });
    reading
        .await
        .unwrap_or_else(|error| Err(Failure::Io(io::Error::other(error))))
}

fn terminal(error: ReadlineError) -> Failure {
    Failure::Io(io::Error::other(error))
}

/// The turns so far, and the options for answers.
#[derive(Debug)]
pub(crate) struct Conversation {
    options: ChatOptions,
    messages: Vec<ChatMessage>,
}

impl Conversation {
    fn new(options: ChatOptions) -> Self {
        let mut conversation = Self {
            options,
            messages: Vec::new(),
        };
        conversation.clear();
        conversation
    }

    fn clear(&mut self) {
        self.messages.clear();
        if let Some(text) = self.options.system.clone() {
            self.push("system", text);
        }
    }

    fn push(&mut self, role: &str, text: String) {
        self.messages.push(ChatMessage {
            role: role.to_owned(),
            parts: vec![ContentPart {
                kind: Some(content_part::Kind::Text(text)),
            }],
            ..Default::default()
        });
    }

    fn request(&self) -> GenerateRequest {
        GenerateRequest {
            input: Some(generate_request::Input::Chat(Chat {
                messages: self.messages.clone(),
                enable_thinking: self.options.thinking,
                ..Default::default()
            })),
            sampling: Some(Sampling {
                temperature: self.options.temperature,
                seed: self.options.seed,
                ..Default::default()
            }),
            max_tokens: self.options.max_tokens,
            stream: true,
            ..Default::default()
        }
    }

    fn stats(&self, answer: &Answer) {
        if !self.options.stats {
            return;
        }
        let usage = &answer.usage;
        let speed = answer
            .timings
            .filter(|timings| timings.predicted_ms > 0.0)
            .map(|timings| {
                let rate = f64::from(timings.predicted_n) * 1000.0 / timings.predicted_ms;
                format!(", prompt {:.0} ms, {rate:.1} tokens/s", timings.prompt_ms)
            })
            .unwrap_or_default();
        crate::progress::note(format_args!(
            "({} prompt tokens, {} from the cache, {} generated{speed})",
            usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens
        ));
    }
}

fn as_json(model: &str, answer: &Answer) -> serde_json::Value {
    let finish = answer
        .finish
        .map(|reason| crate::output::word(reason.as_str_name(), "FINISH_REASON_"));
    json!({
        "model": model,
        "content": answer.content,
        "reasoning": answer.reasoning,
        "finish_reason": finish,
        "usage": {
            "prompt_tokens": answer.usage.prompt_tokens,
            "cached_tokens": answer.usage.cached_tokens,
            "completion_tokens": answer.usage.completion_tokens,
        },
        "timings": answer.timings.map(|timings| json!({
            "prompt_n": timings.prompt_n,
            "prompt_ms": timings.prompt_ms,
            "predicted_n": timings.predicted_n,
            "predicted_ms": timings.predicted_ms,
            "cache_n": timings.cache_n,
            "queue_ms": timings.queue_ms,
        })),
    })
}
