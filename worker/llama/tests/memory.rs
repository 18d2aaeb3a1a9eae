//! What `muster-gguf` computes from a model's header against what llama.cpp reports allocating for it.
//!
//! The models are files with a real header and a hole for data, large enough that an error of 5 % is not hidden by the 64 MiB that are
//! always allowed: caches and buffers of some hundred MiB each.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints the table of the README"
)]

#[path = "../../../controller/gguf/tests/support/mod.rs"]
mod made;
mod support;

use std::{fs::File, process::Stdio};

use made::{shapes, writer::Writer};
use muster_gguf::{
    CacheType, Gguf, Model,
    memory::{self, Demand, Settings},
};
use muster_proto::{
    llamacpp,
    v1::{EmbedRequest, GenerateRequest, ModelSettings, ModelType, generate_request::Input},
};
use support::{Engine, completion, token_prompt};

const MIB: f64 = 1024.0 * 1024.0;
/// Largest error allowed, as a share of what was allocated.
const SHARE: f64 = 0.05;
/// Errors below this are always allowed.
const ALWAYS: f64 = 64.0;

/// MiB, by what they are for.
#[derive(Debug, Default, Clone, Copy)]
struct Sizes {
    weights: f64,
    cache: f64,
    compute: f64,
    output: f64,
}

impl Sizes {
    fn total(self) -> f64 {
        self.weights + self.cache + self.compute + self.output
    }

    /// What llama.cpp's log says (`… KV buffer size =  64.00 MiB`).
    fn reported(log: &str) -> Self {
        let mut sizes = Self::default();
        for line in log.lines() {
            let Some((before, after)) = line.split_once(" buffer size =") else {
                continue;
            };
            let number: f64 = after.trim().split_once(" MiB").unwrap().0.trim().parse().unwrap();
            let what = match before.rsplit(' ').next().unwrap() {
                "model" => &mut sizes.weights,
                "KV" | "RS" => &mut sizes.cache,
                "compute" => &mut sizes.compute,
                "output" => &mut sizes.output,
                other => panic!("an unknown buffer `{other}`: {line}"),
            };
            *what += number;
        }
        assert!(sizes.weights > 0.0, "no buffer sizes in the log:\n{log}");
        sizes
    }

    #[allow(clippy::cast_precision_loss, reason = "sizes of models are far below 2^53")]
    fn computed(demand: &Demand) -> Self {
        let mib = |bytes: u64| bytes as f64 / MIB;
        Self {
            weights: mib(demand.host.weights),
            cache: mib(demand.host.cache),
            compute: mib(demand.host.compute),
            output: mib(demand.host.output),
        }
    }
}

/// The settings an engine says it runs with, as the estimate takes them.
fn settings(given: &ModelSettings) -> Settings {
    let generates = given.r#type == i32::from(ModelType::Llm);
    let outputs = if generates {
        given.sequences
    } else {
        given.batch_size
    };
    let outputs = outputs.into();
    Settings {
        cells: given.ctx_size.into(),
        sequences: given.sequences.into(),
        ubatch: given.ubatch_size.into(),
        outputs,
        results: outputs,
        vectors: !generates,
        keys: CacheType::named(&given.cache_type_k).unwrap(),
        values: CacheType::named(&given.cache_type_v).unwrap(),
        flash: given.flash_attention != "off",
        full_windows: given.swa_full,
        split: llamacpp::splits_cache(&given.args),
    }
}

/// A model loaded, and what was computed and reported for it.
struct Loaded {
    engine: Engine,
    reported: Sizes,
    demand: Demand,
}

