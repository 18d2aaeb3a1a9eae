//! The form of a file that holds a sequence: its tokens and llama.cpp's state of them.
//!
//! ```text
//!   magic 8 │ version 4 │ fingerprint 32 │ scales 8 │ tokens 8 │ state 8 │ scales and tokens, 4 bytes each │ state │ SHA-256 of all before it 32
//! ```
//!
//! llama.cpp believes what it reads, so nothing reaches it that was not written whole by an engine with the same model and the same caches.
//! Knows no folders and no llama.cpp. All numbers are little-endian.

use std::io::{self, Read, Write};

use sha2::{Digest as _, Sha256};

use crate::model::Token;

const MAGIC: [u8; 8] = *b"MUSTSLOT";
const VERSION: u32 = 1;
const HEAD: usize = 8 + 4 + 32 + 8 + 8 + 8;
/// Bytes of a scale and of a token.
const WORD: usize = 4;
const SUM: usize = 32;
/// Bytes read at once.
const PIECE: usize = 1 << 20;

/// What a saved state is worth anything for: a model, its adapters, and how its caches are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint(pub(crate) [u8; 32]);

/// What a sequence of a model can have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Most {
    pub(crate) tokens: usize,
    /// Exactly so many.
    pub(crate) adapters: usize,
}

/// A sequence as it was.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Saved {
    /// How much of each adapter was applied.
    pub(crate) scales: Vec<f32>,
    pub(crate) tokens: Vec<Token>,
    /// llama.cpp's whole state; empty if there are no tokens.
    pub(crate) state: Vec<u8>,
}

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error("it is no file of this engine's")]
    Foreign,
    #[error("it was saved by another version of this engine")]
    Version,
    #[error("it was saved with another model, other adapters or other cache settings")]
    Fingerprint,
    #[error("it holds {0} tokens, more than the context of a sequence")]
    Long(u64),
    #[error("it is damaged")]
    Damaged,
    #[error("there is no memory for it")]
    Memory,
    #[error("it cannot be read")]
    Io(#[source] io::Error),
}

impl Saved {
    /// Size of the file in bytes.
    pub(crate) const fn file_len(&self) -> u64 {
        (HEAD + (self.scales.len() + self.tokens.len()) * WORD + self.state.len() + SUM) as u64
    }

    /// Writes the file.
    ///
    /// # Errors
    /// Those of `out`.
    pub(crate) fn write(&self, fingerprint: Fingerprint, out: &mut impl Write) -> io::Result<()> {
        let mut sum = Sha256::new();
        let mut put = |bytes: &[u8]| {
            sum.update(bytes);
            out.write_all(bytes)
        };
        put(&MAGIC)?;
        put(&VERSION.to_le_bytes())?;
        put(&fingerprint.0)?;
        put(&(self.scales.len() as u64).to_le_bytes())?;
        put(&(self.tokens.len() as u64).to_le_bytes())?;
        put(&(self.state.len() as u64).to_le_bytes())?;
        let scales: Vec<u8> = self.scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        put(&scales)?;
        let tokens: Vec<u8> = self.tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        put(&tokens)?;
        for piece in self.state.chunks(PIECE) {
            put(piece)?;
        }
        out.write_all(&sum.finalize())
    }

    /// Reads a file of `len` bytes, which must have this fingerprint and no more than `most`.
    ///
    /// # Errors
    /// See [`Refused`]. Nothing is held of a file whose head is wrong.
    pub(crate) fn read(
        mut file: impl Read,
        len: u64,
        fingerprint: Fingerprint,
        most: Most,
    ) -> Result<Self, Refused> {
        let mut sum = Sha256::new();
        let mut head = [0; HEAD];
        fill(&mut file, &mut head)?;
        sum.update(head);
        let (tokens, state) = check_head(&head, len, fingerprint, most)?;
        let mut bytes = room((most.adapters + tokens) * WORD)?;
        fill(&mut file, &mut bytes)?;
        sum.update(&bytes);
        let mut kept = room(state)?;
        for piece in kept.chunks_mut(PIECE) {
            fill(&mut file, piece)?;
            sum.update(&*piece);
        }
        let mut given = [0; SUM];
        fill(&mut file, &mut given)?;
        if sum.finalize()[..] != given {
            return Err(Refused::Damaged);
        }
        let (words, _) = bytes.as_chunks();
        let (scales, words) = words.split_at(most.adapters);
        Ok(Self {
            scales: scales.iter().map(|word| f32::from_le_bytes(*word)).collect(),
            tokens: words.iter().map(|word| Token::from_le_bytes(*word)).collect(),
            state: kept,
        })
    }
}

