//! A scripted worker: each Start gets the scripted ticks; everything that comes down a session is on record.

use std::{
    pin::Pin,
    sync::{Arc, Mutex},
};

use muster_core::Code;
use muster_proto::{
    net::Address,
    trust::{Door, Keys},
    v1::{self, event::Kind, inference_server::InferenceServer, session_command, session_message},
};
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming};

use crate::{Process, absent, within};

type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// One tick's events for a request; `true` ends it.
pub type Tick = (Vec<v1::Event>, bool);

/// What a worker answers to a Start.
pub type Script = Box<dyn Fn(&v1::Start) -> Vec<Tick> + Send + Sync>;

/// What came down, with the session it came on.
#[derive(Clone, Debug)]
pub struct Got {
    pub session: usize,
    pub kind: session_command::Kind,
}

struct Session {
    sender: mpsc::Sender<Result<v1::SessionMessage, Status>>,
    seq: u64,
}

struct State {
    script: Script,
    got: watch::Sender<Vec<Got>>,
    sessions: Mutex<Vec<Session>>,
    /// What its engines were started with.
    args: Mutex<Vec<String>>,
    /// Models whose tokens were asked for.
    tokenized: Mutex<Vec<String>>,
}

impl State {
    fn send(&self, session: usize, handle: u64, (events, finished): Tick) {
        let mut sessions = self.sessions.lock().unwrap();
        let session = &mut sessions[session];
        session.seq += 1;
        let sequences = vec![v1::SequenceEvents {
            handle,
            events,
            finished,
        }];
        let tick = v1::Tick {
            seq: session.seq,
            sequences,
            ..v1::Tick::default()
        };
        let message = v1::SessionMessage {
            kind: Some(session_message::Kind::Tick(tick)),
        };
        // A closed session is the gateway's right.
        drop(session.sender.try_send(Ok(message)));
    }
}

/// A running worker.
pub struct Worker {
    pub address: Address,
    state: Arc<State>,
    process: Process,
}

impl Worker {
    pub async fn start(script: impl Fn(&v1::Start) -> Vec<Tick> + Send + Sync + 'static) -> Self {
        let state = Arc::new(State {
            script: Box::new(script),
            got: watch::Sender::default(),
            sessions: Mutex::default(),
            args: Mutex::default(),
            tokenized: Mutex::default(),
        });
        let process = Process::new();
        let service = Arc::clone(&state);
        let bound = process.runtime().spawn(async move {
            let address = crate::socket();
            let door = Door::parts(&address, None, &Keys::default()).await.unwrap();
            let (mut server, listener) = door.open();
            let server = server.add_service(InferenceServer::new(Service(service)));
            tokio::spawn(server.serve_with_incoming(listener));
            address
        });
        Self {
            address: bound.await.unwrap(),
            state,
            process,
        }
    }

    /// A route to an instance on this worker.
    pub fn route(&self, model: &str, instance: &str) -> v1::Route {
        v1::Route {
            instance: Some(v1::InstanceRef {
                instance_id: instance.into(),
                worker_id: format!("worker-of-{instance}"),
                worker_boot_id: "boot".into(),
            }),
            model_id: model.into(),
            addresses: vec![self.address.to_string()],
            state: v1::RouteState::Ready.into(),
            target_inflight: 4,
            queue_limit: 16,
            capabilities: Some(v1::Capabilities {
                generate: true,
                ..v1::Capabilities::default()
            }),
        }
    }

    pub fn got(&self) -> Vec<Got> {
        self.state.got.borrow().clone()
    }

    pub fn starts(&self) -> Vec<v1::Start> {
        self.got()
            .into_iter()
            .filter_map(|got| start(&got).cloned())
            .collect()
    }

    /// Waits until it has got what the test wants.
    pub async fn gets(&self, what: impl Fn(&[Got]) -> bool) -> Vec<Got> {
        let mut got = self.state.got.subscribe();
        within(got.wait_for(|got| what(got))).await.unwrap().clone()
    }

    /// Waits for its first Start; returns session and handle.
    pub async fn first_start(&self) -> (usize, u64) {
        let got = self.gets(|got| got.iter().any(|got| start(got).is_some())).await;
        got.iter()
            .find_map(|got| Some((got.session, start(got)?.handle)))
            .unwrap()
    }

    /// Its engines were started with these words of llama.cpp's.
    pub fn with_args(self, args: &[&str]) -> Self {
        *self.state.args.lock().unwrap() = args.iter().map(ToString::to_string).collect();
        self
    }

