//! The catalogue: every model, configured or registered by a user, with the hash of its settings and the state of its files.
//!
//! A model's settings are its definition with the options folded in that were saved for it (controller/README.md, Settings). Files of the hub are
//! where workers say they are; all others are looked for here.
//!
//! Architecture invariant: the catalogue knows nothing of what is loaded.

mod folders;
mod places;
mod shelf;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use muster_core::{Bytes, Code, Error, ModelId, ModelType, Runtime, SpecHash, WorkerId, runtime::Family};
use muster_gguf::Kind;
use muster_policy::DeviceChoice;
use muster_proto::{
    llamacpp,
    overrides::Overrides,
    v1::{CachedFiles, HubCheckpoint, ModelSettings, ModelType as WireType},
};

use serde_json::{Map, Value};

use crate::{
    config::{self, ModelEntry},
    convert,
    estimate::Details,
};

pub(crate) use folders::{Found, scan};
use places::Source;
pub(crate) use places::{FilePlace, Files, Seen};
pub(crate) use shelf::{Shelf, Suggestion};

/// All models.
#[derive(Debug)]
pub(crate) struct Catalogue {
    entries: Vec<Entry>,
    places: HashMap<ModelId, usize>,
    /// A worker has llama.cpp's own server.
    server: bool,
    /// The only model, if there is only one, takes any name.
    any_name: bool,
}

/// The one saved option that is no setting of an engine (seed 000, `load`).
const BACKEND: &str = "llamacpp_backend";

/// One model.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// Its settings have the saved options folded in.
    model: ModelEntry,
    /// Its settings without them.
    definition: ModelSettings,
    /// Its device without them.
    device: DeviceChoice,
    /// Saved options: settings as in `LoadModelRequest.override_json`, and `llamacpp_backend`; empty if none.
    options: String,
    /// Workers with its files, if they are the hub's.
    workers: BTreeSet<WorkerId>,
    place: Arc<FilePlace>,
    spec_hash: SpecHash,
    files: Files,
    details: Option<Arc<Details>>,
    /// A worker has llama.cpp's own server.
    server: bool,
}

impl Catalogue {
    /// Takes the configured models, in their order. Their files are not looked at yet.
    pub(crate) fn new(models: Vec<ModelEntry>, any_name: bool) -> Self {
        let entry = |model: ModelEntry| {
            let place = Arc::new(FilePlace::of(&model, None));
            Entry::new(model, place)
        };
        let mut catalogue = Self {
            entries: models.into_iter().map(entry).collect(),
            places: HashMap::new(),
            server: false,
            any_name,
        };
        catalogue.number();
        catalogue
    }

    /// Notes where each entry is.
    fn number(&mut self) {
        let ids = self.entries.iter().map(|entry| entry.model.id.clone());
        self.places = ids.enumerate().map(|(place, id)| (id, place)).collect();
    }

    fn entry_mut(&mut self, id: &str) -> Option<&mut Entry> {
        self.entries.get_mut(*self.places.get(id)?)
    }

    /// The model that takes any name.
    pub(crate) fn of_any_name(&self) -> Option<&Entry> {
        match self.entries.as_slice() {
            [only] if self.any_name => Some(only),
            _ => None,
        }
    }

    /// Takes a model in, in the place of one of the same id; its files are not looked at yet.
    pub(crate) fn insert(&mut self, model: ModelEntry) {
        let place = Arc::new(FilePlace::of(&model, None));
        let mut entry = Entry {
            server: self.server,
            ..Entry::new(model, place)
        };
        match self.entry_mut(entry.model.id.clone().as_str()) {
            Some(old) => {
                entry.keep_files_of(old);
                *old = entry;
            }
            None => {
                self.places.insert(entry.model.id.clone(), self.entries.len());
                self.entries.push(entry);
            }
        }
    }

    /// If there is only one model, whether any name means it.
    pub(crate) fn set_any_name(&mut self, any_name: bool) {
        self.any_name = any_name;
    }

    /// Takes models out; their ids.
    pub(crate) fn remove_all(&mut self, gone: impl Fn(&ModelEntry) -> bool) -> Vec<String> {
        let leaving = self.entries.extract_if(.., |entry| gone(&entry.model));
        let ids = leaving.map(|entry| entry.model.id.to_string()).collect();
        self.number();
        ids
    }

