//! A file that is coming: its content, in pieces that come in any order, and behind it how far each is.
//!
//! ```text
//!   content, SIZE bytes with gaps │ per piece: bytes there, 8 each │ head, JSON │ its length, 4 │ MAGIC
//! ```
//!
//! Invariants: what the journal says is there was written before; so a process that is killed loses at most what it had not written, and the next one goes
//! on from there. A machine that loses power may lose more: the sum over the whole decides. Other programs of the cache know no such file: they would take
//! a file of full length under *their* name for a finished one.
//!
//! Everything here blocks while the disk does.

use std::{
    fs::{self, File},
    io,
    ops::Range,
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FallocateFlags, fallocate},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// What such a file's name ends in.
pub(super) const SUFFIX: &str = ".muster-part";
/// The last bytes of one, with the version of its layout.
const MAGIC: &[u8; 8] = b"MUSTER01";
/// Longest head, in bytes.
const LONGEST: u64 = 64 << 10;
/// Sizes of pieces, in bytes: each is one request.
const PIECE: Range<u64> = 1 << 20..64 << 20;
/// Pieces that a file of middling size has.
const PIECES: u64 = 16;
/// Bytes read at once for a sum.
const READ: usize = 1 << 20;

/// What is coming.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    /// Path in the repository.
    pub(super) path: String,
    /// Bytes.
    pub(super) size: u64,
    /// Bytes of a piece; the last one may be shorter.
    piece: u64,
}

/// The file.
#[derive(Debug)]
pub(super) struct Partial {
    place: PathBuf,
    file: File,
    head: Head,
    /// Of each piece, the bytes there.
    done: Vec<u64>,
}

impl Head {
    fn new(path: &str, size: u64) -> Self {
        Self {
            path: path.to_owned(),
            size,
            piece: (size / PIECES).clamp(PIECE.start, PIECE.end),
        }
    }

    fn pieces(&self) -> usize {
        usize::try_from(self.size.div_ceil(self.piece.max(1))).unwrap_or(usize::MAX)
    }

    /// Where a piece is.
    fn range(&self, piece: usize) -> Range<u64> {
        let start = piece as u64 * self.piece;
        start..(start + self.piece).min(self.size)
    }
}

