//! `definition`: what was configured, under the seed's names, and only what matters to the backend (seed 001, `GET /v1/admin/models`).

use std::collections::BTreeMap;

use muster_proto::{
    overrides::Backend,
    v1::{Model, ModelSettings},
};
use serde_json::{Map, Value, json};

/// Shown instead of a secret.
const REDACTED: &str = "***";

/// The definition of a model, without anything that one load set.
pub(super) fn definition(model: &Model) -> Map<String, Value> {
    let settings = model.settings.clone().unwrap_or_default();
    let mut shown = common(model, &settings);
    let own = match Backend::of(&model.runtime) {
        Backend::LlamaCpp => llama_cpp(&settings),
        Backend::LlamaServer => llama_server(&settings),
        Backend::ExLlamaV3 | Backend::Vllm | Backend::Other => json!({}),
    };
    extend(&mut shown, own);
    // Settings that only the runtime knows have the seed's names already.
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
            "prompt_format": null,
            "enabled": model.enabled,
            "replicas": model.replicas.max(1),
            "replica_max": model.replica_max.max(1),
            "target_inflight": target_inflight(settings),
            "environment": environment,
        }),
    );
    shown
}

/// Requests that may run at once per replica, as configured.
pub(super) fn target_inflight(settings: &ModelSettings) -> u32 {
    match (settings.target_inflight, settings.sequences) {
        (0, 0) => 1,
        (0, sequences) => sequences,
        (target, _) => target,
    }
}

fn llama_cpp(settings: &ModelSettings) -> Value {
    json!({
        "gguf_n_gpu_layers": settings.gpu_layers.unwrap_or(-1),
        "gguf_n_ctx": count(settings.ctx_size),
        "gguf_flash_attn": word(&settings.flash_attention).unwrap_or("auto"),
        "gguf_type_k": word(&settings.cache_type_k),
        "gguf_type_v": word(&settings.cache_type_v),
    })
}

fn llama_server(settings: &ModelSettings) -> Value {
    let flag = |names: &[&str]| flag(&settings.args, names);
    let number = |names: &[&str]| flag(names).and_then(|text| serde_json::from_str::<Value>(&text).ok());
    json!({
        "llama_server_n_ctx": count(settings.ctx_size),
        "llama_server_n_gpu_layers": settings.gpu_layers.unwrap_or(-1),
        "llama_server_flash_attn": word(&settings.flash_attention).unwrap_or("auto"),
        "llama_server_mmproj_path": word(&settings.mmproj),
        "llama_server_draft_model_path": word(&settings.draft),
        "llama_server_image_max_tokens": number(&["--image-max-tokens"]),
        "llama_server_spec_type": flag(&["--spec-type"]),
        "llama_server_spec_draft_n_max": number(&["--spec-draft-n-max", "--draft-max", "--draft"]),
        "llama_server_spec_draft_p_min": number(&["--spec-draft-p-min", "--draft-p-min"]),
        "llama_server_extra_args": redacted(&settings.args),
    })
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

/// A command line without the values of flags that are secrets.
fn redacted(words: &[String]) -> Vec<String> {
    let mut hide = false;
    let show = |word: &String| {
        if std::mem::take(&mut hide) {
            return REDACTED.to_owned();
        }
        let (name, joined) = word
            .split_once('=')
            .map_or((word.as_str(), false), |(name, _)| (name, true));
        match (name.starts_with('-') && is_secret(name), joined) {
            (true, true) => format!("{name}={REDACTED}"),
            (true, false) => {
                hide = true;
                word.clone()
            }
            (false, _) => word.clone(),
        }
    };
    words.iter().map(show).collect()
}

/// Whether a name is that of a key or a password (DECISIONS.md: keys and secret environment values are redacted).
fn is_secret(name: &str) -> bool {
    const WORDS: [&str; 6] = ["api_key", "apikey", "token", "secret", "password", "credential"];
    // Settings that count tokens.
    const HARMLESS: [&str; 2] = ["tokens", "tokenizer"];
    let name = name.trim_start_matches('-').replace('-', "_").to_lowercase();
    let ends = name.ends_with("_key") || name == "key";
    ends || WORDS.iter().any(|word| name.contains(word)) && !HARMLESS.iter().any(|word| name.contains(word))
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
    use super::*;

    fn model(runtime: &str, settings: ModelSettings) -> Map<String, Value> {
        definition(&Model {
            runtime: runtime.into(),
            settings: Some(settings),
            ..Model::default()
        })
    }

    #[test]
    fn seed_001_only_fields_of_the_resolved_backend_are_shown() {
        let keys = |runtime: &str| -> Vec<String> {
            let shown = model(runtime, ModelSettings::default());
            shown
                .keys()
                .filter(|key| key.contains("gguf_") || key.contains("llama_server_"))
                .cloned()
                .collect()
        };
        assert_eq!(keys("stub"), Vec::<String>::new());
        assert_eq!(
            keys("llama_cpp"),
            [
                "gguf_flash_attn",
                "gguf_n_ctx",
                "gguf_n_gpu_layers",
                "gguf_type_k",
                "gguf_type_v"
            ]
        );
        assert!(
            keys("llama_server")
                .iter()
                .all(|key| key.starts_with("llama_server_"))
        );
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
