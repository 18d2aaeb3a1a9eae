//! What a catalogue can show about a model before it is loaded.

use std::collections::BTreeMap;

use crate::{Error, Gguf, Metadata, Value};

/// What a model was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Generates text.
    Text,
    /// Computes embeddings.
    Embedding,
    /// Scores documents against a query.
    Reranking,
    /// Only a part of a model: a multimodal projector (`mmproj`) or a LoRA adapter. It cannot be loaded by itself.
    Part,
}

/// What a model's file says about the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Name of its architecture, as llama.cpp calls it.
    pub architecture: String,
    /// Name of the model; empty if the file has none.
    pub name: String,
    pub kind: Kind,
    /// Context length in tokens that it was trained with; 0 if unknown.
    pub context: u64,
    /// Length of its embeddings; 0 if it is no embedding model.
    pub vector: u64,
    /// Number of tokens in its vocabulary.
    pub vocabulary: u64,
    /// Number of elements in all its tensors.
    pub parameters: u64,
    /// What most of its tensors are, as file names of models say it (`Q4_K_M`); empty if the file does not tell.
    pub quantization: &'static str,
    /// Width of its embeddings, of a model of any kind; 0 if unknown.
    pub width: u64,
    /// The chat template; empty if it has none.
    pub template: String,
    /// Metadata with short values, as text: everything but lists and the template.
    pub metadata: BTreeMap<String, String>,
    /// Whether it has a chat template.
    pub chat: bool,
    /// Whether its template takes tools.
    pub tools: bool,
    /// Whether a request can switch thinking on and off in its template (`enable_thinking`).
    pub thinking: bool,
    /// Whether the file names the tokens for filling in the middle.
    pub infill: bool,
}

/// Values of `pooling_type` (llama.h) that give embeddings: mean, CLS and last token. `rank` gives a score.
const POOLING_VECTORS: std::ops::RangeInclusive<u64> = 1..=3;
const POOLING_RANK: u64 = 4;
/// Architectures that generate text although their attention is not causal.
const DENOISERS: [&str; 4] = ["dream", "llada", "llada-moe", "rnd1"];

impl Facts {
    /// Reads the facts from the headers.
    ///
    /// # Errors
    /// [`Error::Key`] if the file does not name its architecture.
    pub fn read(gguf: &Gguf) -> Result<Self, Error> {
        const KEY: &str = "general.architecture";
        let metadata = gguf.metadata();
        let architecture = metadata.text(KEY).ok_or_else(|| Error::Key(KEY.to_owned()))?;
        let key = |key: &str| format!("{architecture}.{key}");
        let number = |name: &str| metadata.number(&key(name)).unwrap_or(0);
        let kind = kind(gguf, architecture);
        let template = metadata.text(TEMPLATE).unwrap_or_default();
        let width = match number("embedding_length_out") {
            0 => number("embedding_length"),
            out => out,
        };
        Ok(Self {
            architecture: architecture.to_owned(),
            name: metadata.text("general.name").unwrap_or_default().to_owned(),
            kind,
            context: number("context_length"),
            vector: if kind == Kind::Embedding { width } else { 0 },
            vocabulary: metadata.length("tokenizer.ggml.tokens").unwrap_or(0),
            parameters: gguf
                .tensors()
                .map(|tensor| {
                    tensor
                        .shape
                        .iter()
                        .fold(1, |n: u64, next| n.saturating_mul(*next))
                })
                .fold(0, u64::saturating_add),
            quantization: metadata.number("general.file_type").map_or("", quantization),
            width: number("embedding_length"),
            template: template.to_owned(),
            metadata: short(metadata),
            chat: !template.is_empty(),
            tools: metadata.get("tokenizer.chat_template.tool_use").is_some() || mentions(template, "tools"),
            thinking: mentions(template, "enable_thinking"),
            infill: ["fim_pre", "prefix"]
                .iter()
                .any(|name| metadata.get(&format!("tokenizer.ggml.{name}_token_id")).is_some()),
        })
    }
}

/// Longest text of the short metadata, in bytes.
const SHORT: usize = 1024;
/// The key of the chat template, which has its own place; others stand beside it, `tokenizer.chat_template.NAME`.
const TEMPLATE: &str = "tokenizer.chat_template";

