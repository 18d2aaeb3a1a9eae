//! From settings and headers to ways to host a model.

use muster_gguf::{CacheType, Gguf, Header, Model};
use muster_proto::{
    llamacpp,
    v1::{ModelSettings, ModelType},
};

use super::settings::{Effective, read};

#[path = "../../gguf/tests/support/mod.rs"]
mod support;

use support::shapes;

fn model() -> Model {
    let writer = shapes::llama(2, 64);
    let header = Header::read(std::io::Cursor::new(writer.header()), writer.len()).unwrap();
    Model::read(&Gguf::from(header)).unwrap()
}

fn effective(runtime: &str, settings: &ModelSettings) -> Option<Effective> {
    read(runtime.parse().unwrap(), settings, &model())
}

fn words(line: &str) -> ModelSettings {
    ModelSettings {
        args: line.split_whitespace().map(str::to_owned).collect(),
        ..ModelSettings::default()
    }
}

#[test]
fn defaults_are_those_of_the_engines() {
    let ours = effective("llama_cpp", &ModelSettings::default()).unwrap();
    let memory = ours.memory;
    assert_eq!((memory.cells, memory.sequences, memory.ubatch), (4096, 4, 512));
    let outputs = 4 + u64::from(llamacpp::DRAFTS);
    assert_eq!((memory.outputs, memory.results), (outputs, outputs));
    let plain = effective("llama_cpp", &words("--spec-type none")).unwrap().memory;
    assert_eq!((plain.outputs, plain.results), (4, 4), "nothing is guessed ahead");
    assert_eq!(ours.gpu_layers, None);
    let server = effective("llama_server", &ModelSettings::default())
        .unwrap()
        .memory;
    assert_eq!(
        (server.outputs, server.results),
        (2048, 4),
        "a server lays out for all tokens of a batch"
    );
    let embedding = ModelSettings {
        r#type: ModelType::Embedding.into(),
        ctx_size: 1024,
        ..ModelSettings::default()
    };
    let embedding = effective("llama_cpp", &embedding).unwrap().memory;
    assert!(embedding.vectors);
    assert_eq!((embedding.ubatch, embedding.outputs), (1024, 1024));
    assert_eq!(effective("vllm_serve", &ModelSettings::default()), None);
}

#[test]
fn flags_of_llama_cpp_count() {
    let line =
        "-c 8192 --parallel=2 -ub 128 -ngl 3 -ctk q8_0 --cache-type-v q4_0 -fa off --swa-full --unknown 7";
    let found = effective("llama_server", &words(line)).unwrap();
    assert_eq!(
        (found.memory.cells, found.memory.sequences, found.memory.ubatch),
        (8192, 2, 128)
    );
    assert_eq!(found.gpu_layers, Some(3));
    assert_eq!(Some(found.memory.keys), CacheType::named("q8_0"));
    assert_eq!(Some(found.memory.values), CacheType::named("q4_0"));
    assert!(!found.memory.flash && found.memory.full_windows);
    assert!(!found.memory.split);
    for runtime in ["llama_cpp", "llama_server"] {
        let split = effective(runtime, &words("-kvu -no-kvu")).unwrap();
        assert!(split.memory.split, "{runtime}");
    }
    // What an engine will refuse is not for us to count.
    assert_eq!(effective("llama_cpp", &words("-ctk q3_K")), None);
    assert_eq!(effective("llama_cpp", &words("-c")).unwrap().memory.cells, 4096);
    assert_eq!(
        effective("llama_cpp", &words("-c many -ngl all"))
            .unwrap()
            .gpu_layers,
        None
    );
}
