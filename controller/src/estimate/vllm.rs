//! Settings of vLLM as far as memory is concerned: its own flags, and seed 001's keys for one load.

use muster_gguf::vllm;
use muster_proto::v1::ModelSettings;
use serde_json::Value;

/// Runtimes that are vLLM.
pub(super) const RUNTIMES: [&str; 2] = ["vllm", "vllm_serve"];

/// What decides the memory of a load; the size of the device is not known here.
pub(super) fn settings(settings: &ModelSettings) -> vllm::Settings {
    let mut read = vllm::Settings {
        context: (settings.ctx_size > 0).then(|| settings.ctx_size.into()),
        ..vllm::Settings::default()
    };
    let mut words = settings.args.iter().map(String::as_str);
    while let Some(word) = words.next() {
        let (flag, inline) = word
            .split_once('=')
            .map_or((word, None), |(flag, value)| (flag, Some(value)));
        let mut value = || inline.or_else(|| words.next());
        match flag {
            "--max-model-len" => read.context = value().and_then(|text| text.parse().ok()),
            "--kv-cache-memory-bytes" | "--kv-cache-memory" => {
                read.cache = value().and_then(|text| text.parse().ok());
            }
            "--gpu-memory-utilization" => {
                read.share = value().and_then(|text| text.parse().ok()).and_then(thousandths)
            }
            _ => {}
        }
    }
    // What one load sets wins over the definition's words.
    let own: Value = serde_json::from_str(&settings.runtime_json).unwrap_or_default();
    let number = |key: &str| own.get(key).and_then(Value::as_u64);
    read.context = number("vllm_max_model_len").or(read.context);
    read.cache = number("vllm_kv_cache_memory_bytes").or(read.cache);
    let share = own.get("vllm_gpu_memory_utilization").and_then(Value::as_f64);
    read.share = share.and_then(thousandths).or(read.share);
    read
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
        let read = settings(&given);
        assert_eq!(
            (read.share, read.cache, read.context),
            (Some(250), Some(1000), None)
        );
        let read = settings(&ModelSettings {
            runtime_json: r#"{"vllm_max_model_len":4096,"vllm_kv_cache_memory_bytes":2000,"vllm_gpu_memory_utilization":0.9}"#.into(),
            ..given
        });
        assert_eq!(
            (read.share, read.cache, read.context),
            (Some(900), Some(2000), Some(4096))
        );
    }
}
