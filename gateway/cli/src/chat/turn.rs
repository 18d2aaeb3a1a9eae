//! One answer: a route from the controller, then the model's events from its worker.
//!
//! The EnsureLoaded stream is the hold on the instance, so it stays open until the worker has admitted the request (PROTOCOL.md 9). A
//! request that was refused before its admission is sent to another instance, at most [`ATTEMPTS`] times; an admitted one is never sent
//! again (PROTOCOL.md 16).

use std::io::{self, IsTerminal as _};

use muster_core::{Code, id};
use muster_proto::v1::{
    EnsureLoadedEvent, EnsureLoadedRequest, Event, GenerateCall, Route, ensure_loaded_event, event,
};
use tonic::Streaming;

use super::{Answer, Conversation};
use crate::{
    client::{self, CONTROLLER, Controller, answer},
    commands::load,
    failure::Failure,
    output::Output,
    progress::Progress,
};

const ATTEMPTS: usize = 3;

/// Asks the model and prints the answer to `shown` as it arrives.
pub(crate) async fn ask(
    controller: &Controller,
    conversation: &Conversation,
    shown: Option<Output>,
) -> Result<Answer, Failure> {
    let mut avoid = Vec::new();
    loop {
        let (hold, route) = route(controller, &conversation.options.model, avoid.clone()).await?;
        let instance = route.instance.clone().unwrap_or_default();
        match generate(controller, conversation, &route, hold, shown).await? {
            Ended::Answered(answer) => return Ok(answer),
            Ended::Refused(_) if avoid.len() + 1 < ATTEMPTS => avoid.push(instance.instance_id),
            Ended::Refused(failure) => return Err(failure),
        }
    }
}

enum Ended {
    Answered(Answer),
    /// The request was not admitted: another instance may be asked.
    Refused(Failure),
}

/// Waits until the model is loaded. The returned stream is the hold.
async fn route(
    controller: &Controller,
    model: &str,
    avoid_instances: Vec<String>,
) -> Result<(Streaming<EnsureLoadedEvent>, Route), Failure> {
    let mut client = controller.connect().await?;
    let request = EnsureLoadedRequest {
        ensure_id: id::fresh().to_string(),
        gateway_id: format!("muster-cli-{}", std::process::id()),
        model_id: model.to_owned(),
        avoid_instances,
        ..Default::default()
    };
    let mut events = answer(client.ensure_loaded(request).await)?;
    let mut progress = Progress::new();
    loop {
        let event = events
            .message()
            .await
            .map_err(|status| Failure::from_status(CONTROLLER, &status))?
            .ok_or_else(|| Failure::Lost(CONTROLLER.to_owned(), "it ended the stream".to_owned()))?;
        match event.kind {
            Some(ensure_loaded_event::Kind::Ready(ready)) => {
                return Ok((events, ready.route.unwrap_or_default()));
            }
            Some(ensure_loaded_event::Kind::Failed(error)) => return Err(Failure::remote(error.into())),
            Some(ensure_loaded_event::Kind::Queued(state)) => progress.show(load::queued(&state)),
            Some(ensure_loaded_event::Kind::Evicting(state)) => progress.show(load::evicting(&state)),
            Some(ensure_loaded_event::Kind::Loading(state)) => {
                load::loading(&mut progress, state.progress.as_ref());
            }
            None => {}
        }
    }
}

async fn generate(
    controller: &Controller,
    conversation: &Conversation,
    route: &Route,
    hold: Streaming<EnsureLoadedEvent>,
    shown: Option<Output>,
) -> Result<Ended, Failure> {
    let instance = route.instance.clone().unwrap_or_default();
    let peer = format!("worker {}", instance.worker_id);
    let mut client =
        match client::worker(&instance.worker_id, &route.addresses, &controller.credentials()?).await {
            Ok(client) => client,
            Err(failure) => return Ok(Ended::Refused(failure)),
        };
    let call = GenerateCall {
        instance: Some(instance),
        model: route.model_id.clone(),
        request: Some(conversation.request()),
    };
    let mut events = match client.generate(call).await {
        Ok(response) => response.into_inner(),
        Err(status) => return refused_or_failed(Failure::from_status(&peer, &status)),
    };
    let mut hold = Some(hold);
    let mut answer = Answer::default();
    let mut printer = Printer::new(shown);
    loop {
        let next = events
            .message()
            .await
            .map_err(|status| Failure::from_status(&peer, &status));
        let admitted = hold.is_none();
        let event = match next {
            Ok(Some(event)) => event,
            Ok(None) => return Err(Failure::Lost(peer, "it ended the stream".to_owned())),
            Err(failure) if admitted => return Err(failure),
            Err(failure) => return refused_or_failed(failure),
        };
        match step(event, &mut answer, &mut printer)? {
            Step::Admitted => hold = None,
            Step::More => {}
            Step::Finished => return Ok(Ended::Answered(answer)),
            Step::Failed(failure) if admitted => return Err(failure),
            Step::Failed(failure) => return refused_or_failed(failure),
        }
    }
}

/// Before the admission: this instance's refusals may be tried elsewhere, any other failure is final.
fn refused_or_failed(failure: Failure) -> Result<Ended, Failure> {
    let elsewhere = match &failure {
        Failure::Lost(..) => true,
        Failure::Remote(error) => matches!(error.code, Code::StaleInstance | Code::ShuttingDown),
        Failure::NoController { .. }
        | Failure::NoMuster(..)
        | Failure::Usage(_)
        | Failure::Up(_)
        | Failure::Interrupted
        | Failure::Io(_)
        | Failure::Json(_) => false,
    };
    if elsewhere {
        Ok(Ended::Refused(failure))
    } else {
        Err(failure)
    }
}

enum Step {
    Admitted,
    More,
    Finished,
    Failed(Failure),
}

fn step(event: Event, answer: &mut Answer, printer: &mut Printer) -> Result<Step, Failure> {
    match event.kind {
        Some(event::Kind::Admitted(_)) => return Ok(Step::Admitted),
        Some(event::Kind::Delta(delta)) => {
            printer.print(&delta.reasoning, &delta.content)?;
            answer.reasoning.push_str(&delta.reasoning);
            answer.content.push_str(&delta.content);
        }
        Some(event::Kind::ChoiceFinished(choice)) => answer.finish = Some(choice.reason()),
        Some(event::Kind::Finished(finished)) => {
            answer.usage = finished.usage.unwrap_or_default();
            answer.timings = finished.timings;
            return Ok(Step::Finished);
        }
        Some(event::Kind::Failed(error)) => return Ok(Step::Failed(Failure::remote(error.into()))),
        Some(event::Kind::Progress(_) | event::Kind::Embedded(_) | event::Kind::Reranked(_)) | None => {}
    }
    Ok(Step::More)
}

/// Prints an answer as it arrives: content unchanged, reasoning dimmed and only on a terminal.
struct Printer {
    shown: Option<Output>,
    terminal: bool,
    thinking: bool,
}

impl Printer {
    fn new(shown: Option<Output>) -> Self {
        Self {
            shown,
            terminal: io::stdout().is_terminal(),
            thinking: false,
        }
    }

    fn print(&mut self, reasoning: &str, content: &str) -> Result<(), Failure> {
        let Some(output) = self.shown else { return Ok(()) };
        if self.terminal && !reasoning.is_empty() {
            self.thinking = true;
            output.text(&format!("\x1b[2m{reasoning}\x1b[0m"))?;
        }
        if content.is_empty() {
            return Ok(());
        }
        if std::mem::take(&mut self.thinking) {
            output.text("\n\n")?;
        }
        output.text(content)
    }
}
