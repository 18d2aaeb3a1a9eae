//! llama.cpp's context: KV cache, decoding and outputs. The loop's thread owns it.
#![expect(unsafe_code, reason = "calls into the shim")]

use std::{
    ffi::{CString, c_void},
    path::Path,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use serde::{Deserialize, Serialize};

use crate::{
    adapters::{Adapter, Scales},
    control::Control,
    devices::Taken,
    ffi::{self, ErrorText, NativeError, POSITIONS, RawContext, append},
    media::Part,
    model::{GIVING_UP, Model, Places, Token, c_string, collect, path_string},
};

/// A sequence id: 0 to `n_seq_max` − 1.
pub(crate) type Seq = i32;

/// How much of a sequence's state is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All cells and states.
    Whole,
    /// What can't be rolled back: windows, recurrent states.
    Fixed,
}

impl Extent {
    const fn whole(self) -> i32 {
        match self {
            Self::Whole => 1,
            Self::Fixed => 0,
        }
    }
}

/// Parameters of a new context.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ContextParams {
    /// Number of cells, for all sequences together.
    pub(crate) n_ctx: u32,
    /// Most tokens per decode call.
    pub(crate) n_batch: u32,
    /// Most tokens per graph run.
    pub(crate) n_ubatch: u32,
    /// Number of sequences.
    pub(crate) n_seq_max: u32,
    /// Most outputs per graph run; 0 = `n_batch`.
    pub(crate) n_outputs_max: u32,
    pub(crate) n_threads: i32,
    pub(crate) n_threads_batch: i32,
    /// Whether to compute embeddings instead of logits.
    pub(crate) embeddings: bool,
    pub(crate) swa_full: bool,
    /// Whether all sequences share the cells; else each has an equal part.
    pub(crate) kv_unified: bool,
    pub(crate) type_k: String,
    pub(crate) type_v: String,
    pub(crate) pooling: String,
    pub(crate) flash_attention: String,
    /// What llama.cpp's flags say besides, by the names that shim/context.cpp reads.
    #[serde(flatten)]
    pub(crate) tuning: serde_json::Map<String, serde_json::Value>,
}

/// The sizes that a context really has.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ContextInfo {
    pub(crate) n_ctx: u32,
    /// Most cells of one sequence: all, or its part of a cache that is split.
    pub(crate) n_ctx_seq: u32,
    pub(crate) n_batch: u32,
    pub(crate) n_ubatch: u32,
    pub(crate) n_seq_max: u32,
    pub(crate) pooling: String,
    pub(crate) has_memory: bool,
}

impl ContextInfo {
    /// Whether each sequence has cells of its own.
    pub(crate) const fn is_split(&self) -> bool {
        self.n_ctx_seq < self.n_ctx
    }
}

/// Why a decode failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecodeError {
    /// There are no cells for this batch. The memory is unchanged.
    NoRoom,
    /// The batch is invalid (a position, a token). The memory is unchanged.
    Refused,
    /// All requests of the decode were cancelled ([`Context::stop_when_cancelled`]). The memory may hold parts of the batch: read the
    /// positions again.
    GivenUp,
    /// The decode failed with this code. The memory may hold parts of the batch: read the positions again.
    Broken(i32),
}

/// One decode's input. It is reused, so that the loop does not allocate.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    tokens: Vec<Token>,
    pos: Vec<i32>,
    seq: Vec<Seq>,
    output: Vec<i8>,
}

