//! Settings that only the runtime knows, under seed 001's names (`load_constraints`). They are passed on unchanged.

use muster_core::{Runtime, runtime::Family};

use super::section::Section;

/// The settings of each family of runtimes.
const OWN: [(Family, &[&str]); 2] = [
    (
        Family::Vllm,
        &[
            "vllm_max_model_len",
            "vllm_kv_cache_dtype",
            "vllm_kv_cache_memory_bytes",
            "vllm_gpu_memory_utilization",
            "vllm_max_pixels",
            "vllm_speculative_method",
            "vllm_speculative_model",
            "vllm_num_speculative_tokens",
        ],
    ),
    (
        Family::ExLlamaV3,
        &[
            "exllama_cache_size",
            "exllama_cache_quant",
            "exllama_max_rq_tokens",
        ],
    ),
];

/// The settings that are given, as a JSON object; empty if there are none.
pub(super) fn read(section: &Section<'_>, runtime: Option<Runtime>) -> String {
    let keys = OWN
        .iter()
        .find(|(family, _)| runtime.is_some_and(|runtime| runtime.family() == *family));
    let keys = keys.map_or(&[][..], |(_, keys)| *keys);
    let value = |key: &&'static str| {
        let value = serde_json::to_value(section.leaf(key)?).ok()?;
        Some(((*key).to_owned(), value))
    };
    let given: serde_json::Map<_, _> = keys.iter().filter_map(value).collect();
    if given.is_empty() {
        return String::new();
    }
    serde_json::Value::Object(given).to_string()
}
