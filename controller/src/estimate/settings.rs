//! Settings as the engines read them, as far as they concern memory: with llama.cpp's flags included and defaults filled in.
//!
//! Sources: `muster-llama`'s reading of settings (worker/llama/src/grpc/settings.rs) and the command line for `llama-server`
//! (worker/src/engine/llama_server/args.rs). An unknown flag changes nothing here: the engine refuses it, or it does not concern memory.

use muster_core::{Runtime, runtime::Family};
use muster_gguf::{CacheType, Model, memory};
use muster_proto::{
    llamacpp::{self, default},
    v1::{ModelSettings, ModelType},
};

/// The settings that decide a load's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Effective {
    /// Context and buffers.
    pub(super) memory: memory::Settings,
    /// Number of layers on the GPU; none = all.
    pub(super) gpu_layers: Option<u64>,
}

/// The settings of a load by one of llama.cpp's runtimes; none for other runtimes and for unknown cache types.
pub(super) fn read(runtime: Runtime, settings: &ModelSettings, model: &Model) -> Option<Effective> {
    let server = match runtime.family() {
        Family::LlamaCpp => false,
        Family::LlamaServer => true,
        Family::ExLlamaV3 | Family::Vllm | Family::Other => return None,
    };
    let settings = &folded(settings);
    let or = |value: u32, default: u64| if value == 0 { default } else { value.into() };
    let generates = match settings.r#type() {
        ModelType::Embedding | ModelType::Reranking => false,
        ModelType::Unspecified | ModelType::Llm | ModelType::Audio | ModelType::Image => true,
    };
    let trained = if model.context == 0 {
        u64::from(default::CONTEXT)
    } else {
        model.context
    };
    let cells = or(settings.ctx_size, trained.min(u64::from(default::CONTEXT)));
    let sequences = or(settings.sequences, u64::from(default::SEQUENCES).min(cells));
    let (batch, ubatch) = if generates {
        let batch = or(settings.batch_size, u64::from(default::BATCH).max(sequences)).min(cells);
        (batch, or(settings.ubatch_size, default::UBATCH.into()).min(batch))
    } else {
        let whole = if server {
            cells
        } else {
            u64::from(default::BATCH).max(settings.batch_size.into())
        };
        let whole = or(settings.ubatch_size, whole).min(cells);
        (whole, whole)
    };
    let ours = llamacpp::outputs(u32::try_from(sequences).unwrap_or(u32::MAX), &settings.args);
    let ours = u64::from(ours).min(batch);
    Some(Effective {
        memory: memory::Settings {
            cells,
            sequences,
            ubatch,
            // Our engine tells how many results there can be; a server makes room for all tokens of a batch.
            outputs: if generates && !server { ours } else { batch },
            results: match (generates, server) {
                (true, false) => ours,
                (true, true) => sequences,
                (false, _) => batch,
            },
            vectors: !generates,
            keys: CacheType::named(&settings.cache_type_k)?,
            values: CacheType::named(&settings.cache_type_v)?,
            flash: settings.flash_attention != "off",
            full_windows: settings.swa_full,
            split: llamacpp::splits_cache(&settings.args),
        },
        gpu_layers: settings.gpu_layers.and_then(|layers| u64::try_from(layers).ok()),
    })
}

/// The context of a draft model: as large as its model's, with default caches.
pub(super) fn of_draft(settings: &memory::Settings) -> memory::Settings {
    memory::Settings {
        keys: CacheType::F16,
        values: CacheType::F16,
        vectors: false,
        outputs: settings.sequences,
        results: settings.sequences,
        ..*settings
    }
}

/// The settings with the flags in `args` that concern memory.
fn folded(settings: &ModelSettings) -> ModelSettings {
    let mut folded = settings.clone();
    llamacpp::fold(&settings.args, &mut folded);
    folded
}
