//! The stub's `Engine` service.

use std::{
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use futures::Stream;
use muster_core::{Code, Error};
use muster_proto::{
    StatusExt as _, VERSION,
    v1::{
        ApplyTemplateCall, ApplyTemplateResult, Capabilities, DetokenizeCall, DetokenizeResult,
        EngineDescribeRequest, EngineDescription, EngineLoadEvent, EngineLoadRequest, LoadPhase,
        LoadProgress, ModelSettings, ModelType, SessionCommand, SessionMessage, SlotActionCall,
        SlotActionResult, TokenizeCall, TokenizeResult, engine_load_event,
        engine_server::Engine as EngineService,
    },
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{
    session::{self, Engine, Shared, lock},
    settings::{Behaviour, Fail},
    text,
};

/// Number of progress reports of a load.
const STEPS: u8 = 10;
/// Number of ticks in the channel. With more, the stub would work too far ahead of a cancellation.
const TICKS: usize = 4;

/// The loaded model; set once.
#[derive(Debug)]
struct Loaded {
    model_id: String,
    settings: ModelSettings,
    engine: Shared,
}

/// The stub engine.
#[derive(Clone, Debug, Default)]
pub(super) struct Stub {
    loaded: Arc<OnceLock<Loaded>>,
    in_session: Arc<AtomicBool>,
}

/// The claim of the only session; ends when dropped.
struct Session(Arc<AtomicBool>);

impl Drop for Session {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Stub {
    async fn load(&self, request: EngineLoadRequest, events: mpsc::Sender<Result<EngineLoadEvent, Status>>) {
        let last = match self.try_load(request, &events).await {
            Ok(description) => engine_load_event::Kind::Ready(description),
            Err(error) => engine_load_event::Kind::Failed(error.into()),
        };
        // Without a listener there is nobody to tell.
        drop(events.send(Ok(EngineLoadEvent { kind: Some(last) })).await);
    }

    async fn try_load(
        &self,
        request: EngineLoadRequest,
        events: &mpsc::Sender<Result<EngineLoadEvent, Status>>,
    ) -> Result<EngineDescription, Error> {
        let settings = request.settings.unwrap_or_default();
        let behaviour = Behaviour::read(&settings)?;
        let begin = Instant::now();
        // Written, not only reserved: untouched pages would not count.
        let memory = vec![0xa5; behaviour.memory_bytes];
        for step in 0..STEPS {
            let progress = LoadProgress {
                phase: LoadPhase::Weights.into(),
                fraction: f32::from(step) / f32::from(STEPS),
                elapsed: begin.elapsed().try_into().ok(),
            };
            drop(
                events
                    .send(Ok(EngineLoadEvent {
                        kind: Some(engine_load_event::Kind::Progress(progress)),
                    }))
                    .await,
            );
            match behaviour.fail {
                Fail::Load => return Err(Code::ModelLoadFailed.error("the stub was told to fail")),
                Fail::AbortLoad => std::process::abort(),
                Fail::HangLoad => std::future::pending().await,
                Fail::None | Fail::AbortAfter(_) | Fail::StallAfter(_) | Fail::GapAfter(_) => {}
            }
            if !behaviour.load_time.is_zero() {
                tokio::time::sleep(behaviour.load_time / u32::from(STEPS)).await;
            }
        }
        let engine = Arc::new(std::sync::Mutex::new(Engine::new(behaviour, memory)));
        let loaded = Loaded {
            model_id: request.model_id,
            settings,
            engine,
        };
        self.loaded
            .set(loaded)
            .map_err(|_| Code::InvalidLoadRequest.error("a model is loaded already"))?;
        Ok(self.description())
    }

    fn description(&self) -> EngineDescription {
        let engine = format!("muster stub {VERSION}");
        let Some(loaded) = self.loaded.get() else {
            return EngineDescription {
                engine,
                ..EngineDescription::default()
            };
        };
        let state = lock(&loaded.engine);
        let Behaviour {
            kind,
            context,
            sequences,
            tokens,
            ..
        } = state.behaviour;
        let mut settings = loaded.settings.clone();
        settings.ctx_size = context;
        settings.sequences = sequences;
        if let Some(stub) = &mut settings.stub {
            stub.tokens = tokens;
        }
        EngineDescription {
            engine,
            model_id: loaded.model_id.clone(),
            capabilities: Some(capabilities(kind, context, sequences)),
            sequences: state.states(),
            iterations: state.iterations,
            settings: Some(settings),
            metadata: [("general.architecture".to_owned(), "stub".to_owned())].into(),
            ..EngineDescription::default()
        }
    }

    fn engine(&self) -> Result<&Shared, Error> {
        let loaded = self
            .loaded
            .get()
            .ok_or_else(|| Code::ModelNotLoaded.error("no model is loaded"))?;
        Ok(&loaded.engine)
    }
}

fn capabilities(kind: ModelType, context: u32, sequences: u32) -> Capabilities {
    let llm = kind == ModelType::Llm;
    let embed = kind == ModelType::Embedding;
    Capabilities {
        generate: llm,
        embed,
        rerank: kind == ModelType::Reranking,
        tools: llm,
        thinking: llm,
        context_length: context,
        train_context_length: context,
        sequences,
        embedding_length: if embed {
            u32::try_from(text::VECTOR_LENGTH).unwrap_or(0)
        } else {
            0
        },
        vocabulary: text::VOCABULARY,
        ..Capabilities::default()
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl EngineService for Stub {
    type LoadStream = ReceiverStream<Result<EngineLoadEvent, Status>>;
    type RunStream = Pin<Box<dyn Stream<Item = Result<SessionMessage, Status>> + Send>>;

    async fn load(&self, request: Request<EngineLoadRequest>) -> Answer<Self::LoadStream> {
        let (events, stream) = mpsc::channel(usize::from(STEPS) + 1);
        let stub = self.clone();
        tokio::spawn(async move { stub.load(request.into_inner(), events).await });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn run(&self, request: Request<Streaming<SessionCommand>>) -> Answer<Self::RunStream> {
        let engine = self.engine().map_err(Error::into_status)?.clone();
        if self.in_session.swap(true, Ordering::AcqRel) {
            return Err(Status::failed_precondition("a session is open"));
        }
        let claim = Session(Arc::clone(&self.in_session));
        let (out, stream) = mpsc::channel(TICKS);
        tokio::spawn(session::signs_of_life(Arc::clone(&engine), out.clone()));
        tokio::spawn(async move {
            session::run(engine, request.into_inner(), out).await;
            drop(claim);
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn describe(&self, _: Request<EngineDescribeRequest>) -> Answer<EngineDescription> {
        Ok(Response::new(self.description()))
    }

    async fn tokenize(&self, request: Request<TokenizeCall>) -> Answer<TokenizeResult> {
        let prompt = request.into_inner().content.unwrap_or_default();
        let text = text::render_prompt(&prompt);
        let pieces = text
            .bytes()
            .map(|byte| bytes::Bytes::copy_from_slice(&[byte]))
            .collect();
        Ok(Response::new(TokenizeResult {
            tokens: text::tokenize(&text),
            pieces,
        }))
    }

    async fn detokenize(&self, request: Request<DetokenizeCall>) -> Answer<DetokenizeResult> {
        Ok(Response::new(DetokenizeResult {
            text: text::detokenize(&request.into_inner().tokens),
        }))
    }

    async fn slot_action(&self, _: Request<SlotActionCall>) -> Answer<SlotActionResult> {
        let error = Code::UnsupportedByRuntime.error("this engine saves no sequences");
        Err(error.into_status())
    }

    async fn apply_template(&self, request: Request<ApplyTemplateCall>) -> Answer<ApplyTemplateResult> {
        let chat = request.into_inner().chat.unwrap_or_default();
        Ok(Response::new(ApplyTemplateResult {
            prompt: text::render_chat(&chat),
        }))
    }
}
