//! Preparation: everything a request needs before it can run, done beside the loop so that templates, tokenizing and grammars stall nobody.
//!
//! Runs on threads with large stacks: llama.cpp's template, schema and grammar parsers recurse.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError},
};

use muster_core::{Code, Error};
use muster_proto::{
    limits::{TOP_LOGPROBS, VECTOR_BYTES},
    parameters::SAMPLING,
    v1::{
        EmbedRequest, GenerateRequest, LogitBias, RerankRequest, Sampling, Start, generate_request,
        logit_bias, start,
    },
};
use prost::Message as _;
use tokio::sync::mpsc::{self, error::TrySendError};

use super::{
    convert::{self, invalid, native, refusal, unsupported},
    images, infill,
};
use crate::{
    adapters::Scales,
    chat::Chat,
    content::Content,
    control::Control,
    guard,
    limits::{ANSWER, INTERVAL_UNSTREAMED, LARGE, Limits, Role},
    media::Projector,
    model::{Model, Token, schema_to_grammar},
    request::{Command, EmbedJob, EmbedOutput, GenerateJob, GenerateParams, Job, Work},
    sampler::Sampler,
    shared::Shared,
};

/// Requests that may wait to be prepared; beyond that a start is refused.
const CAPACITY: usize = 256;
/// Large ones that may.
const LARGE_CAPACITY: usize = 4;
/// Threads for those that are not large, and the one for those that are: it takes the memory that tokenizing takes once, and nobody waits behind it.
const THREADS: [&str; 3] = ["prepare-0", "prepare-1", "prepare-large"];
const STACK_BYTES: usize = 256 << 20;

/// A request on its way to the loop.
#[derive(Debug)]
pub(super) struct Raw {
    pub(super) session: u64,
    pub(super) start: Start,
    pub(super) control: Arc<Control>,
}

/// Where requests are prepared.
#[derive(Debug)]
pub(super) struct Desk {
    small: mpsc::Sender<Raw>,
    large: mpsc::Sender<Raw>,
}

impl Desk {
    /// Hands a request in; never waits.
    ///
    /// # Errors
    /// There is no place for it now, or the threads are gone.
    pub(super) fn hand_in(&self, raw: Raw) -> Result<(), TrySendError<()>> {
        let large = raw.start.encoded_len() > LARGE;
        let place = if large { &self.large } else { &self.small }.try_reserve()?;
        place.send(raw);
        Ok(())
    }
}

/// Starts the preparing threads; they end when the desk is dropped.
///
/// # Errors
/// A thread can't be started.
pub(super) fn spawn(
    model: &Arc<Model>,
    projector: Option<&Arc<Projector>>,
    limits: &Limits,
    commands: &mpsc::Sender<Command>,
    shared: &Arc<Shared>,
) -> std::io::Result<Desk> {
    let (small, rx_small) = mpsc::channel::<Raw>(CAPACITY);
    let (large, rx_large) = mpsc::channel::<Raw>(LARGE_CAPACITY);
    let (rx_small, rx_large) = (Arc::new(Mutex::new(rx_small)), Arc::new(Mutex::new(rx_large)));
    for (index, name) in THREADS.into_iter().enumerate() {
        let large = index + 1 == THREADS.len();
        let rx = Arc::clone(if large { &rx_large } else { &rx_small });
        let (model, projector, limits, commands, shared) = (
            Arc::clone(model),
            projector.map(Arc::clone),
            limits.clone(),
            commands.clone(),
            Arc::clone(shared),
        );
        std::thread::Builder::new()
            .name(name.to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                loop {
                    let next = rx.lock().unwrap_or_else(PoisonError::into_inner).blocking_recv();
                    let Some(raw) = next else { return };
                    let job = shared.busy().begin();
                    let (session, handle) = (raw.session, raw.start.handle);
                    let work = || prepare((&model, projector.as_ref()), &limits, &shared, raw);
                    let command = survive(work).unwrap_or_else(|error| Command::Refused {
                        session,
                        handle,
                        error,
                    });
                    if large {
                        shared.had_large();
                    }
                    drop(job);
                    if commands.blocking_send(command).is_err() {
                        return;
                    }
                }
            })?;
    }
    Ok(Desk { small, large })
}

/// Work that may panic over what somebody sent, as readers of image files might: it costs the request, not the thread that serves the next.
fn survive<T>(work: impl FnOnce() -> T) -> Result<T, Error> {
    let done = catch_unwind(AssertUnwindSafe(work));
    done.map_err(|_| Code::Internal.error("reading the request failed"))
}

