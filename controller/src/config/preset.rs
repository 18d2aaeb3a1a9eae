//! Presets of llama.cpp's router (`--models-preset FILE.ini`; its README, "Model presets"): they become the same tables as TOML files.
//!
//! ```text
//!  [*]                             [models."org/name-GGUF:Q8_0"]
//!  c = 8192                        recipe = "llamacpp"
//!  [org/name-GGUF:Q8_0]     ──►    checkpoint = "org/name-GGUF:Q8_0"
//!  temp = 0.5                      llamacpp_args = "-c 8192 --temp 0.5"
//!  load-on-startup = true          enabled = true
//! ```
//!
//! Keys are llama-server's flags without dashes, or its environment variables. What its router sets itself (addresses, keys) is left out, as there.

use std::{collections::BTreeMap, path::Path};

use muster_proto::{
    hub::HubName,
    llamacpp::{self, Takes},
};
use toml::Value;

/// The section whose values all others share.
const ALL: &str = "*";
/// What llama.cpp's router sets itself, and what is about its own processes and cache.
const ITS_OWN: [&str; 12] = [
    "version",
    "host",
    "port",
    "api-key",
    "api-key-file",
    "ssl-key-file",
    "ssl-cert-file",
    "stop-timeout",
    "dedup-cache-models",
    "models-dir",
    "models-max",
    "models-preset",
];
/// Short and further names of keys that are no flags for the engine.
const NAMES: [(&str, &str); 20] = [
    ("m", "model"),
    ("hf", "hf-repo"),
    ("hfr", "hf-repo"),
    ("hff", "hf-file"),
    ("mm", "mmproj"),
    ("md", "model-draft"),
    ("spec-draft-model", "model-draft"),
    ("a", "alias"),
    ("embedding", "embeddings"),
    ("rerank", "reranking"),
    ("LLAMA_ARG_MODEL", "model"),
    ("LLAMA_ARG_HF_REPO", "hf-repo"),
    ("LLAMA_ARG_HF_FILE", "hf-file"),
    ("LLAMA_ARG_MMPROJ", "mmproj"),
    ("LLAMA_ARG_ALIAS", "alias"),
    ("LLAMA_ARG_TAGS", "tags"),
    ("LLAMA_ARG_EMBEDDINGS", "embeddings"),
    ("LLAMA_ARG_RERANKING", "reranking"),
    ("LLAMA_ARG_N_PARALLEL", "parallel"),
    ("LLAMA_ARG_BATCH", "batch-size"),
];

/// The values of a section, by key.
type Section = BTreeMap<String, String>;

/// The tables of a preset file.
///
/// # Errors
/// What is wrong, with its line or section.
pub(super) fn parse(text: &str) -> Result<toml::Table, String> {
    let mut sections = sections(text)?;
    let shared = sections.remove(ALL).unwrap_or_default();
    let mut models = toml::Table::new();
    for (name, own) in sections {
        let mut section = shared.clone();
        section.extend(own);
        let model = model(&name, section).map_err(|why| format!("[{name}]: {why}"))?;
        models.insert(name, Value::Table(model));
    }
    Ok(toml::Table::from_iter([(
        "models".to_owned(),
        Value::Table(models),
    )]))
}

/// Reads llama.cpp's form of INI: a value ends where a comment begins.
fn sections(text: &str) -> Result<BTreeMap<String, Section>, String> {
    let mut sections = BTreeMap::new();
    let mut current = None;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split([';', '#']).next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let header = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if let Some(name) = header {
            let name = name.trim();
            current = Some(name.to_owned());
            sections.insert(name.to_owned(), Section::new());
            continue;
        }
        let (key, value) = line
            .split_once('=')
            .ok_or_else(|| format!("line {number}: want KEY = VALUE or [MODEL]"))?;
        let key = key.trim();
        match current.as_ref().and_then(|name| sections.get_mut(name)) {
            Some(section) => drop(section.insert(named(key), value.trim().to_owned())),
            None if key == "version" => {}
            None => return Err(format!("line {number}: `{key}` stands in no section")),
        }
    }
    Ok(sections)
}

