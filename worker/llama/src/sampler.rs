//! Samplers: what a request asks for, and llama.cpp's sampler that does it.
#![expect(unsafe_code, reason = "calls into the shim")]

use std::sync::Arc;

use muster_proto::{parameters::SAMPLING, v1::Sampling};
use serde::{Serialize, Serializer};

use crate::{
    chat::Chat,
    context::Context,
    ffi::{self, ErrorText, NativeError, RawSampler, Sampled, append},
    model::{Model, Token, c_string, collect},
};

/// How tokens are chosen. Checked by [`crate::guard`].
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct SamplerSpec {
    /// What the request says under its parameters' names; what is absent is as the model has it.
    #[serde(flatten, serialize_with = "parameters")]
    pub(crate) sampling: Sampling,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) logit_bias: Vec<(Token, f32)>,
    /// Tokens that never come.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) never: Vec<Token>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) grammar: Option<String>,
    /// The grammar came from a JSON schema.
    pub(crate) grammar_is_schema: bool,
    /// Most tokens of reasoning; −1 = no limit.
    pub(crate) reasoning_budget: i32,
    pub(crate) reasoning_budget_message: String,
    /// Probabilities after the chain are wanted: no shortcuts.
    pub(crate) needs_candidates: bool,
}

fn parameters<S: Serializer>(sampling: &Sampling, serializer: S) -> Result<S::Ok, S::Error> {
    let said = SAMPLING.said(sampling);
    serializer.collect_map(said.map(|(name, value)| (name, serde_json::Value::from(value))))
}

/// One choice's sampler. It may be made by another thread than the loop's: only the vocabulary is read.
pub(crate) struct Sampler {
    raw: *mut RawSampler,
    model: Arc<Model>,
}

// SAFETY: the sampler has no thread affinity and is not `Sync`.
unsafe impl Send for Sampler {}

impl Drop for Sampler {
    fn drop(&mut self) {
        // SAFETY: made by ms_sampler_new, freed once; the model outlives it.
        unsafe { ffi::ms_sampler_free(self.raw) }
    }
}

impl std::fmt::Debug for Sampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sampler").finish_non_exhaustive()
    }
}

impl Sampler {
    /// Makes a sampler; `chat` brings its grammar, triggers and preserved tokens.
    ///
    /// # Errors
    /// The grammar does not parse, or a value is refused.
    pub(crate) fn new(
        model: Arc<Model>,
        spec: &SamplerSpec,
        chat: Option<&Chat>,
    ) -> Result<Self, NativeError> {
        let json = serde_json::to_string(spec).map_err(|error| NativeError::Invalid(error.to_string()))?;
        let json = c_string(&json)?;
        let mut raw = std::ptr::null_mut();
        let mut error = ErrorText::new();
        let chat = chat.map_or(std::ptr::null(), Chat::raw);
        // SAFETY: all pointers live during the call; the sampler keeps none but the model's, which it keeps alive.
        let code = unsafe {
            ffi::ms_sampler_new(model.raw(), json.as_ptr(), chat, &raw mut raw, error.as_mut_ptr())
        };
        error.check(code)?;
        Ok(Self { raw, model })
    }

    /// Shows the prompt to penalties and DRY.
    ///
    /// # Errors
    /// llama.cpp fails.
    pub(crate) fn accept_prompt(&mut self, tokens: &[Token]) -> Result<(), NativeError> {
        let mut error = ErrorText::new();
        // SAFETY: `tokens` is readable for its length; tokens are in the vocabulary.
        let code = unsafe {
            ffi::ms_sampler_accept_prompt(self.raw, tokens.as_ptr(), tokens.len(), error.as_mut_ptr())
        };
        error.check(code)
    }

    /// Chooses and accepts the next token from the logits at `index`; its bytes are appended to `piece`.
    ///
    /// # Errors
    /// No candidate is left, or the grammar lost its way; only this choice is over.
    pub(crate) fn sample(
        &mut self,
        context: &mut Context,
        index: usize,
        piece: &mut Vec<u8>,
    ) -> Result<Sampled, NativeError> {
        let index = i32::try_from(index).map_err(|error| NativeError::Failed(error.to_string()))?;
        let mut sampled = Sampled::default();
        let mut error = ErrorText::new();
        let mut buffer = [0_u8; 256];
        // SAFETY: sampler and context live and are ours; the buffer has 256 writable bytes.
        let code = unsafe {
            ffi::ms_sample(
                self.raw,
                context.raw(),
                index,
                &raw mut sampled,
                buffer.as_mut_ptr().cast(),
                256,
                error.as_mut_ptr(),
            )
        };
        error.check(code)?;
        match usize::try_from(sampled.piece_len) {
            Ok(len) => piece.extend_from_slice(&buffer[..len.min(256)]),
            // longer than the buffer: never seen, but vocabularies are data
            Err(_) => piece.extend(self.model.piece(sampled.token, true)),
        }
        Ok(sampled)
    }

    /// Candidates left by the chain in the last [`Self::sample`], likeliest first.
    ///
    /// # Errors
    /// llama.cpp fails.
    pub(crate) fn candidates(&mut self) -> Result<Vec<(Token, f32)>, NativeError> {
        // SAFETY: the sampler lives and is ours.
        let bytes =
            collect(|user, error| unsafe { ffi::ms_sampler_candidates(self.raw, append, user, error) })?;
        Ok(bytes
            .chunks_exact(8)
            .map(|b| {
                (
                    i32::from_ne_bytes([b[0], b[1], b[2], b[3]]),
                    f32::from_ne_bytes([b[4], b[5], b[6], b[7]]),
                )
            })
            .collect())
    }
}