fn prepare(
    (model, projector): (&Arc<Model>, Option<&Arc<Projector>>),
    limits: &Limits,
    shared: &Shared,
    raw: Raw,
) -> Command {
    let (session, handle) = (raw.session, raw.start.handle);
    let owner: Arc<str> = raw.start.fairness_key.into();
    let tenant = raw.start.private_prefixes.then(|| Arc::clone(&owner));
    let work = match raw.start.work {
        _ if raw.control.is_cancelled() => Err(Code::Cancelled.error("the request was cancelled")),
        None => Err(invalid("work", "the request asks for nothing")),
        Some(start::Work::Generate(request)) => {
            generate((model, projector), limits, request, (tenant, shared.scales())).map(|job| {
                shared.asked(handle, owner, &job.params.asked);
                Work::Generate(Box::new(job))
            })
        }
        Some(start::Work::Embed(request)) => embed(model, limits, &request).map(Work::Embed),
        Some(start::Work::Rerank(request)) => rerank(model, limits, &request).map(Work::Embed),
    };
    match work {
        Ok(work) => Command::Start(Job {
            session,
            handle,
            control: raw.control,
            work,
        }),
        Err(error) => Command::Refused {
            session,
            handle,
            error,
        },
    }
}

fn generate(
    (model, projector): (&Arc<Model>, Option<&Arc<Projector>>),
    limits: &Limits,
    request: GenerateRequest,
    (tenant, scales): (Option<Arc<str>>, &Scales),
) -> Result<GenerateJob, Error> {
    if limits.role != Role::Generate {
        return Err(unsupported(
            "",
            "this instance serves embeddings or reranking, not text",
        ));
    }
    guard::stops(&request.stop).map_err(refusal)?;
    let choices = request.n.max(1);
    if choices > guard::CHOICES {
        return Err(invalid("n", format!("`n` is larger than {}", guard::CHOICES)));
    }
    if request.top_logprobs > TOP_LOGPROBS {
        return Err(invalid(
            "n_probs",
            format!("no more than {TOP_LOGPROBS} alternatives of a token are told"),
        ));
    }
    let extra = convert::extra(&request)?;
    let sampling = request.sampling.clone().unwrap_or_default();
    let mut spec = convert::sampling(model, limits, sampling, &extra)?;
    spec.needs_candidates = request.post_sampling_probs;
    let (grammar, schema) = convert::constraint(&request)?;
    let mut stops = request.stop.clone();
    let (prompt, chat) = input((model, projector), limits, &request, (&grammar, &schema), &extra)?;
    if let Some(chat) = &chat {
        stops.extend(chat.info().additional_stops.iter().cloned());
    }
    let prompt = check_prompt(model, limits, prompt)?;
    if !chat.as_ref().is_some_and(|chat| chat.info().has_grammar) {
        if !schema.is_empty() {
            spec.grammar = Some(schema_to_grammar(&schema).map_err(native("json_schema"))?);
            spec.grammar_is_schema = true;
        } else if !grammar.is_empty() {
            spec.grammar = Some(grammar);
        }
    }
    let words = prompt.words();
    let mut samplers = Vec::with_capacity(choices as usize);
    for choice in 0..choices {
        let mut spec = spec.clone();
        let own = |seed: i64| match seed {
            convert::RANDOM_SEED => seed,
            seed => convert::seed(seed + i64::from(choice)),
        };
        spec.sampling.seed = spec.sampling.seed.map(own);
        let mut sampler = Sampler::new(Arc::clone(model), &spec, chat.as_ref()).map_err(native("grammar"))?;
        sampler.accept_prompt(&words).map_err(native("prompt"))?;
        samplers.push(sampler);
    }
    let logprobs = request.logprobs || request.top_logprobs > 0;
    let begins = prompt
        .tokens
        .first()
        .is_some_and(|first| *first == model.info().bos);
    let shift = convert::shift(limits, &extra, (prompt.len(), begins))?;
    // what never runs out of context would never end
    let endless = shift.map(|_| model.info().n_ctx_train.max(1));
    let params = GenerateParams {
        max_tokens: request.max_tokens.or(limits.defaults.max_tokens).or(endless),
        stops,
        min_indent: request.min_indent as usize,
        top_logprobs: logprobs.then_some(request.top_logprobs as usize),
        post_sampling_probs: request.post_sampling_probs,
        return_tokens: request.return_tokens,
        return_progress: request.return_progress,
        timings_per_token: request.timings_per_token,
        shown_prompt: if request.return_prompt {
            shown(model, &words)?
        } else {
            String::new()
        },
        shown_sampling: request.return_sampling.then(|| in_force(model, &spec)),
        cache_prompt: request.cache_prompt.unwrap_or(!limits.defaults.no_cache),
        guessing: convert::guessing(&extra)?,
        shift,
        id_slot: request.id_slot.map(|slot| slot as usize),
        tenant,
        scales: scales.asked(&extra)?,
        max_predict_ms: request.max_predict_ms,
        interval: if request.stream {
            limits.interval
        } else {
            limits.interval.max(INTERVAL_UNSTREAMED)
        },
        asked: Arc::new(GenerateRequest {
            input: None,
            ..request
        }),
    };
    let chat = chat.filter(|chat| !chat.info().plain).map(Arc::new);
    Ok(GenerateJob {
        prompt,
        samplers,
        chat,
        params: Arc::new(params),
    })
}

