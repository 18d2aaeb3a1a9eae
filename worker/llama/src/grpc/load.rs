//! Loading: model, context, warm-up, and the threads that serve it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use muster_core::{Code, Error};
use muster_gguf::{CacheType, Gguf, memory};
use muster_proto::llamacpp;
use muster_proto::v1::{
    Capabilities, EngineDescription, EngineLoadRequest, EngineMemory, LoadPhase, LoadProgress, LoraAdapter,
};
use tokio::sync::mpsc;

use super::{
    prepare::{self, Desk},
    settings,
    slots::Slots,
    warm::{self, Warmed},
};
use crate::{
    adapters::{Adapter, Scales},
    alive,
    context::{self, Context, ContextInfo, ContextParams},
    cores::Cores,
    engine::{self, EngineParts},
    ffi::NativeError,
    limits::{self, Defaults, Limits, Role},
    media::{Encoder, Projector},
    model::{Model, Places},
    parse,
    request::Command,
    saved::Most,
    shared::Shared,
    slot_files::{self, SlotFiles},
    waker::Waker,
};

/// Commands that may wait for the loop; senders wait beyond that.
const COMMANDS: usize = 1024;

/// A loaded model and how to reach its threads.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) model: Arc<Model>,
    /// What reads images; none if the model takes none.
    pub(super) projector: Option<Arc<Projector>>,
    pub(super) description: EngineDescription,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) prepare: Desk,
    pub(super) shared: Arc<Shared>,
    pub(super) waker: Waker,
    pub(super) alive: alive::Beat,
    pub(super) slots: Slots,
    /// What requests get that say nothing themselves.
    pub(super) defaults: Defaults,
}

fn failed(error: NativeError) -> Error {
    match error {
        NativeError::Invalid(message) => Code::InvalidLoadRequest.error(message),
        NativeError::Failed(message) => Code::ModelLoadFailed.error(message),
        NativeError::DeadEnd => Code::ModelLoadFailed.error(error.to_string()),
    }
}

/// Loads; blocks. `report` gets the progress and stops the load by returning false.
pub(super) fn load(
    request: &EngineLoadRequest,
    cores: Option<&Path>,
    devices: Option<&[String]>,
    report: &mut dyn FnMut(LoadProgress) -> bool,
) -> Result<Loaded, Error> {
    let started = Instant::now();
    let mut wanted = settings::read(
        request
            .settings
            .as_ref()
            .unwrap_or(&muster_proto::v1::ModelSettings::default()),
    )?;
    let mut tell = |phase: LoadPhase, fraction: f32| {
        report(LoadProgress {
            phase: phase.into(),
            fraction,
            elapsed: prost_types::Duration::try_from(started.elapsed()).ok(),
        })
    };
    tell(LoadPhase::Weights, 0.0);
    let places = Places {
        devices: devices.map(<[String]>::to_vec),
        gpu_layers: wanted.settings.gpu_layers.unwrap_or(-1),
        tuning: wanted.tuning.of_model(),
    };
    wanted.tuning.agree(&places)?;
    check_plan(&wanted, &places)?;
    let mut shown = 0.0;
    let model = Model::load(
        Path::new(&wanted.settings.checkpoint),
        &places,
        wanted.mode,
        &wanted.settings.chat_template,
        &mut |fraction| {
            if fraction < shown + 0.01 && fraction < 1.0 {
                return true;
            }
            shown = fraction;
            tell(LoadPhase::Weights, fraction)
        },
    )
    .map_err(failed)?;
    let projector = projector(&model, &wanted, &places)?;
    let params = wanted.context(model.info())?;
    tell(LoadPhase::Warmup, 0.0);
    let mut context = Context::new(Arc::clone(&model), &params).map_err(failed)?;
    let scales = adapters(&model, &mut context, &wanted)?;
    let limits = limits(&model, &context, &wanted);
    if limits.role == Role::Generate && !context.info().has_memory {
        // llama.cpp would encode what it is to decode, and abort
        return Err(
            Code::InvalidLoadRequest.error("this model remembers nothing of a text: it cannot write one")
        );
    }
    let warmed = warm::up(&model, &mut context, &mut wanted)
        .map_err(|error| Code::ModelLoadFailed.error(format!("the first decode failed: {error:?}")))?;
    tell(LoadPhase::Warmup, 1.0);
    let (threads, threads_batch) = (wanted.settings.threads, wanted.settings.threads_batch);
    let cores = Cores::new(
        cores,
        settings::cores(),
        threads.max(threads_batch),
        !wanted.choose_threads,
    );
    serve(
        request,
        (model, projector),
        (context, &params, scales),
        &wanted,
        &limits,
        warmed,
        cores,
    )
    .map_err(|error| Code::ModelLoadFailed.error(format!("a thread could not be started: {error}")))
}

