//! `[models.ID]`: one entry of the catalogue each.
//!
//! An entry's settings are kept as the wire's `ModelSettings`: a load copies that definition, and a worker reports it back.

use std::{
    num::NonZeroU32,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use muster_core::{
    Bytes, DeviceId, DeviceKind, ModelId, ModelType, Runtime,
    runtime::{Checkpoints, RECIPES},
};
use muster_policy::{DeviceChoice, IdleTtl};
use muster_proto::{
    hub::{HubName, Revision},
    llamacpp::Takes,
    settings::{self, SETTINGS, Setting},
    v1::{HubCheckpoint, LoraAdapter, ModelSettings, RequestDefaults, StubSettings},
};

use super::{defaults::Defaults, own, prompt_format, requests, section::Section};

/// A configured model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelEntry {
    /// The key of its table.
    pub id: ModelId,
    /// Type of the model, from its labels. Without such a label: from its file's header once that was read, and `llm` before.
    pub kind: ModelType,
    /// Whether a label tells the type.
    pub kind_given: bool,
    /// Lemonade's recipe; empty if the entry names only a runtime.
    pub recipe: String,
    pub runtime: Runtime,
    /// Whether the entry names the runtime; otherwise it is the recipe's first.
    pub runtime_given: bool,
    /// The checkpoint as configured; empty for `stub`.
    pub checkpoint: String,
    /// Path of its file; none if the checkpoint is a name that only the runtime understands, or if there is none.
    pub file: Option<PathBuf>,
    /// Where the hub has its files; none for local files.
    pub hub: Option<HubCheckpoint>,
    /// When a user registered it; none for a configured model.
    pub registered: Option<SystemTime>,
    /// Labels as configured; `embedding` is stored as `embeddings`.
    pub labels: Vec<String>,
    /// Further names, as configured.
    pub aliases: Vec<String>,
    /// Devices that it may use.
    pub device: DeviceChoice,
    /// Memory to reserve, if the operator sets it.
    pub memory: Option<Bytes>,
    /// Settings for the engine.
    pub settings: ModelSettings,
    /// Whether a part of its layers may go to a GPU if not all fit (`gpu_layers = "auto"`).
    pub partial_offload: bool,
    /// Policy never evicts it.
    pub pinned: bool,
    /// Idle time before it is unloaded.
    pub idle_ttl: IdleTtl,
    /// Number of instances that are loaded together.
    pub replicas: NonZeroU32,
    /// Largest number of instances that a load may ask for, at least `replicas`.
    pub replica_max: NonZeroU32,
    /// Seed 001's name of its chat template; empty = its own, or `settings.chat_template`.
    pub prompt_format: String,
    /// Whether it is loaded at start.
    pub enabled: bool,
    /// The device as configured; empty = any.
    pub wanted_device: String,
    /// Whether requests load it; none = as the gateways are configured.
    pub autoload: Option<bool>,
    /// Whether thinking can be switched per request; none = not configured.
    pub thinking: Option<bool>,
    /// What its requests get where they say nothing themselves.
    pub defaults: Option<RequestDefaults>,
    /// The configured model that it was made from.
    pub base: Option<ModelId>,
    /// The configuration file that defined it first.
    pub defined_in: PathBuf,
}

/// The key of the hub's revision.
const REVISION: &str = "revision";

/// Reads `[models]`.
pub(super) fn catalogue(section: &Section<'_>, defaults: &Defaults) -> Vec<ModelEntry> {
    section
        .sections()
        .into_iter()
        .filter_map(|(id, model)| entry(id, model, defaults))
        .collect()
}