/// The prompt's tokens; of a chat also how its answer is read.
fn input(
    (model, projector): (&Model, Option<&Arc<Projector>>),
    limits: &Limits,
    request: &GenerateRequest,
    constraint: (&str, &str),
    extra: &serde_json::Map<String, serde_json::Value>,
) -> Result<(Content, Option<Chat>), Error> {
    let check = |bytes, param| convert::check_text(bytes, limits.context_text, limits.context, param);
    match &request.input {
        None => Err(invalid("prompt", "there is neither a chat nor a prompt")),
        Some(generate_request::Input::Chat(chat)) => {
            // a template may leave some of it out, but hardly that much
            check(convert::chat_bytes(chat), "messages")?;
            let marker = projector.and_then(|projector| projector.marker_of_images());
            let format = &request.reasoning_format;
            let spec = convert::chat(model, chat, marker, constraint, format, &limits.defaults, extra)?;
            let images = images::of_chat(chat)?;
            let (chat, text) = Chat::apply(model, &spec).map_err(native("messages"))?;
            check(text.len(), "messages")?;
            let content = match projector.filter(|_| !images.is_empty()) {
                None => model
                    .tokenize(&text, true, true)
                    .map_err(native("messages"))?
                    .into(),
                Some(projector) => {
                    images::split(projector, limits, (&text, &images), (true, true), "messages")?
                }
            };
            Ok((content, Some(chat)))
        }
        Some(generate_request::Input::Prompt(prompt)) => {
            check(convert::text_bytes(prompt), "prompt")?;
            let special = prompt.add_special.unwrap_or(true);
            let content = match projector.filter(|_| images::any(prompt)) {
                None => convert::prompt(model, prompt, "prompt", special, true)?.into(),
                Some(projector) => {
                    let (text, images) = images::of_prompt(prompt, "prompt", projector)?;
                    images::split(projector, limits, (&text, &images), (special, true), "prompt")?
                }
            };
            Ok((content, None))
        }
        Some(generate_request::Input::Infill(input)) => {
            let tokens = infill::tokens(model, limits, input, request.max_tokens)?;
            Ok((tokens.into(), None))
        }
    }
}

/// What a request asks for, and the model's own for the rest.
fn in_force(model: &Model, spec: &crate::sampler::SamplerSpec) -> Box<Sampling> {
    let mut sampling = spec.sampling.clone();
    SAMPLING.fill(&mut sampling, &model.info().sampling);
    let ends: &[Token] = if sampling.ignore_eos == Some(true) {
        &model.info().eog
    } else {
        &[]
    };
    let biased = |token, bias, never| LogitBias {
        target: Some(logit_bias::Target::Token(token)),
        bias,
        never,
    };
    let given = spec
        .logit_bias
        .iter()
        .map(|(token, bias)| biased(*token, *bias, false));
    let never = spec.never.iter().chain(ends);
    sampling.logit_bias = given
        .chain(never.map(|token| biased(*token, 0.0, true)))
        .collect();
    Box::new(sampling)
}

