//! `definition`: the configured settings of a model under seed 001's names, only those that its backend has (seed 001, `GET
//! /v1/admin/models`).

use std::collections::BTreeMap;

use muster_core::runtime::Family;
use muster_proto::{
    llamacpp, overrides,
    secrets::{REDACTED, is_secret, redacted},
    settings::{SETTINGS, named as setting},
    v1::{Model, ModelSettings},
};
use serde_json::{Map, Value, json};

/// A model's definition, without settings of a single load.
pub(super) fn definition(model: &Model) -> Map<String, Value> {
    let settings = model.settings.clone().unwrap_or_default();
    let mut shown = common(model, &settings);
    let own = match Family::of(&model.runtime) {
        Family::LlamaCpp => named(&settings, "gguf_").into(),
        Family::LlamaServer => llama_server(&settings).into(),
        Family::ExLlamaV3 => json!({
            "exllama_cache_size": count(settings.ctx_size),
            "exllama_cache_quant": null,
            "exllama_max_rq_tokens": null,
        }),
        Family::Vllm => json!({
            "vllm_max_model_len": count(settings.ctx_size),
            "vllm_kv_cache_dtype": null,
            "vllm_kv_cache_memory_bytes": null,
            "vllm_max_pixels": null,
            "vllm_speculative_method": null,
            "vllm_speculative_model": word(&settings.draft),
            "vllm_num_speculative_tokens": null,
        }),
        Family::Other => json!({}),
    };
    extend(&mut shown, own);
    // Settings that only the runtime knows have seed 001's names already.
    extend(
        &mut shown,
        serde_json::from_str(&settings.runtime_json).unwrap_or_default(),
    );
    for (key, value) in &mut shown {
        if is_secret(key) && !value.is_null() {
            *value = REDACTED.into();
        }
    }
    shown
}

fn common(model: &Model, settings: &ModelSettings) -> Map<String, Value> {
    let mut shown = Map::new();
    let environment: BTreeMap<&String, &str> = settings
        .environment
        .iter()
        .map(|(name, value)| (name, if is_secret(name) { REDACTED } else { value.as_str() }))
        .collect();
    extend(
        &mut shown,
        json!({
            "model_path": word(&settings.checkpoint),
            "backend": model.runtime,
            "device": word(&model.device),
            "prompt_format": word(&model.prompt_format),
            "enabled": model.enabled,
            "replicas": model.replicas.max(1),
            "replica_max": model.replica_max.max(1),
            "target_inflight": target_inflight(&model.runtime, settings),
            "environment": environment,
        }),
    );
    shown
}

/// Number of requests that may run at once per replica, as configured. If nothing is configured: the runtime's default, which the engine
/// may have to lower.
pub(super) fn target_inflight(runtime: &str, settings: &ModelSettings) -> u32 {
    let llama = Family::of(runtime).is_llama_cpp();
    let flags = setting("parallel").map_or(&[][..], |setting| setting.flags);
    let flagged = || flag(&settings.args, flags)?.parse().ok();
    let default = if llama { llamacpp::default::SEQUENCES } else { 1 };
    match (settings.target_inflight, settings.sequences) {
        (0, 0) if llama => flagged().unwrap_or(default),
        (0, 0) => default,
        (0, sequences) => sequences,
        (target, _) => target,
    }
}

/// Settings that have fields of their own, under a backend's names.
fn named(settings: &ModelSettings, prefix: &str) -> Map<String, Value> {
    let mut shown = Map::new();
    for setting in SETTINGS {
        let name = setting.admin.iter().find(|name| name.starts_with(prefix));
        if let Some(name) = name {
            let unset = || serde_json::from_str(setting.unset).unwrap_or_default();
            let value = (setting.get)(settings).unwrap_or_else(unset);
            shown.insert((*name).to_owned(), value);
        }
    }
    shown
}

fn llama_server(settings: &ModelSettings) -> Map<String, Value> {
    let mut shown = named(settings, "llama_server_");
    for key in overrides::flag_keys() {
        let given = flag(&settings.args, key.flags);
        let value = given.map(|text| serde_json::from_str(&text).unwrap_or_else(|_| text.into()));
        shown.insert(key.name.to_owned(), value.unwrap_or_default());
    }
    let args = redacted(&settings.args).into();
    shown.insert("llama_server_extra_args".to_owned(), args);
    shown
}

/// The value of a flag on a command line.
fn flag(words: &[String], names: &[&str]) -> Option<String> {
    let place = words
        .iter()
        .position(|word| names.contains(&word.split('=').next().unwrap_or_default()))?;
    match words.get(place)?.split_once('=') {
        Some((_, value)) => Some(value.to_owned()),
        None => words.get(place + 1).cloned(),
    }
}

