//! The catalogue: every configured model with the hash of its settings and the state of its files.
//!
//! Architecture invariant: the catalogue knows nothing of what is loaded.

use std::{
    collections::HashMap,
    fs::Metadata,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use muster_policy::{Bytes, ModelType};
use muster_proto::{
    overrides::Overrides,
    v1::{ErrorInfo, ModelSettings},
};

use crate::{
    config::ModelEntry,
    convert,
    estimate::{Details, Reader},
};

/// All models.
#[derive(Debug)]
pub(crate) struct Catalogue {
    entries: Vec<Entry>,
    places: HashMap<Arc<str>, usize>,
    files: Arc<[FilePlace]>,
}

/// Where a model's files are.
#[derive(Debug)]
pub(crate) struct FilePlace {
    file: Option<PathBuf>,
    defined_in: PathBuf,
    /// Reads the files' headers, where they have some that are understood.
    reader: Option<Reader>,
}

/// What was seen of a model's files.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    files: Files,
    details: Option<Arc<Details>>,
}

/// Headers are read at start for so long; the others follow beside the driver, in its first look.
const START_BUDGET: Duration = Duration::from_millis(250);

/// One model.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    model: ModelEntry,
    spec_hash: String,
    files: Files,
    details: Option<Arc<Details>>,
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

impl Catalogue {
    /// Takes the configured models, in their order.
    pub(crate) fn new(models: Vec<ModelEntry>) -> Self {
        let begun = Instant::now();
        let files: Vec<FilePlace> = models.iter().map(FilePlace::of).collect();
        let entry = |(model, place): (ModelEntry, &FilePlace)| {
            let details = if begun.elapsed() < START_BUDGET {
                place.details()
            } else {
                None
            };
            Entry::new(model, Files::at(place), details)
        };
        let entries: Vec<Entry> = models.into_iter().zip(&files).map(entry).collect();
        let places = entries
            .iter()
            .enumerate()
            .map(|(place, entry)| (Arc::clone(&entry.model.id), place))
            .collect();
        Self {
            entries,
            places,
            files: files.into(),
        }
    }

    /// All entries, in the order of the configuration.
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// One entry.
    pub(crate) fn get(&self, id: &str) -> Option<&Entry> {
        self.entries.get(*self.places.get(id)?)
    }

    /// Pins or unpins a model, whatever its configuration says; false if there is none of that name.
    pub(crate) fn pin(&mut self, id: &str, pinned: bool) -> bool {
        let place = self.places.get(id);
        match place.and_then(|place| self.entries.get_mut(*place)) {
            Some(entry) => {
                entry.model.pinned = pinned;
                true
            }
            None => false,
        }
    }

    /// Where the files of all entries are, in their order.
    pub(crate) fn places(&self) -> Arc<[FilePlace]> {
        Arc::clone(&self.files)
    }

    /// Takes over what was seen at [`places`](Self::places); true if anything changed.
    pub(crate) fn take(&mut self, seen: Vec<Seen>) -> bool {
        let mut changed = false;
        for (entry, Seen { files, details }) in self.entries.iter_mut().zip(seen) {
            changed |= files != entry.files || details != entry.details;
            entry.files = files;
            entry.details = details;
        }
        changed
    }

    /// Headers are still to be read: a look is due without anybody asking.
    pub(crate) fn unread(&self) -> bool {
        let pairs = self.entries.iter().zip(self.files.iter());
        pairs
            .into_iter()
            .any(|(entry, place)| place.reader.is_some() && entry.files.present && entry.details.is_none())
    }
}

impl Entry {
    fn new(mut model: ModelEntry, files: Files, details: Option<Arc<Details>>) -> Self {
        model.settings.r#type = convert::model_type(model.kind).into();
        let spec_hash = convert::spec_hash(&model.runtime, &model.settings);
        Self {
            model,
            spec_hash,
            files,
            details,
        }
    }

    /// The entry with settings for one load folded in.
    ///
    /// # Errors
    /// `invalid_load_request`: the model's runtime does not take them.
    pub(crate) fn overridden(&self, override_json: &str) -> Result<Self, ErrorInfo> {
        let mut entry = self.clone();
        Overrides::from_json(&entry.model.runtime, override_json)?.apply(&mut entry.model.settings)?;
        // Where a setting came from does not change what it needs: estimates are shared.
        let effective = ModelSettings {
            load_override_json: String::new(),
            ..entry.model.settings.clone()
        };
        entry.spec_hash = convert::spec_hash(&entry.model.runtime, &effective);
        Ok(entry)
    }

    /// What was configured.
    pub(crate) fn model(&self) -> &ModelEntry {
        &self.model
    }

    /// Memory the operator wants reserved.
    pub(crate) fn memory(&self) -> Option<Bytes> {
        self.model.memory
    }

    /// Whether thinking can be switched per request: the operator's word, else a loaded engine's, else what the chat template tells (one that
    /// can switch it asks for `enable_thinking`); none if nothing is known before a load.
    pub(crate) fn thinking(&self, engine: Option<bool>) -> Option<bool> {
        let template = &self.model.settings.chat_template;
        match self.model.thinking.or(engine) {
            Some(known) => Some(known),
            None if self.model.kind != ModelType::Llm => Some(false),
            None if self.model.runtime == "stub" => Some(true),
            None if template.is_empty() => self
                .details()
                .and_then(Details::facts)
                .map(|facts| facts.thinking),
            None => Some(template.contains("enable_thinking")),
        }
    }

    /// What an engine gets.
    pub(crate) fn settings(&self) -> &ModelSettings {
        &self.model.settings
    }

    /// Hash of runtime and settings; equal hashes are the same load.
    pub(crate) fn spec_hash(&self) -> &str {
        &self.spec_hash
    }

    /// Its files, as last looked at.
    pub(crate) fn files(&self) -> Files {
        self.files
    }

    /// What its files say about it, as last looked at; none if they are missing or not understood.
    pub(crate) fn details(&self) -> Option<&Details> {
        self.details.as_deref()
    }
}

impl FilePlace {
    fn of(model: &ModelEntry) -> Self {
        Self {
            file: model.file.clone(),
            defined_in: model.defined_in.clone(),
            reader: Reader::of(&model.runtime, model.file.as_deref(), &model.settings),
        }
    }

    /// Looks at a model's files; blocks while the disk does.
    pub(crate) fn look(&self) -> Seen {
        Seen {
            files: Files::at(self),
            details: self.details(),
        }
    }

    fn details(&self) -> Option<Arc<Details>> {
        self.reader.as_ref().and_then(Reader::read)
    }
}

impl Files {
    /// Looks at a model's files; blocks while the disk does.
    fn at(place: &FilePlace) -> Self {
        let configured = || modified(&std::fs::metadata(&place.defined_in).ok());
        let Some(file) = &place.file else {
            return Self {
                size: 0,
                created: configured(),
                present: true,
            };
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
