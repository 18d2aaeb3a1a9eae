//! A model's file, or its files: `NAME-00001-of-00003.gguf` and so on.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use crate::{Error, Header, Metadata, Tensor};

/// Parts of one model; llama.cpp counts them with 16 bits, people have some dozens.
const PART_LIMIT: u64 = 4096;
const SUFFIX: &str = ".gguf";

/// A model's headers.
#[derive(Debug, Clone, PartialEq)]
pub struct Gguf {
    /// The first has the metadata.
    first: Header,
    others: Vec<Header>,
}

impl Gguf {
    /// Reads the header of `path`, and those of the other parts if it is the first of several.
    ///
    /// # Errors
    /// See [`Error`]; a part that is missing is an [`Error::Io`] naming it.
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

    /// The metadata.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.first.metadata
    }

    /// The tensors of all parts.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.headers().flat_map(|header| &header.tensors)
    }

    /// Size of all files in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.headers()
            .fold(0, |sum, header| sum.saturating_add(header.len))
    }

    /// Nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn headers(&self) -> impl Iterator<Item = &Header> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// A tensor that two parts have, or parts that are not complete, would be counted wrongly.
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

/// The paths of all parts of a model, by the name of its first; a file that is no first part is alone.
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