impl Partial {
    /// Goes on with what is at `place`, or begins anew.
    ///
    /// # Errors
    /// The disk refuses, or has no room for all of it.
    pub(super) fn open(place: &Path, path: &str, size: u64) -> io::Result<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(place)?;
        let place = place.to_owned();
        let fresh = Head::new(path, size);
        if file.metadata()?.len() == size && size > 0 {
            // It was killed between the last byte and the name: the sum decides.
            let done = (0..fresh.pieces())
                .map(|piece| length(&fresh.range(piece)))
                .collect();
            return Ok(Self {
                place,
                file,
                head: fresh,
                done,
            });
        }
        if let Some((head, done)) = read(&file)?
            && head.size == size
        {
            return Ok(Self {
                place,
                file,
                head,
                done,
            });
        }
        let done = vec![0; fresh.pieces()];
        let partial = Self {
            place,
            file,
            head: fresh,
            done,
        };
        partial.lay_out()?;
        Ok(partial)
    }

    /// What is coming at `place`, if something is.
    pub(super) fn head(place: &Path) -> Option<Head> {
        let (head, _) = read(&File::open(place).ok()?).ok()??;
        Some(head)
    }

    /// Takes the room for all of it, and notes that nothing is there.
    fn lay_out(&self) -> io::Result<()> {
        let mut tail: Vec<u8> = self.done.iter().flat_map(|_| [0; 8]).collect();
        let head = serde_json::to_vec(&self.head)?;
        let length = u32::try_from(head.len()).map_err(io::Error::other)?;
        tail.extend(&head);
        tail.extend(length.to_le_bytes());
        tail.extend(MAGIC);
        self.file.set_len(0)?;
        let all = self.head.size + tail.len() as u64;
        match fallocate(&self.file, FallocateFlags::empty(), 0, all) {
            // Some file systems cannot set room aside: then it may turn out later that there is none.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(error) => return Err(error.into()),
        }
        self.file.write_all_at(&tail, self.head.size)
    }

    /// Bytes that are there.
    pub(super) fn there(&self) -> u64 {
        self.done.iter().sum()
    }

    /// What is missing, in order: one range of each piece.
    pub(super) fn missing(&self) -> Vec<Range<u64>> {
        let rest = |(piece, done): (usize, &u64)| {
            let range = self.head.range(piece);
            range.start + done..range.end
        };
        let all = self.done.iter().enumerate().map(rest);
        all.filter(|range| !range.is_empty()).collect()
    }

    /// Writes what came next of the pieces it belongs to.
    ///
    /// # Errors
    /// The disk refuses, or that is not what comes next.
    pub(super) fn write(&mut self, mut at: u64, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let piece = usize::try_from(at / self.head.piece).map_err(io::Error::other)?;
            let range = self.head.range(piece);
            let Some(done) = self.done.get_mut(piece).filter(|done| range.start + **done == at) else {
                return Err(io::Error::other(format!("byte {at} does not come next")));
            };
            let room = usize::try_from(range.end - at).unwrap_or(usize::MAX);
            let (now, rest) = data.split_at(room.min(data.len()));
            self.file.write_all_at(now, at)?;
            *done += now.len() as u64;
            self.file
                .write_all_at(&done.to_le_bytes(), self.head.size + 8 * piece as u64)?;
            at += now.len() as u64;
            data = rest;
        }
        Ok(())
    }

    /// Forgets what is there.
    ///
    /// # Errors
    /// The disk refuses.
    pub(super) fn reset(&mut self) -> io::Result<()> {
        self.done.fill(0);
        self.lay_out()
    }

    /// Adds piece `piece` to a sum, if all of it is there; false if not, or if there is no such piece.
    ///
    /// # Errors
    /// The disk refuses.
    pub(super) fn sum(&self, piece: usize, sum: &mut Sha256) -> io::Result<bool> {
        let Some(done) = self.done.get(piece) else {
            return Ok(false);
        };
        let range = self.head.range(piece);
        if *done < length(&range) {
            return Ok(false);
        }
        let mut buffer = vec![0; READ];
        let mut at = range.start;
        while at < range.end {
            let most = usize::try_from(range.end - at).unwrap_or(READ).min(READ);
            let part = &mut buffer[..most];
            self.file.read_exact_at(part, at)?;
            sum.update(&*part);
            at += most as u64;
        }
        Ok(true)
    }

    /// Gives it the name that finished files have.
    ///
    /// # Errors
    /// The disk refuses.
    pub(super) fn finish(self, blob: &Path) -> io::Result<()> {
        // Before the journal goes: what follows takes no time in which it could be killed.
        self.file.sync_data()?;
        self.file.set_len(self.head.size)?;
        fs::rename(&self.place, blob)
    }

    /// Removes it.
    ///
    /// # Errors
    /// The disk refuses.
    pub(super) fn remove(self) -> io::Result<()> {
        fs::remove_file(&self.place)
    }
}

/// Bytes on the disk that a file at `place` takes already.
pub(super) fn taken(place: &Path) -> u64 {
    fs::metadata(place).map_or(0, |meta| meta.blocks() * 512)
}

fn length(range: &Range<u64>) -> u64 {
    range.end - range.start
}