async fn load(file: &Writer, wanted: ModelSettings) -> Loaded {
    let dir = tempfile::tempdir().unwrap();
    let (path, log) = (dir.path().join("model.gguf"), dir.path().join("log"));
    file.save(&path);
    let mut engine = Engine::logging("debug", Stdio::from(File::create(&log).unwrap())).await;
    let wanted = ModelSettings {
        checkpoint: path.display().to_string(),
        threads: 2,
        ..wanted
    };
    let description = engine.try_load(wanted).await;
    let text = std::fs::read_to_string(log).unwrap();
    let description = description.unwrap_or_else(|error| panic!("{error:?}\n{text}"));
    let model = Model::read(&Gguf::open(&path).unwrap()).unwrap();
    Loaded {
        engine,
        reported: Sizes::reported(&text),
        demand: memory::demand(&model, &settings(&description.settings.unwrap()), 0),
    }
}

/// Loads the model and compares.
async fn compare(name: &str, file: &Writer, wanted: ModelSettings) -> Result<(), String> {
    let loaded = load(file, wanted).await;
    let (reported, computed) = (loaded.reported, Sizes::computed(&loaded.demand));
    let error = computed.total() - reported.total();
    let share = error / reported.total();
    println!(
        "| {name} | {:.0} / {:.0} | {:.0} / {:.0} | {:.0} / {:.0} | {:.1} / {:.1} | {:.0} / {:.0} | {:+.1} % |",
        reported.weights,
        computed.weights,
        reported.cache,
        computed.cache,
        reported.compute,
        computed.compute,
        reported.output,
        computed.output,
        reported.total(),
        computed.total(),
        share * 100.0
    );
    if error.abs() <= ALWAYS || share.abs() <= SHARE {
        Ok(())
    } else {
        Err(format!("{name}: reported {reported:?}, computed {computed:?}"))
    }
}

fn llm(cells: u32) -> ModelSettings {
    ModelSettings {
        ctx_size: cells,
        r#type: ModelType::Llm.into(),
        ..ModelSettings::default()
    }
}

