//! The loaded model: vocabulary, facts, text ⇄ tokens. Shared by all threads, never changed after loading.
#![expect(unsafe_code, reason = "calls into the shim")]

use std::{
    collections::BTreeMap,
    ffi::{CStr, CString, c_char, c_int, c_void},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use muster_proto::{llamacpp::LoadMode, parameters::SAMPLING, v1::Sampling};
use serde::{Deserialize, Deserializer};

use crate::ffi::{self, ErrorText, NativeError, RawModel, append, sink_of};

/// A token id, within the vocabulary once [`crate::grpc::convert::check_tokens`] has seen it.
pub(crate) type Token = i32;

/// Facts about a model, from llama.cpp.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ModelInfo {
    pub(crate) description: String,
    pub(crate) llama_cpp: String,
    /// Vocabulary size.
    pub(crate) n_vocab: usize,
    /// Bytes of the longest piece, as the file spells it: no token stands for more bytes of text.
    pub(crate) longest_piece: usize,
    /// Context length of the training.
    pub(crate) n_ctx_train: u32,
    /// Width of the model.
    pub(crate) n_embd: usize,
    /// Kind of tokenizer, by llama.cpp's numbers.
    pub(crate) vocab_type: u32,
    /// Length of an embedding.
    pub(crate) n_embd_out: usize,
    /// Outputs of a classification head.
    pub(crate) n_cls_out: usize,
    pub(crate) n_params: u64,
    /// Sliding window, 0 if none.
    pub(crate) n_swa: u32,
    pub(crate) recurrent: bool,
    pub(crate) hybrid: bool,
    pub(crate) has_encoder: bool,
    pub(crate) has_decoder: bool,
    pub(crate) diffusion: bool,
    pub(crate) bos: Token,
    pub(crate) eos: Token,
    pub(crate) sep: Token,
    pub(crate) add_bos: bool,
    pub(crate) add_eos: bool,
    pub(crate) add_sep: bool,
    pub(crate) fim_pre: Token,
    pub(crate) fim_suf: Token,
    pub(crate) fim_mid: Token,
    pub(crate) fim_rep: Token,
    pub(crate) fim_sep: Token,
    /// The chat template can switch thinking.
    pub(crate) thinking: bool,
    /// There is a usable chat template.
    pub(crate) chat: bool,
    /// The chat template describes tools.
    pub(crate) tools: bool,
    /// What the chat template can express, by llama.cpp's names.
    pub(crate) template_caps: std::collections::HashMap<String, bool>,
    /// How the weights are stored.
    pub(crate) file_type: String,
    /// Tokens that end a text.
    pub(crate) eog: Vec<Token>,
    pub(crate) bos_text: String,
    pub(crate) eos_text: String,
    pub(crate) template: String,
    pub(crate) template_error: String,
    pub(crate) rerank_template: String,
    pub(crate) metadata: BTreeMap<String, String>,
    /// How tokens are chosen where a request says nothing: llama.cpp's defaults, and the model file's.
    #[serde(deserialize_with = "parameters")]
    pub(crate) sampling: Sampling,
}

fn parameters<'de, D: Deserializer<'de>>(shown: D) -> Result<Sampling, D::Error> {
    serde_json::Map::deserialize(shown).map(|shown| SAMPLING.read(&shown))
}

/// A loaded model.
pub(crate) struct Model {
    raw: *mut RawModel,
    info: ModelInfo,
}

// SAFETY: after loading, the shim's model is only read: vocabulary, templates and metadata are const in llama.cpp, and rendering a template keeps its state in the call.
unsafe impl Send for Model {}
// SAFETY: as above.
unsafe impl Sync for Model {}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: `raw` came from ms_model_load and is freed once; contexts and samplers hold an `Arc<Model>`, so none outlives it.
        unsafe { ffi::ms_model_free(self.raw) }
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model")
            .field("description", &self.info.description)
            .finish_non_exhaustive()
    }
}

/// A decode is being given up because nobody wants it any more. A process has one context.
pub(crate) static GIVING_UP: AtomicBool = AtomicBool::new(false);

