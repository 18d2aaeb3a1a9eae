//! The service itself: at most one model and one session at a time.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use muster_core::{Code, Error};
use muster_proto::{
    StatusExt as _,
    v1::{
        ApplyTemplateCall, ApplyTemplateResult, DetokenizeCall, DetokenizeResult, EngineDescribeRequest,
        EngineDescription, EngineLoadEvent, EngineLoadRequest, SessionCommand, SessionMessage,
        SlotActionCall, SlotActionResult, TokenizeCall, TokenizeResult, engine_load_event,
        engine_server::Engine,
    },
};
use prost::Message;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{
    convert::{self, native},
    load::{self, Loaded},
    session, slots,
};
use crate::{
    chat::Chat,
    limits::{ANSWER, DETOKENIZE_TOKENS, LARGE, TOKENIZE_TEXT},
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

/// Texts that are tokenized, made or rendered for their own sake at once: those that are not large.
const SMALL: usize = 4;

/// The `Engine` service.
#[derive(Clone, Debug)]
pub(crate) struct EngineService {
    state: Arc<Mutex<State>>,
    in_session: Arc<AtomicBool>,
    sessions: Arc<AtomicU64>,
    /// Where the engines of this host meet to share its cores.
    cores: Option<PathBuf>,
    /// The devices that its model may use beside the CPU, by ggml's names; none = as llama.cpp chooses.
    devices: Option<Vec<String>>,
    /// Becomes true when the process is asked to end.
    stopping: watch::Sender<bool>,
    /// Places for work on texts, and the one for large ones.
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl EngineService {
    /// An engine without a model; it meets the others of this host in the file `cores`.
    pub(crate) fn new(cores: Option<PathBuf>, devices: Option<Vec<String>>) -> Self {
        Self {
            state: Arc::default(),
            in_session: Arc::default(),
            sessions: Arc::default(),
            cores,
            devices,
            stopping: watch::Sender::default(),
            small: Arc::new(Semaphore::new(SMALL)),
            large: Arc::new(Semaphore::new(1)),
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

    /// Does work that takes only the processor on another thread, large ones one after the other, and gives their memory back.
    async fn beside<T: Message + 'static>(
        &self,
        large: bool,
        work: impl FnOnce(&Loaded) -> Result<T, Error> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let loaded = self.loaded()?;
        let places = if large { &self.large } else { &self.small };
        let place = Arc::clone(places).acquire_owned().await;
        let place = place.map_err(|error| Code::Internal.error(error.to_string()).into_status())?;
        let work = move || {
            let _job = loaded.shared.busy().begin();
            let result = work(&loaded).and_then(|result| match result.encoded_len() {
                bytes if bytes > ANSWER => Err(Code::BodyTooLarge.error(format!(
                    "the answer has {bytes} bytes: more than {ANSWER} are not sent in one piece"
                ))),
                _ => Ok(result),
            });
            if large {
                loaded.shared.had_large();
            }
            drop(place);
            result
        };
        let result = tokio::task::spawn_blocking(work)
            .await
            .map_err(|error| blocking_failed(&error))?;
        result.map(Response::new).map_err(Error::into_status)
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
                let result = load::load(
                    &request,
                    service.cores.as_deref(),
                    service.devices.as_deref(),
                    &mut |progress| send(engine_load_event::Kind::Progress(progress)),
                );
                match result {
                    Ok(loaded) => {
                        let description = loaded.description.clone();
                        service.set(State::Ready(Arc::new(loaded)));
                        send(engine_load_event::Kind::Ready(description));
                    }
                    Err(error) => {
                        tracing::error!(%error, "the model could not be loaded");
                        service.set(State::Failed);
                        send(engine_load_event::Kind::Failed(error.into()));
                    }
                }
            })?;
        Ok(())
    }
}

/// What stands for an image in a prompt that is shown, as llama.cpp writes it. A prompt that is read has another one.
const SHOWN_IMAGE: &str = "<__media__>";
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

    async fn slot_action(
        &self,
        request: Request<SlotActionCall>,
    ) -> Result<Response<SlotActionResult>, Status> {
        let loaded = self.loaded()?;
        let done = slots::act(&loaded, request.into_inner()).await;
        done.map(Response::new).map_err(Error::into_status)
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
                description.totals = Some(loaded.shared.totals().read());
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
        let call = request.into_inner();
        let content = call.content.unwrap_or_default();
        let bytes = convert::text_bytes(&content);
        if bytes > TOKENIZE_TEXT {
            self.loaded()?.shared.had_large();
            let message =
                format!("the text has {bytes} bytes: at most {TOKENIZE_TEXT} are tokenized at once");
            return Err(Code::BodyTooLarge
                .error(message)
                .with_param("content")
                .into_status());
        }
        let work = move |loaded: &Loaded| {
            let model = &loaded.model;
            let tokens = convert::prompt(model, &content, "content", call.add_special, call.parse_special)?;
            let piece = |token: &i32| model.piece(*token, true).into();
            let pieces = tokens.iter().map(piece).collect();
            Ok(TokenizeResult { tokens, pieces })
        };
        self.beside(bytes > LARGE, work).await
    }

    async fn detokenize(
        &self,
        request: Request<DetokenizeCall>,
    ) -> Result<Response<DetokenizeResult>, Status> {
        let tokens = request.into_inner().tokens;
        let count = tokens.len();
        if count > DETOKENIZE_TOKENS {
            self.loaded()?.shared.had_large();
            let message = format!("{count} tokens: at most {DETOKENIZE_TOKENS} are made text at once");
            return Err(Code::BodyTooLarge
                .error(message)
                .with_param("tokens")
                .into_status());
        }
        let work = move |loaded: &Loaded| {
            convert::check_tokens(&loaded.model, &tokens, "tokens")?;
            let text = loaded.model.detokenize(&tokens).map_err(native("tokens"))?;
            Ok(DetokenizeResult { text })
        };
        self.beside(count > LARGE, work).await
    }

    async fn apply_template(
        &self,
        request: Request<ApplyTemplateCall>,
    ) -> Result<Response<ApplyTemplateResult>, Status> {
        let chat = request.into_inner().chat.unwrap_or_default();
        let large = convert::chat_bytes(&chat) > LARGE;
        let work = move |loaded: &Loaded| {
            let images = loaded
                .projector
                .as_ref()
                .is_some_and(|projector| projector.info().vision);
            let marker = images.then_some(SHOWN_IMAGE);
            let spec = convert::chat(
                &loaded.model,
                &chat,
                marker,
                ("", ""),
                "",
                &loaded.defaults,
                &serde_json::Map::new(),
            )?;
            let (_, prompt) = Chat::apply(&loaded.model, &spec).map_err(native("messages"))?;
            Ok(ApplyTemplateResult { prompt })
        };
        self.beside(large, work).await
    }
}