/// Reads head and journal; none if there is no whole one.
fn read(file: &File) -> io::Result<Option<(Head, Vec<u64>)>> {
    let all = file.metadata()?.len();
    let Some(end) = all.checked_sub(12) else {
        return Ok(None);
    };
    let mut last = [0; 12];
    file.read_exact_at(&mut last, end)?;
    let (head_length, magic) = last.split_at(4);
    let head_length = head_length.try_into().map_or(u32::MAX, u32::from_le_bytes);
    let head_length = u64::from(head_length);
    let Some(start) = end
        .checked_sub(head_length)
        .filter(|_| magic == MAGIC && head_length <= LONGEST)
    else {
        return Ok(None);
    };
    let mut head = vec![0; usize::try_from(head_length).map_err(io::Error::other)?];
    file.read_exact_at(&mut head, start)?;
    let Ok(head) = serde_json::from_slice::<Head>(&head) else {
        return Ok(None);
    };
    if head.piece == 0 || start.checked_sub((head.pieces() as u64).saturating_mul(8)) != Some(head.size) {
        return Ok(None);
    }
    let mut journal = vec![0; 8 * head.pieces()];
    file.read_exact_at(&mut journal, head.size)?;
    let done: Vec<u64> = journal
        .chunks_exact(8)
        .map(|bytes| bytes.try_into().map_or(0, u64::from_le_bytes))
        .collect();
    let sound = |(piece, done): (usize, &u64)| *done <= length(&head.range(piece));
    Ok(done.iter().enumerate().all(sound).then_some((head, done)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_was_written_is_there_after_a_kill() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("e.muster-part");
        let size = 2 * MIB + 5;
        let mut partial = Partial::open(&place, "m.gguf", size).unwrap();
        assert_eq!(partial.missing(), [0..MIB, MIB..2 * MIB, 2 * MIB..size]);
        partial.write(MIB, &[1; 100]).unwrap();
        partial.write(2 * MIB, &[2; 5]).unwrap();
        assert!(partial.write(7, &[3]).is_err(), "a gap");
        // No destructor: as a kill.
        std::mem::forget(partial);
        let again = Partial::open(&place, "m.gguf", size).unwrap();
        assert_eq!(again.there(), 105);
        assert_eq!(again.missing(), [0..MIB, MIB + 100..2 * MIB]);
        assert_eq!(Partial::head(&place).unwrap().path, "m.gguf");
        // Another size is another file.
        assert_eq!(Partial::open(&place, "m.gguf", size + 1).unwrap().there(), 0);
    }

    #[test]
    fn a_stream_runs_over_the_ends_of_pieces_and_sums_up() {
        let dir = tempfile::tempdir().unwrap();
        let (place, blob) = (dir.path().join("p"), dir.path().join("blob"));
        let content: Vec<u8> = (0..3 * MIB / 2).map(|n| (n % 251) as u8).collect();
        let mut partial = Partial::open(&place, "m", content.len() as u64).unwrap();
        for (n, part) in content.chunks(300_001).enumerate() {
            partial.write(n as u64 * 300_001, part).unwrap();
        }
        let mut sum = Sha256::new();
        assert!(partial.sum(0, &mut sum).unwrap() && partial.sum(1, &mut sum).unwrap());
        assert!(!partial.sum(2, &mut sum).unwrap());
        assert_eq!(sum.finalize(), Sha256::digest(&content));
        partial.finish(&blob).unwrap();
        assert!(fs::read(&blob).unwrap() == content && !place.exists());
        // As if it had been killed just before it got its name.
        assert_eq!(
            Partial::open(&blob, "m", content.len() as u64).unwrap().missing(),
            []
        );
    }

    #[test]
    fn what_is_no_journal_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("p");
        for junk in [&b""[..], b"short", &[0; 5000], b"xxxx\xff\xff\xff\xffMUSTER01"] {
            fs::write(&place, junk).unwrap();
            assert_eq!(Partial::open(&place, "m", 100).unwrap().there(), 0);
        }
        let file = File::options().write(true).open(&place).unwrap();
        // More there than a piece has.
        file.write_all_at(&u64::MAX.to_le_bytes(), 100).unwrap();
        assert_eq!(Partial::open(&place, "m", 100).unwrap().there(), 0);
    }
}
