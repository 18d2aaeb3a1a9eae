//! Embeddings and rerank scores. Whole inputs are packed into batches, taking one input of each request in turn.
//!
//! A context for embeddings serves nothing else, because embedding mode, pooling and causality belong to the context. So these batches
//! never contain text generation. Pooled vectors are read before the next decode overwrites them (ENGINE.md 17).

use std::{collections::VecDeque, sync::Arc, time::Instant};

use muster_core::Code;
use muster_proto::{
    limits::VECTOR_BYTES,
    v1::{
        Admitted, EmbedResult, Embedding, Event, Finished, RerankResult, SequenceEvents, Timings, Usage,
        Vector, event,
    },
};

use super::Engine;
use crate::{
    control::Control,
    model::Token,
    request::{EmbedJob, EmbedOutput, millis},
    vector,
};

/// A running request for vectors.
#[derive(Debug)]
pub(super) struct EmbedRun {
    handle: u64,
    pub(super) control: Arc<Control>,
    inputs: Vec<Vec<Token>>,
    output: EmbedOutput,
    bytes: usize,
    /// Number of inputs that were given to a decode.
    next: usize,
    /// The vectors of each input.
    results: Vec<Vec<Vec<f32>>>,
    started: Instant,
}

/// Number of requests for vectors that may run at once. The worker queues the others.
const RUNS: usize = 64;
/// Bytes of results that these requests may hold together.
const RESULTS: usize = 4 * VECTOR_BYTES;

impl Engine {
    pub(super) fn start_embed(&mut self, handle: u64, control: Arc<Control>, job: EmbedJob) {
        let held: usize = self.embeds.iter().map(|run| run.bytes).sum();
        if self.embeds.len() >= RUNS || held + job.bytes > RESULTS {
            return self.refuse(handle, Code::NoRoom.error("too many requests run"));
        }
        let admitted = Event {
            kind: Some(event::Kind::Admitted(Admitted::default())),
            extra_json: String::new(),
        };
        self.out.push(SequenceEvents {
            handle,
            events: vec![admitted],
            finished: false,
        });
        let output = match job.output {
            // seed 004, `POST /embeddings`: the vectors of single tokens are never normalised
            EmbedOutput::Vectors { dimensions, .. } if self.context.info().pooling == "none" => {
                EmbedOutput::Vectors {
                    normalize: -1,
                    dimensions,
                }
            }
            output @ (EmbedOutput::Vectors { .. } | EmbedOutput::Scores) => output,
        };
        self.embeds.push_back(EmbedRun {
            handle,
            control,
            results: vec![Vec::new(); job.inputs.len()],
            inputs: job.inputs,
            output,
            bytes: job.bytes,
            next: 0,
            started: Instant::now(),
        });
    }

    pub(super) fn reap_cancelled_embeds(&mut self) {
        let (gone, stay): (VecDeque<EmbedRun>, _) = std::mem::take(&mut self.embeds)
            .into_iter()
            .partition(|run| run.control.is_cancelled());
        self.embeds = stay;
        for run in gone {
            self.refuse(run.handle, Code::Cancelled.error("the request was cancelled"));
        }
    }

