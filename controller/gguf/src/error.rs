//! Why a file is not believed.

use std::path::PathBuf;

/// A file that cannot be read, or is not what it says.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The disk said no.
    #[error("{what} cannot be read")]
    Io {
        /// What was being read.
        what: String,
        /// Why not.
        source: std::io::Error,
    },
    /// It does not begin with `GGUF`.
    #[error("no GGUF file")]
    Magic,
    /// A version other than 2 and 3, the ones llama.cpp reads.
    #[error("GGUF version {0} is not supported")]
    Version(u32),
    /// Written on a machine of the other byte order.
    #[error("a big-endian GGUF file")]
    BigEndian,
    /// It ends before what it announces.
    #[error("the file ends at byte {len}, {what} needs {wanted} more at byte {at}")]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Where.
        at: u64,
        /// Bytes it needs.
        wanted: u64,
        /// Bytes there are in all.
        len: u64,
    },
    /// A number beyond what any model has.
    #[error("{what}: {value} is more than {limit}")]
    Absurd {
        /// What is counted.
        what: &'static str,
        /// What the file says.
        value: u64,
        /// Our limit.
        limit: u64,
    },
    /// A type of value that GGUF does not have, or an array of arrays.
    #[error("`{key}` has the unknown value type {kind}")]
    ValueType {
        key: String,
        /// The type's number.
        kind: u32,
    },
    /// Text that is not UTF-8 where it must be.
    #[error("{0} is not UTF-8")]
    NotText(&'static str),
    /// A key or a tensor twice.
    #[error("{what} `{name}` is there twice")]
    Twice {
        /// Key or tensor.
        what: &'static str,
        name: String,
    },
    /// `general.alignment` is no power of two.
    #[error("alignment {0} is no power of two")]
    Alignment(u64),
    /// A tensor whose shape, type or place makes no sense.
    #[error("tensor `{name}` {why}")]
    Tensor {
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A split file that does not belong to the others.
    #[error("{} is not part {wanted} of {count}", path.display())]
    Part {
        /// The file.
        path: PathBuf,
        /// The place it should have, from 1.
        wanted: u64,
        /// Parts in all.
        count: u64,
    },
    /// A key that a model needs is missing or of the wrong type.
    #[error("`{0}` is missing or not what it should be")]
    Key(String),
    /// JSON of a checkpoint folder that is not what it should be.
    #[error("{what} is not usable: {why}")]
    Json {
        /// The file.
        what: String,
        /// Why not.
        why: String,
    },
}