    /// Takes a model out.
    pub(crate) fn remove(&mut self, id: &str) {
        self.entries.retain(|entry| entry.model.id.as_str() != id);
        self.number();
    }

    /// Saves options for a model, in the place of those saved before; false if there is no such model.
    ///
    /// # Errors
    /// `invalid_load_request`: its runtime does not take them.
    pub(crate) fn set_options(&mut self, id: &str, options_json: &str) -> Result<bool, Error> {
        match self.entry_mut(id) {
            Some(entry) => entry.set_options(options_json).map(|()| true),
            None => Ok(false),
        }
    }

    /// A worker has llama.cpp's own server: it hosts what our engine cannot. True if that is news for any model.
    pub(crate) fn server_found(&mut self) -> bool {
        self.server = true;
        let mut news = false;
        for entry in &mut self.entries {
            let before = entry.runtime() == Runtime::LlamaServer;
            entry.server = true;
            news |= before != (entry.runtime() == Runtime::LlamaServer);
        }
        news
    }

    /// Checkpoints of the hub that models have.
    pub(crate) fn checkpoints(&self) -> HashSet<HubCheckpoint> {
        self.entries
            .iter()
            .filter_map(|entry| entry.model.hub.clone())
            .collect()
    }

    /// Notes which workers have the files of a checkpoint, and one of their words on them; true if that is news.
    pub(crate) fn cached(
        &mut self,
        checkpoint: &HubCheckpoint,
        workers: &BTreeSet<WorkerId>,
        files: Option<&CachedFiles>,
    ) -> bool {
        let mut news = false;
        let of = |entry: &&mut Entry| entry.model.hub.as_ref() == Some(checkpoint);
        for entry in self.entries.iter_mut().filter(of) {
            if entry.workers != *workers {
                entry.workers.clone_from(workers);
                news = true;
            }
            let known = match &entry.place.source {
                Source::Hub(known) => known.as_ref(),
                Source::Nothing | Source::Path(_) => None,
            };
            if known != files {
                entry.place = Arc::new(FilePlace::of(&entry.model, files));
                entry.files = Files {
                    created: entry.files.created,
                    ..Files::unseen(&entry.place)
                };
                entry.details = None;
                news = true;
            }
        }
        news
    }

    /// All entries, in the order of the configuration.
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The id of the model that the configuration gives a further name.
    pub(crate) fn aliased(&self, name: &str) -> Option<&str> {
        let named = |entry: &&Entry| entry.model.aliases.iter().any(|alias| alias == name);
        let found = self.entries.iter().find(named)?;
        Some(found.model.id.as_str())
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

    /// Where the files of all entries are.
    pub(crate) fn places(&self) -> Vec<Arc<FilePlace>> {
        self.entries
            .iter()
            .map(|entry| Arc::clone(&entry.place))
            .collect()
    }

    /// Models of a checkpoint of the hub.
    pub(crate) fn of_checkpoint(&self, checkpoint: &HubCheckpoint) -> Vec<String> {
        self.ids(|entry| entry.model.hub.as_ref() == Some(checkpoint))
    }

    /// Models whose settings have one of these hashes: what is known of a load of one holds for all.
    pub(crate) fn with_hashes(&self, hashes: &BTreeSet<SpecHash>) -> Vec<String> {
        self.ids(|entry| hashes.contains(&entry.spec_hash))
    }

    fn ids(&self, wanted: impl Fn(&Entry) -> bool) -> Vec<String> {
        let found = self.entries.iter().filter(|entry| wanted(entry));
        found.map(|entry| entry.model.id.to_string()).collect()
    }

    /// Takes over what was seen at [`places`](Self::places); the models for which anything changed. What was seen where a model's files are no
    /// more is old news.
    pub(crate) fn take(&mut self, seen: Vec<Seen>) -> Vec<String> {
        let mut changed = Vec::new();
        let mut by_place: HashMap<*const FilePlace, Seen> = seen
            .into_iter()
            .map(|seen| (Arc::as_ptr(&seen.place), seen))
            .collect();
        for entry in &mut self.entries {
            let Some(Seen { files, details, .. }) = by_place.remove(&Arc::as_ptr(&entry.place)) else {
                continue;
            };
            if files != entry.files || details != entry.details {
                changed.push(entry.model.id.to_string());
            }
            entry.files = files;
            entry.details = details;
            entry.learn_kind();
        }
        changed
    }

    /// Headers are still to be read: a look is due without anybody asking.
    pub(crate) fn unread(&self) -> bool {
        let unread =
            |entry: &Entry| entry.place.reader.is_some() && entry.files.present && entry.details.is_none();
        self.entries.iter().any(unread)
    }
}

impl Entry {
    /// A model whose files are nowhere.
    pub(crate) fn absent(model: ModelEntry) -> Self {
        let place = Arc::new(FilePlace::of(&model, None));
        Self::new(model, place)
    }

