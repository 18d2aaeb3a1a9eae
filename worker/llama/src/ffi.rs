//! The C interface of the shim (`shim/shim.h`), declared by hand, and how errors and bytes cross it.
//!
//! Architecture invariant: only [`crate::model`], [`crate::context`], [`crate::adapters`], [`crate::sampler`], [`crate::chat`], [`crate::media`], [`crate::devices`] and [`crate::cores`] use this module; nothing in it is safe to call alone.
#![expect(unsafe_code, reason = "the boundary to C++")]

use std::ffi::{CStr, c_char, c_int, c_void};

// The shim calls into the archives of this crate; naming it makes the linker take them.
use llama_cpp_sys_2 as _;

pub(crate) const MS_OK: c_int = 0;
pub(crate) const MS_INVALID: c_int = 1;
pub(crate) const MS_DEAD_END: c_int = 3;
const ERROR_BYTES: usize = 1024;

macro_rules! opaque {
    ($($name:ident),*) => {$(
        #[repr(C)]
        pub(crate) struct $name {
            _private: [u8; 0],
        }
    )*};
}
opaque!(
    RawModel, RawContext, RawSampler, RawChat, RawParser, RawMedia, RawChunk, RawAdapter
);

pub(crate) type Sink = extern "C" fn(*mut c_void, *const u8, usize);
pub(crate) type Progress = extern "C" fn(f32, *mut c_void) -> c_int;
pub(crate) type Log = extern "C" fn(c_int, *const c_char);
pub(crate) type Abort = extern "C" fn(*const c_char);
pub(crate) type Stop = extern "C" fn(*mut c_void) -> bool;

/// Numbers that make up a position (`MS_POSITIONS`).
pub(crate) const POSITIONS: usize = 4;

/// An image's pixels (`ms_image`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Image {
    pub(crate) width: u32,
    pub(crate) height: u32,
    /// Three bytes per pixel.
    pub(crate) rgb: *const u8,
}

/// Gets tokens, or a part of an image: its image's index, cells, positions, and whether it is decoded at once. The part is the receiver's.
pub(crate) type PieceSink =
    extern "C" fn(*mut c_void, *const i32, usize, *mut RawChunk, usize, usize, i32, c_int);

/// What one sampling step gives (`ms_sampled`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sampled {
    /// The token.
    pub(crate) token: i32,
    /// Not 0 if it ends generation.
    pub(crate) eog: c_int,
    /// Bytes of its text; negative if the buffer was too small by that need.
    pub(crate) piece_len: i32,
    /// Not 0 if the shortcut for greedy decoding chose it.
    pub(crate) greedy: c_int,
}

