//! Images: read from files, cut into parts by the model's projector, and turned into embeddings on a thread of their own.
//!
//! ```text
//!   file ─► pixels ─► parts (prepare's threads) ─► the loop needs one that its memory does not hold ─► encoded (a thread) ─► decoded by the loop
//! ```
//!
//! Invariant: the loop never waits for an image.
#![expect(unsafe_code, reason = "calls into the shim")]

mod pixels;

use std::{
    collections::HashMap,
    ffi::c_void,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
};

use muster_core::id;
use serde::Deserialize;

use crate::{
    content::Content,
    control::Control,
    ffi::{self, ErrorText, Image, NativeError, POSITIONS, RawChunk, RawMedia},
    model::{Model, Places, Token, c_string, collect, path_string},
    waker::Waker,
};

pub(crate) use pixels::{PIXELS, Pixels};

/// Images of one request.
pub(crate) const IMAGES: usize = 64;
/// Parts of images that are recognised when they come again.
const KNOWN: usize = 4096;
/// Parts that may wait to be encoded: each sequence waits for one, and those of cancelled requests are soon gone.
const WAITING: usize = 512;
/// The first of the numbers that stand for parts of images; llama.cpp has a meaning for −1.
const FIRST: Token = -2;

/// Facts about a projector, from llama.cpp.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct ProjectorInfo {
    pub(crate) vision: bool,
    /// Numbers in an embedding.
    n_embd: usize,
}

/// What turns images into embeddings.
pub(crate) struct Projector {
    raw: *mut RawMedia,
    info: ProjectorInfo,
    /// What stands for an image in a text. Nobody can guess it.
    marker: String,
    known: Mutex<Known>,
    _model: Arc<Model>,
}

// SAFETY: the projector is only read, but for encoding, which the shim does one at a time.
unsafe impl Send for Projector {}
// SAFETY: as above.
unsafe impl Sync for Projector {}

impl Drop for Projector {
    fn drop(&mut self) {
        // SAFETY: made by ms_media_load, freed once; parts hold an `Arc<Projector>`.
        unsafe { ffi::ms_media_free(self.raw) }
    }
}

impl std::fmt::Debug for Projector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Projector")
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

/// Which number stands for which part. No number is given twice, so that what is forgotten is only read again.
#[derive(Debug, Default)]
struct Known {
    /// By the sum of an image's pixels and the number of its part.
    tokens: HashMap<([u8; 32], usize), Token>,
    given: i32,
}

impl Known {
    fn token(&mut self, image: [u8; 32], part: usize) -> Token {
        if self.tokens.len() >= KNOWN {
            self.tokens.clear();
        }
        let given = &mut self.given;
        let fresh = || {
            let token = FIRST.saturating_sub(*given);
            *given = given.saturating_add(1);
            token
        };
        *self.tokens.entry((image, part)).or_insert_with(fresh)
    }
}

/// A part of an image, as large as llama.cpp encodes at once.
pub(crate) struct Part {
    raw: *mut RawChunk,
    projector: Arc<Projector>,
    /// Stands for it in sequences.
    pub(crate) token: Token,
    pub(crate) cells: usize,
    /// Positions it takes.
    pub(crate) positions: usize,
    /// Its cells see each other: all must be decoded at once.
    pub(crate) whole: bool,
    state: Mutex<State>,
}

/// How far a part is.
#[derive(Debug)]
enum State {
    Raw,
    /// It is being encoded, or waits for that.
    Coming,
    Encoded(Arc<[f32]>),
    Failed(String),
}

/// A look at a part.
#[derive(Debug)]
pub(crate) enum Look {
    /// Nobody has asked for it.
    Raw,
    Coming,
    Ready,
    Failed(String),
}

// SAFETY: plain data behind the pointer, never changed after it was made.
unsafe impl Send for Part {}
// SAFETY: as above.
unsafe impl Sync for Part {}

impl Drop for Part {
    fn drop(&mut self) {
        // SAFETY: ours since ms_media_split gave it away, freed once.
        unsafe { ffi::ms_chunk_free(self.raw) }
    }
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Part")
            .field("token", &self.token)
            .field("cells", &self.cells)
            .finish_non_exhaustive()
    }
}

/// A piece of a prompt as the shim gives it.
struct Piece {
    tokens: Vec<Token>,
    /// A part of an image: that image's index, cells, positions, and whether it is decoded at once.
    part: Option<(Chunk, usize, usize, usize, bool)>,
}