fn entry(id: &str, section: Section<'_>, defaults: &Defaults) -> Option<ModelEntry> {
    let plain = ModelId::new(id)
        .ok()
        .filter(|_| !id.chars().any(char::is_control));
    if plain.is_none() {
        section.problem("", "is no model id");
    }
    let recipe = section.string("recipe").unwrap_or_default().to_owned();
    let checkpoint = section.string("checkpoint").unwrap_or_default().to_owned();
    let runtime = runtime(&section, &recipe, &checkpoint);
    let labels = labels(&section);
    let mut settings = own_settings(&section);
    let file = runtime.and_then(|runtime| file(&section, runtime, &checkpoint));
    settings.checkpoint = file
        .as_ref()
        .map_or_else(|| checkpoint.clone(), |file| text(file));
    let hub = match (runtime, &file) {
        (Some(runtime), None) => hub(&section, runtime, &checkpoint, &mut settings),
        (None, _) | (_, Some(_)) => None,
    };
    if runtime.is_some() && hub.is_none() && section.has(REVISION) {
        section.problem(
            REVISION,
            format!("`{checkpoint}` is no repository of a hub, which alone has revisions"),
        );
    }
    settings.stub = stub(&section, runtime);
    settings.runtime_json = own::read(&section, runtime);
    let prompt_format = prompt_format::read(&section, runtime, &mut settings.chat_template);
    let replicas = count(&section, "replicas").unwrap_or(NonZeroU32::MIN);
    let mut device = device(section.string("device").unwrap_or_default());
    if runtime.is_some_and(Runtime::is_llama_cpp) {
        fall_back(&section, &mut settings, &mut device, defaults);
    }
    // Every key is read even if another one is wrong, so that all problems are reported.
    let read = || {
        Some(ModelEntry {
            kind: kind(&labels).unwrap_or(ModelType::Llm),
            kind_given: kind(&labels).is_some(),
            recipe,
            runtime_given: section.has("runtime"),
            checkpoint,
            file,
            hub,
            registered: None,
            labels,
            aliases: section.strings("aliases").unwrap_or_default(),
            device,
            memory: section.integer("memory_mib", 1).map(Bytes::mib),
            partial_offload: partial_offload(&section),
            settings,
            pinned: section.boolean("pinned").unwrap_or_default(),
            idle_ttl: match section.duration("idle_ttl") {
                None => IdleTtl::Default,
                Some(Duration::ZERO) => IdleTtl::Never,
                Some(ttl) => IdleTtl::After(ttl),
            },
            replicas,
            replica_max: replica_max(&section, replicas),
            prompt_format,
            enabled: section.boolean("enabled").unwrap_or_default(),
            wanted_device: section.string("device").unwrap_or_default().to_owned(),
            autoload: section.boolean("autoload"),
            thinking: section.boolean("thinking"),
            defaults: requests::read(&section),
            base: None,
            defined_in: section.file().as_ref().clone(),
            id: plain?,
            runtime: runtime?,
        })
    };
    let model = read();
    section.finish();
    // If something is missing, a problem was recorded and the configuration is refused.
    model
}

fn count(section: &Section<'_>, key: &'static str) -> Option<NonZeroU32> {
    section.integer(key, 1).and_then(NonZeroU32::new)
}

/// The largest number of replicas that a load may ask for; if not set, the configured number.
fn replica_max(section: &Section<'_>, replicas: NonZeroU32) -> NonZeroU32 {
    const KEY: &str = "replica_max";
    let most = count(section, KEY).unwrap_or(replicas);
    if most < replicas {
        section.problem(KEY, format!("is less than `replicas`, {replicas}"));
    }
    most
}

fn runtime(section: &Section<'_>, recipe: &str, checkpoint: &str) -> Option<Runtime> {
    let names: Vec<&str> = Runtime::ALL.iter().map(|runtime| runtime.name()).collect();
    let given = section
        .word("runtime", &names)
        .and_then(|place| Runtime::ALL.get(place).copied());
    if section.has("runtime") && given.is_none() {
        return None;
    }
    if recipe.is_empty() {
        let guess = (section.has("checkpoint") && checkpoint.ends_with(".gguf")).then_some(Runtime::LlamaCpp);
        if given.or(guess).is_none() {
            section.problem("", "names neither a runtime nor a recipe");
        }
        return given.or(guess);
    }
    let Some((_, hosts)) = RECIPES.iter().find(|(name, _)| *name == recipe) else {
        let known: Vec<&str> = RECIPES.iter().map(|(name, _)| *name).collect();
        section.problem(
            "recipe",
            format!("want one of {}, got `{recipe}`", known.join(", ")),
        );
        return None;
    };
    match given {
        Some(given) if !hosts.contains(&given) => {
            section.problem(
                "runtime",
                format!(
                    "`{given}` does not host the recipe `{recipe}`: want {}",
                    hosts
                        .iter()
                        .map(|host| host.name())
                        .collect::<Vec<_>>()
                        .join(" or ")
                ),
            );
            None
        }
        Some(given) => Some(given),
        None => hosts.first().copied(),
    }
}