    fn new(mut model: ModelEntry, place: Arc<FilePlace>) -> Self {
        model.settings.r#type = WireType::from(model.kind).into();
        let spec_hash = convert::spec_hash(model.runtime, &model.settings);
        Self {
            definition: model.settings.clone(),
            device: model.device.clone(),
            options: String::new(),
            workers: BTreeSet::new(),
            files: Files::unseen(&place),
            place,
            model,
            spec_hash,
            details: None,
            server: false,
        }
    }

    /// Where no label says what kind of work the model does, its file's header does, and the label is added: an encoder is never asked to write.
    fn learn_kind(&mut self) {
        let Some(facts) = self.details().and_then(Details::facts) else {
            return;
        };
        let kind = match facts.kind {
            Kind::Text | Kind::Part => ModelType::Llm,
            Kind::Embedding => ModelType::Embedding,
            Kind::Reranking => ModelType::Reranking,
        };
        let before = self.model.kind;
        if self.model.kind_given || kind == before {
            return;
        }
        let labels = &mut self.model.labels;
        labels.retain(|label| Some(label.as_str()) != config::label_of(before));
        labels.extend(config::label_of(kind).map(str::to_owned));
        self.model.kind = kind;
        self.definition.r#type = WireType::from(kind).into();
        self.model.settings.r#type = self.definition.r#type;
        self.spec_hash = convert::spec_hash(self.model.runtime, &self.model.settings);
    }

    /// Takes over what was seen of the files, if they are the same: nobody shall take them for missing until the next look.
    fn keep_files_of(&mut self, old: &Self) {
        let files = |entry: &Self| {
            let ModelEntry {
                file, hub, runtime, ..
            } = &entry.model;
            let ModelSettings {
                mmproj, draft, lora, ..
            } = &entry.definition;
            (
                file.clone(),
                hub.clone(),
                *runtime,
                mmproj.clone(),
                draft.clone(),
                lora.clone(),
            )
        };
        if files(self) == files(old) {
            self.place = Arc::clone(&old.place);
            self.files = old.files;
            self.details.clone_from(&old.details);
            self.workers.clone_from(&old.workers);
            self.learn_kind();
        }
    }

    fn set_options(&mut self, options_json: &str) -> Result<(), Error> {
        let wrong = |key: &str, what: &str| {
            let error = Code::InvalidLoadRequest.error(format!("`{key}` {what}"));
            error.with_param(key)
        };
        let text = if options_json.is_empty() {
            "{}"
        } else {
            options_json
        };
        let mut fields: Map<String, Value> =
            serde_json::from_str(text).map_err(|_| wrong("options", "must be a JSON object"))?;
        let whole = fields.clone();
        // Where it runs is no setting of the engine.
        let device = match fields.remove(BACKEND) {
            None | Some(Value::Null) => self.device.clone(),
            Some(backend) => {
                let kind = backend.as_str().and_then(config::backend);
                let kind = kind.filter(|_| self.model.runtime.is_llama_cpp());
                DeviceChoice::Kind(
                    kind.ok_or_else(|| wrong(BACKEND, "is no backend of this model's runtime"))?,
                )
            }
        };
        // They are for a server too that no worker has yet: saved ones are read before any worker comes.
        let options = Overrides::from_json(self.host().family(), &Value::Object(fields).to_string())?;
        let mut settings = self.definition.clone();
        options.apply(&mut settings)?;
        // They are a part of what the model is, not of one load.
        settings.load_override_json.clear();
        self.spec_hash = convert::spec_hash(self.model.runtime, &settings);
        self.model.settings = settings;
        self.model.device = device;
        self.options = if whole.is_empty() {
            String::new()
        } else {
            Value::Object(whole).to_string()
        };
        Ok(())
    }