/// A part that nobody owns yet.
struct Chunk(*mut RawChunk);

impl Drop for Chunk {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: as for `Part`.
            unsafe { ffi::ms_chunk_free(self.0) }
        }
    }
}

extern "C" fn gather(
    user: *mut c_void,
    tokens: *const i32,
    n: usize,
    chunk: *mut RawChunk,
    image: usize,
    cells: usize,
    positions: i32,
    non_causal: i32,
) {
    let tokens = if tokens.is_null() {
        Vec::new()
    } else {
        // SAFETY: the shim passes `n` readable tokens.
        unsafe { std::slice::from_raw_parts(tokens, n) }.to_vec()
    };
    let positions = usize::try_from(positions).unwrap_or(0);
    let part = (!chunk.is_null()).then(|| (Chunk(chunk), image, cells, positions, non_causal != 0));
    // SAFETY: `split` passes a live vector that nothing else borrows during the call.
    unsafe { (*user.cast::<Vec<Piece>>()).push(Piece { tokens, part }) };
}

impl Projector {
    /// Loads a projector of `model`.
    ///
    /// # Errors
    /// llama.cpp cannot load it, or it is another model's.
    pub(crate) fn load(
        model: Arc<Model>,
        path: &Path,
        places: &Places,
        threads: u32,
    ) -> Result<Arc<Self>, NativeError> {
        let marker = format!("<__media_{}__>", id::fresh());
        let path = path_string(path)?;
        let params = c_string(
            &serde_json::json!({
                "marker": marker,
                "n_threads": threads.max(1),
                "devices": places.devices,
                "n_gpu_layers": places.gpu_layers,
            })
            .to_string(),
        )?;
        let mut raw = std::ptr::null_mut();
        let mut error = ErrorText::new();
        // SAFETY: all pointers live during the call.
        let code = unsafe {
            ffi::ms_media_load(
                model.raw(),
                path.as_ptr(),
                params.as_ptr(),
                &raw mut raw,
                error.as_mut_ptr(),
            )
        };
        error.check(code)?;
        // SAFETY: `raw` was just made.
        let info = collect(|user, error| unsafe { ffi::ms_media_info(raw, ffi::append, user, error) })
            .and_then(|json| {
                serde_json::from_slice(&json).map_err(|error| NativeError::Failed(error.to_string()))
            });
        match info {
            Ok(info) => Ok(Arc::new(Self {
                raw,
                info,
                marker,
                known: Mutex::default(),
                _model: model,
            })),
            Err(error) => {
                // SAFETY: just made, nobody else has it.
                unsafe { ffi::ms_media_free(raw) };
                Err(error)
            }
        }
    }

    pub(crate) const fn info(&self) -> ProjectorInfo {
        self.info
    }

    pub(crate) const fn raw(&self) -> *const RawMedia {
        self.raw
    }

    /// What stands for an image in a text for [`split`](Self::split).
    pub(crate) fn marker(&self) -> &str {
        &self.marker
    }

    /// The same; none if the model takes no images.
    pub(crate) fn marker_of_images(&self) -> Option<&str> {
        self.info.vision.then_some(self.marker.as_str())
    }

    /// Tokenizes a text with a marker for each of the images.
    ///
    /// # Errors
    /// llama.cpp cannot read an image.
    pub(crate) fn split(
        self: &Arc<Self>,
        text: &str,
        special: (bool, bool),
        images: &[Pixels],
    ) -> Result<Content, NativeError> {
        let views: Vec<Image> = images
            .iter()
            .map(|pixels| Image {
                width: pixels.width,
                height: pixels.height,
                rgb: pixels.rgb.as_ptr(),
            })
            .collect();
        let mut pieces: Vec<Piece> = Vec::new();
        let mut error = ErrorText::new();
        // SAFETY: text, images and the vector live during the call; each image has three bytes per pixel.
        let code = unsafe {
            ffi::ms_media_split(
                self.raw,
                text.as_ptr().cast(),
                text.len(),
                i32::from(special.0),
                i32::from(special.1),
                views.as_ptr(),
                views.len(),
                gather,
                std::ptr::from_mut(&mut pieces).cast(),
                error.as_mut_ptr(),
            )
        };
        error.check(code)?;
        let sums: Vec<[u8; 32]> = images.iter().map(Pixels::sum).collect();
        let mut parts_of = HashMap::<[u8; 32], usize>::new();
        let mut content = Content::default();
        for piece in pieces {
            content.tokens.extend_from_slice(&piece.tokens);
            let Some((mut chunk, image, cells, positions, whole)) = piece.part else {
                continue;
            };
            let Some(sum) = sums.get(image) else {
                return Err(NativeError::Failed("a part of no image".to_owned()));
            };
            // The same image again has parts with further numbers: they have the same content wherever they come in a prompt.
            let number = parts_of.entry(*sum).or_default();
            let token = lock(&self.known).token(*sum, *number);
            *number += 1;
            content.push_part(Part {
                raw: std::mem::replace(&mut chunk.0, std::ptr::null_mut()),
                projector: Arc::clone(self),
                token,
                cells,
                positions,
                whole,
                state: Mutex::new(State::Raw),
            });
        }
        Ok(content)
    }
}