/// The number of tokens and the bytes of the state that a head announces, if the file is ours and as long as it says.
fn check_head(
    head: &[u8; HEAD],
    len: u64,
    fingerprint: Fingerprint,
    most: Most,
) -> Result<(usize, usize), Refused> {
    let (magic, rest) = head.split_at(8);
    let (version, rest) = rest.split_at(4);
    let (print, rest) = rest.split_at(32);
    if magic != MAGIC {
        return Err(Refused::Foreign);
    }
    if version != VERSION.to_le_bytes() {
        return Err(Refused::Version);
    }
    if print != fingerprint.0 {
        return Err(Refused::Fingerprint);
    }
    let number = |bytes: &[u8]| {
        bytes
            .iter()
            .rev()
            .fold(0, |sum: u64, byte| sum << 8 | u64::from(*byte))
    };
    let (scales, tokens, state) = (number(&rest[..8]), number(&rest[8..16]), number(&rest[16..]));
    let fixed = (HEAD + SUM + most.adapters * WORD) as u64;
    let whole = tokens.checked_mul(WORD as u64);
    let whole = whole.and_then(|bytes| bytes.checked_add(state)?.checked_add(fixed));
    if scales != most.adapters as u64 || whole != Some(len) || (tokens == 0) != (state == 0) {
        return Err(Refused::Damaged);
    }
    match (usize::try_from(tokens), usize::try_from(state)) {
        (Ok(tokens), Ok(state)) if tokens <= most.tokens => Ok((tokens, state)),
        _ => Err(Refused::Long(tokens)),
    }
}

fn room(len: usize) -> Result<Vec<u8>, Refused> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| Refused::Memory)?;
    bytes.resize(len, 0);
    Ok(bytes)
}

fn fill(file: &mut impl Read, into: &mut [u8]) -> Result<(), Refused> {
    file.read_exact(into).map_err(|error| {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return Refused::Damaged;
        }
        Refused::Io(error)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OURS: Fingerprint = Fingerprint([7; 32]);
    const MOST: Most = Most {
        tokens: 100,
        adapters: 2,
    };

    fn file(saved: &Saved) -> Vec<u8> {
        let mut bytes = Vec::new();
        saved.write(OURS, &mut bytes).unwrap();
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Saved, Refused> {
        Saved::read(bytes, bytes.len() as u64, OURS, MOST)
    }

    fn saved() -> impl Strategy<Value = Saved> {
        let tokens = prop::collection::vec(any::<Token>(), 1..50);
        (tokens, prop::collection::vec(any::<u8>(), 1..300)).prop_map(|(tokens, state)| Saved {
            scales: vec![1.0, 0.5],
            tokens,
            state,
        })
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(saved in saved()) {
            let bytes = file(&saved);
            prop_assert_eq!(bytes.len() as u64, saved.file_len());
            prop_assert_eq!(read(&bytes).unwrap(), saved);
        }

        #[test]
        fn a_file_that_was_cut_or_that_goes_on_is_refused(saved in saved(), cut in any::<prop::sample::Index>(), more in 1_usize..9) {
            let mut bytes = file(&saved);
            let whole = bytes.len() as u64;
            let part = &bytes[..cut.index(bytes.len())];
            prop_assert!(read(part).is_err());
            // As if it were cut while it is read.
            prop_assert!(Saved::read(part, whole, OURS, MOST).is_err());
            bytes.extend(vec![0; more]);
            prop_assert!(read(&bytes).is_err());
        }

        #[test]
        fn a_file_with_another_bit_is_refused(saved in saved(), at in any::<prop::sample::Index>(), bit in 0_u32..8) {
            let mut bytes = file(&saved);
            let at = at.index(bytes.len());
            bytes[at] ^= 1_u8 << bit;
            prop_assert!(read(&bytes).is_err());
        }

        #[test]
        fn anything_else_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(read(&bytes).is_err());
        }
    }

    #[test]
    fn an_empty_sequence_is_a_file_too() {
        let empty = Saved {
            scales: vec![0.0; 2],
            tokens: vec![],
            state: vec![],
        };
        assert_eq!(read(&file(&empty)).unwrap(), empty);
    }

    #[test]
    fn another_model_and_too_many_tokens_are_told_apart() {
        let bytes = file(&Saved {
            scales: vec![0.0; 2],
            tokens: vec![1; 101],
            state: vec![1],
        });
        let other = Saved::read(&*bytes, bytes.len() as u64, Fingerprint([8; 32]), MOST);
        assert!(matches!(other, Err(Refused::Fingerprint)));
        assert!(matches!(read(&bytes), Err(Refused::Long(101))));
        assert!(matches!(read(b"GGUF"), Err(Refused::Damaged)));
        assert!(matches!(read(&[0; 200]), Err(Refused::Foreign)));
    }

    /// A head that announces more than there is must not make room for it.
    #[test]
    fn a_head_is_not_believed() {
        let mut bytes = file(&Saved {
            scales: vec![0.0; 2],
            tokens: vec![1],
            state: vec![1],
        });
        bytes[60..68].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(matches!(read(&bytes), Err(Refused::Damaged)));
    }
}