    /// Packs inputs into one batch and decodes it.
    pub(super) fn embed_some(&mut self) {
        let info = self.context.info();
        let room = info.n_ubatch as usize;
        let most = info.n_seq_max as usize;
        let all_tokens = info.pooling == "none";
        self.batch.clear();
        // (run, input, sequence, first index in the batch)
        let mut packed: Vec<(usize, usize, i32, usize)> = Vec::new();
        let mut turn = 0;
        let mut blocked = 0;
        while packed.len() < most && blocked < self.embeds.len() {
            let at = turn % self.embeds.len();
            turn += 1;
            let run = &mut self.embeds[at];
            let Some(input) = run
                .inputs
                .get(run.next)
                .filter(|input| self.batch.len() + input.len() <= room)
            else {
                blocked += 1;
                continue;
            };
            blocked = 0;
            let seq = i32::try_from(packed.len()).unwrap_or(i32::MAX);
            let begin = self.batch.len();
            for (pos, token) in (0..).zip(input) {
                self.batch.push(*token, pos, seq, true);
            }
            packed.push((at, run.next, seq, begin));
            run.next += 1;
        }
        for (_, _, seq, _) in &packed {
            self.context.forget(*seq);
        }
        let decoded = if self.batch.is_empty() {
            Ok(())
        } else {
            self.context.decode(&self.batch)
        };
        if let Err(error) = decoded {
            tracing::error!(?error, "a decode for embeddings failed");
            let mut handles: Vec<usize> = packed.iter().map(|entry| entry.0).collect();
            handles.sort_unstable();
            handles.dedup();
            for at in handles.into_iter().rev() {
                if let Some(run) = self.embeds.remove(at) {
                    self.refuse(
                        run.handle,
                        Code::RuntimeError.error("llama.cpp could not evaluate the input"),
                    );
                }
            }
            return;
        }
        for (at, input, seq, begin) in packed {
            let len = self.embeds[at].inputs[input].len();
            let vectors: Vec<Vec<f32>> = if all_tokens {
                (begin..begin + len)
                    .filter_map(|i| self.context.token_embedding(i).map(<[f32]>::to_vec))
                    .collect()
            } else {
                self.context
                    .pooled(seq)
                    .map(<[f32]>::to_vec)
                    .into_iter()
                    .collect()
            };
            self.embeds[at].results[input] = vectors;
            self.context.forget(seq);
        }
        self.finish_embeds();
    }

    fn finish_embeds(&mut self) {
        let (done, stay): (VecDeque<EmbedRun>, _) = std::mem::take(&mut self.embeds)
            .into_iter()
            .partition(|run| run.next == run.inputs.len());
        self.embeds = stay;
        for run in done {
            let handle = run.handle;
            if run.results.iter().any(Vec::is_empty) && !run.results.is_empty() {
                self.refuse(handle, Code::RuntimeError.error("llama.cpp gave no embedding"));
                continue;
            }
            let mut events = result(run);
            match self.out.iter_mut().find(|entry| entry.handle == handle) {
                Some(entry) => {
                    entry.events.append(&mut events);
                    entry.finished = true;
                }
                None => self.out.push(SequenceEvents {
                    handle,
                    events,
                    finished: true,
                }),
            }
        }
    }
}

fn result(run: EmbedRun) -> Vec<Event> {
    let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
    let tokens: Vec<u32> = run.inputs.iter().map(|input| count(input.len())).collect();
    let total = tokens.iter().sum();
    let usage = Usage {
        prompt_tokens: total,
        ..Usage::default()
    };
    let kind = match run.output {
        EmbedOutput::Vectors {
            normalize,
            dimensions,
        } => {
            let embeddings = run
                .results
                .into_iter()
                .zip(&tokens)
                .map(|(vectors, tokens)| Embedding {
                    vectors: vectors
                        .into_iter()
                        .map(|values| Vector {
                            values: vector::finish(values, dimensions, normalize),
                        })
                        .collect(),
                    tokens: *tokens,
                });
            event::Kind::Embedded(EmbedResult {
                embeddings: embeddings.collect(),
                usage: Some(usage),
            })
        }
        EmbedOutput::Scores => {
            let scores = run
                .results
                .iter()
                .map(|vectors| vectors.first().and_then(|v| v.first()).copied().unwrap_or(0.0));
            event::Kind::Reranked(RerankResult {
                scores: scores.collect(),
                usage: Some(usage),
                tokens,
            })
        }
    };
    let finished = event::Kind::Finished(Finished {
        usage: Some(usage),
        timings: Some(Timings {
            prompt_n: total,
            prompt_ms: millis(run.started, Instant::now()),
            ..Timings::default()
        }),
        id_slot: None,
    });
    [kind, finished]
        .into_iter()
        .map(|kind| Event {
            kind: Some(kind),
            extra_json: String::new(),
        })
        .collect()
}
