//! The service itself: at most one model and one session at a time.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use muster_proto::{
    Code, ErrorExt as _,
    v1::{
        ApplyTemplateCall, ApplyTemplateResult, DetokenizeCall, DetokenizeResult, EngineDescribeRequest,
        EngineDescription, EngineLoadEvent, EngineLoadRequest, ErrorInfo, SessionCommand, SessionMessage,
        TokenizeCall, TokenizeResult, engine_load_event, engine_server::Engine,
    },
};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{
    convert::{self, native},
    load::{self, Loaded},
    session,
};
use crate::{
    chat::Chat,
    outbox::{CAPACITY, Outbox},
    request::Command,
};

/// Progress messages of a load that may wait to be read.
const PROGRESS: usize = 256;

/// State of the process.
#[derive(Debug, Default)]
enum State {
    #[default]
    Empty,
    Loading,
    Ready(Arc<Loaded>),
    Failed,
}

/// The `Engine` service.
#[derive(Clone, Debug, Default)]
pub(crate) struct EngineService {
    state: Arc<Mutex<State>>,
    in_session: Arc<AtomicBool>,
    sessions: Arc<AtomicU64>,
    /// Where the engines of this host meet to share its cores.
    cores: Option<PathBuf>,
    /// Becomes true when the process is asked to end.
    stopping: watch::Sender<bool>,
}

impl EngineService {
    /// An engine without a model; it meets the others of this host in the file `cores`.
    pub(crate) fn new(cores: Option<PathBuf>) -> Self {
        Self {
            cores,
            ..Self::default()
        }
    }

    fn loaded(&self) -> Result<Arc<Loaded>, Status> {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Ready(loaded) => Ok(Arc::clone(loaded)),
            State::Empty | State::Failed => {
                Err(Code::ModelNotLoaded.error("no model is loaded").into_status())
            }
            State::Loading => Err(Code::ModelLoading
                .error("the model is being loaded")
                .into_status()),
        }
    }

    fn set(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Ends the threads; what runs is cancelled.
    pub(crate) async fn stop(&self) {
        self.stopping.send_replace(true);
        if let Ok(loaded) = self.loaded() {
            loaded.alive.stop();
            drop(loaded.commands.send(Command::Stop).await);
        }
    }

    /// Loads on a thread of its own and reports into `tx`.
    fn load_beside(
        &self,
        request: EngineLoadRequest,
        tx: mpsc::Sender<Result<EngineLoadEvent, Status>>,
    ) -> std::io::Result<()> {
        let service = self.clone();
        std::thread::Builder::new()
            .name("load".to_owned())
            .spawn(move || {
                let send = |kind| tx.blocking_send(Ok(EngineLoadEvent { kind: Some(kind) })).is_ok();
                let result = load::load(&request, service.cores.as_deref(), &mut |progress| {
                    send(engine_load_event::Kind::Progress(progress))
                });
                match result {
                    Ok(loaded) => {
                        let description = loaded.description.clone();
                        service.set(State::Ready(Arc::new(loaded)));
                        send(engine_load_event::Kind::Ready(description));
                    }
                    Err(error) => {
                        tracing::error!(%error, "the model could not be loaded");
                        service.set(State::Failed);
                        send(engine_load_event::Kind::Failed(error));
                    }
                }
            })?;
        Ok(())
    }
}

/// Where a description says how many threads are used now.
const THREADS: &str = "muster_llama.threads";