    /// Its device without saved options.
    pub(crate) fn defined_device(&self) -> &DeviceChoice {
        &self.device
    }

    /// Settings without saved options.
    pub(crate) fn definition(&self) -> &ModelSettings {
        &self.definition
    }

    /// Saved options, as `LoadModelRequest.override_json`; empty if none.
    pub(crate) fn options(&self) -> &str {
        &self.options
    }

    /// Workers with its files, if they are the hub's; empty if none, or not known.
    pub(crate) fn workers(&self) -> &BTreeSet<WorkerId> {
        &self.workers
    }

    /// The entry with settings for one load folded in.
    ///
    /// # Errors
    /// `invalid_load_request`: the model's runtime does not take them.
    pub(crate) fn overridden(&self, override_json: &str) -> Result<Self, Error> {
        let mut entry = self.clone();
        Overrides::from_json(entry.runtime().family(), override_json)?.apply(&mut entry.model.settings)?;
        // Where a setting came from does not change what it needs: estimates are shared.
        let effective = ModelSettings {
            load_override_json: String::new(),
            ..entry.model.settings.clone()
        };
        entry.spec_hash = convert::spec_hash(entry.model.runtime, &effective);
        Ok(entry)
    }

    /// The runtime that hosts it: the one that its definition [wants](Self::host), where a worker has llama.cpp's own server or none is wanted.
    /// Else our engine refuses it by name.
    pub(crate) fn runtime(&self) -> Runtime {
        if self.server {
            self.host()
        } else {
            self.model.runtime
        }
    }

    /// The runtime that its definition wants: as configured, but llama.cpp's own server where there is an adapter, a draft model, a projector of a
    /// model that makes vectors or scores, or a flag that our engine cannot honour, and the entry leaves the choice to us (controller/README.md, Settings). What requests set, saved or for one
    /// load, has no say in it.
    fn host(&self) -> Runtime {
        let open = !self.model.runtime_given && self.model.runtime == Runtime::LlamaCpp;
        let given = &self.definition;
        let beyond = || {
            llamacpp::beyond_embedded(&given.args).is_some()
                || !(given.lora.is_empty() && given.draft.is_empty())
                || !given.mmproj.is_empty() && self.model.kind != ModelType::Llm
        };
        if open && beyond() {
            Runtime::LlamaServer
        } else {
            self.model.runtime
        }
    }

    /// Whether the runtime takes the model's arguments, as far as that is known without an engine.
    ///
    /// # Errors
    /// `invalid_load_request`, naming the flag.
    pub(crate) fn check_args(&self) -> Result<(), Error> {
        if self.runtime().family() == Family::LlamaCpp {
            llamacpp::check(&self.model.settings.args)?;
        }
        Ok(())
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
            None if self.model.runtime.facts().thinks => Some(true),
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

    /// Number of tokens of context that a request would have; 0 if only the engine knows.
    pub(crate) fn context(&self) -> u32 {
        let llama = self.model.runtime.is_llama_cpp();
        let all = self.context_of_all(llama);
        if llama {
            llamacpp::of_each(all, &self.model.settings)
        } else {
            all
        }
    }

    fn context_of_all(&self, llama: bool) -> u32 {
        match llamacpp::context(&self.model.settings) {
            0 if llama => {
                let trained = self
                    .details()
                    .and_then(Details::facts)
                    .map_or(0, |facts| facts.context);
                llamacpp::automatic_context(u32::try_from(trained).unwrap_or(u32::MAX))
            }
            given => given,
        }
    }

    /// Hash of runtime and settings; equal hashes are the same load.
    pub(crate) fn spec_hash(&self) -> &SpecHash {
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