/// The labels in one spelling each: `embedding` and `embeddings` are the same (gateway/README.md, Lemonade).
fn labels(section: &Section<'_>) -> Vec<String> {
    let mut labels: Vec<String> = Vec::new();
    for label in section.strings("labels").unwrap_or_default() {
        let label = if label == "embedding" {
            "embeddings".to_owned()
        } else {
            label
        };
        if labels.contains(&label) {
            section.problem("labels", format!("`{label}` is given twice"));
        } else {
            labels.push(label);
        }
    }
    labels
}

/// Labels that tell a model's type. If there are several, the first one counts (gateway/README.md, Lemonade): reranking > embedding > audio
/// > image > llm.
const BY_LABEL: [(&str, ModelType); 4] = [
    ("reranking", ModelType::Reranking),
    ("embeddings", ModelType::Embedding),
    ("audio", ModelType::Audio),
    ("image", ModelType::Image),
];

fn kind(labels: &[String]) -> Option<ModelType> {
    BY_LABEL
        .iter()
        .find(|(label, _)| labels.iter().any(|given| given == label))
        .map(|(_, kind)| *kind)
}

/// The label of a model type; none for text.
pub(crate) fn label_of(kind: ModelType) -> Option<&'static str> {
    BY_LABEL
        .iter()
        .find(|(_, of)| *of == kind)
        .map(|(label, _)| *label)
}

/// A device choice: a kind (`cpu`, `gpu`, `npu`, `sim`) or a device id; empty = any.
#[must_use]
pub fn device(text: &str) -> DeviceChoice {
    match (DeviceKind::named(text), DeviceId::new(text)) {
        (Some(kind), _) => DeviceChoice::Kind(kind),
        (None, Ok(id)) => DeviceChoice::Device(id),
        (None, Err(_)) => DeviceChoice::Any,
    }
}

/// Where the hub has the model, if its checkpoint is the name of a repository and no file. A projector is then a file in the same
/// repository, unless a local file has that name. Only such a model has a revision.
fn hub(
    section: &Section<'_>,
    runtime: Runtime,
    checkpoint: &str,
    settings: &mut ModelSettings,
) -> Option<HubCheckpoint> {
    const KEY: &str = "mmproj";
    let name = checkpoint
        .parse::<HubName>()
        .ok()
        .filter(|_| runtime.reads_repositories())?;
    let revision = settings.revision.parse::<Revision>();
    let revision = revision.unwrap_or_else(|error| {
        section.problem(REVISION, error.to_string());
        Revision::default()
    });
    settings.revision = revision.message();
    let mut mmproj = "";
    if let Some(given) = section
        .string(KEY)
        .filter(|_| !Path::new(&settings.mmproj).exists())
    {
        // `ORG/NAME:FILE` is the same in long form.
        let own = given
            .strip_prefix(name.repo())
            .and_then(|rest| rest.strip_prefix(':'));
        mmproj = own.unwrap_or(given);
        if muster_proto::hub::is_plain_path(mmproj) {
            mmproj.clone_into(&mut settings.mmproj);
        } else {
            section.problem(
                KEY,
                format!("`{given}` is neither a file here nor one of {}", name.repo()),
            );
        }
    }
    Some(name.checkpoint(&revision, mmproj, runtime.takes_folders()))
}