unsafe extern "C" {
    pub(crate) fn ms_init(log: Log, on_abort: Abort);

    pub(crate) fn ms_range_lock(fd: c_int, start: i64, len: i64, take: c_int) -> c_int;
    pub(crate) fn ms_range_locked(
        fd: c_int,
        start: i64,
        len: i64,
        found: *mut i64,
        found_len: *mut i64,
    ) -> c_int;

    pub(crate) fn ms_devices(sink: Sink, user: *mut c_void, error: *mut c_char) -> c_int;
    pub(crate) fn ms_context_memory(
        ctx: *mut RawContext,
        sink: Sink,
        user: *mut c_void,
        error: *mut c_char,
    ) -> c_int;

    pub(crate) fn ms_model_load(
        path: *const c_char,
        params_json: *const c_char,
        chat_template: *const c_char,
        progress: Progress,
        user: *mut c_void,
        out: *mut *mut RawModel,
        error: *mut c_char,
    ) -> c_int;
    pub(crate) fn ms_model_free(model: *mut RawModel);
    pub(crate) fn ms_model_info(
        model: *const RawModel,
        sink: Sink,
        user: *mut c_void,
        error: *mut c_char,
    ) -> c_int;
    pub(crate) fn ms_tokenize(
        model: *const RawModel,
        text: *const c_char,
        len: usize,
        add_special: c_int,
        parse_special: c_int,
        sink: Sink,
        user: *mut c_void,
        error: *mut c_char,
    ) -> c_int;
    pub(crate) fn ms_piece(
        model: *const RawModel,
        token: i32,
        special: c_int,
        out: *mut c_char,
        cap: i32,
    ) -> c_int;
    pub(crate) fn ms_detokenize(
        model: *const RawModel,
        tokens: *const i32,
        n: usize,
        sink: Sink,
        user: *mut c_void,
        error: *mut c_char,
    ) -> c_int;
    pub(crate) fn ms_give_back();
    pub(crate) fn ms_schema_to_grammar(
        schema_json: *const c_char,
        sink: Sink,
        user: *mut c_void,
        error: *mut c_char,
    ) -> c_int;

    pub(crate) fn ms_fits(
        path: *const c_char,
        model_json: *const c_char,
        params_json: *const c_char,
        fits: *mut c_int,
        error: *mut c_char,
    ) -> c_int;
    pub(crate) fn ms_context_new(
        model: *mut RawModel,
        params_json: *const c_char,
        out: *mut *mut RawContext,
        error: *mut c_char,
    ) -> c_int;
    pub(crate) fn ms_context_free(ctx: *mut RawContext);
    pub(crate) fn ms_context_info(
        ctx: *const RawContext,
        sink: Sink,
        user: *mut c_void,
        error: *mut c_char,
    ) -> c_int;
    pub(crate) fn ms_set_threads(ctx: *mut RawContext, threads: i32, threads_batch: i32);
    pub(crate) fn ms_set_stop(ctx: *mut RawContext, stop: Stop, user: *mut c_void);
    pub(crate) fn ms_decode(
        ctx: *mut RawContext,
        n: i32,
        tokens: *const i32,
        pos: *const i32,
        seq: *const i32,
        output: *const i8,
    ) -> c_int;
    pub(crate) fn ms_seq_rm(ctx: *mut RawContext, seq: i32, p0: i32, p1: i32) -> c_int;
    pub(crate) fn ms_seq_cp(ctx: *mut RawContext, from: i32, to: i32);
    pub(crate) fn ms_seq_pos_min(ctx: *mut RawContext, seq: i32) -> i32;
    pub(crate) fn ms_seq_pos_max(ctx: *mut RawContext, seq: i32) -> i32;
    pub(crate) fn ms_memory_clear(ctx: *mut RawContext);
    pub(crate) fn ms_adapter_load(
        model: *const RawModel,
        path: *const c_char,
        out: *mut *mut RawAdapter,
        error: *mut c_char,
    ) -> c_int;
    pub(crate) fn ms_adapters_apply(
        ctx: *mut RawContext,
        adapters: *const *mut RawAdapter,
        scales: *const f32,
        n: usize,
        error: *mut c_char,
    ) -> c_int;
    pub(crate) fn ms_state_size(ctx: *mut RawContext, seq: i32, whole: i32) -> usize;
    pub(crate) fn ms_state_save(
        ctx: *mut RawContext,
        seq: i32,
        whole: i32,
        out: *mut u8,
        cap: usize,
    ) -> usize;
    pub(crate) fn ms_state_load(
        ctx: *mut RawContext,
        seq: i32,
        whole: i32,
        data: *const u8,
        len: usize,
    ) -> usize;
    pub(crate) fn ms_logits(ctx: *mut RawContext, index: i32) -> *const f32;
    pub(crate) fn ms_embedding_seq(ctx: *mut RawContext, seq: i32) -> *const f32;
    pub(crate) fn ms_embedding_token(ctx: *mut RawContext, index: i32) -> *const f32;

    pub(crate) fn ms_media_load(
        model: *const RawModel,
        path: *const c_char,
        params_json: *const c_char,
        out: *mut *mut RawMedia,
        error: *mut c_char,
    ) -> c_int;
    pub(crate) fn ms_media_free(media: *mut RawMedia);
    pub(crate) fn ms_media_info(
        media: *const RawMedia,
        sink: Sink,
        user: *mut c_void,
        error: *mut c_char,
    ) -> c_int;
    pub(crate) fn ms_media_split(
        media: *const RawMedia,
        text: *const c_char,
        len: usize,
        add_special: c_int,
        parse_special: c_int,
        images: *const Image,
        n_images: usize,
        sink: PieceSink,
        user: *mut c_void,
        error: *mut c_char,
    ) -> c_int;
    pub(crate) fn ms_chunk_free(chunk: *mut RawChunk);
    pub(crate) fn ms_chunk_encode(
        media: *mut RawMedia,
        chunk: *const RawChunk,
        out: *mut f32,
        cap: usize,
        error: *mut c_char,
    ) -> c_int;
    pub(crate) fn ms_chunk_positions(
        media: *const RawMedia,
        chunk: *const RawChunk,
        begin: i32,
        out: *mut i32,
    );
    pub(crate) fn ms_decode_media(
        ctx: *mut RawContext,
        media: *const RawMedia,
        n: i32,
        embd: *const f32,
        pos: *const i32,
        seq: i32,
        non_causal: c_int,
    ) -> c_int;

    pub(crate) fn ms_sampler_new(
        model: *const RawModel,
        json: *const c_char,
        chat: *const RawChat,
        out: *mut *mut RawSampler,
        error: *mut c_char,
    ) -> c_int;
    pub(crate) fn ms_sampler_free(sampler: *mut RawSampler);
    pub(crate) fn ms_sampler_accept_prompt(
        sampler: *mut RawSampler,
        tokens: *const i32,
        n: usize,
        error: *mut c_char,
    ) -> c_int;
    pub(crate) fn ms_sample(
        sampler: *mut RawSampler,
        ctx: *mut RawContext,
        index: i32,
        out: *mut Sampled,
        piece: *mut c_char,
        piece_cap: i32,
        error: *mut c_char,
    ) -> c_int;
    pub(crate) fn ms_sampler_candidates(
        sampler: *mut RawSampler,
        sink: Sink,
        user: *mut c_void,
        error: *mut c_char,
    ) -> c_int;

    pub(crate) fn ms_chat_apply(
        model: *const RawModel,
        messages_json: *const c_char,
        options_json: *const c_char,
        out: *mut *mut RawChat,
        prompt: Sink,
        user: *mut c_void,
        error: *mut c_char,
    ) -> c_int;
    pub(crate) fn ms_chat_info(
        chat: *const RawChat,
        sink: Sink,
        user: *mut c_void,
        error: *mut c_char,
    ) -> c_int;
    pub(crate) fn ms_chat_free(chat: *mut RawChat);
    pub(crate) fn ms_parser_new(chat: *const RawChat, out: *mut *mut RawParser, error: *mut c_char) -> c_int;
    pub(crate) fn ms_parser_update(
        parser: *mut RawParser,
        text: *const c_char,
        len: usize,
        partial: c_int,
        sink: Sink,
        user: *mut c_void,
        error: *mut c_char,
    ) -> c_int;
    pub(crate) fn ms_parser_free(parser: *mut RawParser);
}

