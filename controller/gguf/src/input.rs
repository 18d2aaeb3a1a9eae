//! Reads a file from front to back and checks every length against the bytes that are left.

use std::io::{BufReader, Read, Seek};

use crate::Error;

/// Largest header in bytes. The largest known ones (vocabularies of 262,144 tokens with merges) have 20 MiB.
const HEADER_LIMIT: u64 = 512 * 1024 * 1024;
/// Bytes to read from the disk at a time.
const BUFFER: usize = 256 * 1024;

/// A file that is being read.
#[derive(Debug)]
pub(crate) struct Input<R> {
    inner: BufReader<R>,
    at: u64,
    len: u64,
}

impl<R: Read + Seek> Input<R> {
    /// Reads `inner` from its beginning; `len` is the size of the file in bytes.
    pub(crate) fn new(inner: R, len: u64) -> Self {
        Self {
            inner: BufReader::with_capacity(BUFFER, inner),
            at: 0,
            len,
        }
    }

    /// Number of bytes read so far.
    pub(crate) const fn at(&self) -> u64 {
        self.at
    }

    /// Size of the file in bytes.
    pub(crate) const fn len(&self) -> u64 {
        self.len
    }

    /// Checks that `count` items of at least `each` bytes can follow. Returns their smallest size together.
    pub(crate) fn room_for(&self, what: &'static str, count: u64, each: u64) -> Result<u64, Error> {
        let left = self.len.min(HEADER_LIMIT).saturating_sub(self.at);
        match count.checked_mul(each) {
            Some(bytes) if bytes <= left => Ok(bytes),
            bytes => Err(Error::Truncated {
                what,
                at: self.at,
                wanted: bytes.unwrap_or(u64::MAX),
                len: self.len,
            }),
        }
    }

    /// Reads the next `N` bytes.
    pub(crate) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        self.fill(what, &mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, Error> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, Error> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Reads the next `count` bytes. The caller has checked that `count` is small.
    pub(crate) fn bytes(&mut self, what: &'static str, count: u64) -> Result<Vec<u8>, Error> {
        self.room_for(what, count, 1)?;
        let size = usize::try_from(count).map_err(|_| Error::Absurd {
            what,
            value: count,
            limit: HEADER_LIMIT,
        })?;
        let mut bytes = vec![0; size];
        self.fill(what, &mut bytes)?;
        Ok(bytes)
    }

    /// Skips the next `count` bytes.
    pub(crate) fn skip(&mut self, what: &'static str, count: u64) -> Result<(), Error> {
        self.room_for(what, count, 1)?;
        let offset = i64::try_from(count).map_err(|_| Error::Absurd {
            what,
            value: count,
            limit: HEADER_LIMIT,
        })?;
        self.inner
            .seek_relative(offset)
            .map_err(|source| io(what, source))?;
        self.at += count;
        Ok(())
    }

    fn fill(&mut self, what: &'static str, bytes: &mut [u8]) -> Result<(), Error> {
        let wanted = self.room_for(what, bytes.len() as u64, 1)?;
        self.inner.read_exact(bytes).map_err(|source| io(what, source))?;
        self.at += wanted;
        Ok(())
    }
}

fn io(what: &'static str, source: std::io::Error) -> Error {
    Error::Io {
        what: what.to_owned(),
        source,
    }
}
