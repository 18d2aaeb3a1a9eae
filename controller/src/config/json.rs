//! Configuration in JSON: `settings.json` and `local.json` of seed 001, with the seed's names for a model's settings. They become the same
//! tables as TOML files.
//! that TOML makes.
//!
//! ```text
//!  {"models": {"m": {"backend": "llama_cpp", "gguf_n_ctx": 4096}}}  ──►  [models.m]  runtime = "llama_cpp"  ctx_size = 4096
//! ```
//!
//! A null value undoes what earlier files set.

use muster_proto::{overrides, settings};
use serde_json::{Map, Value};

/// Seed 001's names (`definition`) and ours, beside the names of settings with fields of their own.
const NAMES: [(&str, &str); 2] = [("backend", "runtime"), ("llama_server_extra_args", ARGS)];

const ARGS: &str = "llamacpp_args";

/// The contents of a file.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Json {
    /// Its values.
    pub(super) table: toml::Table,
    /// Paths of the keys whose value is null.
    pub(super) resets: Vec<Vec<String>>,
}

impl Json {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let Value::Object(mut root) = value else {
            return Err("want an object".to_owned());
        };
        if let Some(Value::Object(models)) = root.get_mut("models") {
            for definition in models.values_mut() {
                if let Value::Object(definition) = definition {
                    *definition = ours(std::mem::take(definition));
                }
            }
        }
        let mut json = Self::default();
        json.table = json.values(root, &[]);
        Ok(json)
    }

    fn values(&mut self, object: Map<String, Value>, path: &[String]) -> toml::Table {
        let mut table = toml::Table::new();
        for (key, value) in object {
            let path = [path, std::slice::from_ref(&key)].concat();
            if let Some(value) = self.value(value, &path) {
                table.insert(key, value);
            } else {
                self.resets.push(path);
            }
        }
        table
    }

    /// A value; none for null.
    fn value(&mut self, value: Value, path: &[String]) -> Option<toml::Value> {
        Some(match value {
            Value::Null => return None,
            Value::Bool(flag) => flag.into(),
            Value::String(text) => text.into(),
            Value::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(integer), _) => integer.into(),
                (None, number) => number?.into(),
            },
            Value::Array(items) => {
                let items = items.into_iter().filter_map(|item| self.value(item, path));
                toml::Value::Array(items.collect())
            }
            Value::Object(object) => self.values(object, path).into(),
        })
    }
}

/// A definition under our names.
fn ours(definition: Map<String, Value>) -> Map<String, Value> {
    let mut ours = Map::new();
    let mut flags = Vec::new();
    for (key, value) in definition {
        if let Some([flag, ..]) = overrides::flag_key(&key).map(|key| key.flags) {
            flags.extend(word(&value).map(|word| [(*flag).to_owned(), word]));
            continue;
        }
        let name = NAMES.iter().find(|(seed, _)| *seed == key);
        let name = name.map(|(_, own)| *own);
        let name = name.or_else(|| settings::named(&key).map(|setting| setting.key));
        let name = name.unwrap_or(&key);
        let value = match (name, value) {
            (ARGS, Value::Array(words)) => joined(words.iter().filter_map(word)).into(),
            ("environment", Value::Object(pairs)) => {
                let pair = |(name, value): (&String, &Value)| Some(format!("{name}={}", word(value)?).into());
                Value::Array(pairs.iter().filter_map(pair).collect())
            }
            ("device", Value::String(device)) if device == "cuda" => "gpu".into(),
            (_, value) => value,
        };
        ours.insert(name.to_owned(), value);
    }
    if !flags.is_empty() {
        let before = ours.get(ARGS).and_then(Value::as_str).unwrap_or_default();
        let all = format!("{before} {}", joined(flags.into_iter().flatten()));
        ours.insert(ARGS.to_owned(), all.trim_start().into());
    }
    ours
}

/// A value as one word of a command line; none for null.
fn word(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => Some(value.to_string()),
    }
}

fn joined(words: impl Iterator<Item = String>) -> String {
    shell_words::join(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(text: &str) -> toml::Table {
        let json = Json::parse(&format!("{{\"models\": {{\"m\": {text}}}}}")).unwrap();
        json.table["models"]["m"].as_table().unwrap().clone()
    }

    #[test]
    fn seed_001_a_definition_is_read_under_its_names() {
        let read = model(
            r#"{"model_path": "/m.gguf", "backend": "llama_cpp", "device": "cuda", "prompt_format": "gemma4_template", "enabled": true,
                "replicas": 3, "replica_max": 4, "target_inflight": 1, "gguf_n_gpu_layers": -1, "gguf_n_ctx": 4096,
                "gguf_flash_attn": "auto", "gguf_type_k": "q8_0", "gguf_type_v": null}"#,
        );
        let want = r#"
            checkpoint = "/m.gguf"
            runtime = "llama_cpp"
            device = "gpu"
            prompt_format = "gemma4_template"
            enabled = true
            replicas = 3
            replica_max = 4
            target_inflight = 1
            gpu_layers = -1
            ctx_size = 4096
            flash_attn = "auto"
            cache_type_k = "q8_0"
        "#;
        assert_eq!(read, want.parse::<toml::Table>().unwrap());
    }

    #[test]
    fn flags_and_environment_of_a_server_are_joined() {
        let read = model(
            r#"{"backend": "llama_server", "llama_server_extra_args": ["--no-mmap", "-ot", "a b"], "llama_server_spec_type": "draft-mtp",
                "llama_server_spec_draft_n_max": 4, "llama_server_spec_draft_p_min": null, "environment": {"A": "1", "B": 2}}"#,
        );
        assert_eq!(
            read["llamacpp_args"].as_str(),
            Some("--no-mmap -ot 'a b' --spec-draft-n-max 4 --spec-type draft-mtp")
        );
        let environment: Vec<_> = ["A=1", "B=2"].map(toml::Value::from).into();
        assert_eq!(read["environment"], toml::Value::Array(environment));
    }

    #[test]
    fn nulls_are_noted_under_our_names() {
        let json =
            Json::parse(r#"{"models": {"m": {"gguf_type_k": null}}, "policy": {"margin_mib": 5}}"#).unwrap();
        assert_eq!(json.resets, [["models", "m", "cache_type_k"].map(String::from)]);
        assert_eq!(json.table["policy"]["margin_mib"].as_integer(), Some(5));
        assert!(Json::parse("[]").is_err());
        assert!(Json::parse("{").unwrap_err().contains("line 1"));
    }
}