/// Why a call into llama.cpp failed.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum NativeError {
    /// The input is at fault; llama.cpp's own words.
    #[error("{0}")]
    Invalid(String),
    /// llama.cpp failed.
    #[error("{0}")]
    Failed(String),
    /// No token can follow.
    #[error("no token can follow: the constraints exclude all of them")]
    DeadEnd,
}

/// Room for the shim's error message.
pub(crate) struct ErrorText([u8; ERROR_BYTES]);

impl ErrorText {
    pub(crate) const fn new() -> Self {
        Self([0; ERROR_BYTES])
    }

    pub(crate) const fn as_mut_ptr(&mut self) -> *mut c_char {
        self.0.as_mut_ptr().cast()
    }

    /// Turns a code into a result.
    pub(crate) fn check(&self, code: c_int) -> Result<(), NativeError> {
        if code == MS_OK {
            return Ok(());
        }
        let text = CStr::from_bytes_until_nul(&self.0)
            .map(|text| text.to_string_lossy().into_owned())
            .unwrap_or_default();
        Err(match code {
            MS_INVALID => NativeError::Invalid(text),
            MS_DEAD_END => NativeError::DeadEnd,
            _ => NativeError::Failed(text),
        })
    }
}

/// Appends what the shim emits to the `Vec<u8>` behind `user`.
pub(crate) extern "C" fn append(user: *mut c_void, data: *const u8, len: usize) {
    if len == 0 {
        return;
    }
    // SAFETY: every caller passes a pointer to a live `Vec<u8>` that nothing else borrows during the call, and the shim passes `len` readable bytes.
    unsafe { (*user.cast::<Vec<u8>>()).extend_from_slice(std::slice::from_raw_parts(data, len)) };
}

/// The `user` argument for [`append`].
pub(crate) const fn sink_of(bytes: &mut Vec<u8>) -> *mut c_void {
    std::ptr::from_mut(bytes).cast()
}
