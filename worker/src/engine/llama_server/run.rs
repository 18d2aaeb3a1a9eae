//! Runs one request from its start to its terminal event.

use std::sync::Arc;

use muster_core::{Code, Error};
use muster_proto::v1::{
    EmbedRequest, EmbedResult, Embedding, Event, Finished, GenerateRequest, Prompt, RerankRequest,
    RerankResult, SequenceEvents, Usage, Vector, event, prompt_piece, start::Work,
};
use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};

use super::{
    client::{Http, broken, send},
    reply::{Reply, kind},
    request::{self, input_value, prompt_value},
    sse::Decoder,
};

/// What all requests of an engine share.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) http: Http,
    /// Largest number of tokens of one request.
    pub(super) context: u32,
    /// Largest number of tokens of an input of which vectors or scores are computed: one physical batch holds it.
    pub(super) longest: u32,
    /// Whether embeddings are one vector per token.
    pub(super) unpooled: bool,
    /// The kinds of media that the model takes.
    pub(super) media: request::Media,
    /// What stands for media in a prompt.
    pub(super) marker: Arc<str>,
}

/// The output of a request: events are collected and sent together, deltas only for credits.
#[derive(Debug)]
pub(super) struct Out {
    handle: u64,
    outbox: mpsc::Sender<SequenceEvents>,
    credit: Arc<Semaphore>,
    events: Vec<Event>,
    /// The successful terminal event was added.
    said: bool,
    /// All events were sent.
    closed: bool,
}

impl Out {
    pub(super) fn new(handle: u64, outbox: mpsc::Sender<SequenceEvents>, credit: Arc<Semaphore>) -> Self {
        Self {
            handle,
            outbox,
            credit,
            events: Vec::new(),
            said: false,
            closed: false,
        }
    }

    /// Adds an event that needs no credit.
    pub(super) fn push(&mut self, event: Event) {
        self.said |= matches!(event.kind, Some(event::Kind::Finished(_)));
        self.events.push(event);
    }

    /// Adds events, waiting for a credit for each that needs one. Events that are ready are sent before waiting.
    async fn pay(&mut self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            if matches!(event.kind, Some(event::Kind::Delta(_) | event::Kind::Progress(_))) {
                if let Ok(permit) = self.credit.try_acquire() {
                    permit.forget();
                } else {
                    self.flush().await;
                    // The semaphore is never closed.
                    if let Ok(permit) = self.credit.acquire().await {
                        permit.forget();
                    }
                }
            }
            self.push(event);
        }
        self.flush().await;
    }

    async fn flush(&mut self) {
        if !self.closed && (self.said || !self.events.is_empty()) {
            let outbox = self.outbox.clone();
            // If a flush is cancelled here, nothing was sent, and `end` sends the last event.
            if let Ok(permit) = outbox.reserve().await {
                self.closed = self.said;
                let events = std::mem::take(&mut self.events);
                permit.send(SequenceEvents {
                    handle: self.handle,
                    events,
                    finished: self.said,
                });
            }
        }
    }

    /// Sends the terminal event, unless that was done.
    pub(super) async fn end(mut self, result: Result<(), Error>) {
        if !self.said {
            let error = result
                .err()
                .unwrap_or_else(|| Code::Internal.error("the request ended without a word"));
            self.push(kind(event::Kind::Failed(error.into())));
            self.said = true;
        }
        self.flush().await;
    }
}

impl Job {
    /// Does the work of a request, up to its terminal event if it succeeds.
    ///
    /// # Errors
    /// The server or the translation refuses it; `runtime_crashed` if the connection breaks.
    pub(super) async fn work(&self, work: Option<Work>, out: &mut Out) -> Result<(), Error> {
        match work {
            Some(Work::Generate(request)) => self.generate(request, out).await,
            Some(Work::Embed(request)) => {
                let done = self.embed(&request, out).await;
                let each = |input: &Prompt| vec![prompt_value(input)];
                self.why(done, request.inputs.iter().map(each)).await
            }
            Some(Work::Rerank(request)) => {
                let done = self.rerank(&request, out).await;
                let each = |document: &String| vec![request.query.as_str().into(), document.as_str().into()];
                self.why(done, request.documents.iter().map(each)).await
            }
            None => Err(Code::InvalidRequest.error("no work was given")),
        }
    }

