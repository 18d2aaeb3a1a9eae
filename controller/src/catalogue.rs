//! The catalogue: every configured model with the hash of its settings and the state of its files.
//!
//! Architecture invariant: the catalogue knows nothing of what is loaded.

use std::{
    collections::HashMap,
    fs::Metadata,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use muster_policy::{Bytes, ModelType};
use muster_proto::{
    overrides::Overrides,
    v1::{ErrorInfo, ModelSettings},
};

use crate::{config::ModelEntry, convert};

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
}

/// One model.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    model: ModelEntry,
    spec_hash: String,
    files: Files,
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
        let entries: Vec<Entry> = models.into_iter().map(Entry::new).collect();
        let places = entries
            .iter()
            .enumerate()
            .map(|(place, entry)| (Arc::clone(&entry.model.id), place))
            .collect();
        let files = entries.iter().map(|entry| FilePlace::of(&entry.model)).collect();
        Self {
            entries,
            places,
            files,
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
    pub(crate) fn take(&mut self, seen: Vec<Files>) -> bool {
        let mut changed = false;
        for (entry, files) in self.entries.iter_mut().zip(seen) {
            changed |= files != entry.files;
            entry.files = files;
        }
        changed
    }
}

impl Entry {
    fn new(mut model: ModelEntry) -> Self {
        model.settings.r#type = convert::model_type(model.kind).into();
        let spec_hash = convert::spec_hash(&model.runtime, &model.settings);
        let files = Files::at(&FilePlace::of(&model));
        Self {
            model,
            spec_hash,
            files,
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
            None if template.is_empty() => None,
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
}

impl FilePlace {
    fn of(model: &ModelEntry) -> Self {
        Self {
            file: model.file.clone(),
            defined_in: model.defined_in.clone(),
        }
    }
}

impl Files {
    /// Looks at a model's files; blocks while the disk does.
    pub(crate) fn at(place: &FilePlace) -> Self {
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
            Some(meta) => Self {
                size: meta.len(),
                created: modified(&found),
                present: true,
            },
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