/// What the model sees, special tokens included.
fn shown(model: &Model, prompt: &[Token]) -> Result<String, Error> {
    let mut bytes = Vec::new();
    for token in prompt {
        bytes.append(&mut model.piece(*token, true));
        if bytes.len() > ANSWER {
            return Err(invalid(
                "return_prompt",
                format!("the prompt has more than {ANSWER} bytes: it can't be shown"),
            ));
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A prompt must have a token and leave room for one.
fn check_prompt(model: &Model, limits: &Limits, mut prompt: Content) -> Result<Content, Error> {
    if prompt.tokens.is_empty() {
        if model.info().bos < 0 {
            return Err(invalid("prompt", "the prompt has no tokens"));
        }
        prompt.tokens.push(model.info().bos);
    }
    too_long(prompt.len() + 1, limits.context, "prompt")?;
    Ok(prompt)
}

fn too_long(tokens: usize, room: usize, param: &str) -> Result<(), Error> {
    if tokens <= room {
        return Ok(());
    }
    Err(convert::overflow(tokens - 1, room, param))
}

fn embed(model: &Model, limits: &Limits, request: &EmbedRequest) -> Result<EmbedJob, Error> {
    if limits.role != Role::Embed {
        return Err(unsupported("", "this instance does not serve embeddings"));
    }
    if request.inputs.is_empty() {
        return Err(invalid("input", "there is no input"));
    }
    let dimensions = request.dimensions as usize;
    if dimensions > model.info().n_embd_out {
        return Err(invalid(
            "dimensions",
            format!("the model's vectors have {} elements", model.info().n_embd_out),
        ));
    }
    let mut inputs = Vec::with_capacity(request.inputs.len());
    let mut bytes_of_vectors = 0;
    for input in &request.inputs {
        let bytes = convert::text_bytes(input);
        convert::check_text(bytes, limits.input_text, limits.input, "input")?;
        let tokens = convert::prompt(model, input, "input", input.add_special.unwrap_or(true), true)?;
        if tokens.is_empty() {
            return Err(invalid("input", "an input has no tokens"));
        }
        check_input(limits, &tokens, "input")?;
        let vectors = if limits.vector_per_token { tokens.len() } else { 1 };
        bytes_of_vectors += vectors * model.info().n_embd_out * size_of::<f32>();
        if bytes_of_vectors > VECTOR_BYTES {
            return Err(invalid(
                "input",
                format!(
                    "the vectors of these inputs take more than {VECTOR_BYTES} bytes: ask for fewer at once"
                ),
            ));
        }
        inputs.push(tokens);
    }
    let output = EmbedOutput::Vectors {
        normalize: request.normalize.unwrap_or(2),
        dimensions,
    };
    Ok(EmbedJob {
        inputs,
        output,
        bytes: bytes_of_vectors,
    })
}

fn check_input(limits: &Limits, tokens: &[Token], param: &str) -> Result<(), Error> {
    if tokens.len() <= limits.input {
        return Ok(());
    }
    Err(convert::overflow(tokens.len(), limits.input, param))
}

fn rerank(model: &Model, limits: &Limits, request: &RerankRequest) -> Result<EmbedJob, Error> {
    if limits.role != Role::Rerank {
        return Err(unsupported("", "this instance does not rerank"));
    }
    if request.documents.is_empty() {
        return Err(invalid("documents", "there are no documents"));
    }
    let mut inputs = Vec::with_capacity(request.documents.len());
    for document in &request.documents {
        let bytes = request.query.len().saturating_add(document.len());
        convert::check_text(bytes, limits.input_text, limits.input, "documents")?;
        let tokens = rerank_tokens(model, &request.query, document)?;
        check_input(limits, &tokens, "documents")?;
        inputs.push(tokens);
    }
    Ok(EmbedJob {
        bytes: inputs.len() * model.info().n_cls_out.max(1) * size_of::<f32>(),
        inputs,
        output: EmbedOutput::Scores,
    })
}

/// The model's own template named "rerank", else `BOS query EOS SEP document EOS`, each as the vocabulary says (ENGINE.md 13).
fn rerank_tokens(model: &Model, query: &str, document: &str) -> Result<Vec<Token>, Error> {
    let info = model.info();
    if !info.rerank_template.is_empty() {
        let text = info
            .rerank_template
            .replace("{query}", query)
            .replace("{document}", document);
        return model.tokenize(&text, false, true).map_err(native("documents"));
    }
    let eos = if info.eos >= 0 { info.eos } else { info.sep };
    let mut tokens = Vec::new();
    let special = |tokens: &mut Vec<Token>, wanted: bool, token: Token| {
        if wanted && token >= 0 {
            tokens.push(token);
        }
    };
    special(&mut tokens, info.add_bos, info.bos);
    tokens.append(&mut model.tokenize(query, false, false).map_err(native("query"))?);
    special(&mut tokens, info.add_eos, eos);
    special(&mut tokens, info.add_sep, info.sep);
    tokens.append(
        &mut model
            .tokenize(document, false, false)
            .map_err(native("documents"))?,
    );
    special(&mut tokens, info.add_eos, eos);
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_costs_the_request_and_not_the_thread() {
        assert_eq!(survive(|| 7).unwrap(), 7);
        let error = survive(|| -> u8 { panic!("an odd file") }).unwrap_err();
        assert_eq!(error.code, Code::Internal);
    }
}
