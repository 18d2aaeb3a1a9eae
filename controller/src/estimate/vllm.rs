//! vLLM's settings as far as they concern memory: its own flags, and seed 001's keys for one load.

use std::num::NonZeroU64;

use muster_core::{Runtime, runtime::Family};
use muster_gguf::vllm;
use muster_proto::v1::ModelSettings;
use serde_json::Value;

/// vLLM's default share of a device (`gpu_memory_utilization` of its engine arguments), in thousandths.
const SHARE: u64 = 900;

/// The settings that decide a load's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Effective {
    /// What it needs on each of its devices.
    pub(super) memory: vllm::Settings,
    /// The share it takes of each device, in thousandths; none if its cache has a given size.
    pub(super) share: Option<u64>,
}

impl Effective {
    /// Number of GPUs that it wants.
    pub(super) fn devices(&self) -> usize {
        let devices = self.memory.devices.map_or(1, NonZeroU64::get);
        usize::try_from(devices).unwrap_or(usize::MAX)
    }
}

/// The settings of a load by vLLM; none for other runtimes.
pub(super) fn read(runtime: Runtime, settings: &ModelSettings) -> Option<Effective> {
    if runtime.family() != Family::Vllm {
        return None;
    }
    let mut memory = vllm::Settings {
        context: (settings.ctx_size > 0).then(|| settings.ctx_size.into()),
        ..vllm::Settings::default()
    };
    let (mut share, mut tensor, mut pipeline) = (None, None, None);
    let mut words = settings.args.iter().map(String::as_str);
    while let Some(word) = words.next() {
        let (flag, inline) = word
            .split_once('=')
            .map_or((word, None), |(flag, value)| (flag, Some(value)));
        let mut value = || inline.or_else(|| words.next());
        let mut number = || value()?.parse::<u64>().ok();
        match flag {
            "--max-model-len" => memory.context = number(),
            "--kv-cache-memory-bytes" | "--kv-cache-memory" => memory.cache = number(),
            "--tensor-parallel-size" | "-tp" => tensor = number(),
            "--pipeline-parallel-size" | "-pp" => pipeline = number(),
            "--gpu-memory-utilization" => {
                share = value().and_then(|text| text.parse().ok()).and_then(thousandths);
            }
            _ => {}
        }
    }
    // A setting of this load overrides the definition's flags.
    let own: Value = serde_json::from_str(&settings.runtime_json).unwrap_or_default();
    let number = |key: &str| own.get(key).and_then(Value::as_u64);
    memory.context = number("vllm_max_model_len").or(memory.context);
    memory.cache = number("vllm_kv_cache_memory_bytes").or(memory.cache);
    let said = own.get("vllm_gpu_memory_utilization").and_then(Value::as_f64);
    let share = said.and_then(thousandths).or(share).unwrap_or(SHARE);
    memory.devices = NonZeroU64::new(tensor.unwrap_or(1).saturating_mul(pipeline.unwrap_or(1)));
    Some(Effective {
        memory,
        share: memory.cache.is_none().then_some(share),
    })
}

/// A share between 0 and 1 in thousandths.
fn thousandths(share: f64) -> Option<u64> {
    (0..=1000)
        .rev()
        .find(|step: &u32| f64::from(*step) <= share * 1000.0)
        .map(u64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_keys_are_read_and_keys_win() {
        let given = ModelSettings {
            args: [
                "--gpu-memory-utilization",
                "0.25",
                "--kv-cache-memory-bytes=1000",
                "--max-model-len",
                "x",
            ]
            .map(str::to_owned)
            .into(),
            ctx_size: 512,
            ..ModelSettings::default()
        };
        let read = |given: &ModelSettings| read(Runtime::VllmServe, given).unwrap();
        let found = read(&given);
        assert_eq!(
            (found.share, found.memory.cache, found.memory.context),
            (None, Some(1000), None)
        );
        let found = read(&ModelSettings {
            runtime_json: r#"{"vllm_max_model_len":4096,"vllm_kv_cache_memory_bytes":2000,"vllm_gpu_memory_utilization":0.9}"#.into(),
            ..given
        });
        assert_eq!(
            (found.share, found.memory.cache, found.memory.context),
            (None, Some(2000), Some(4096))
        );
    }

    fn words(line: &str) -> ModelSettings {
        ModelSettings {
            args: line.split_whitespace().map(str::to_owned).collect(),
            ..ModelSettings::default()
        }
    }

    #[test]
    fn without_a_cache_it_takes_a_share() {
        let share = |settings: &ModelSettings| read(Runtime::Vllm, settings).unwrap().share;
        assert_eq!(share(&ModelSettings::default()), Some(900));
        assert_eq!(share(&words("--gpu-memory-utilization 0.25")), Some(250));
        assert_eq!(share(&words("--gpu-memory-utilization=x")), Some(900));
        let own = ModelSettings {
            runtime_json: r#"{"vllm_gpu_memory_utilization":0.5}"#.into(),
            ..words("--gpu-memory-utilization 0.25")
        };
        assert_eq!(share(&own), Some(500));
        assert_eq!(read(Runtime::LlamaCpp, &ModelSettings::default()), None);
    }

    #[test]
    fn parallel_sizes_multiply() {
        let devices = |line| read(Runtime::VllmServe, &words(line)).unwrap().devices();
        assert_eq!(devices(""), 1);
        assert_eq!(devices("--tensor-parallel-size 4"), 4);
        assert_eq!(devices("-tp=2 --pipeline-parallel-size 3"), 6);
        assert_eq!(devices("-tp 0 -pp many"), 1);
    }
}
