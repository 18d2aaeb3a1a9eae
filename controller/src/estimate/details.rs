//! What a model's files say about the model, read once per version of the files.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use muster_core::{Runtime, runtime::Family};
use muster_gguf::{Error, Facts, Gguf, Model, vllm::Checkpoint};
use muster_proto::v1::ModelSettings;

/// The contents of a model's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Details {
    /// The headers of GGUF files, for llama.cpp.
    Gguf(Box<Headers>),
    /// A checkpoint folder, for vLLM.
    Folder(Checkpoint),
}

/// The headers of a model and of the files loaded with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Headers {
    model: Model,
    facts: Facts,
    draft: Option<Model>,
    /// Bytes of projector and adapters.
    extra: u64,
}

/// Reads a model's files, and reads them again only after they have changed.
#[derive(Debug)]
pub(crate) struct Reader {
    file: PathBuf,
    /// Whether it is a checkpoint folder.
    folder: bool,
    draft: Option<PathBuf>,
    extra: Vec<PathBuf>,
    /// Held by the look in progress, and never across a wait for anything but the disk.
    last: Mutex<Option<Read>>,
}

/// A finished reading.
#[derive(Debug)]
struct Read {
    stamps: Vec<Option<Stamp>>,
    details: Option<Arc<Details>>,
}

/// The version of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    size: u64,
}

impl Details {
    /// What the catalogue can show about the model; none if the format does not tell.
    pub(crate) fn facts(&self) -> Option<&Facts> {
        match self {
            Self::Gguf(headers) => Some(&headers.facts),
            Self::Folder(_) => None,
        }
    }

    fn read(reader: &Reader) -> Result<Self, Error> {
        if reader.folder {
            return Checkpoint::open(&reader.file).map(Self::Folder);
        }
        Headers::read(reader).map(Box::new).map(Self::Gguf)
    }
}

impl Headers {
    /// The model's shape.
    pub(super) fn model(&self) -> &Model {
        &self.model
    }

    /// The draft model's shape.
    pub(super) fn draft(&self) -> Option<&Model> {
        self.draft.as_ref()
    }

    /// Bytes of projector and adapters, with the memory in which a projector computes.
    pub(super) fn extra(&self) -> u64 {
        self.extra
    }

    fn read(reader: &Reader) -> Result<Self, Error> {
        let gguf = Gguf::open(&reader.file)?;
        let draft = match &reader.draft {
            Some(path) => Some(Model::read(&Gguf::open(path)?)?),
            None => None,
        };
        let mut extra = 0_u64;
        for path in &reader.extra {
            let weights = Gguf::open(path)?
                .tensors()
                .fold(0, |sum: u64, tensor| sum.saturating_add(tensor.bytes));
            // Images are computed in parts: in all common projectors the buffers are a share of the weights.
            extra = extra.saturating_add(weights).saturating_add(weights / 4);
        }
        Ok(Self {
            model: Model::read(&gguf)?,
            facts: Facts::read(&gguf)?,
            draft,
            extra,
        })
    }
}

impl Reader {
    /// A reader for a model of llama.cpp's runtimes or of vLLM; none for others.
    pub(crate) fn of(runtime: Runtime, file: Option<&Path>, settings: &ModelSettings) -> Option<Self> {
        let named = |path: &str| (!path.is_empty()).then(|| PathBuf::from(path));
        let folder = runtime.family() == Family::Vllm;
        let file = file.filter(|_| folder || runtime.is_llama_cpp())?;
        let adapters = settings.lora.iter().filter_map(|adapter| named(&adapter.path));
        Some(Self {
            file: file.to_owned(),
            folder,
            draft: named(&settings.draft),
            extra: named(&settings.mmproj).into_iter().chain(adapters).collect(),
            last: Mutex::new(None),
        })
    }

    /// The present contents of the files; none if they are missing or invalid. Blocks as long as the disk does.
    pub(crate) fn read(&self) -> Option<Arc<Details>> {
        let stamps = self.stamps();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(read) = last.as_ref().filter(|read| read.stamps == stamps) {
            return read.details.clone();
        }
        let there = stamps.first().is_some_and(Option::is_some);
        let details = there.then(|| Details::read(self)).and_then(|read| {
            read.inspect_err(|error| {
                let file = self.file.display();
                let error: &dyn std::error::Error = error;
                tracing::warn!(%file, error, "memory can only be guessed: the file's header cannot be used");
            })
            .ok()
        });
        let details = details.map(Arc::new);
        *last = Some(Read {
            stamps,
            details: details.clone(),
        });
        details
    }

    /// The versions of all files of the model.
    fn stamps(&self) -> Vec<Option<Stamp>> {
        let parts = muster_gguf::parts(&self.file);
        let files = parts.iter().chain(&self.draft).chain(&self.extra);
        files.map(|path| Stamp::of(path)).collect()
    }
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let meta = std::fs::metadata(path).ok()?;
        Some(Self {
            modified: meta.modified().ok(),
            size: meta.len(),
        })
    }
}
