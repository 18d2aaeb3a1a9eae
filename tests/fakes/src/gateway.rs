//! A gateway's session: commands down, events per handle up. Checks what must hold for every session.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use muster_core::Error;
use muster_proto::{
    net::{self, Address, Channel},
    trust::Credentials,
    v1::{
        Cancel, Credit, Event, Finished, GenerateRequest, InstanceRef, Prompt, PromptPiece, SessionCommand,
        SessionMessage, Start, event::Kind, generate_request::Input, inference_client::InferenceClient,
        prompt_piece, session_command::Kind as Command, session_message::Kind as Message, start::Work,
    },
};
use tokio::{sync::mpsc, task::JoinHandle, time::timeout};
use tokio_stream::wrappers::ReceiverStream;

use crate::LIMIT;

type Streams = Arc<Mutex<HashMap<u64, mpsc::Sender<Event>>>>;

pub struct Gateway {
    commands: mpsc::Sender<SessionCommand>,
    streams: Streams,
    next: AtomicU64,
    reader: JoinHandle<()>,
}

/// One request's events.
pub struct Stream {
    pub handle: u64,
    events: mpsc::Receiver<Event>,
    pub text: String,
    pub deltas: usize,
}

/// How a request ended.
pub type Ended = Result<Finished, Error>;

pub async fn client(address: &Address) -> InferenceClient<Channel> {
    InferenceClient::new(net::channel(address, &Credentials::none()).await.unwrap())
        .max_decoding_message_size(muster_proto::MAX_MESSAGE_BYTES)
}

impl Gateway {
    pub async fn connect(address: &Address) -> Self {
        Self::named(address, None).await
    }

    /// Opens a session as this gateway.
    pub async fn named(address: &Address, id: Option<&'static str>) -> Self {
        let (commands, stream) = mpsc::channel(256);
        let streams = Streams::default();
        let mut request = tonic::Request::new(ReceiverStream::new(stream));
        if let Some(id) = id {
            let metadata = request.metadata_mut();
            metadata.insert(
                muster_proto::GATEWAY_ID_KEY,
                tonic::metadata::MetadataValue::from_static(id),
            );
        }
        let mut inbound = client(address).await.session(request).await.unwrap().into_inner();
        let all = Arc::clone(&streams);
        let reader = tokio::spawn(async move {
            let mut seq = 0;
            while let Ok(Some(SessionMessage { kind })) = inbound.message().await {
                let Some(Message::Tick(tick)) = kind else { continue };
                seq += 1;
                assert_eq!(tick.seq, seq, "ticks have no gaps");
                for sequence in tick.sequences {
                    let mut all = all.lock().unwrap();
                    let stream = all
                        .get(&sequence.handle)
                        .expect("events of a finished or unknown handle");
                    for event in sequence.events {
                        stream.try_send(event).ok();
                    }
                    if sequence.finished {
                        all.remove(&sequence.handle);
                    }
                }
            }
            all.lock().unwrap().clear();
        });
        Self {
            commands,
            streams,
            next: AtomicU64::new(1),
            reader,
        }
    }

    pub async fn send(&self, kind: Command) {
        self.commands
            .send(SessionCommand { kind: Some(kind) })
            .await
            .unwrap();
    }

    pub async fn start_with(&self, start: Start) -> Stream {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, events) = mpsc::channel(1 << 16);
        self.streams.lock().unwrap().insert(handle, sender);
        self.send(Command::Start(Start { handle, ..start })).await;
        Stream {
            handle,
            events,
            text: String::new(),
            deltas: 0,
        }
    }

    /// Starts a generation with so much credit.
    pub async fn start(&self, instance: &InstanceRef, prompt: &str, tokens: u32, credit: u32) -> Stream {
        self.start_with(generate(instance, prompt, tokens, credit)).await
    }

    pub async fn credit(&self, stream: &Stream, events: u32) {
        let handle = stream.handle;
        self.send(Command::Credit(Credit { handle, events })).await;
    }

    pub async fn cancel(&self, stream: &Stream) {
        let handle = stream.handle;
        self.send(Command::Cancel(Cancel { handle })).await;
    }

    /// Breaks the connection.
    pub fn abort(self) {
        self.reader.abort();
    }
}

pub fn prompt(text: &str) -> Option<Prompt> {
    let piece = PromptPiece {
        kind: Some(prompt_piece::Kind::Text(text.to_owned())),
    };
    Some(Prompt {
        pieces: vec![piece],
        add_special: None,
    })
}

pub fn request(text: &str, tokens: u32) -> GenerateRequest {
    GenerateRequest {
        input: prompt(text).map(Input::Prompt),
        max_tokens: Some(tokens),
        ..GenerateRequest::default()
    }
}

pub fn generate(instance: &InstanceRef, prompt: &str, tokens: u32, credit: u32) -> Start {
    Start {
        instance: Some(instance.clone()),
        credit,
        work: Some(Work::Generate(request(prompt, tokens))),
        ..Start::default()
    }
}

impl Stream {
    /// The next event; `None` once the request has ended or the session broke.
    pub async fn next(&mut self) -> Option<Kind> {
        let event = timeout(LIMIT, self.events.recv()).await.expect("no event came")?;
        let kind = event.kind.unwrap();
        if let Kind::Delta(delta) = &kind {
            self.text.push_str(&delta.content);
            self.deltas += 1;
        }
        Some(kind)
    }

    /// Waits for admission; answers the place in the queue.
    pub async fn admitted(&mut self) -> u32 {
        match self.next().await {
            Some(Kind::Admitted(admitted)) => admitted.queue_position,
            other => panic!("not admitted: {other:?}"),
        }
    }

    /// Reads so many deltas.
    pub async fn read(&mut self, deltas: usize) {
        let until = self.deltas + deltas;
        while self.deltas < until {
            match self.next().await {
                Some(Kind::Finished(_) | Kind::Failed(_)) | None => {
                    panic!("ended after {} deltas", self.deltas)
                }
                Some(_) => {}
            }
        }
    }

    /// Reads to the end, which comes exactly once.
    pub async fn end(&mut self) -> Ended {
        let ended = loop {
            match self.next().await.expect("the session broke") {
                Kind::Finished(finished) => break Ok(finished),
                Kind::Failed(error) => break Err(error.into()),
                Kind::Admitted(_)
                | Kind::Delta(_)
                | Kind::Progress(_)
                | Kind::ChoiceFinished(_)
                | Kind::Embedded(_)
                | Kind::Reranked(_) => {}
            }
        };
        assert!(self.next().await.is_none(), "events after the end");
        ended
    }

    /// Reads to the end and expects this error.
    pub async fn fails(&mut self, code: &str) -> Error {
        let error = self.end().await.expect_err("it finished");
        assert_eq!(error.code.as_str(), code, "{error}");
        error
    }
}
