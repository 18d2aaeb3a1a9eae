//! llama.cpp's requests.

use muster_core::Error;
use muster_proto::v1::Prompt;
use utoipa::openapi::{RefOr, Schema};

use crate::translate::{
    ModelName,
    object::{Field, Kind},
    output::{Constraints, Limits, Switches},
    prompt,
    prompt_media::{Images, has_media},
    read::{Int, Read, Strings, Uint, body},
    sampling::LlamaCppSamplers,
};

body! {
    /// llama.cpp's request for a completion.
    #[example {"prompt": "Once upon a time", "n_predict": 16}]
    pub(super) struct CompletionBody<'a> as LlamaCppCompletionRequest {
        ..options: Options,
        /// Text, token ids, a mixture, or several of these; or `prompt_string` with `multimodal_data`: files of images or sounds as base64, each of
        /// which goes where the text has `/props`' `media_marker`; or `content`, the parts of a message.
        prompt: Field<'a>,
    }

    /// llama.cpp's request to fill a gap in a text.
    #[example {"input_prefix": "fn one() -> i32 {", "input_suffix": "}", "n_predict": 8}]
    pub(super) struct InfillBody as LlamaCppInfillRequest {
        ..options: Options,
        /// Text before the gap.
        input_prefix: String,
        /// Text after the gap.
        input_suffix: String,
        /// Other files that the model is to see.
        input_extra: Option<Vec<ExtraFile>>,
        /// What the middle begins with. It is read at the end of the prefix, before the suffix's mark, as llama.cpp's own server has it.
        prompt: Option<Content>,
    }

    /// A file beside the one that is written.
    pub(super) struct ExtraFile as LlamaCppExtraFile {
        /// Name of the file; `tmp` by default.
        filename: Option<String>,
        /// Content of the file.
        text: String,
    }

    /// What requests for completions and infills share.
    pub(super) struct Options as LlamaCppOptions {
        ..sampling: LlamaCppSamplers,
        ..constraints: Constraints,
        ..limits: Limits,
        ..switches: Switches,
        /// Id in the catalogue, or another name of the model. It may be left out where one model is loaded, or there is only one.
        model: Option<String>,
        /// Answer with server-sent events instead of one body.
        stream: Option<bool>,
        /// Number of answers to each prompt, 1 to 128.
        n_cmpl | n: Option<Int<1, 128>>,
        /// Fields that the answer shall have, each at the top under its whole path; all, if the list is empty.
        response_fields: Option<Strings>,
        /// Probabilities of this many tokens in each place.
        n_probs: Option<Uint<0>>,
        /// Images as base64 (`data`), each of which goes where the prompt has `[img-ID]` of its `id`.
        image_data: Option<Images>,
    }

    /// llama.cpp's request for vectors.
    #[example {"content": "Hello!"}]
    pub(super) struct EmbeddingBody<'a> as LlamaCppEmbeddingRequest {
        /// Id in the catalogue, or another name of the model. It may be left out where one model is loaded, or there is only one.
        model: Option<String>,
        /// Text, token ids, or several of these; `input` is another name of the field.
        content | input: Field<'a>,
        /// Norm to divide by: -1 none, 0 the largest, 1 taxicab, 2 Euclidean. By default 2, and none where nothing is pooled.
        embd_normalize: Option<Int<-1, 2>>,
        /// Images as base64 (`data`), each of which goes where the text has `[img-ID]` of its `id`.
        image_data: Option<Images>,
    }

    /// A request for tokens.
    #[example {"content": "Hello!", "with_pieces": true}]
    pub(super) struct TokenizeBody as TokenizeRequest {
        /// Id in the catalogue, or another name of the model. It may be left out where one model is loaded, or there is only one.
        model: Option<String>,
        /// Text; or a list of texts and token ids.
        content: Content,
        /// Put what begins a text (BOS) before it.
        add_special: Option<bool>,
        /// Read control tokens in the text as such; yes by default.
        parse_special: Option<bool>,
        /// Show each token's text.
        with_pieces: Option<bool>,
    }

    /// A request for the text of tokens.
    #[example {"tokens": [1, 2, 3]}]
    pub(super) struct DetokenizeBody as DetokenizeRequest {
        /// Id in the catalogue, or another name of the model. It may be left out where one model is loaded, or there is only one.
        model: Option<String>,
        /// Token ids.
        tokens: Vec<Int<0>>,
    }

    /// Names a model.
    pub(super) struct RouterBody as RouterRequest {
        /// Id in the catalogue.
        model: ModelName,
    }

    /// A model to download.
    #[example {"model": "unsloth/Qwen3-0.6B-GGUF:Q4_0", "revision": "main"}]
    pub(super) struct DownloadBody as RouterDownloadRequest {
        /// Id in the catalogue, or `ORG/NAME:VARIANT` on the hub.
        model: ModelName,
        /// Branch, tag or commit of the repository; without it `main`. Only for a model that is not in the catalogue yet.
        revision: Option<String>,
    }

    /// A file to save a sequence's cache to, or to restore it from; to erase, nothing.
    #[example {"filename": "chat-1.bin"}]
    pub(super) struct SlotBody as SlotFile {
        /// Its bare name, in the folder of `--slot-save-path`.
        filename: Option<BareName>,
    }
}

