//! The file of a model, or its files: `NAME-00001-of-00003.gguf` and so on.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use crate::{Error, Header, Metadata, Tensor};

/// Largest number of files of one model. llama.cpp counts them with 16 bits; real models have some dozens.
const PART_LIMIT: u64 = 4096;
const SUFFIX: &str = ".gguf";

/// The headers of all files of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Gguf {
    /// The header of the first file, which has the metadata.
    first: Header,
    others: Vec<Header>,
}

impl Gguf {
    /// Reads the header of `path`, and those of the other files if it is the first of several.
    ///
    /// # Errors
    /// See [`Error`]; a missing file is an [`Error::Io`] with its name.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let first = Header::open(path)?;
        let count = first.metadata.number("split.count").unwrap_or(0);
        if count > PART_LIMIT {
            return Err(Error::Absurd {
                what: "parts",
                value: count,
                limit: PART_LIMIT,
            });
        }
        let mut others = Vec::new();
        if count > 1 {
            is_part(path, &first, 0, count)?;
            let paths = parts(path);
            if paths.len() as u64 != count {
                return Err(Error::Part {
                    path: path.to_owned(),
                    wanted: 1,
                    count,
                });
            }
            for (place, path) in (0..).zip(paths).skip(1) {
                let header = Header::open(&path)?;
                is_part(&path, &header, place, count)?;
                others.push(header);
            }
        }
        let whole = Self { first, others };
        whole.check_names()?;
        Ok(whole)
    }

    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.first.metadata
    }

    /// The tensors of all files.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.headers().flat_map(|header| &header.tensors)
    }

    /// Size of all files in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.headers()
            .fold(0, |sum, header| sum.saturating_add(header.len))
    }

    /// Whether all files are empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn headers(&self) -> impl Iterator<Item = &Header> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Refuses a model with a tensor in two files or with missing files: its sizes would be wrong.
    fn check_names(&self) -> Result<(), Error> {
        let mut names = BTreeSet::new();
        if let Some(tensor) = self.tensors().find(|tensor| !names.insert(&tensor.name)) {
            return Err(Error::Twice {
                what: "the tensor",
                name: tensor.name.clone(),
            });
        }
        match self.metadata().number("split.tensors.count") {
            Some(count) if !self.others.is_empty() && count != names.len() as u64 => {
                Err(Error::Key("split.tensors.count".to_owned()))
            }
            Some(_) | None => Ok(()),
        }
    }
}

impl From<Header> for Gguf {
    fn from(first: Header) -> Self {
        Self {
            first,
            others: Vec::new(),
        }
    }
}

fn is_part(path: &Path, header: &Header, place: u64, count: u64) -> Result<(), Error> {
    let number = |key| header.metadata.number(key);
    if number("split.no") == Some(place) && number("split.count").is_none_or(|given| given == count) {
        return Ok(());
    }
    Err(Error::Part {
        path: path.to_owned(),
        wanted: place + 1,
        count,
    })
}

/// The paths of all files of a model, by the name of the first. Any other file stands alone.
#[must_use]
pub fn parts(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().and_then(|name| name.to_str());
    let split = name.and_then(|name| {
        let (rest, count) = name.strip_suffix(SUFFIX)?.rsplit_once("-of-")?;
        let stem = rest.strip_suffix("-00001")?;
        let parsed: u64 = count.parse().ok()?;
        (count.len() == 5 && (2..=PART_LIMIT).contains(&parsed)).then_some((stem, parsed))
    });
    match split {
        None => vec![path.to_owned()],
        Some((stem, count)) => (1..=count)
            .map(|part| path.with_file_name(format!("{stem}-{part:05}-of-{count:05}{SUFFIX}")))
            .collect(),
    }
}