    /// The reason for a failure: of an input that is longer than a batch the server says that it failed itself (500). `inputs`: the texts of each.
    ///
    /// # Errors
    /// The failure; `context_length_exceeded` if an input is too long.
    async fn why(
        &self,
        done: Result<(), Error>,
        inputs: impl Iterator<Item = Vec<Value>>,
    ) -> Result<(), Error> {
        let Err(error) = done else { return Ok(()) };
        if error.code != Code::RuntimeError {
            return Err(error);
        }
        for texts in inputs {
            let mut length = 0;
            for text in texts {
                let body = json!({"content": text, "add_special": true});
                let Ok(Tokens { tokens }) = self.http.post("/tokenize", &body).await else {
                    return Err(error);
                };
                length += tokens.len();
            }
            if length > usize::try_from(self.longest).unwrap_or(usize::MAX) {
                return Err(overflow(length, self.longest));
            }
        }
        Err(error)
    }

    async fn generate(&self, mut request: GenerateRequest, out: &mut Out) -> Result<(), Error> {
        self.media.check(&request)?;
        let mut wire = request::generate(&request, self.context, &self.marker)?;
        if wire.bare {
            wire.body["prompt"] = self.bare_tokens(&request).await?;
        }
        // The prompt may have megabytes and is not needed any more.
        request.input = None;
        out.flush().await;
        let mut answer = send(self.http.request(Method::POST, wire.path).json(&wire.body)).await?;
        let mut reply = Reply::new(wire.dialect, &request);
        drop(wire);
        let mut decoder = Decoder::default();
        let mut events = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|error| broken(&error))? {
            let read = decoder.feed(&chunk, |data| reply.read(data, &mut events));
            // After the terminal event only the end of the stream follows; reading it keeps the connection for the next request.
            out.pay(events.drain(..)).await;
            read?;
        }
        reply.end(&mut events)?;
        out.pay(events).await;
        Ok(())
    }

    /// The tokens of a prompt without special tokens: the server adds those to text, but not to tokens.
    async fn bare_tokens(&self, request: &GenerateRequest) -> Result<Value, Error> {
        use muster_proto::v1::generate_request::Input;
        let Some(Input::Prompt(prompt)) = &request.input else {
            return Err(Code::Internal.error("only a plain prompt can be bare"));
        };
        let body = json!({"content": prompt_value(prompt), "add_special": false, "parse_special": true});
        let Tokens { tokens } = self.http.post("/tokenize", &body).await?;
        Ok(tokens.into())
    }

    async fn embed(&self, request: &EmbedRequest, out: &mut Out) -> Result<(), Error> {
        out.flush().await;
        for input in &request.inputs {
            self.media.check_prompt(input)?;
        }
        let inputs: Value = request
            .inputs
            .iter()
            .map(|input| vector_input(input, &self.marker))
            .collect();
        let mut result = if self.unpooled {
            let items: Vec<Unpooled> = self.http.post("/embeddings", &json!({"content": inputs})).await?;
            EmbedResult {
                embeddings: in_order(items, |item| item.index).map(Into::into).collect(),
                usage: None,
            }
        } else {
            let mut body = json!({"input": inputs, "encoding_format": "float"});
            if let Some(normalize) = request.normalize {
                body["embd_normalize"] = normalize.into();
            }
            let Pooled { data, usage } = self.http.post("/v1/embeddings", &body).await?;
            let embedding = |item: PooledItem| Embedding {
                vectors: vec![Vector {
                    values: item.embedding,
                }],
                tokens: 0,
            };
            let mut embeddings: Vec<Embedding> = in_order(data, |item| item.index).map(embedding).collect();
            if let [only] = embeddings.as_mut_slice() {
                only.tokens = usage.prompt_tokens;
            }
            EmbedResult {
                embeddings,
                usage: Some(Usage {
                    prompt_tokens: usage.prompt_tokens,
                    ..Usage::default()
                }),
            }
        };
        shorten(&mut result, request);
        let finished = Finished {
            usage: result.usage,
            ..Finished::default()
        };
        out.push(kind(event::Kind::Embedded(result)));
        out.push(kind(event::Kind::Finished(finished)));
        Ok(())
    }

    async fn rerank(&self, request: &RerankRequest, out: &mut Out) -> Result<(), Error> {
        out.flush().await;
        let body = json!({"query": request.query, "documents": request.documents});
        let Ranked { results, usage } = self.http.post("/rerank", &body).await?;
        let usage = Some(Usage {
            prompt_tokens: usage.prompt_tokens,
            ..Usage::default()
        });
        let scores: Vec<f32> = in_order(results, |item| item.index)
            .map(|item| item.relevance_score)
            .collect();
        if scores.len() != request.documents.len() {
            return Err(Code::RuntimeError.error("llama-server scored another number of documents"));
        }
        out.push(kind(event::Kind::Reranked(RerankResult {
            scores,
            usage,
            tokens: Vec::new(),
        })));
        out.push(kind(event::Kind::Finished(Finished {
            usage,
            ..Finished::default()
        })));
        Ok(())
    }
}

