//! Errors about files that cannot be read or contradict themselves.

use std::path::PathBuf;

/// A file cannot be read, or its contents are wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Reading from the disk failed.
    #[error("{what} cannot be read")]
    Io {
        /// The file or part that was being read.
        what: String,
        source: std::io::Error,
    },
    /// The file does not begin with `GGUF`.
    #[error("no GGUF file")]
    Magic,
    /// The version is not 2 or 3, the ones that llama.cpp reads.
    #[error("GGUF version {0} is not supported")]
    Version(u32),
    /// The file was written with the other byte order.
    #[error("a big-endian GGUF file")]
    BigEndian,
    /// The file ends too early for what its header announces.
    #[error("the file ends at byte {len}, {what} needs {wanted} more at byte {at}")]
    Truncated {
        /// The part that was being read.
        what: &'static str,
        /// Where that part begins, in bytes.
        at: u64,
        /// Size of the part in bytes.
        wanted: u64,
        /// Size of the file in bytes.
        len: u64,
    },
    /// A number in the file is larger than any real model has.
    #[error("{what}: {value} is more than {limit}")]
    Absurd {
        /// What the number counts.
        what: &'static str,
        /// The number in the file.
        value: u64,
        /// The largest number that is accepted.
        limit: u64,
    },
    /// A value has a type that GGUF does not have, or is an array of arrays.
    #[error("`{key}` has the unknown value type {kind}")]
    ValueType {
        key: String,
        /// Number of the type.
        kind: u32,
    },
    /// A text that must be UTF-8 is not.
    #[error("{0} is not UTF-8")]
    NotText(&'static str),
    /// A key or a tensor occurs twice.
    #[error("{what} `{name}` is there twice")]
    Twice {
        /// `key` or `tensor`.
        what: &'static str,
        name: String,
    },
    /// `general.alignment` is not a power of two.
    #[error("alignment {0} is no power of two")]
    Alignment(u64),
    /// The shape, type or offset of a tensor is wrong.
    #[error("tensor `{name}` {why}")]
    Tensor {
        name: String,
        /// What is wrong, to follow the tensor's name.
        why: &'static str,
    },
    /// A file of a split model does not belong to the others.
    #[error("{} is not part {wanted} of {count}", path.display())]
    Part {
        path: PathBuf,
        /// Number of the part that it should be; the first is 1.
        wanted: u64,
        /// Number of parts.
        count: u64,
    },
    /// A key that a model needs is missing or has the wrong type.
    #[error("`{0}` is missing or not what it should be")]
    Key(String),
    /// A JSON file of a checkpoint folder has the wrong contents.
    #[error("{what} is not usable: {why}")]
    Json {
        what: String,
        /// What is wrong with it.
        why: String,
    },
}