/// The path of the model's file. llama.cpp's runtimes take files and names of the hub; others also take names of their own. A name stays a
/// name unless a file with it exists.
fn file(section: &Section<'_>, runtime: Runtime, checkpoint: &str) -> Option<PathBuf> {
    if runtime.facts().checkpoints == Checkpoints::None {
        return None;
    }
    if checkpoint.is_empty() {
        section.problem("checkpoint", format!("is missing: `{runtime}` needs one"));
        return None;
    }
    let path = resolve(section, "checkpoint", checkpoint);
    let named = checkpoint.parse::<HubName>().is_ok();
    (path.exists() || (runtime.is_llama_cpp() && !named)).then_some(path)
}

fn own_settings(section: &Section<'_>) -> ModelSettings {
    let mut settings = ModelSettings::default();
    for setting in SETTINGS {
        if let Some(value) = given(section, setting) {
            (setting.set)(&mut settings, &value);
        }
    }
    settings.gpu_layers = gpu_layers(section);
    settings.chat_template = chat_template(section);
    settings.lora = lora(section);
    settings.args = args(section);
    settings.environment = environment(section);
    settings
}

/// The value of a setting in the section.
fn given(section: &Section<'_>, setting: &Setting) -> Option<serde_json::Value> {
    let key = setting.key;
    match setting.takes {
        Takes::Count => section.integer::<u32>(key, 0).map(Into::into),
        Takes::Nothing => section.boolean(key).map(Into::into),
        Takes::Word(words) => {
            let word = section.word(key, words).and_then(|place| words.get(place));
            word.map(|word| (*word).into())
        }
        Takes::Text if setting.path => {
            let name = section.string(key)?;
            Some(text(&resolve(section, key, name)).into())
        }
        Takes::Text => section.string(key).map(Into::into),
        // `gpu_layers` may also be a word.
        Takes::Layers
        | Takes::Integer
        | Takes::Number
        | Takes::Words(_)
        | Takes::Range
        | Takes::Parameter(_) => None,
    }
}

const GPU_LAYERS: &str = "gpu_layers";

/// `gpu_layers = "auto"`: all layers on the GPU, or as many as fit.
fn partial_offload(section: &Section<'_>) -> bool {
    section.leaf(GPU_LAYERS).and_then(toml::Value::as_str) == Some("auto")
}

/// The number of layers on the GPU; none = all of them. `auto` means all unless they do not fit.
fn gpu_layers(section: &Section<'_>) -> Option<i32> {
    if section.leaf(GPU_LAYERS)?.is_str() {
        section.word(GPU_LAYERS, &["auto"]);
        return None;
    }
    section.integer(GPU_LAYERS, -1).filter(|layers| *layers >= 0)
}

/// The text of a template, or the contents of the `.jinja` file that the path names.
fn chat_template(section: &Section<'_>) -> String {
    const KEY: &str = "chat_template";
    let Some(given) = section.string(KEY) else {
        return String::new();
    };
    if Path::new(given)
        .extension()
        .is_none_or(|extension| extension != "jinja")
    {
        return given.to_owned();
    }
    std::fs::read_to_string(resolve(section, KEY, given)).unwrap_or_else(|error| {
        section.problem(KEY, format!("`{given}` cannot be read: {error}"));
        String::new()
    })
}

/// `lora = ["adapter.gguf", "other.gguf=0.5"]`: paths, each with an optional scale.
fn lora(section: &Section<'_>) -> Vec<LoraAdapter> {
    const KEY: &str = "lora";
    let parse = |given: String| {
        let (name, scale) = match given.rsplit_once('=') {
            None => (given.as_str(), Ok(1.0)),
            Some((name, scale)) => (name, scale.parse::<f32>()),
        };
        match scale {
            Ok(scale) => Some(LoraAdapter {
                path: text(&resolve(section, KEY, name)),
                scale,
            }),
            Err(_) => {
                section.problem(KEY, format!("`{given}`: want PATH or PATH=SCALE"));
                None
            }
        }
    };
    section
        .strings(KEY)
        .unwrap_or_default()
        .into_iter()
        .filter_map(parse)
        .collect()
}

/// Records a problem for each flag among `words` that repeats a key of the model. `origin` says where the words came from.
fn said_twice(section: &Section<'_>, origin: &'static str, words: &[String]) {
    for Setting { key, flags, .. } in SETTINGS {
        if let Some(flag) = flag_of(words, flags).filter(|_| section.has(key)) {
            let message = format!("`{flag}` says the same as `{key}`: give one of them");
            section.problem(origin, message);
        }
    }
}

