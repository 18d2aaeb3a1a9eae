//! The header of a GGUF file.
//!
//! ```text
//! "GGUF" version:u32 tensors:u64 entries:u64 │ metadata │ tensor descriptions │ padding │ data
//! ```
//! Source: the GGUF specification (ggml, docs/gguf.md) and llama.cpp's `gguf.cpp`, whose limits apply here as well.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{Read, Seek},
    path::Path,
};

use crate::{
    Error,
    input::Input,
    tensor::{self, Tensor},
    value::Metadata,
};

/// Largest number of metadata entries; models have some dozens.
const ENTRY_LIMIT: u64 = 65_536;
const DEFAULT_ALIGNMENT: u64 = 32;
const ALIGNMENT_LIMIT: u64 = 1 << 20;

/// Everything before a file's data.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// Version of the format: 2 or 3.
    pub version: u32,
    pub metadata: Metadata,
    /// Tensors in the order of the file.
    pub tensors: Vec<Tensor>,
    /// Offset of the data in bytes.
    pub data: u64,
    /// Size of the file in bytes.
    pub len: u64,
}

impl Header {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn open(path: &Path) -> Result<Self, Error> {
        let io = |source| Error::Io {
            what: path.display().to_string(),
            source,
        };
        let file = File::open(path).map_err(io)?;
        let len = file.metadata().map_err(io)?.len();
        Self::read(file, len)
    }

    /// Reads a header from the beginning of `reader`. `len` is the size of the whole file in bytes; `reader` may end after the header.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn read<R: Read + Seek>(reader: R, len: u64) -> Result<Self, Error> {
        let mut input = Input::new(reader, len);
        if input.array::<4>("the magic")? != *b"GGUF" {
            return Err(Error::Magic);
        }
        let version = input.u32("the version")?;
        match version {
            2 | 3 => {}
            // The version in the other byte order.
            _ if version.swap_bytes() <= 3 => return Err(Error::BigEndian),
            _ => return Err(Error::Version(version)),
        }
        let tensors = limited(
            "tensors",
            input.u64("the number of tensors")?,
            tensor::TENSOR_LIMIT,
        )?;
        let entries = limited(
            "entries of metadata",
            input.u64("the number of entries")?,
            ENTRY_LIMIT,
        )?;
        let metadata = Metadata::read(&mut input, entries)?;
        let alignment = alignment(&metadata)?;
        let mut tensors = descriptions(&mut input, tensors, alignment)?;
        let data = input.at().next_multiple_of(alignment);
        // The padding may be missing if no data follows.
        tensor::place(&mut tensors, input.len().saturating_sub(data))?;
        Ok(Self {
            version,
            metadata,
            tensors,
            data,
            len,
        })
    }
}

fn limited(what: &'static str, value: u64, limit: u64) -> Result<u64, Error> {
    if value > limit {
        return Err(Error::Absurd { what, value, limit });
    }
    Ok(value)
}

fn alignment(metadata: &Metadata) -> Result<u64, Error> {
    const KEY: &str = "general.alignment";
    let alignment = match metadata.get(KEY) {
        None => DEFAULT_ALIGNMENT,
        Some(_) => metadata.number(KEY).ok_or_else(|| Error::Key(KEY.to_owned()))?,
    };
    if !alignment.is_power_of_two() || alignment > ALIGNMENT_LIMIT {
        return Err(Error::Alignment(alignment));
    }
    Ok(alignment)
}

fn descriptions<R: Read + Seek>(
    input: &mut Input<R>,
    count: u64,
    alignment: u64,
) -> Result<Vec<Tensor>, Error> {
    input.room_for("the tensors", count, tensor::SMALLEST)?;
    let mut tensors = Vec::new();
    for _ in 0..count {
        tensors.push(Tensor::read(input, alignment)?);
    }
    let mut names = BTreeSet::new();
    for tensor in &tensors {
        if !names.insert(tensor.name.as_str()) {
            return Err(Error::Twice {
                what: "the tensor",
                name: tensor.name.clone(),
            });
        }
    }
    Ok(tensors)
}