/// Loads the adapters that the settings name, and applies them as they say.
fn adapters(model: &Arc<Model>, context: &mut Context, wanted: &settings::Wanted) -> Result<Scales, Error> {
    let given = &wanted.settings.lora;
    let load = |one: &LoraAdapter| Adapter::load(model, Path::new(&one.path));
    let all: Vec<Adapter> = given.iter().map(load).collect::<Result<_, _>>().map_err(failed)?;
    let scales: Scales = given.iter().map(|one| one.scale).collect::<Vec<_>>().into();
    context.take_adapters(all, &scales).map_err(failed)?;
    Ok(scales)
}

/// Loads the projector that the settings name.
fn projector(
    model: &Arc<Model>,
    wanted: &settings::Wanted,
    places: &Places,
) -> Result<Option<Arc<Projector>>, Error> {
    let path = wanted.settings.mmproj.as_str();
    if path.is_empty() {
        return Ok(None);
    }
    let threads = match wanted.settings.threads_batch.max(wanted.settings.threads) {
        0 => settings::cores(),
        threads => threads,
    };
    let loaded = Projector::load(Arc::clone(model), Path::new(path), places, threads);
    loaded.map(Some).map_err(failed)
}

/// Which layers go on devices was planned from the file's headers: llama.cpp's own calculation must agree before anything is taken.
fn check_plan(wanted: &settings::Wanted, places: &Places) -> Result<(), Error> {
    let (settings, layers) = (&wanted.settings, places.gpu_layers);
    if layers <= 0 || settings.ctx_size == 0 || wanted.tuning.moves_tensors() {
        return Ok(());
    }
    let params = wanted.clone().sized(0)?;
    if context::fits(Path::new(&settings.checkpoint), places, &params).map_err(failed)? {
        return Ok(());
    }
    let message = format!(
        "llama.cpp expects {layers} layers on devices and a context of {} to take more memory than there is",
        settings.ctx_size
    );
    Err(Code::InsufficientMemory.error(message))
}

fn serve(
    request: &EngineLoadRequest,
    (model, projector): (Arc<Model>, Option<Arc<Projector>>),
    (mut context, params, scales): (Context, &ContextParams, Scales),
    wanted: &settings::Wanted,
    limits: &Limits,
    warmed: Warmed,
    cores: Cores,
) -> std::io::Result<Loaded> {
    let memory = taken(&mut context);
    let info = context.info();
    let shared = Arc::new(Shared::new(info.n_seq_max as usize, info.n_ctx, scales));
    let description = EngineDescription {
        memory,
        ..describe(request, (&model, projector.as_deref()), &context, wanted, limits)
    };
    let slots = Slots::new(slot_files(&model, wanted, limits, params, info), limits.role);
    let set_aside = set_aside(wanted, info);
    let guesses = guesses(&model, &context, wanted);
    let (commands, rx) = mpsc::channel(COMMANDS);
    let waker = Waker::new(Arc::clone(&shared), commands.clone());
    let prepare = prepare::spawn(&model, projector.as_ref(), limits, &commands, &shared)?;
    let encoder = match &projector {
        Some(_) => Some(Encoder::start(waker.clone())?),
        None => None,
    };
    let alive = alive::start(Arc::clone(&shared))?;
    engine::start(EngineParts {
        model: Arc::clone(&model),
        context,
        max_tokens: limits.context,
        swa_full: wanted.settings.swa_full,
        guesses,
        set_aside,
        encoder,
        rx,
        parse: parse::start(shared.busy().clone())?,
        shared: Arc::clone(&shared),
        waker: waker.clone(),
        pace: warmed.pace,
        grouping: warmed.grouping,
        cores,
        threads: (wanted.settings.threads, wanted.settings.threads_batch),
    })?;
    Ok(Loaded {
        model,
        projector,
        description,
        commands,
        prepare,
        shared,
        waker,
        alive,
        slots,
        defaults: limits.defaults.clone(),
    })
}