impl Part {
    /// How far it is.
    pub(crate) fn look(&self) -> Look {
        match &*lock(&self.state) {
            State::Raw => Look::Raw,
            State::Coming => Look::Coming,
            State::Encoded(_) => Look::Ready,
            State::Failed(why) => Look::Failed(why.clone()),
        }
    }

    /// Its embeddings, if it is encoded.
    pub(crate) fn embeddings(&self) -> Option<Arc<[f32]>> {
        match &*lock(&self.state) {
            State::Encoded(embeddings) => Some(Arc::clone(embeddings)),
            State::Raw | State::Coming | State::Failed(_) => None,
        }
    }

    /// It has been read: its embeddings are let go, and made again if it must be read once more.
    pub(crate) fn read(&self) {
        *lock(&self.state) = State::Raw;
    }

    pub(crate) fn projector(&self) -> &Projector {
        &self.projector
    }

    /// [`POSITIONS`] numbers for each of its cells, if it begins at position `begin`.
    pub(crate) fn positions_from(&self, begin: i32) -> Vec<i32> {
        let mut positions = vec![0; self.cells * POSITIONS];
        // SAFETY: there is room for all of them.
        unsafe { ffi::ms_chunk_positions(self.projector.raw, self.raw, begin, positions.as_mut_ptr()) };
        positions
    }

    fn encode(&self) -> State {
        let mut embeddings = vec![0.0_f32; self.cells * self.projector.info.n_embd];
        let mut error = ErrorText::new();
        // SAFETY: the projector lives as long as `self`; there is room for the embeddings of all cells.
        let code = unsafe {
            ffi::ms_chunk_encode(
                self.projector.raw,
                self.raw,
                embeddings.as_mut_ptr(),
                embeddings.len(),
                error.as_mut_ptr(),
            )
        };
        match error.check(code) {
            Ok(()) => State::Encoded(embeddings.into()),
            Err(error) => State::Failed(error.to_string()),
        }
    }
}

/// Where parts are encoded, one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Encoder(mpsc::SyncSender<(Arc<Part>, Arc<Control>)>);

impl Encoder {
    /// Starts the thread; it ends with the last handle.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(waker: Waker) -> std::io::Result<Self> {
        let (tx, rx) = mpsc::sync_channel::<(Arc<Part>, Arc<Control>)>(WAITING);
        std::thread::Builder::new()
            .name("encode".to_owned())
            .spawn(move || {
                while let Ok((part, control)) = rx.recv() {
                    let state = if control.is_cancelled() {
                        State::Raw
                    } else {
                        part.encode()
                    };
                    *lock(&part.state) = state;
                    waker.wake();
                }
            })?;
        Ok(Self(tx))
    }

    /// Has a part encoded for a request. If too many wait, nothing happens, and it is asked for again.
    pub(crate) fn encode(&self, part: &Arc<Part>, control: &Arc<Control>) {
        let mut state = lock(&part.state);
        if self.0.try_send((Arc::clone(part), Arc::clone(control))).is_ok() {
            *state = State::Coming;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Never held across anything that panics.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stands_for_one_part_for_ever() {
        let mut known = Known::default();
        let (one, other) = (known.token([1; 32], 0), known.token([1; 32], 1));
        assert_eq!((one, other), (-2, -3));
        assert_eq!(known.token([1; 32], 0), one);
        for image in 0..KNOWN {
            known.token([2; 32], image);
        }
        assert!(known.token([1; 32], 0) < other, "forgotten: a fresh one");
    }
}