fn word(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

fn count(number: u32) -> Option<u32> {
    Some(number).filter(|number| *number > 0)
}

fn extend(map: &mut Map<String, Value>, more: Value) {
    if let Value::Object(more) = more {
        map.extend(more);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tables, *};

    fn model(runtime: &str, settings: ModelSettings) -> Map<String, Value> {
        definition(&Model {
            runtime: runtime.into(),
            settings: Some(settings),
            ..Model::default()
        })
    }

    #[test]
    fn seed_001_only_fields_of_the_resolved_backend_are_shown() {
        let common: Vec<String> = model("stub", ModelSettings::default()).keys().cloned().collect();
        for (runtime, prefix) in [
            ("llama_cpp", "gguf_"),
            ("llama_server", "llama_server_"),
            ("exllamav3", "exllama_"),
            ("vllm", "vllm_"),
            ("vllm_serve", "vllm_"),
        ] {
            let shown = model(runtime, ModelSettings::default());
            let own: Vec<_> = shown.keys().filter(|key| !common.contains(key)).collect();
            assert!(own.iter().all(|key| key.starts_with(prefix)), "{own:?}");
            // Effective values are merged from both (seed 001, Effective Loaded Values). Bits are shown as `exllama_cache_quant`.
            let table: Map<String, Value> =
                serde_json::from_str(tables::constraints(Family::of(runtime)).get()).unwrap();
            for key in table.keys().filter(|key| !key.ends_with("_bits")) {
                assert!(shown.contains_key(key), "{runtime}: {key}");
            }
        }
    }

    #[test]
    fn what_runs_at_once_is_what_the_engine_will_do() {
        let args = |words: &[&str]| ModelSettings {
            args: words.iter().map(|word| (*word).to_owned()).collect(),
            ..ModelSettings::default()
        };
        let targets = |target_inflight, sequences| ModelSettings {
            target_inflight,
            sequences,
            ..ModelSettings::default()
        };
        for (runtime, settings, expected) in [
            ("llama_cpp", ModelSettings::default(), 4),
            ("llama_server", ModelSettings::default(), 4),
            ("exllamav3", ModelSettings::default(), 1),
            ("llama_cpp", args(&["-np", "8"]), 8),
            ("llama_cpp", args(&["--parallel=2"]), 2),
            ("llama_cpp", targets(0, 3), 3),
            ("llama_cpp", targets(1, 3), 1),
        ] {
            assert_eq!(
                target_inflight(runtime, &settings),
                expected,
                "{runtime} {settings:?}"
            );
        }
    }

    #[test]
    fn seed_001_effective_values_are_the_override_over_the_definition() {
        let settings = ModelSettings {
            runtime_json: r#"{"exllama_cache_quant": "8,8"}"#.into(),
            ctx_size: 8192,
            ..ModelSettings::default()
        };
        let shown = model("exllamav3", settings);
        assert_eq!(shown["exllama_cache_quant"], "8,8");
        assert_eq!(shown["exllama_cache_size"], 8192);
        let load_override = json!({"exllama_cache_quant": null});
        let effective = |key: &str| load_override.get(key).unwrap_or(&shown[key]);
        assert_eq!(effective("exllama_cache_quant"), &Value::Null);
    }

    #[test]
    fn flags_of_llama_server_are_its_definition() {
        let args = [
            "--spec-type",
            "draft-mtp",
            "--spec-draft-n-max=4",
            "--api-key",
            "s3cret",
            "--x=1",
        ];
        let settings = ModelSettings {
            args: args.map(String::from).into(),
            ctx_size: 4096,
            ..ModelSettings::default()
        };
        let shown = model("llama_server", settings);
        assert_eq!(shown["llama_server_spec_type"], "draft-mtp");
        assert_eq!(shown["llama_server_spec_draft_n_max"], 4);
        assert_eq!(shown["llama_server_spec_draft_p_min"], Value::Null);
        assert_eq!(shown["llama_server_n_ctx"], 4096);
        assert!(!Value::from(shown).to_string().contains("s3cret"));
    }

    #[test]
    fn secrets_are_not_shown() {
        let settings = ModelSettings {
            environment: [
                ("HF_TOKEN", "hidden"),
                ("CUDA_ORDER", "seen"),
                ("MY_KEY", "hidden"),
            ]
            .map(|(name, value)| (name.into(), value.into()))
            .into(),
            runtime_json: r#"{"vllm_api_key": "hidden", "vllm_num_speculative_tokens": 3}"#.into(),
            ..ModelSettings::default()
        };
        let shown = Value::from(model("vllm_serve", settings));
        assert!(!shown.to_string().contains("hidden"), "{shown}");
        assert_eq!(shown["environment"]["CUDA_ORDER"], "seen");
        assert_eq!(shown["vllm_num_speculative_tokens"], 3);
    }
}
