//! Where models' files are, and what is seen there.

use std::{
    fs::Metadata,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use muster_proto::v1::{CachedFiles, ModelSettings};

use crate::{
    config::ModelEntry,
    estimate::{Details, Reader},
};

/// Where a model's files are.
#[derive(Debug)]
pub(crate) struct FilePlace {
    pub(super) source: Source,
    defined_in: PathBuf,
    /// When it was registered, which is when it came into the catalogue.
    registered: Option<SystemTime>,
    /// Reads the files' headers, where they have some that are understood.
    pub(super) reader: Option<Reader>,
}

/// What kind of place it is.
#[derive(Debug)]
pub(super) enum Source {
    /// It needs none.
    Nothing,
    /// A path.
    Path(PathBuf),
    /// The cache of a worker, which may be on another host; none if no worker has them.
    Hub(Option<CachedFiles>),
}

/// What was seen of a model's files.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Where.
    pub(super) place: Arc<FilePlace>,
    pub(super) files: Files,
    pub(super) details: Option<Arc<Details>>,
}

/// A model's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Files {
    /// Size in bytes, 0 if missing.
    pub(crate) size: u64,
    /// When the model came into the catalogue: its file's modification time, or its configuration's; stable over restarts.
    pub(crate) created: SystemTime,
    /// They are there, or none are needed.
    pub(crate) present: bool,
}

impl FilePlace {
    pub(super) fn of(model: &ModelEntry, cached: Option<&CachedFiles>) -> Self {
        let (source, reader) = match (&model.hub, cached) {
            (Some(_), Some(files)) => {
                let settings = ModelSettings {
                    mmproj: files.mmproj.clone(),
                    ..model.settings.clone()
                };
                // Of another host's files nothing is seen here.
                let reader = Reader::of(model.runtime, Some(Path::new(&files.path)), &settings);
                (Source::Hub(Some(files.clone())), reader)
            }
            (Some(_), None) => (Source::Hub(None), None),
            (None, _) => {
                let source = model.file.clone().map_or(Source::Nothing, Source::Path);
                let reader = Reader::of(model.runtime, model.file.as_deref(), &model.settings);
                (source, reader)
            }
        };
        Self {
            source,
            defined_in: model.defined_in.clone(),
            registered: model.registered,
            reader,
        }
    }

    /// Looks at a model's files, and into them if `headers`; blocks while the disk does.
    pub(crate) fn inspect(self: &Arc<Self>, headers: bool) -> Seen {
        let reader = self.reader.as_ref().filter(|_| headers);
        Seen {
            place: Arc::clone(self),
            files: Files::at(self),
            details: reader.and_then(Reader::read),
        }
    }
}

impl Files {
    /// What is known without a look: a file that somebody named is taken to be there.
    pub(super) fn unseen(place: &FilePlace) -> Self {
        let (size, present) = match &place.source {
            Source::Nothing | Source::Path(_) => (0, true),
            Source::Hub(cached) => (
                cached.as_ref().map_or(0, |files| files.size_bytes),
                cached.is_some(),
            ),
        };
        Self {
            size,
            created: place.registered.unwrap_or(SystemTime::UNIX_EPOCH),
            present,
        }
    }

    /// Looks at a model's files; blocks while the disk does.
    fn at(place: &FilePlace) -> Self {
        let configured = || match place.registered {
            Some(at) => at,
            None => modified(&std::fs::metadata(&place.defined_in).ok()),
        };
        let file = match &place.source {
            Source::Path(file) => file,
            Source::Nothing => {
                return Self {
                    size: 0,
                    created: configured(),
                    present: true,
                };
            }
            Source::Hub(cached) => {
                return Self {
                    size: cached.as_ref().map_or(0, |files| files.size_bytes),
                    created: configured(),
                    present: cached.is_some(),
                };
            }
        };
        let found = std::fs::metadata(file).ok();
        match &found {
            None => Self {
                size: 0,
                created: configured(),
                present: false,
            },
            Some(meta) if meta.is_dir() => Self {
                size: directory(file),
                created: modified(&found),
                present: true,
            },
            Some(_) => {
                // A model may be in several files.
                let sizes: Option<Vec<u64>> = muster_gguf::parts(file)
                    .iter()
                    .map(|part| std::fs::metadata(part).map(|meta| meta.len()).ok())
                    .collect();
                Self {
                    size: sizes.iter().flatten().sum(),
                    created: modified(&found),
                    present: sizes.is_some(),
                }
            }
        }
    }
}

fn modified(meta: &Option<Metadata>) -> SystemTime {
    let at = meta
        .as_ref()
        .and_then(|meta| meta.modified().ok())
        .unwrap_or(SystemTime::UNIX_EPOCH);
    // Whole seconds: what APIs show, and the same on every file system.
    let seconds = at
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

/// Size of the files directly in a checkpoint directory.
fn directory(path: &Path) -> u64 {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.metadata().ok())
        .filter(Metadata::is_file)
        .map(|meta| meta.len())
        .sum()
}