/// Where sequences are saved; none if no folder is configured.
fn slot_files(
    model: &Model,
    wanted: &settings::Wanted,
    limits: &Limits,
    params: &ContextParams,
    info: &ContextInfo,
) -> Option<SlotFiles> {
    let folder = wanted.slot_files.clone()?;
    let adapters = wanted
        .settings
        .lora
        .iter()
        .map(|adapter| PathBuf::from(&adapter.path));
    let parts = muster_gguf::parts(Path::new(&wanted.settings.checkpoint));
    let files: Vec<PathBuf> = parts.into_iter().chain(adapters).collect();
    let known = model.info();
    let fingerprint = wanted.tuning.identity().and_then(|flags| {
        let engine = (known.llama_cpp.as_str(), flags.as_slice());
        slot_files::fingerprint(&files, engine, params, info)
    });
    match fingerprint {
        Ok(fingerprint) => Some(SlotFiles::new(
            folder,
            fingerprint,
            Most {
                tokens: limits.context,
                adapters: wanted.settings.lora.len(),
            },
            known.n_vocab,
        )),
        Err(error) => {
            tracing::warn!(%error, "no sequences are saved: the model's file cannot be read again");
            None
        }
    }
}

/// llama.cpp's name of what guesses tokens ahead here.
const PROMPT_LOOKUP: &str = "ngram-simple";

/// Whether tokens are guessed ahead.
fn guesses(model: &Model, context: &Context, wanted: &settings::Wanted) -> bool {
    let asked = wanted.role == Role::Generate && llamacpp::guesses(&wanted.settings.args);
    asked && engine::may_guess(model.info(), context.info())
}

/// What llama.cpp took of each device. It is only told: a load does not fail by it.
fn taken(context: &mut Context) -> Vec<EngineMemory> {
    let taken = context.memory().unwrap_or_else(|error| {
        tracing::warn!(%error, "llama.cpp does not say what it took");
        Vec::new()
    });
    let told = taken.into_iter().map(|taken| EngineMemory {
        device: taken.device,
        weights_bytes: taken.weights_bytes,
        cache_bytes: taken.cache_bytes,
        compute_bytes: taken.compute_bytes,
    });
    told.collect()
}

/// Bytes that saved states may take: exactly what an estimate reserves for them. Of a file that is not understood there is no estimate, and nothing is saved.
fn set_aside(wanted: &settings::Wanted, info: &ContextInfo) -> usize {
    let given = &wanted.settings;
    let read = Gguf::open(Path::new(&given.checkpoint)).and_then(|file| muster_gguf::Model::read(&file));
    let cache = |name: &str| CacheType::named(name).unwrap_or(CacheType::F16);
    match read {
        Ok(model) => {
            let settings = memory::Settings {
                cells: info.n_ctx.into(),
                sequences: info.n_seq_max.into(),
                ubatch: info.n_ubatch.into(),
                outputs: llamacpp::outputs(info.n_seq_max, &given.args).into(),
                results: info.n_seq_max.into(),
                vectors: wanted.role != Role::Generate,
                keys: cache(&given.cache_type_k),
                values: cache(&given.cache_type_v),
                flash: given.flash_attention != "off",
                full_windows: given.swa_full,
                split: info.is_split(),
            };
            usize::try_from(memory::set_aside(&model, &settings)).unwrap_or(usize::MAX)
        }
        Err(error) => {
            tracing::warn!(%error, "no states are saved: the file's header is not understood");
            0
        }
    }
}