impl Batch {
    pub(crate) fn clear(&mut self) {
        self.tokens.clear();
        self.pos.clear();
        self.seq.clear();
        self.output.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Adds a token and returns its index.
    pub(crate) fn push(&mut self, token: Token, pos: i32, seq: Seq, output: bool) -> usize {
        self.tokens.push(token);
        self.pos.push(pos);
        self.seq.push(seq);
        self.output.push(i8::from(output));
        self.tokens.len() - 1
    }
}

/// Whether llama.cpp expects the model, laid out so, and a context for it to fit into the devices' free memory, or
/// without a device into host memory. Reads the file's headers and allocates nothing, but takes as long as loading without weights. Must
/// not run at the same time as other calls.
///
/// # Errors
/// llama.cpp cannot lay out the model.
pub(crate) fn fits(path: &Path, places: &Places, params: &ContextParams) -> Result<bool, NativeError> {
    let path = path_string(path)?;
    let (model, json) = (places.json(None)?, params_string(params)?);
    let mut fits = 0;
    let mut error = ErrorText::new();
    // SAFETY: all pointers live during the call.
    let code = unsafe {
        ffi::ms_fits(
            path.as_ptr(),
            model.as_ptr(),
            json.as_ptr(),
            &raw mut fits,
            error.as_mut_ptr(),
        )
    };
    error.check(code)?;
    Ok(fits != 0)
}

fn params_string(params: &ContextParams) -> Result<CString, NativeError> {
    c_string(&serde_json::to_string(params).map_err(|error| NativeError::Failed(error.to_string()))?)
}

/// A context of llama.cpp.
pub(crate) struct Context {
    raw: *mut RawContext,
    info: ContextInfo,
    model: Arc<Model>,
    /// All that are loaded, and how much of each is applied.
    adapters: Vec<Adapter>,
    applied: Scales,
    /// The requests of the running decode. Not a `Box`, because llama.cpp has the pointer too.
    stop: *mut Vec<Arc<Control>>,
}

/// Called by llama.cpp between the steps of a graph, on the decoding thread: true stops the decode.
extern "C" fn all_cancelled(user: *mut c_void) -> bool {
    // SAFETY: `user` is `Context::stop`, and during a decode nobody changes what it points at.
    let whom = unsafe { &*user.cast_const().cast::<Vec<Arc<Control>>>() };
    let stop = !whom.is_empty() && whom.iter().all(|control| control.is_cancelled());
    if stop {
        GIVING_UP.store(true, Relaxed);
    }
    stop
}

// SAFETY: llama.cpp's context has no thread affinity; it must only not be used by two threads at once, and `Context` is not `Sync`.
unsafe impl Send for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: made by ms_context_new, freed once, before the model (`self.model` is dropped after this body).
        unsafe { ffi::ms_context_free(self.raw) }
        // SAFETY: made by `Box::into_raw`, and llama.cpp's pointer to it is gone with the context.
        drop(unsafe { Box::from_raw(self.stop) });
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

impl Context {
    /// Makes a context.
    ///
    /// # Errors
    /// The parameters don't suit the model, or memory ran out.
    pub(crate) fn new(model: Arc<Model>, params: &ContextParams) -> Result<Self, NativeError> {
        let json = params_string(params)?;
        let mut raw = std::ptr::null_mut();
        let mut error = ErrorText::new();
        // SAFETY: the model lives as long as the context (it holds the `Arc`); the other pointers live during the call.
        let code =
            unsafe { ffi::ms_context_new(model.raw(), json.as_ptr(), &raw mut raw, error.as_mut_ptr()) };
        error.check(code)?;
        // SAFETY: `raw` was just made.
        let info = collect(|user, error| unsafe { ffi::ms_context_info(raw, append, user, error) }).and_then(
            |json| serde_json::from_slice(&json).map_err(|error| NativeError::Failed(error.to_string())),
        );
        match info {
            Ok(info) => {
                let stop: *mut Vec<Arc<Control>> = Box::into_raw(Box::default());
                // SAFETY: `raw` was just made, and `stop` lives longer.
                unsafe { ffi::ms_set_stop(raw, all_cancelled, stop.cast()) };
                Ok(Self {
                    raw,
                    info,
                    model,
                    adapters: Vec::new(),
                    applied: Scales::from(Vec::new()),
                    stop,
                })
            }
            Err(error) => {
                // SAFETY: just made, nobody else has it.
                unsafe { ffi::ms_context_free(raw) };
                Err(error)
            }
        }
    }

    pub(crate) const fn raw(&self) -> *mut RawContext {
        self.raw
    }

    /// Bytes that the model and this context take on each device.
    ///
    /// # Errors
    /// llama.cpp fails.
    pub(crate) fn memory(&mut self) -> Result<Vec<Taken>, NativeError> {
        let raw = self.raw;
        // SAFETY: the context lives and is ours; the sink is called during the call only.
        let json = collect(|user, error| unsafe { ffi::ms_context_memory(raw, append, user, error) })?;
        serde_json::from_slice(&json).map_err(|error| NativeError::Failed(error.to_string()))
    }

    pub(crate) const fn info(&self) -> &ContextInfo {
        &self.info
    }

    /// Sets the number of threads for graph runs of one token and for larger ones.
    pub(crate) fn set_threads(&mut self, threads: i32, threads_batch: i32) {
        // SAFETY: the context lives and is ours.
        unsafe { ffi::ms_set_threads(self.raw, threads, threads_batch) }
    }