fn short(metadata: &Metadata) -> BTreeMap<String, String> {
    let text = |value: &Value| match value {
        Value::Unsigned(number) => Some(number.to_string()),
        Value::Negative(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Flag(flag) => Some(flag.to_string()),
        Value::Text(text) => (text.len() <= SHORT).then(|| text.clone()),
        Value::List(_) | Value::Long(_) => None,
    };
    let entries = metadata.iter().filter(|(key, _)| !key.starts_with(TEMPLATE));
    entries
        .filter_map(|(key, value)| Some((key.to_owned(), text(value)?)))
        .collect()
}

/// Names of llama.cpp's file types by their numbers (`llama_ftype`); empty for what it no longer reads.
const FILE_TYPES: [&str; 42] = [
    "F32", "F16", "Q4_0", "Q4_1", "", "", "", "Q8_0", "Q5_0", "Q5_1", "Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L",
    "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "IQ2_XXS", "IQ2_XS", "Q2_K_S", "IQ3_XS", "IQ3_XXS",
    "IQ1_S", "IQ4_NL", "IQ3_S", "IQ3_M", "IQ2_S", "IQ2_M", "IQ4_XS", "IQ1_M", "BF16", "", "", "", "TQ1_0",
    "TQ2_0", "MXFP4", "NVFP4", "Q1_0", "Q2_0",
];

/// The name of a file type; empty if it is unknown.
fn quantization(number: u64) -> &'static str {
    let place = usize::try_from(number).ok();
    place
        .and_then(|place| FILE_TYPES.get(place))
        .copied()
        .unwrap_or_default()
}

fn kind(gguf: &Gguf, architecture: &str) -> Kind {
    let metadata = gguf.metadata();
    let part = ["adapter", "mmproj"].contains(&metadata.text("general.type").unwrap_or("model"));
    if part || architecture == "clip" {
        return Kind::Part;
    }
    let pooling = metadata.number(&format!("{architecture}.pooling_type"));
    let has = |beginning: &str| gguf.tensors().any(|tensor| tensor.name.starts_with(beginning));
    match pooling {
        Some(POOLING_RANK) => Kind::Reranking,
        _ if has("cls.") || has("cls_") => Kind::Reranking,
        Some(pooling) if POOLING_VECTORS.contains(&pooling) => Kind::Embedding,
        Some(_) | None => {
            let causal = metadata.flag(&format!("{architecture}.attention.causal"));
            if causal == Some(false) && !has("output.weight") && !DENOISERS.contains(&architecture) {
                Kind::Embedding
            } else {
                Kind::Text
            }
        }
    }
}

/// Whether a Jinja template uses a variable: its name occurs as a word inside `{{ }}` or `{% %}`.
fn mentions(template: &str, variable: &str) -> bool {
    let word = |character: char| character.is_alphanumeric() || character == '_';
    let mut rest = template;
    while let Some(begin) = rest.find(['{']) {
        let Some(tag) = rest.get(begin + 1..) else {
            return false;
        };
        let end = match tag.chars().next() {
            Some('%') => tag.find("%}"),
            Some('{') => tag.find("}}"),
            // Comments do not count.
            Some('#') => {
                rest = tag.find("#}").and_then(|end| tag.get(end..)).unwrap_or_default();
                continue;
            }
            Some(_) | None => {
                rest = tag;
                continue;
            }
        };
        let inside = end.and_then(|end| tag.get(..end)).unwrap_or(tag);
        let found = inside.match_indices(variable).any(|(at, found)| {
            let before = inside.get(..at).and_then(|text| text.chars().next_back());
            let after = inside
                .get(at + found.len()..)
                .and_then(|text| text.chars().next());
            !before.is_some_and(word) && !after.is_some_and(word)
        });
        if found {
            return true;
        }
        rest = end.and_then(|end| tag.get(end..)).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_uses_a_variable_only_where_it_is_evaluated() {
        assert!(mentions(
            "{%- if enable_thinking is defined %}",
            "enable_thinking"
        ));
        assert!(mentions("a{{ tools | tojson }}b", "tools"));
        assert!(mentions("{{ x }}{% for tool in tools %}", "tools"));
        assert!(!mentions("write tools here {{ messages }}", "tools"));
        assert!(!mentions(
            "{# enable_thinking #}{{ messages }}",
            "enable_thinking"
        ));
        assert!(!mentions("{{ my_tools }}{{ tools_in_user_message }}", "tools"));
        assert!(!mentions("{", "tools"));
        assert!(!mentions("{#", "tools"));
        assert!(mentions("{{ 'unclosed' + tools", "tools"));
    }
}