    /// Models whose tokens were asked for.
    pub fn tokenized(&self) -> Vec<String> {
        self.state.tokenized.lock().unwrap().clone()
    }

    /// Waits for a Cancel.
    pub async fn cancelled(&self) {
        self.gets(|got| {
            got.iter()
                .any(|got| matches!(got.kind, session_command::Kind::Cancel(_)))
        })
        .await;
    }

    /// Sends a tick by hand.
    pub fn send(&self, (session, handle): (usize, u64), events: Vec<v1::Event>, finished: bool) {
        self.state.send(session, handle, (events, finished));
    }

    /// Dies without a word.
    pub fn kill(self) {
        drop(self.process);
    }
}

pub fn start(got: &Got) -> Option<&v1::Start> {
    match &got.kind {
        session_command::Kind::Start(start) => Some(start),
        session_command::Kind::Cancel(_) | session_command::Kind::Credit(_) => None,
    }
}

/// An event.
pub fn event(kind: Kind) -> v1::Event {
    v1::Event {
        kind: Some(kind),
        extra_json: String::new(),
    }
}

pub fn admitted() -> v1::Event {
    event(Kind::Admitted(v1::Admitted::default()))
}

pub fn text(choice: u32, content: &str) -> v1::Event {
    event(Kind::Delta(v1::Delta {
        choice,
        content: content.into(),
        ..v1::Delta::default()
    }))
}

pub fn ended(choice: u32, reason: v1::FinishReason) -> v1::Event {
    let end = v1::ChoiceFinished {
        choice,
        reason: reason.into(),
        ..v1::ChoiceFinished::default()
    };
    event(Kind::ChoiceFinished(end))
}

pub fn finished() -> v1::Event {
    let usage = v1::Usage {
        prompt_tokens: 5,
        cached_tokens: 2,
        completion_tokens: 3,
        ..v1::Usage::default()
    };
    event(Kind::Finished(v1::Finished {
        usage: Some(usage),
        ..v1::Finished::default()
    }))
}

pub fn failed(code: Code) -> v1::Event {
    event(Kind::Failed(code.error("scripted").into()))
}

/// A whole answer of these words.
pub fn says(words: &[&str]) -> Vec<Tick> {
    let mut ticks = vec![(vec![admitted()], false)];
    ticks.extend(words.iter().map(|word| (vec![text(0, word)], false)));
    ticks.push((vec![ended(0, v1::FinishReason::Stop), finished()], true));
    ticks
}

/// A refusal.
pub fn refuses(code: Code) -> Vec<Tick> {
    vec![(vec![failed(code)], true)]
}

struct Service(Arc<State>);

#[tonic::async_trait]
impl v1::inference_server::Inference for Service {
    type SessionStream = Messages<v1::SessionMessage>;
    type GenerateStream = Messages<v1::Event>;
    type EngineHttpStream = Messages<v1::EngineHttpChunk>;