/// The error for an input that is too long, in llama.cpp's words.
fn overflow(tokens: usize, room: u32) -> Error {
    Code::ContextLengthExceeded
        .error(format!(
            "request ({tokens} tokens) exceeds the available context size ({room} tokens), try increasing it"
        ))
        .with_detail("prompt_tokens", tokens)
        .with_detail("context_length", room)
}

/// An input for embeddings: text, tokens, or a mixture.
fn vector_input(input: &Prompt, marker: &str) -> Value {
    let empty = input.pieces.iter().all(|piece| match &piece.kind {
        Some(prompt_piece::Kind::Text(text)) => text.is_empty(),
        Some(prompt_piece::Kind::Tokens(tokens)) => tokens.ids.is_empty(),
        Some(prompt_piece::Kind::Media(_)) => false,
        None => true,
    });
    if empty {
        "".into()
    } else {
        input_value(input, marker)
    }
}

/// Cuts vectors to the requested length and normalises them again.
fn shorten(result: &mut EmbedResult, request: &EmbedRequest) {
    let Some(length @ 1..) = usize::try_from(request.dimensions).ok() else {
        return;
    };
    for vector in result
        .embeddings
        .iter_mut()
        .flat_map(|embedding| &mut embedding.vectors)
    {
        if vector.values.len() <= length {
            continue;
        }
        vector.values.truncate(length);
        let norm = match request.normalize {
            None | Some(2) => vector.values.iter().map(|x| x * x).sum::<f32>().sqrt(),
            Some(1) => vector.values.iter().map(|x| x.abs()).sum(),
            Some(_) => 1.0,
        };
        if norm > 0.0 {
            vector.values.iter_mut().for_each(|x| *x /= norm);
        }
    }
}

fn in_order<T>(mut items: Vec<T>, index: impl Fn(&T) -> usize) -> impl Iterator<Item = T> {
    items.sort_by_key(|item| index(item));
    items.into_iter()
}

/// The answer of `/tokenize` without pieces.
#[derive(Debug, Deserialize)]
struct Tokens {
    tokens: Vec<i32>,
}

#[derive(Debug, Deserialize)]
struct Pooled {
    data: Vec<PooledItem>,
    usage: InputUsage,
}

#[derive(Debug, Deserialize)]
struct PooledItem {
    index: usize,
    embedding: Vec<f32>,
}

#[derive(Debug, Deserialize)]
struct Unpooled {
    index: usize,
    embedding: Vec<Vec<f32>>,
}

impl From<Unpooled> for Embedding {
    fn from(item: Unpooled) -> Self {
        let tokens = u32::try_from(item.embedding.len()).unwrap_or(u32::MAX);
        Self {
            vectors: item
                .embedding
                .into_iter()
                .map(|values| Vector { values })
                .collect(),
            tokens,
        }
    }
}

#[derive(Debug, Deserialize)]
struct Ranked {
    results: Vec<RankedItem>,
    usage: InputUsage,
}

#[derive(Debug, Deserialize)]
struct RankedItem {
    index: usize,
    relevance_score: f32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct InputUsage {
    prompt_tokens: u32,
}
