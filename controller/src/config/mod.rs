//! Configuration from several files in TOML (or JSON, [`json`]; or llama.cpp's presets, [`preset`]). They are merged key by key, later files override, and the result is parsed
//! once into values that are valid by construction.
//!
//! ```text
//! files ──read──► tables ──merge──► Node tree ──Section (typed, asks key by key)──► Config
//!                                                      └── every problem of every file, at once
//! ```
//!
//! No crate is used for this, because those that merge files (`config`, `figment`) hand them to serde, which stops at the first problem.
//!
//! Architecture invariant: only this module sees TOML values, and it does not look at the fleet.

mod adjust;
mod args;
mod classes;
mod defaults;
mod device;
mod json;
mod model;
mod node;
mod own;
mod policy;
mod preset;
mod prompt_format;
mod requests;
mod section;

#[cfg(test)]
mod tests;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

pub(crate) use adjust::Adjustments;
pub use args::{LimitsArg, Options};
pub use defaults::Defaults;
pub(crate) use defaults::backend;
pub use device::DeviceRules;
pub(crate) use model::label_of;
pub use model::{ModelEntry, device};
pub(crate) use requests::KEY as REQUEST_DEFAULTS;
pub use section::Problem;

use muster_proto::v1::RequestDefaults;

use json::Json;
use node::Node;
use section::{Problems, Section};

/// The whole configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// Settings of policy.
    pub policy: muster_policy::Config,
    /// Times of sessions with workers.
    pub timing: Timing,
    /// What the operator set for devices.
    pub devices: DeviceRules,
    /// The models in the order of the files.
    pub models: Vec<ModelEntry>,
    /// If there is only one model, any name means it.
    pub any_name: bool,
    /// Whether well-known models may be pulled by name that are not configured.
    pub builtin: bool,
    /// Folders whose GGUF files are models.
    pub extra_models_dir: Vec<PathBuf>,
    /// Settings for models that set none themselves.
    pub defaults: Defaults,
    /// What it was read from.
    pub sources: Sources,
}

/// What a configuration is read from.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    files: Vec<PathBuf>,
    limits: Option<LimitsArg>,
    defaults: Defaults,
    /// Where adjustments are, which stand over all of it.
    adjustments: Option<PathBuf>,
}

impl Sources {
    /// All files that are read.
    pub(crate) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.files.iter().chain(&self.adjustments)
    }

    /// With a file of [`Adjustments`], which need not be there.
    pub(crate) fn adjusted_by(self, file: PathBuf) -> Self {
        Self {
            adjustments: Some(file),
            ..self
        }
    }

    /// Reads the configuration again.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load(&self) -> Result<Config, ConfigError> {
        self.load_with(&self.adjusted()?)
    }

    /// Whether there is something adjusted, whatever it says.
    pub(crate) fn is_adjusted(&self) -> bool {
        self.adjustments.as_ref().is_some_and(|file| file.exists())
    }

    /// Takes the adjustments out of the way; where they are then, if that could be done.
    pub(crate) fn set_aside(&self) -> std::io::Result<PathBuf> {
        let file = self.adjustments.clone().unwrap_or_default();
        let aside = file.with_extension("json.unfit");
        std::fs::rename(file, &aside)?;
        Ok(aside)
    }

    /// What was adjusted.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn adjusted(&self) -> Result<Adjustments, ConfigError> {
        let read = self.adjustments.as_deref().map(Adjustments::read);
        read.unwrap_or_else(|| Ok(Adjustments::default()))
            .map_err(|why| ConfigError(vec![self.adjustment("", why)]))
    }

    fn adjustment(&self, key: &str, message: String) -> Problem {
        Problem {
            file: self.adjustments.clone().unwrap_or_default(),
            key: key.to_owned(),
            message,
        }
    }
}

/// Times of sessions and streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Longest time between two messages of each side of a session; also the interval of heartbeats to watchers of routes.
    pub heartbeat_every: Duration,
    /// Silence after which a worker counts as lost.
    pub lost_after: Duration,
    /// How long another boot of a worker waits for a sign of life of the old session (PROTOCOL.md 5).
    pub ping_wait: Duration,
    /// How long a connected worker may take to answer a command; after that the outcome is unknown (PROTOCOL.md 3). Answering needs no time
    /// of its own.
    pub command_wait: Duration,
    /// How long a hold is kept after both the controller's session and the gateway are gone (PROTOCOL.md 9).
    pub hold_ttl: Duration,
    /// How long a lost worker is still waited for when the controller starts.
    pub roster_ttl: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            heartbeat_every: Duration::from_secs(1),
            lost_after: Duration::from_secs(3),
            ping_wait: Duration::from_secs(1),
            command_wait: Duration::from_secs(10),
            hold_ttl: Duration::from_secs(10),
            roster_ttl: Duration::from_secs(7 * 24 * 3600),
        }
    }
}

/// The configuration has problems.
#[derive(Debug, thiserror::Error)]
#[error("{} in the configuration:{}", count(.0.len()), list(.0))]
pub struct ConfigError(pub Vec<Problem>);

fn count(problems: usize) -> String {
    if problems == 1 {
        "1 problem".to_owned()
    } else {
        format!("{problems} problems")
    }
}

fn list(problems: &[Problem]) -> String {
    problems.iter().map(|problem| format!("\n  {problem}")).collect()
}