    async fn session(
        &self,
        request: Request<Streaming<v1::SessionCommand>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let mut commands = request.into_inner();
        let (sender, receiver) = mpsc::channel(4096);
        let state = Arc::clone(&self.0);
        let session = {
            let mut sessions = state.sessions.lock().unwrap();
            sessions.push(Session { sender, seq: 0 });
            sessions.len() - 1
        };
        tokio::spawn(async move {
            while let Ok(Some(command)) = commands.message().await {
                let Some(kind) = command.kind else { continue };
                let got = Got { session, kind };
                let ticks = start(&got).map(|start| (start.handle, (state.script)(start)));
                state.got.send_modify(|list| list.push(got));
                if let Some((handle, ticks)) = ticks {
                    for tick in ticks {
                        state.send(session, handle, tick);
                    }
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn generate(&self, _: Request<v1::GenerateCall>) -> Result<Response<Self::GenerateStream>, Status> {
        absent()
    }
    async fn embed(&self, _: Request<v1::EmbedCall>) -> Result<Response<v1::EmbedResult>, Status> {
        absent()
    }
    async fn rerank(&self, _: Request<v1::RerankCall>) -> Result<Response<v1::RerankResult>, Status> {
        absent()
    }
    /// A token for each word, which stands for text in the first place and then for a part of a character.
    async fn tokenize(
        &self,
        call: Request<v1::TokenizeCall>,
    ) -> Result<Response<v1::TokenizeResult>, Status> {
        let call = call.into_inner();
        self.0.tokenized.lock().unwrap().push(call.model);
        let content = call.content.unwrap_or_default();
        let words = content.pieces.iter().filter_map(|piece| match &piece.kind {
            Some(v1::prompt_piece::Kind::Text(text)) => Some(text.split_whitespace().count()),
            Some(v1::prompt_piece::Kind::Tokens(_) | v1::prompt_piece::Kind::Media(_)) | None => None,
        });
        let tokens = vec![7; words.sum()];
        let pieces = [&b"w"[..], &b"\xC3"[..]].into_iter().cycle().take(tokens.len());
        Ok(Response::new(v1::TokenizeResult {
            pieces: pieces.map(|piece| piece.to_vec().into()).collect(),
            tokens,
        }))
    }
    async fn detokenize(
        &self,
        call: Request<v1::DetokenizeCall>,
    ) -> Result<Response<v1::DetokenizeResult>, Status> {
        let tokens = call.into_inner().tokens;
        let text = tokens.iter().map(|token| format!("<{token}>")).collect();
        Ok(Response::new(v1::DetokenizeResult { text }))
    }
    /// Tells the sequence's number as tokens, and the action as a size: 1 saves, 2 restores, 0 erases.
    async fn slot_action(
        &self,
        call: Request<v1::SlotActionCall>,
    ) -> Result<Response<v1::SlotActionResult>, Status> {
        use v1::slot_action_call::Action;
        let call = call.into_inner();
        let bytes = match call.action {
            Some(Action::Save(_)) => 1,
            Some(Action::Restore(_)) => 2,
            Some(Action::Erase(_)) | None => 0,
        };
        Ok(Response::new(v1::SlotActionResult {
            tokens: call.id_slot.into(),
            bytes,
            elapsed_ms: 0.5,
        }))
    }
    /// The words alone.
    async fn apply_template(
        &self,
        call: Request<v1::ApplyTemplateCall>,
    ) -> Result<Response<v1::ApplyTemplateResult>, Status> {
        let chat = call.into_inner().chat.unwrap_or_default();
        let parts = chat.messages.iter().flat_map(|message| &message.parts);
        let texts = parts.filter_map(|part| match &part.kind {
            Some(v1::content_part::Kind::Text(text)) => Some(text.as_str()),
            Some(_) | None => None,
        });
        let prompt = texts.collect::<Vec<_>>().join(" ");
        Ok(Response::new(v1::ApplyTemplateResult { prompt }))
    }
    /// Tells what it was asked, in two pieces.
    async fn engine_http(
        &self,
        call: Request<v1::EngineHttpCall>,
    ) -> Result<Response<Self::EngineHttpStream>, Status> {
        let call = call.into_inner();
        let told = json!({
            "asked": format!("{} {}", call.method, call.path),
            "content_type": call.content_type,
            "bytes": call.body.len(),
            "work": call.work,
        });
        let told = told.to_string();
        let (head, rest) = told.split_at(10);
        let head = v1::EngineHttpChunk {
            status: 201,
            content_type: "application/json".into(),
            body: head.to_owned().into(),
        };
        let rest = v1::EngineHttpChunk {
            body: rest.to_owned().into(),
            ..v1::EngineHttpChunk::default()
        };
        Ok(Response::new(Box::pin(tokio_stream::iter([Ok(head), Ok(rest)]))))
    }
    /// Two sequences, one of which generates.
    async fn describe(
        &self,
        call: Request<v1::DescribeCall>,
    ) -> Result<Response<v1::EngineDescription>, Status> {
        let sequence = |id, phase: v1::SequencePhase, generated| v1::SequenceState {
            id,
            phase: phase.into(),
            generated,
            cached_tokens: 12,
            prompt_tokens: 5,
            handle: 0,
            owner: String::new(),
            request: (generated > 0).then(|| v1::GenerateRequest {
                max_tokens: Some(77),
                ..v1::GenerateRequest::default()
            }),
        };
        Ok(Response::new(v1::EngineDescription {
            engine: "scripted 1".into(),
            model_id: call.into_inner().model,
            sequences: vec![
                sequence(0, v1::SequencePhase::Decode, 7),
                sequence(1, v1::SequencePhase::Idle, 0),
            ],
            chat_template: "{{ messages }}".into(),
            settings: Some(v1::ModelSettings {
                lora: vec![v1::LoraAdapter {
                    path: "/adapters/a.gguf".into(),
                    scale: 0.5,
                }],
                args: self.0.args.lock().unwrap().clone(),
                ..v1::ModelSettings::default()
            }),
            ..v1::EngineDescription::default()
        }))
    }
}
