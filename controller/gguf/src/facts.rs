//! What a catalogue can show about a model before it is loaded.

use crate::{Error, Gguf};

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
        let template = metadata.text("tokenizer.chat_template").unwrap_or_default();
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
            chat: !template.is_empty(),
            tools: metadata.get("tokenizer.chat_template.tool_use").is_some() || mentions(template, "tools"),
            thinking: mentions(template, "enable_thinking"),
            infill: ["fim_pre", "prefix"]
                .iter()
                .any(|name| metadata.get(&format!("tokenizer.ggml.{name}_token_id")).is_some()),
        })
    }
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