    /// Takes adapters of the context's model and applies them.
    ///
    /// # Errors
    /// Memory ran out.
    pub(crate) fn take_adapters(
        &mut self,
        adapters: Vec<Adapter>,
        scales: &Scales,
    ) -> Result<(), NativeError> {
        self.adapters = adapters;
        self.apply(scales)
    }

    /// Applies so much of each adapter in all decodes from now on.
    ///
    /// # Errors
    /// Memory ran out.
    pub(crate) fn apply(&mut self, scales: &Scales) -> Result<(), NativeError> {
        if *scales == self.applied {
            return Ok(());
        }
        let raw: Vec<_> = self.adapters.iter().map(Adapter::raw).collect();
        debug_assert_eq!(raw.len(), scales.as_slice().len(), "one scale for each adapter");
        let n = raw.len().min(scales.as_slice().len());
        let mut error = ErrorText::new();
        // SAFETY: both arrays have `n` elements; the adapters live as long as `self`, and are of its model.
        let code = unsafe {
            ffi::ms_adapters_apply(
                self.raw,
                raw.as_ptr(),
                scales.as_slice().as_ptr(),
                n,
                error.as_mut_ptr(),
            )
        };
        error.check(code)?;
        self.applied.clone_from(scales);
        Ok(())
    }

    /// Names the requests of the next decode, which stops as soon as all of them are cancelled. Without requests it runs to its end.
    pub(crate) fn stop_when_cancelled(&mut self, whom: impl Iterator<Item = Arc<Control>>) {
        // SAFETY: as in `decode`: no decode is running, that needs `&mut self`.
        let stop = unsafe { &mut *self.stop };
        stop.clear();
        stop.extend(whom);
    }

    /// Decodes a batch.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub(crate) fn decode(&mut self, batch: &Batch) -> Result<(), DecodeError> {
        debug_assert!(
            batch.len() <= self.info.n_batch as usize,
            "a larger batch aborts llama.cpp"
        );
        let n = i32::try_from(batch.len()).map_err(|_| DecodeError::Broken(-1))?;
        // SAFETY: the four arrays have `n` elements each, `n` ≤ n_batch, tokens and sequences were checked where they came in.
        let code = unsafe {
            ffi::ms_decode(
                self.raw,
                n,
                batch.tokens.as_ptr(),
                batch.pos.as_ptr(),
                batch.seq.as_ptr(),
                batch.output.as_ptr(),
            )
        };
        self.decoded(code)
    }