fn limits(model: &Model, context: &Context, wanted: &settings::Wanted) -> Limits {
    let trained = wanted.tuning.stretched(model.info().n_ctx_train);
    let info = context.info();
    let mut most = if info.is_split() {
        info.n_ctx_seq
    } else {
        // llama.cpp rounds the context up; the user's number is what one request may use
        info.n_ctx.min(wanted.settings.ctx_size)
    };
    if trained > 0 && most > trained {
        // as llama-server does, but for what the flags stretch: cells beyond serve other sequences
        tracing::warn!(
            asked = most,
            trained,
            "one request gets no longer a context than the model was trained on"
        );
        most = trained;
    }
    let most = most as usize;
    let input = most.min(context.info().n_ubatch as usize);
    let longest = model.info().longest_piece;
    Limits {
        role: wanted.role,
        context: most,
        input,
        context_text: limits::text(most, longest),
        input_text: limits::text(input, longest),
        vector_per_token: context.info().pooling == "none",
        ubatch: context.info().n_ubatch as usize,
        batch: context.info().n_batch as usize,
        interval: wanted.settings.stream_interval.max(1),
        defaults: wanted.tuning.defaults.clone(),
        shift: llamacpp::shifts(&wanted.settings.args),
    }
}

fn describe(
    request: &EngineLoadRequest,
    (model, projector): (&Model, Option<&Projector>),
    context: &Context,
    wanted: &settings::Wanted,
    limits: &Limits,
) -> EngineDescription {
    let info = model.info();
    let generate = limits.role == Role::Generate;
    let narrow = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    let mut settings = wanted.settings.clone();
    context.info().pooling.clone_into(&mut settings.pooling);
    let mut metadata: std::collections::HashMap<String, String> = info
        .metadata
        .iter()
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    metadata.insert("llama_cpp.description".to_owned(), info.description.clone());
    if !info.template_error.is_empty() {
        metadata.insert("llama_cpp.template_error".to_owned(), info.template_error.clone());
    }
    EngineDescription {
        engine: format!(
            "muster-llama {} (llama.cpp {})",
            muster_proto::VERSION,
            info.llama_cpp
        ),
        model_id: request.model_id.clone(),
        capabilities: Some(Capabilities {
            generate,
            embed: limits.role == Role::Embed,
            rerank: limits.role == Role::Rerank,
            tools: generate && info.tools,
            thinking: generate && info.thinking,
            vision: projector.is_some_and(|projector| projector.info().vision),
            audio: false,
            context_length: narrow(if generate { limits.context } else { limits.input }),
            train_context_length: info.n_ctx_train,
            sequences: context.info().n_seq_max,
            embedding_length: if limits.role == Role::Embed {
                narrow(info.n_embd_out)
            } else {
                0
            },
            parameters: info.n_params,
            vocabulary: narrow(info.n_vocab),
            hidden_length: narrow(info.n_embd),
            vocabulary_type: Some(info.vocab_type),
            file_type: info.file_type.clone(),
            speculation: if guesses(model, context, wanted) {
                PROMPT_LOOKUP.to_owned()
            } else {
                String::new()
            },
        }),
        sequences: Vec::new(),
        iterations: 0,
        settings: Some(settings),
        metadata,
        chat_template: if info.chat {
            info.template.clone()
        } else {
            String::new()
        },
        sampling: generate.then(|| info.sampling.clone()),
        chat_template_caps: info.template_caps.clone(),
        bos_token: info.bos_text.clone(),
        eos_token: info.eos_text.clone(),
        memory: Vec::new(),
        totals: None,
    }
}