extern "C" fn on_log(level: c_int, text: *const c_char) {
    // SAFETY: llama.cpp passes a NUL-terminated text that lives during the call.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let text = text.trim_end();
    if text.is_empty() || text == "." {
        return;
    }
    match level {
        // it complains of a decode that it was asked to give up
        _ if GIVING_UP.load(Relaxed) => tracing::trace!(target: "llama_cpp", "{text}"),
        1 => tracing::trace!(target: "llama_cpp", "{text}"),
        2 => tracing::debug!(target: "llama_cpp", "{text}"),
        3 => tracing::info!(target: "llama_cpp", "{text}"),
        _ => tracing::warn!(target: "llama_cpp", "{text}"),
    }
}

extern "C" fn on_abort(text: *const c_char) {
    // SAFETY: ggml passes a NUL-terminated text that lives during the call.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    // the last line of a dying process: the worker shows it as `last_error`
    tracing::error!(target: "llama_cpp", "llama.cpp aborts: {}", text.trim_end());
}

/// Starts llama.cpp. Once per process, before anything else of this crate's native part.
pub(crate) fn init() {
    // SAFETY: both callbacks live as long as the process.
    unsafe { ffi::ms_init(on_log, on_abort) }
}

extern "C" fn on_progress(fraction: f32, user: *mut c_void) -> c_int {
    // SAFETY: `user` is the `&mut &mut dyn FnMut` that `load` passed and that lives until the load returns.
    let call = unsafe { &mut *user.cast::<&mut dyn FnMut(f32) -> bool>() };
    c_int::from(call(fraction))
}

pub(crate) fn c_string(text: &str) -> Result<CString, NativeError> {
    CString::new(text).map_err(|_| NativeError::Invalid("the text contains a NUL character".to_owned()))
}

pub(crate) fn path_string(path: &Path) -> Result<CString, NativeError> {
    let text = path.to_str();
    c_string(text.ok_or_else(|| NativeError::Invalid("the path is not UTF-8".to_owned()))?)
}

/// Runs a call that emits bytes.
pub(crate) fn collect(call: impl FnOnce(*mut c_void, *mut c_char) -> c_int) -> Result<Vec<u8>, NativeError> {
    let mut bytes = Vec::new();
    let mut error = ErrorText::new();
    let code = call(sink_of(&mut bytes), error.as_mut_ptr());
    error.check(code)?;
    Ok(bytes)
}

/// Where a model's layers go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Places {
    /// ggml's names of the devices, which get even shares; empty = the CPU only; none = as llama.cpp chooses.
    pub(crate) devices: Option<Vec<String>>,
    /// Layers on devices; −1 = all.
    pub(crate) gpu_layers: i32,
    /// What llama.cpp's flags say besides, by the names that the shim reads.
    pub(crate) tuning: serde_json::Map<String, serde_json::Value>,
}

impl Places {
    /// The parameters of a model for the shim.
    ///
    /// # Errors
    /// A name with a NUL.
    pub(crate) fn json(&self, mode: Option<LoadMode>) -> Result<CString, NativeError> {
        let mut params = self.tuning.clone();
        params.insert("devices".to_owned(), serde_json::json!(self.devices));
        params.insert("n_gpu_layers".to_owned(), self.gpu_layers.into());
        if let Some(mode) = mode {
            params.insert("load_mode".to_owned(), mode.name().into());
        }
        c_string(&serde_json::Value::from(params).to_string())
    }
}