/// Frees the session's place at its end, however it ends.
struct Place(Arc<AtomicBool>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

fn blocking_failed(error: &tokio::task::JoinError) -> Status {
    Code::Internal.error(error.to_string()).into_status()
}

#[tonic::async_trait]
impl Engine for EngineService {
    type LoadStream = ReceiverStream<Result<EngineLoadEvent, Status>>;
    type RunStream = ReceiverStream<Result<SessionMessage, Status>>;

    async fn load(&self, request: Request<EngineLoadRequest>) -> Result<Response<Self::LoadStream>, Status> {
        {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            match &*state {
                State::Empty => *state = State::Loading,
                State::Loading | State::Ready(_) | State::Failed => {
                    return Err(Code::InvalidLoadRequest
                        .error("a process loads once")
                        .into_status());
                }
            }
        }
        let (tx, rx) = mpsc::channel(PROGRESS);
        self.load_beside(request.into_inner(), tx)
            .map_err(|error| Code::Internal.error(error.to_string()).into_status())?;
        Ok(Response::new(ReceiverStream::new(rx)))
    }

    async fn run(
        &self,
        request: Request<Streaming<SessionCommand>>,
    ) -> Result<Response<Self::RunStream>, Status> {
        let loaded = self.loaded()?;
        if self.in_session.swap(true, Ordering::AcqRel) {
            return Err(Code::InvalidRequest
                .error("there is a session already")
                .into_status());
        }
        let place = Place(Arc::clone(&self.in_session));
        let session = self.sessions.fetch_add(1, Ordering::Relaxed) + 1;
        let (tx, rx) = mpsc::channel(CAPACITY);
        let outbox = Outbox::new(tx.clone(), Arc::clone(&loaded.shared));
        if loaded
            .commands
            .send(Command::Attach {
                session,
                outbox: outbox.clone(),
            })
            .await
            .is_err()
        {
            return Err(Code::ShuttingDown.error("the engine is ending").into_status());
        }
        loaded.alive.follow(Some(outbox));
        let commands = request.into_inner();
        let mut stopping = self.stopping.subscribe();
        tokio::spawn(async move {
            // the answer stream ends with this task: it holds the last sender
            let over = async move {
                tokio::select! {
                    () = tx.closed() => {}
                    _ = stopping.wait_for(|stopping| *stopping) => {}
                }
            };
            session::run(loaded, session, commands, over).await;
            drop(place);
        });
        Ok(Response::new(ReceiverStream::new(rx)))
    }

    async fn describe(
        &self,
        _request: Request<EngineDescribeRequest>,
    ) -> Result<Response<EngineDescription>, Status> {
        let description = match self.loaded() {
            Ok(loaded) => {
                let mut description = loaded.description.clone();
                description.sequences = loaded.shared.sequences();
                description.iterations = loaded.shared.iterations();
                let threads = loaded.shared.threads().to_string();
                description.metadata.insert(THREADS.to_owned(), threads);
                description
            }
            Err(_) => EngineDescription {
                engine: format!("muster-llama {}", muster_proto::VERSION),
                ..EngineDescription::default()
            },
        };
        Ok(Response::new(description))
    }

    async fn tokenize(&self, request: Request<TokenizeCall>) -> Result<Response<TokenizeResult>, Status> {
        let loaded = self.loaded()?;
        let call = request.into_inner();
        let work = move || -> Result<TokenizeResult, ErrorInfo> {
            let _job = loaded.shared.busy().begin();
            let content = call.content.unwrap_or_default();
            let tokens = convert::prompt(
                &loaded.model,
                &content,
                "content",
                call.add_special,
                call.parse_special,
            )?;
            let pieces = tokens
                .iter()
                .map(|token| loaded.model.piece(*token, true).into())
                .collect();
            Ok(TokenizeResult { tokens, pieces })
        };
        let result = tokio::task::spawn_blocking(work)
            .await
            .map_err(|error| blocking_failed(&error))?;
        result.map(Response::new).map_err(ErrorInfo::into_status)
    }

    async fn detokenize(
        &self,
        request: Request<DetokenizeCall>,
    ) -> Result<Response<DetokenizeResult>, Status> {
        let loaded = self.loaded()?;
        let tokens = request.into_inner().tokens;
        let work = move || -> Result<DetokenizeResult, ErrorInfo> {
            let _job = loaded.shared.busy().begin();
            convert::check_tokens(&loaded.model, &tokens, "tokens")?;
            let text = loaded.model.detokenize(&tokens).map_err(native("tokens"))?;
            Ok(DetokenizeResult { text })
        };
        let result = tokio::task::spawn_blocking(work)
            .await
            .map_err(|error| blocking_failed(&error))?;
        result.map(Response::new).map_err(ErrorInfo::into_status)
    }

    async fn apply_template(
        &self,
        request: Request<ApplyTemplateCall>,
    ) -> Result<Response<ApplyTemplateResult>, Status> {
        let loaded = self.loaded()?;
        let chat = request.into_inner().chat.unwrap_or_default();
        let work = move || -> Result<ApplyTemplateResult, ErrorInfo> {
            let _job = loaded.shared.busy().begin();
            let spec = convert::chat(&loaded.model, &chat, ("", ""), "", &serde_json::Map::new())?;
            let (_, prompt) = Chat::apply(&loaded.model, &spec).map_err(native("messages"))?;
            Ok(ApplyTemplateResult { prompt })
        };
        let result = tokio::task::spawn_blocking(work)
            .await
            .map_err(|error| blocking_failed(&error))?;
        result.map(Response::new).map_err(ErrorInfo::into_status)
    }
}