    /// Decodes cells `cells` of a part of an image, of which `positions` are the positions of all cells.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub(crate) fn decode_part(
        &mut self,
        part: &Part,
        embeddings: &[f32],
        positions: &[i32],
        cells: std::ops::Range<usize>,
        seq: Seq,
    ) -> Result<(), DecodeError> {
        debug_assert!(
            cells.len() <= self.info.n_batch as usize,
            "a larger batch aborts llama.cpp"
        );
        let n = i32::try_from(cells.len()).map_err(|_| DecodeError::Broken(-1))?;
        let width = embeddings.len() / part.cells.max(1);
        let embeddings = embeddings.get(cells.start * width..cells.end * width);
        let positions = positions.get(cells.start * POSITIONS..cells.end * POSITIONS);
        let (Some(embeddings), Some(positions)) = (embeddings, positions) else {
            return Err(DecodeError::Broken(-1));
        };
        // SAFETY: the arrays have what `n` cells need, `n` ≤ n_batch; the projector lives as long as `part`.
        let code = unsafe {
            ffi::ms_decode_media(
                self.raw,
                part.projector().raw(),
                n,
                embeddings.as_ptr(),
                positions.as_ptr(),
                seq,
                i32::from(part.whole),
            )
        };
        self.decoded(code)
    }

    /// The end of a decode.
    fn decoded(&mut self, code: i32) -> Result<(), DecodeError> {
        // SAFETY: `stop` was made by `new` and is freed by `drop`; llama.cpp reads it only during a decode.
        unsafe { (*self.stop).clear() };
        GIVING_UP.store(false, Relaxed);
        match code {
            0 => Ok(()),
            1 => Err(DecodeError::NoRoom),
            2 => Err(DecodeError::GivenUp),
            -1 => Err(DecodeError::Refused),
            code => Err(DecodeError::Broken(code)),
        }
    }

    /// Removes the positions from `from` on. False if this memory cannot remove a part of a sequence.
    pub(crate) fn forget_from(&mut self, seq: Seq, from: usize) -> bool {
        let from = i32::try_from(from).unwrap_or(i32::MAX);
        // SAFETY: the context lives; `seq` < n_seq_max.
        unsafe { ffi::ms_seq_rm(self.raw, seq, from, -1) != 0 }
    }

    /// Removes a sequence from the memory.
    pub(crate) fn forget(&mut self, seq: Seq) {
        // SAFETY: as above; removing a whole sequence never fails.
        unsafe { ffi::ms_seq_rm(self.raw, seq, -1, -1) };
    }

    /// Makes `to` share all cells of `from`; `to` must be empty. In a cache that is split it gets a copy, made by the next decode.
    pub(crate) fn share(&mut self, from: Seq, to: Seq) {
        // SAFETY: both < n_seq_max; whole sequences may be copied in a split memory too.
        unsafe { ffi::ms_seq_cp(self.raw, from, to) }
    }

    /// First position in memory; −1 if the sequence is empty.
    pub(crate) fn first_position(&mut self, seq: Seq) -> i32 {
        // SAFETY: the context lives; `seq` < n_seq_max.
        unsafe { ffi::ms_seq_pos_min(self.raw, seq) }
    }

    /// Last position in memory; −1 if the sequence is empty.
    pub(crate) fn last_position(&mut self, seq: Seq) -> i32 {
        // SAFETY: as above.
        unsafe { ffi::ms_seq_pos_max(self.raw, seq) }
    }

    /// Removes all sequences from the memory.
    pub(crate) fn clear(&mut self) {
        // SAFETY: the context lives.
        unsafe { ffi::ms_memory_clear(self.raw) }
    }

    /// Copies a sequence's state. `None` if there is none, or no memory for the copy.
    pub(crate) fn save_state(&mut self, seq: Seq, extent: Extent) -> Option<Vec<u8>> {
        // SAFETY: the context lives; `seq` < n_seq_max.
        let size = unsafe { ffi::ms_state_size(self.raw, seq, extent.whole()) };
        let mut data = Vec::new();
        data.try_reserve_exact(size).ok()?;
        data.resize(size, 0);
        // SAFETY: `data` has `size` writable bytes.
        let written = unsafe { ffi::ms_state_save(self.raw, seq, extent.whole(), data.as_mut_ptr(), size) };
        (size > 0 && written == size).then_some(data)
    }

    /// Restores a state from [`Self::save_state`]. After false the sequence is in an unknown state and must be forgotten.
    pub(crate) fn load_state(&mut self, seq: Seq, extent: Extent, data: &[u8]) -> bool {
        // SAFETY: `data` is readable for its length.
        unsafe { ffi::ms_state_load(self.raw, seq, extent.whole(), data.as_ptr(), data.len()) == data.len() }
    }

    /// The logits at the batch's token `index`. `None` if no output was requested there.
    pub(crate) fn logits(&mut self, index: usize) -> Option<&[f32]> {
        let index = i32::try_from(index).ok()?;
        // SAFETY: the context lives.
        let data = unsafe { ffi::ms_logits(self.raw, index) };
        // SAFETY: llama.cpp keeps n_vocab floats there until the next decode, which needs `&mut self`.
        (!data.is_null()).then(|| unsafe { std::slice::from_raw_parts(data, self.model.info().n_vocab) })
    }

    /// The pooled embedding of a sequence after a decode, or with rank pooling its scores. `None` if there is none.
    pub(crate) fn pooled(&mut self, seq: Seq) -> Option<&[f32]> {
        let len = if self.info.pooling == "rank" {
            self.model.info().n_cls_out.max(1)
        } else {
            self.model.info().n_embd_out
        };
        // SAFETY: the context lives; `seq` < n_seq_max.
        let data = unsafe { ffi::ms_embedding_seq(self.raw, seq) };
        // SAFETY: llama.cpp keeps `len` floats there until the next decode, which needs `&mut self`.
        (!data.is_null()).then(|| unsafe { std::slice::from_raw_parts(data, len) })
    }

    /// The embedding at the batch's token `index`. `None` if there is none.
    pub(crate) fn token_embedding(&mut self, index: usize) -> Option<&[f32]> {
        let index = i32::try_from(index).ok()?;
        // SAFETY: the context lives.
        let data = unsafe { ffi::ms_embedding_token(self.raw, index) };
        // SAFETY: as above.
        (!data.is_null()).then(|| unsafe { std::slice::from_raw_parts(data, self.model.info().n_embd_out) })
    }
}