impl Config {
    /// Reads and merges `files`. The command line's limits override all files; `defaults` override none.
    ///
    /// # Errors
    /// Every problem of every file.
    pub fn load(
        files: &[PathBuf],
        limits: Option<LimitsArg>,
        defaults: &Defaults,
    ) -> Result<Self, ConfigError> {
        let sources = Sources {
            files: files.to_vec(),
            limits,
            defaults: defaults.clone(),
            adjustments: None,
        };
        sources.load()
    }
}

impl Sources {
    /// Reads the configuration with these adjustments.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub(crate) fn load_with(&self, adjustments: &Adjustments) -> Result<Config, ConfigError> {
        let problems = Problems::default();
        let (limits, defaults) =
            adjustments
                .over(self.limits, &self.defaults)
                .unwrap_or_else(|(key, why)| {
                    problems.borrow_mut().push(self.adjustment(key, why));
                    (self.limits, self.defaults.clone())
                });
        let mut tree = Node::empty();
        for file in &self.files {
            match read(file) {
                Ok((node, resets)) => {
                    resets.iter().for_each(|path| tree.remove(path));
                    tree.merge(node);
                }
                Err(problem) => problems.borrow_mut().push(problem),
            }
        }
        let root = Section::new(&tree, String::new(), &problems);
        let mut policy = root
            .section("policy")
            .map_or_else(muster_policy::Config::default, policy::policy);
        if let Some(limits) = limits {
            policy.limits = limits.0;
        }
        let timing = root
            .section("sessions")
            .map_or_else(Timing::default, policy::timing);
        let models = root
            .section("models")
            .map_or_else(Vec::new, |section| model::catalogue(&section, &defaults));
        let (any_name, builtin, mut extra_models_dir, allowed) =
            root.section("catalogue")
                .map_or((false, true, Vec::new(), Vec::new()), |section| {
                    let any_name = section.boolean("any_name").unwrap_or_default();
                    let builtin = section.boolean("builtin").unwrap_or(true);
                    let folders = model::folders(&section, "extra_models_dir");
                    let allowed = model::folders(&section, "allowed_models_dirs");
                    section.finish();
                    (any_name, builtin, folders, allowed)
                });
        extra_models_dir.extend(defaults.models_dirs.iter().cloned());
        match adjustments.folder(&allowed) {
            Ok(folder) => extra_models_dir.extend(folder),
            Err(why) => problems
                .borrow_mut()
                .push(self.adjustment("extra_models_dir", why)),
        }
        let devices = root
            .section("devices")
            .map_or_else(DeviceRules::default, |section| device::rules(&section));
        root.finish();
        let problems = problems.into_inner();
        if problems.is_empty() {
            Ok(Config {
                policy,
                timing,
                devices,
                models,
                any_name,
                builtin,
                extra_models_dir,
                defaults,
                sources: self.clone(),
            })
        } else {
            Err(ConfigError(problems))
        }
    }
}

/// Reads a definition from elsewhere than a configuration file, with the same keys (`checkpoint`, `recipe`, …). `file` is where it is
/// stored.
///
/// # Errors
/// Every problem of it.
pub(crate) fn definition(
    id: &str,
    definition: toml::Table,
    file: &Path,
    defaults: &Defaults,
) -> Result<ModelEntry, ConfigError> {
    let problems = Problems::default();
    let models = toml::Table::from_iter([(id.to_owned(), toml::Value::Table(definition))]);
    let tree = Node::parsed(models, &Arc::new(file.to_owned()));
    let mut models = model::catalogue(&Section::new(&tree, String::new(), &problems), defaults);
    let problems = problems.into_inner();
    match models.pop() {
        Some(model) if problems.is_empty() => Ok(model),
        Some(_) | None => Err(ConfigError(problems)),
    }
}

/// What requests get where they say nothing themselves, as a registration has it.
///
/// # Errors
/// Every problem of it.
pub(crate) fn request_defaults(
    table: toml::Table,
    file: &Path,
) -> Result<Option<RequestDefaults>, ConfigError> {
    let problems = Problems::default();
    let model = toml::Table::from_iter([(REQUEST_DEFAULTS.to_owned(), toml::Value::Table(table))]);
    let tree = Node::parsed(model, &Arc::new(file.to_owned()));
    let read = requests::read(&Section::new(&tree, String::new(), &problems));
    let problems = problems.into_inner();
    if problems.is_empty() {
        Ok(read)
    } else {
        Err(ConfigError(problems))
    }
}

/// The values of a file, and the paths that it resets with null.
fn read(file: &PathBuf) -> Result<(Node, Vec<Vec<String>>), Problem> {
    let problem = |message: String| Problem {
        file: file.clone(),
        key: String::new(),
        message,
    };
    let text = std::fs::read_to_string(file).map_err(|error| problem(format!("cannot be read: {error}")))?;
    let Json { table, resets } = match file.extension() {
        Some(extension) if extension == "json" => Json::parse(&text).map_err(problem)?,
        Some(extension) if extension == "ini" => Json {
            table: preset::parse(&text).map_err(problem)?,
            resets: Vec::new(),
        },
        Some(_) | None => {
            let table = text.parse().map_err(|error| problem(syntax(&error, &text)))?;
            Json {
                table,
                resets: Vec::new(),
            }
        }
    };
    // Relative paths in the file are relative to the file, wherever the process was started.
    let absolute =
        std::path::absolute(file).map_err(|error| problem(format!("has no absolute path: {error}")))?;
    Ok((Node::parsed(table, &Arc::new(absolute)), resets))
}

fn syntax(error: &toml::de::Error, text: &str) -> String {
    let line = error
        .span()
        .and_then(|span| text.get(..span.start))
        .map_or(1, |before| before.matches('\n').count() + 1);
    format!("line {line}: {}", error.message())
}