/// What is to become tokens.
#[derive(Debug)]
pub(super) struct Content(pub(super) Prompt);

impl Read<'_> for Content {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        let prompt = match field.kind() {
            Kind::Array => prompt::one(&field.list()?),
            Kind::Null | Kind::Bool | Kind::Number | Kind::String | Kind::Object => {
                prompt::one(std::slice::from_ref(field))
            }
        }?;
        if has_media(&prompt) {
            return Err(field.wrong("takes no images or sounds: they are no tokens"));
        }
        Ok(Self(prompt))
    }

    fn schema() -> RefOr<Schema> {
        Field::schema()
    }
}

/// A file's name that leads nowhere else (gateway/README.md, llama.cpp's routes).
#[derive(Debug)]
pub(super) struct BareName(pub(super) String);

impl Read<'_> for BareName {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        let name = field.string()?;
        if is_bare(&name) {
            return Ok(Self(name.to_string()));
        }
        Err(field.wrong("must be the name of a file, without a folder"))
    }

    fn schema() -> RefOr<Schema> {
        String::schema()
    }
}

fn is_bare(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('.')
        && !name.contains(['/', '\\', ':'])
        && !name.contains(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translate::read::Fields as _;

    #[test]
    fn only_a_bare_name_is_a_file_to_save_to() {
        assert!(is_bare("chat-1.bin"));
        for name in ["", "..", "../x", "/etc/x", "a/b", "a\\b", "c:x", ".hidden", "a\0"] {
            assert!(!is_bare(name), "{name:?}");
        }
    }

    #[test]
    fn faults_are_refused_by_name() {
        let tokens = |text: &str| TokenizeBody::body(text.as_bytes()).unwrap_err().message;
        assert_eq!(tokens("{}"), "`content` is required");
        assert_eq!(
            tokens(r#"{"content": ["a", true]}"#),
            "`content[1]` must be a string, an array of strings, or token ids, not a boolean"
        );
        assert_eq!(
            tokens(r#"{"content": "a", "with_pieces": 1}"#),
            "`with_pieces` must be a boolean, not a number"
        );
        let ids = DetokenizeBody::body(br#"{"tokens": [1, -1]}"#).unwrap_err();
        assert_eq!(ids.param.as_deref(), Some("tokens[1]"));
        let file = SlotBody::body(br#"{"filename": "../x"}"#).unwrap_err();
        assert_eq!(
            file.message,
            "`filename` must be the name of a file, without a folder"
        );
    }
}