/// A key's one name: so that a model's own value takes the place of the shared one however they are spelled.
fn named(key: &str) -> String {
    let ours = |(other, name): &&(&str, &str)| *other == key || *name == key;
    if let Some((_, name)) = NAMES.iter().find(ours) {
        return (*name).to_owned();
    }
    let flag = match key.strip_prefix("LLAMA_ARG_") {
        Some(name) => name.to_ascii_lowercase().replace('_', "-"),
        None => key.to_owned(),
    };
    let known = ["--", "-"]
        .iter()
        .find_map(|dashes| llamacpp::find(&format!("{dashes}{flag}")));
    let long = known.and_then(|known| known.names.iter().find_map(|name| name.strip_prefix("--")));
    long.map_or(flag, str::to_owned)
}

/// A model's table.
fn model(name: &str, mut section: Section) -> Result<toml::Table, String> {
    section.retain(|key, _| !ITS_OWN.contains(&key.as_str()));
    let mut model = toml::Table::new();
    model.insert("recipe".to_owned(), "llamacpp".into());
    model.insert("checkpoint".to_owned(), checkpoint(name, &mut section)?.into());
    for (key, ours) in [("mmproj", "mmproj"), ("model-draft", "draft")] {
        if let Some(file) = section.remove(key) {
            model.insert(ours.to_owned(), here(&file).into());
        }
    }
    if let Some(names) = section.remove("alias") {
        model.insert("aliases".to_owned(), list(&names).collect::<Vec<_>>().into());
    }
    let tags = section.remove("tags").unwrap_or_default();
    let mut labels: Vec<Value> = list(&tags).collect();
    for kind in ["embeddings", "reranking"] {
        if section.remove(kind).is_some_and(|value| is_on(&value)) && !labels.contains(&kind.into()) {
            labels.push(kind.into());
        }
    }
    if !labels.is_empty() {
        model.insert("labels".to_owned(), labels.into());
    }
    if let Some(value) = section.remove("load-on-startup") {
        model.insert("enabled".to_owned(), is_on(&value).into());
    }
    if let Some(seconds) = section.remove("sleep-idle-seconds") {
        let wrong = |_| format!("`sleep-idle-seconds` wants a number, got `{seconds}`");
        let seconds = seconds.parse::<i64>().map_err(wrong)?.max(0);
        model.insert("idle_ttl".to_owned(), format!("{seconds}s").into());
    }
    let words = section.iter().filter_map(|(key, value)| flag(key, value));
    let words: Vec<String> = words.flatten().collect();
    if !words.is_empty() {
        model.insert("llamacpp_args".to_owned(), shell_words::join(words).into());
    }
    Ok(model)
}

/// The model's file, or its name on the hub, which may be the section's.
fn checkpoint(name: &str, section: &mut Section) -> Result<String, String> {
    let (file, repo) = (section.remove("model"), section.remove("hf-repo"));
    let of_hub = section.remove("hf-file");
    match (file, repo, of_hub) {
        (Some(file), _, _) => Ok(here(&file)),
        (None, Some(repo), Some(file)) => {
            let repo = repo.split(':').next().unwrap_or_default();
            Ok(format!("{repo}:{file}"))
        }
        (None, Some(repo), None) => Ok(repo),
        (None, None, _) if name.parse::<HubName>().is_ok() => Ok(name.to_owned()),
        (None, None, _) => Err("wants `model` or `hf-repo`".to_owned()),
    }
}

/// A path as llama.cpp means it, relative to where the process was started, if something is there.
fn here(path: &str) -> String {
    let found = std::path::absolute(path).ok().filter(|path| Path::exists(path));
    found.map_or_else(|| path.to_owned(), |path| path.to_string_lossy().into_owned())
}

fn list(names: &str) -> impl Iterator<Item = Value> + '_ {
    names
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(Value::from)
}