#[tokio::test]
async fn what_is_computed_is_what_llama_cpp_allocates() {
    println!(
        "| MiB, reported / computed | weights | caches | compute | output | all | error |\n|---|---|---|---|---|---|---|"
    );
    let cache = |name: &str, cells| ModelSettings {
        cache_type_k: name.to_owned(),
        cache_type_v: name.to_owned(),
        ..llm(cells)
    };
    let without_flash = |cells| ModelSettings {
        flash_attention: "off".to_owned(),
        ..llm(cells)
    };
    let cases = [
        ("llama, GQA", shapes::llama(8, 32_000), llm(65_536)),
        (
            "llama, without flash attention",
            shapes::llama(8, 32_000),
            without_flash(16_384),
        ),
        (
            "llama, q8_0 cache",
            shapes::llama(8, 32_000),
            cache("q8_0", 65_536),
        ),
        (
            "llama, q4_0 cache",
            shapes::llama(8, 32_000),
            cache("q4_0", 131_072),
        ),
        (
            "llama, large vocabulary, 32 sequences",
            shapes::llama(4, 128_256),
            ModelSettings {
                sequences: 32,
                ..llm(16_384)
            },
        ),
        (
            "llama, prompts of 2048 at once",
            shapes::llama(8, 32_000),
            ModelSettings {
                batch_size: 2048,
                ubatch_size: 2048,
                ..llm(32_768)
            },
        ),
        (
            "deci, head counts per layer",
            shapes::deci(8, 32_000),
            llm(65_536),
        ),
        ("gemma3, window", shapes::gemma3(12, 64_000, 1024), llm(65_536)),
        (
            "gemma3, window, full caches",
            shapes::gemma3(12, 64_000, 1024),
            ModelSettings {
                swa_full: true,
                ..llm(32_768)
            },
        ),
        ("qwen3moe, experts", shapes::qwen3moe(6, 32_000), llm(65_536)),
        (
            "deepseek2, MLA, experts",
            shapes::deepseek2(6, 32_000),
            llm(131_072),
        ),
        (
            "mamba, recurrent",
            shapes::mamba(12, 32_000),
            ModelSettings {
                sequences: 64,
                ..llm(8192)
            },
        ),
        (
            "lfm2, recurrent and attention",
            shapes::lfm2(9, 32_000),
            llm(65_536),
        ),
        (
            "bert, embedding",
            shapes::bert(8, 30_000),
            ModelSettings {
                r#type: ModelType::Embedding.into(),
                ..llm(8192)
            },
        ),
    ];
    let mut wrong = Vec::new();
    for (name, file, wanted) in cases {
        wrong.extend(compare(name, &file, wanted).await.err());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// With `--no-kv-unified`: what windows hold is held once for each sequence, and a token is compared with its own part only.
#[tokio::test]
async fn a_split_cache_is_computed_as_llama_cpp_allocates_it() {
    let split = |settings| ModelSettings {
        args: vec!["--no-kv-unified".to_owned()],
        ..settings
    };
    let without_flash = ModelSettings {
        flash_attention: "off".to_owned(),
        ..llm(16_384)
    };
    let cases = [
        ("llama, split cache", shapes::llama(8, 32_000), split(llm(65_536))),
        (
            "llama, split cache, without flash attention",
            shapes::llama(8, 32_000),
            split(without_flash),
        ),
        (
            "gemma3, window, split cache",
            shapes::gemma3(12, 64_000, 1024),
            split(llm(65_536)),
        ),
    ];
    let mut wrong = Vec::new();
    for (name, file, wanted) in cases {
        wrong.extend(compare(name, &file, wanted).await.err());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// llama.cpp makes room for the logits of every token of a batch of embeddings, whether the model has any or not.
#[tokio::test]
async fn the_buffer_of_results_grows_as_computed() {
    let wanted = ModelSettings {
        r#type: ModelType::Embedding.into(),
        ..llm(4096)
    };
    let mut loaded = load(&shapes::bert(2, 30_000), wanted).await;
    let before = loaded.engine.anonymous();
    let growth = loaded.demand.host.growth;
    assert!(growth > 200 << 20, "{growth}");
    let mut session = loaded.engine.session().await;
    let request = EmbedRequest {
        inputs: vec![token_prompt(vec![3; 2000])],
        ..EmbedRequest::default()
    };
    let answer = session.embed(request).await;
    assert_eq!(answer.embedded.unwrap().embeddings.len(), 1);
    let grown = loaded.engine.anonymous().saturating_sub(before);
    // 2000 of 2048 tokens, and the graph's own pages touched for the first time.
    let graph = loaded.demand.host.compute;
    assert!(
        grown > growth / 10 * 9 && grown < growth + graph + (32 << 20),
        "{grown} of {growth}"
    );
}

/// 32 states were kept of each sequence, and two reserved.
#[tokio::test]
async fn states_that_are_set_aside_take_no_more_than_is_reserved_for_them() {
    let wanted = ModelSettings {
        sequences: 2,
        batch_size: 256,
        ubatch_size: 256,
        ..llm(4096)
    };
    let mut loaded = load(&shapes::mamba(12, 1000), wanted).await;
    let kept = loaded.demand.host.kept;
    assert!(kept > 4 << 20, "{kept}");
    let mut session = loaded.engine.session().await;
    let mut before = None;
    // a conversation that goes on and on: each turn ends a little further, and leaves a state to go back to
    for turn in 0..16 {
        let request = GenerateRequest {
            input: Some(Input::Prompt(token_prompt(vec![3; 32 + 8 * turn]))),
            ..completion("", 2)
        };
        let answer = session.run(request).await;
        assert_eq!(answer.code(), "", "{:?}", answer.failed);
        assert_eq!(answer.usage().cached_tokens > 0, turn > 0, "{turn}");
        let now = loaded.engine.anonymous();
        let grown = now.saturating_sub(*before.get_or_insert(now));
        assert!(grown < kept + (8 << 20), "{grown} of {kept} at turn {turn}");
    }
}