impl Model {
    /// Loads a model file onto its devices. `progress` gets 0 to 1 and stops the load by returning false.
    ///
    /// # Errors
    /// The file is no model, or the chat template given is unusable.
    pub(crate) fn load(
        path: &Path,
        places: &Places,
        mode: LoadMode,
        chat_template: &str,
        mut progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Arc<Self>, NativeError> {
        let path = path_string(path)?;
        let params = places.json(Some(mode))?;
        let template = c_string(chat_template)?;
        let mut raw = std::ptr::null_mut();
        let mut error = ErrorText::new();
        // SAFETY: all pointers live during the call; `on_progress` reads `user` as the same type.
        let code = unsafe {
            ffi::ms_model_load(
                path.as_ptr(),
                params.as_ptr(),
                template.as_ptr(),
                on_progress,
                std::ptr::from_mut(&mut progress).cast(),
                &raw mut raw,
                error.as_mut_ptr(),
            )
        };
        error.check(code)?;
        // SAFETY: `raw` was just made.
        let json = collect(|user, error| unsafe { ffi::ms_model_info(raw, append, user, error) });
        let info = json.and_then(|json| {
            serde_json::from_slice(&json).map_err(|error| NativeError::Failed(error.to_string()))
        });
        match info {
            Ok(info) => Ok(Arc::new(Self { raw, info })),
            Err(error) => {
                // SAFETY: `raw` was just made and nobody else has it.
                unsafe { ffi::ms_model_free(raw) };
                Err(error)
            }
        }
    }

    pub(crate) const fn raw(&self) -> *mut RawModel {
        self.raw
    }

    pub(crate) const fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// The tokens of `text`. `parse_special` recognises special tokens in it.
    ///
    /// # Errors
    /// The tokenizer refuses the text.
    pub(crate) fn tokenize(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> Result<Vec<Token>, NativeError> {
        // SAFETY: `text` is readable for its length; the model lives.
        let bytes = collect(|user, error| unsafe {
            ffi::ms_tokenize(
                self.raw,
                text.as_ptr().cast(),
                text.len(),
                c_int::from(add_special),
                c_int::from(parse_special),
                append,
                user,
                error,
            )
        })?;
        Ok(bytes
            .chunks_exact(4)
            .map(|b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
            .collect())
    }

    /// The bytes of a token; special tokens are empty unless `special`.
    pub(crate) fn piece(&self, token: Token, special: bool) -> Vec<u8> {
        let mut buffer = vec![0_u8; 64];
        loop {
            let cap = i32::try_from(buffer.len()).unwrap_or(i32::MAX);
            // SAFETY: the buffer has `cap` writable bytes.
            let len = unsafe {
                ffi::ms_piece(
                    self.raw,
                    token,
                    c_int::from(special),
                    buffer.as_mut_ptr().cast(),
                    cap,
                )
            };
            match usize::try_from(len) {
                Ok(len) => {
                    buffer.truncate(len);
                    return buffer;
                }
                Err(_) => buffer.resize(usize::try_from(len.unsigned_abs()).unwrap_or_default(), 0),
            }
        }
    }

    /// The text of tokens; invalid UTF-8 is replaced.
    ///
    /// # Errors
    /// llama.cpp fails.
    pub(crate) fn detokenize(&self, tokens: &[Token]) -> Result<String, NativeError> {
        // SAFETY: `tokens` is readable for its length, and the caller has checked each against the vocabulary.
        let bytes = collect(|user, error| unsafe {
            ffi::ms_detokenize(self.raw, tokens.as_ptr(), tokens.len(), append, user, error)
        })?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The first token outside the vocabulary, if any. llama.cpp would abort on it.
    pub(crate) fn foreign_token(&self, tokens: &[Token]) -> Option<Token> {
        tokens
            .iter()
            .copied()
            .find(|token| usize::try_from(*token).map_or(true, |token| token >= self.info.n_vocab))
    }
}

/// Gives memory that was freed back to the system: the allocator keeps it otherwise, and tokenizing takes some hundred times a text's size.
pub(crate) fn give_memory_back() {
    // SAFETY: takes and changes nothing but the allocator's own lists, under its locks.
    unsafe { ffi::ms_give_back() }
}

/// The GBNF grammar of a JSON schema.
///
/// # Errors
/// The schema is not usable.
pub(crate) fn schema_to_grammar(schema: &str) -> Result<String, NativeError> {
    let schema = c_string(schema)?;
    // SAFETY: `schema` lives during the call.
    let bytes =
        collect(|user, error| unsafe { ffi::ms_schema_to_grammar(schema.as_ptr(), append, user, error) })?;
    String::from_utf8(bytes).map_err(|error| NativeError::Failed(error.to_string()))
}