/// The first of `words` that is one of `flags`, with or without `=VALUE`.
fn flag_of<'a>(words: &'a [String], flags: &[&str]) -> Option<&'a String> {
    words
        .iter()
        .find(|word| flags.contains(&word.split('=').next().unwrap_or_default()))
}

/// Whether a flag among `words` sets a setting.
fn says(words: &[String], key: &str) -> bool {
    settings::named(key).is_some_and(|setting| flag_of(words, setting.flags).is_some())
}

/// Takes settings from the command line that the model does not set itself.
fn fall_back(
    section: &Section<'_>,
    settings: &mut ModelSettings,
    device: &mut DeviceChoice,
    defaults: &Defaults,
) {
    if settings.args.is_empty() && !defaults.llamacpp_args.is_empty() {
        settings.args.clone_from(&defaults.llamacpp_args);
        said_twice(section, "--llamacpp-args", &settings.args);
    }
    if settings.ctx_size == 0 && !says(&settings.args, "ctx_size") {
        settings.ctx_size = defaults.ctx_size;
    }
    if let (DeviceChoice::Any, Some(kind)) = (&*device, defaults.llamacpp_device) {
        *device = DeviceChoice::Kind(kind);
    }
}

/// The words of `llamacpp_args`. A flag that repeats a key is a problem, since the two could differ.
fn args(section: &Section<'_>) -> Vec<String> {
    const KEY: &str = "llamacpp_args";
    let Some(given) = section.string(KEY) else {
        return Vec::new();
    };
    let words = match shell_words::split(given) {
        Ok(words) => words,
        Err(error) => {
            section.problem(KEY, error.to_string());
            return Vec::new();
        }
    };
    said_twice(section, KEY, &words);
    words
}

fn environment(section: &Section<'_>) -> std::collections::HashMap<String, String> {
    const KEY: &str = "environment";
    let parse = |pair: String| {
        let split = pair.split_once('=').filter(|(name, _)| !name.is_empty());
        if split.is_none() {
            section.problem(KEY, format!("`{pair}`: want NAME=VALUE"));
        }
        split.map(|(name, value)| (name.to_owned(), value.to_owned()))
    };
    section
        .strings(KEY)
        .unwrap_or_default()
        .into_iter()
        .filter_map(parse)
        .collect()
}

fn stub(section: &Section<'_>, runtime: Option<Runtime>) -> Option<StubSettings> {
    let is_stub = runtime == Some(Runtime::Stub);
    let Some(table) = section.section("stub") else {
        return is_stub.then(StubSettings::default);
    };
    if !is_stub {
        section.problem("stub", "is for the runtime `stub` only");
    }
    let count = |key| table.integer::<u32>(key, 0).unwrap_or_default();
    let stub = StubSettings {
        load_time_ms: count("load_time_ms"),
        tokens_per_second: count("tokens_per_second"),
        tokens: count("tokens"),
        memory_mib: count("memory_mib"),
        fail: table.string("fail").unwrap_or_default().to_owned(),
        prompt_us_per_word: count("prompt_us_per_word"),
    };
    table.finish();
    is_stub.then_some(stub)
}

/// Makes a path absolute; relative ones are relative to the file that has them.
fn resolve(section: &Section<'_>, key: &str, path: &str) -> PathBuf {
    section
        .file_of(key)
        .parent()
        .unwrap_or_else(|| Path::new("/"))
        .join(path)
}

/// Folders that exist; one that does not is a problem.
pub(super) fn folders(section: &Section<'_>, key: &'static str) -> Vec<PathBuf> {
    let names = section.strings(key).unwrap_or_default();
    let folders: Vec<PathBuf> = names.iter().map(|name| resolve(section, key, name)).collect();
    for folder in folders.iter().filter(|folder| !folder.is_dir()) {
        section.problem(key, format!("{} is no directory", folder.display()));
    }
    folders
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