/// Whether a switch is on, in llama.cpp's words.
fn is_on(value: &str) -> bool {
    ["on", "enabled", "true", "1"].contains(&value)
}

/// The words of a flag; none for a switch that is off and has no opposite.
fn flag(key: &str, value: &str) -> Option<Vec<String>> {
    let flag = if key.len() == 1 {
        format!("-{key}")
    } else {
        format!("--{key}")
    };
    let switch = match llamacpp::find(&flag) {
        Some(known) => known.takes == Takes::Nothing,
        // A number may be one.
        None => ["true", "false", "on", "off", "enabled", "disabled"].contains(&value),
    };
    if !switch {
        return Some(vec![flag, value.to_owned()]);
    }
    if is_on(value) {
        return Some(vec![flag]);
    }
    let opposite = match key.strip_prefix("no-") {
        Some(positive) => format!("--{positive}"),
        None => format!("--no-{key}"),
    };
    // What is unknown here is left to llama-server to understand.
    let exists = llamacpp::find(&opposite).is_some() || llamacpp::find(&flag).is_none();
    exists.then(|| vec![opposite])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn models(text: &str) -> toml::Table {
        match parse(text).unwrap().remove("models") {
            Some(Value::Table(models)) => models,
            Some(_) | None => panic!("no models"),
        }
    }

    #[test]
    fn the_readmes_example_is_read() {
        let models = models(
            "version = 1\n\n; shared\n[*]\nc = 8192\nn-gpu-layers = 8\n\n[ggml-org/MY-MODEL-GGUF:Q8_0]\n; string value\nchat-template = chatml\n\
             n-gpu-layers = 123 ; more\njinja = true\nc = 4096\nLLAMA_ARG_CACHE_RAM = 0\nmodel-draft = /models/draft.gguf\n[custom_model]\n\
             model = /models/awesome-Q4_K_M.gguf\n",
        );
        assert_eq!(
            models["ggml-org/MY-MODEL-GGUF:Q8_0"].to_string(),
            "{ recipe = \"llamacpp\", checkpoint = \"ggml-org/MY-MODEL-GGUF:Q8_0\", draft = \"/models/draft.gguf\", llamacpp_args = \"--cache-ram 0 \
             --chat-template chatml --ctx-size 4096 --gpu-layers 123 --jinja\" }"
        );
        let custom = &models["custom_model"];
        assert_eq!(custom["checkpoint"].as_str(), Some("/models/awesome-Q4_K_M.gguf"));
        assert_eq!(
            custom["llamacpp_args"].as_str(),
            Some("--ctx-size 8192 --gpu-layers 8")
        );
    }

    #[test]
    fn what_is_no_flag_of_an_engine_is_the_entrys() {
        let models = models(
            "[a]\nhf-repo = o/n-GGUF\nhf-file = n-Q4.gguf\nalias = x, y\ntags = fast\nembeddings = 1\nload-on-startup = true\nsleep-idle-seconds = 60\n\
             port = 1\nmmap = false\nmlock = false\nunheard-of = 5\n",
        );
        assert_eq!(
            models["a"].to_string(),
            "{ recipe = \"llamacpp\", checkpoint = \"o/n-GGUF:n-Q4.gguf\", aliases = [\"x\", \"y\"], labels = [\"fast\", \"embeddings\"], \
             enabled = true, idle_ttl = \"60s\", llamacpp_args = \"--no-mmap --unheard-of 5\" }"
        );
    }

    #[test]
    fn problems_say_where_they_are() {
        for (text, why) in [
            ("[a]\nmodel", "line 2: want KEY = VALUE or [MODEL]"),
            ("c = 1", "line 1: `c` stands in no section"),
            ("[a]\nc = 1", "[a]: wants `model` or `hf-repo`"),
            (
                "[a]\nmodel = x\nsleep-idle-seconds = soon",
                "[a]: `sleep-idle-seconds` wants a number, got `soon`",
            ),
        ] {
            assert_eq!(parse(text).unwrap_err(), why);
        }
    }
}
