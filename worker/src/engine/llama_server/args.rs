//! Settings as `llama-server`'s command line.
//!
//! Everything that decides memory and concurrency is set explicitly (gateway/README.md, llama.cpp's routes), because defaults differ
//! between versions.

use std::{collections::HashSet, ffi::OsString, path::Path, process::Stdio, time::Duration};

use muster_core::{Code, Error};
use muster_proto::{
    llamacpp::{self, LoadMode, default},
    settings::SETTINGS,
    v1::{Device, DeviceKind, ModelSettings, ModelType},
};
use serde_json::Value;
use tokio::{process::Command, time::timeout};

use super::super::gpus::device_names;
use crate::keeper;

/// Connections in addition to one per sequence: calls, descriptions, forwarded HTTP.
const MORE_CONNECTIONS: u32 = 16;
/// Longest wait for the help text.
const HELP: Duration = Duration::from_secs(10);

/// Flags that only Muster sets: another address or key would cut the engine off, and without slots nothing tells what its sequences do.
const RESERVED: [&str; 9] = [
    "-m",
    "--model",
    "--host",
    "--port",
    "--api-key",
    "--api-key-file",
    "--api-prefix",
    "--no-slots",
    "--threads-http",
];

/// Settings whose flags are written by code of their own.
const SAID: [&str; 8] = [
    "checkpoint",
    "ctx_size",
    "sequences",
    "batch_size",
    "ubatch_size",
    "gpu_layers",
    "chat_template",
    "draft",
];

/// The number of sequences that the server has.
pub(super) fn sequences(settings: &ModelSettings) -> u32 {
    if settings.sequences == 0 {
        default::SEQUENCES
    } else {
        settings.sequences
    }
}

/// The context that the server is started with; it may make it larger.
fn cells(settings: &ModelSettings) -> u32 {
    if settings.ctx_size == 0 {
        default::CONTEXT
    } else {
        settings.ctx_size
    }
}

fn or_all(batch: u32, settings: &ModelSettings) -> u32 {
    if batch == 0 { cells(settings) } else { batch }
}

/// Tokens of the longest input of which vectors or scores are computed: one physical batch holds it.
pub(super) fn longest(settings: &ModelSettings) -> u32 {
    or_all(settings.ubatch_size, settings)
}

/// The command line. `template` is the file with the chat template, if there is one.
///
/// # Errors
/// `invalid_load_request` for a flag that only Muster sets.
pub(super) fn line(
    settings: &ModelSettings,
    devices: &[Device],
    socket: &Path,
    template: Option<&Path>,
) -> Result<Vec<OsString>, Error> {
    let mut line = Line::default();
    line.pair("-m", &settings.checkpoint).pair("--host", socket);
    // The port is ignored on a unix socket.
    line.pair("--port", "8080").pair(
        "--threads-http",
        number(sequences(settings) * 2 + MORE_CONNECTIONS),
    );
    line.pair("-c", number(cells(settings)))
        .pair("-np", number(sequences(settings)))
        .word("-kvu");
    // No cache in host RAM: its memory would be in no reservation.
    line.pair("--fit", "off")
        .pair("--cache-ram", "0")
        .pair("-ctxcp", "32");
    line.word("--jinja")
        .word("--no-webui")
        .word("--slots")
        .word("--metrics")
        .pair("--log-colors", "off");
    line.kind(settings);
    line.gpus(settings, devices);
    for setting in SETTINGS.iter().filter(|setting| !SAID.contains(&setting.name)) {
        if let (Some(flag), Some(value)) = (setting.flags.first(), (setting.get)(settings)) {
            line.setting(flag, &value);
        }
    }
    if !settings.draft.is_empty() {
        // Without more flags, -md loads the model and drafts nothing.
        line.pair("-md", &settings.draft);
        if llamacpp::drafts(&settings.args).is_none() {
            line.pair("--spec-type", drafts(settings));
        }
    }
    for adapter in &settings.lora {
        line.pair("--lora-scaled", format!("{}:{}", adapter.path, adapter.scale));
    }
    if let Some(template) = template {
        line.pair("--chat-template-file", template);
    }
    for word in &settings.args {
        let flag = flag(word);
        // The server accepts `--api_key` for `--api-key`.
        if RESERVED.contains(&flag.replace('_', "-").as_str()) {
            return Err(about(flag, "cannot be set: muster does"));
        }
        line.word(word);
    }
    Ok(line.0)
}

/// The arguments in words that the server knows. It is asked for its flags, so that a wrong one is known before the start; if it does not tell, all
/// flags pass.
///
/// # Errors
/// `invalid_load_request` naming the flag.
pub(super) async fn understood(program: &Path, args: &[String]) -> Result<Vec<String>, Error> {
    if args.is_empty() {
        return Ok(Vec::new());
    }
    let help = Command::new(program)
        .arg("--help")
        .env_clear()
        .envs(keeper::inherited())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let Ok(help) = timeout(HELP, help).await else {
        let program = program.display();
        return Err(Code::ModelLoadFailed.error(format!(
            "`{program} --help` did not answer within {} s",
            HELP.as_secs()
        )));
    };
    let Ok(help) = help.inspect_err(|error| tracing::debug!(%error, "llama-server shows no help")) else {
        return Ok(args.to_vec());
    };
    let help = String::from_utf8_lossy(&help.stdout);
    let known = known(&help);
    let args = translated(args, &known);
    let unknown = args
        .iter()
        .map(|word| flag(word))
        .find(|flag| is_flag(flag) && !known.contains(flag));
    match unknown {
        Some(flag) if !known.is_empty() => Err(about(flag, "is unknown to llama-server")),
        Some(_) | None => Ok(args),
    }
}

/// How the file comes into memory in the server's words: today's has none of those that seed 000 and many a configuration have.
fn translated(args: &[String], known: &HashSet<&str>) -> Vec<String> {
    let Some(mode) = LoadMode::of(args) else {
        return args.to_vec();
    };
    let said = [mode.words(), mode.former()];
    let knows = |words: &&Vec<String>| {
        words
            .iter()
            .filter(|word| is_flag(word))
            .all(|flag| known.contains(flag.as_str()))
    };
    let words = said.iter().find(knows).unwrap_or(&said[0]);
    [&llamacpp::without(args, &LoadMode::FLAGS), words.as_slice()].concat()
}

fn about(flag: &str, what: &str) -> Error {
    Code::InvalidLoadRequest
        .error(format!("llama-server argument `{flag}` {what}"))
        .with_param("args")
        .with_detail("flag", flag)
}

/// The flags in a help text.
fn known(help: &str) -> HashSet<&str> {
    let separators = |c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']' | '(' | ')');
    help.split(separators).filter(|word| is_flag(word)).collect()
}

/// How the server guesses tokens ahead, by its own names; empty = not at all.
pub(super) fn drafts(settings: &ModelSettings) -> &str {
    let by_itself = if settings.draft.is_empty() {
        ""
    } else {
        "draft-simple"
    };
    llamacpp::drafts(&settings.args).map_or(by_itself, |said| if said == "none" { "" } else { said })
}

/// A flag without its `=value`.
fn flag(word: &str) -> &str {
    word.split_once('=').map_or(word, |(flag, _)| flag)
}

/// Whether a word is `-x` or `--x` and no negative number.
fn is_flag(word: &str) -> bool {
    word.trim_start_matches('-').len() < word.len()
        && word
            .trim_start_matches('-')
            .starts_with(|c: char| c.is_ascii_alphabetic())
}

fn number(n: u32) -> String {
    n.to_string()
}

#[derive(Default)]
struct Line(Vec<OsString>);

impl Line {
    fn word(&mut self, word: &str) -> &mut Self {
        self.0.push(word.into());
        self
    }

    fn pair(&mut self, flag: &str, value: impl Into<OsString>) -> &mut Self {
        self.0.extend([flag.into(), value.into()]);
        self
    }

    /// Writes a flag unless its value is zero or empty, which mean the server's default.
    fn some(&mut self, flag: &str, value: u32) -> &mut Self {
        if value == 0 {
            self
        } else {
            self.pair(flag, number(value))
        }
    }

    /// Writes a setting's flag; a switch has no value.
    fn setting(&mut self, flag: &str, value: &Value) -> &mut Self {
        match value {
            Value::Bool(_) => self.word(flag),
            Value::String(text) => self.pair(flag, text),
            Value::Null | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                self.pair(flag, value.to_string())
            }
        }
    }

    /// Sets what goes on GPUs. Several GPUs share the layers evenly, since that was reserved; by itself, the server would go by free
    /// memory.
    fn gpus(&mut self, settings: &ModelSettings, devices: &[Device]) {
        let gpus = devices
            .iter()
            .filter(|device| device.kind() == DeviceKind::Gpu)
            .count();
        self.pair("--device", device_names(devices).join(","));
        if gpus == 0 {
            return;
        }
        if let Some(layers) = settings.gpu_layers {
            self.pair("-ngl", layers.to_string());
        }
        if gpus > 1 {
            self.pair("--split-mode", "layer")
                .pair("--tensor-split", vec!["1"; gpus].join(","));
        }
    }

    /// Sets what the model is for. Embeddings are computed in one physical batch, which must hold the longest input.
    fn kind(&mut self, settings: &ModelSettings) {
        let whole = match settings.r#type() {
            ModelType::Embedding => self.word("--embeddings"),
            ModelType::Reranking => self.word("--reranking"),
            ModelType::Unspecified | ModelType::Llm | ModelType::Audio | ModelType::Image => {
                self.some("-b", settings.batch_size)
                    .some("-ub", settings.ubatch_size);
                return;
            }
        };
        whole
            .pair("-b", number(or_all(settings.batch_size, settings)))
            .pair("-ub", number(longest(settings)));
    }
}

#[cfg(test)]
mod tests {
    use muster_proto::llamacpp::Takes;

    use super::*;

    fn words(settings: &ModelSettings) -> Vec<String> {
        let line = line(settings, &[], Path::new("/run/x.sock"), None).unwrap();
        line.into_iter().map(|word| word.into_string().unwrap()).collect()
    }

    #[test]
    fn memory_and_concurrency_are_always_said() {
        let words = words(&ModelSettings {
            checkpoint: "/m.gguf".into(),
            ..Default::default()
        });
        for flag in [
            "-m",
            "--host",
            "-c",
            "-np",
            "-kvu",
            "--fit",
            "--cache-ram",
            "-ctxcp",
            "--device",
        ] {
            assert!(
                words.iter().any(|word| word == flag),
                "{flag} is missing in {words:?}"
            );
        }
    }

    #[test]
    fn embeddings_get_a_batch_for_the_longest_input() {
        let settings = ModelSettings {
            r#type: ModelType::Embedding.into(),
            ctx_size: 512,
            ..Default::default()
        };
        let line = words(&settings).join(" ");
        assert!(line.contains("--embeddings -b 512 -ub 512"), "{line}");
    }

    #[test]
    fn every_setting_with_a_flag_is_said_once() {
        for setting in SETTINGS.iter().filter(|setting| !setting.flags.is_empty()) {
            let mut settings = ModelSettings {
                checkpoint: "/m.gguf".into(),
                ..Default::default()
            };
            let value = match setting.takes {
                Takes::Count | Takes::Layers => 3.into(),
                Takes::Nothing => true.into(),
                Takes::Word(words) => words[0].into(),
                Takes::Integer
                | Takes::Number
                | Takes::Words(_)
                | Takes::Range
                | Takes::Parameter(_)
                | Takes::Text => Value::from("/x"),
            };
            (setting.set)(&mut settings, &value);
            let gpu = Device {
                kind: DeviceKind::Gpu.into(),
                ..Device::default()
            };
            let template = (setting.name == "chat_template").then_some(Path::new("/t"));
            let line = line(&settings, &[gpu], Path::new("x"), template).unwrap();
            let said = |word: &OsString| {
                let word = word.to_str().unwrap();
                setting.flags.contains(&word) || (template.is_some() && word == "--chat-template-file")
            };
            assert_eq!(
                line.iter().filter(|word| said(word)).count(),
                1,
                "{}",
                setting.name
            );
        }
    }

    #[test]
    fn a_draft_model_drafts() {
        let mut settings = ModelSettings {
            draft: "/d.gguf".into(),
            ..Default::default()
        };
        let line = words(&settings).join(" ");
        assert!(line.contains("-md /d.gguf --spec-type draft-simple"), "{line}");
        settings.args = vec!["--spec-type".into(), "draft-eagle3".into()];
        let line = words(&settings).join(" ");
        assert!(!line.contains("draft-simple"), "{line}");
        assert!(!words(&ModelSettings::default()).join(" ").contains("--spec-type"));
    }

    #[test]
    fn several_gpus_share_the_layers_evenly() {
        let gpu = Device {
            kind: DeviceKind::Gpu.into(),
            ..Device::default()
        };
        let line = |gpus: usize| {
            let devices = vec![gpu.clone(); gpus];
            let line = line(&ModelSettings::default(), &devices, Path::new("x"), None).unwrap();
            line.join(&OsString::from(" ")).into_string().unwrap()
        };
        assert!(line(0).contains("--device none"));
        assert!(!line(1).contains("--device none") && !line(1).contains("--tensor-split"));
        assert!(line(3).contains("--split-mode layer --tensor-split 1,1,1"));
    }

    #[test]
    fn our_own_flags_cannot_be_set() {
        for (word, named) in [("--port=1", "--port"), ("--api_key", "--api_key")] {
            let settings = ModelSettings {
                args: vec![word.into()],
                ..Default::default()
            };
            let error = line(&settings, &[], Path::new("x"), None).unwrap_err();
            assert_eq!(
                (error.code, error.details["flag"].as_str()),
                (Code::InvalidLoadRequest, named)
            );
        }
    }

    /// `--no-mmap` of seed 000's example: today's server refuses to start with it.
    #[test]
    fn flags_that_the_server_has_no_more_are_said_in_its_words() {
        let args = ["--no-mmap", "--flash-attn", "on"].map(str::to_owned);
        let today = HashSet::from(["--load-mode", "--flash-attn"]);
        assert_eq!(
            translated(&args, &today),
            ["--flash-attn", "on", "--load-mode", "none"]
        );
        let former = HashSet::from(["--no-mmap", "--mmap", "--mlock", "--flash-attn"]);
        assert_eq!(translated(&args, &former), ["--flash-attn", "on", "--no-mmap"]);
        let newer = ["--load-mode", "mlock"].map(str::to_owned);
        assert_eq!(translated(&newer, &former), ["--no-mmap", "--mlock"]);
        assert_eq!(translated(&args[1..], &today), args[1..]);
    }

    #[test]
    fn flags_are_found_in_a_help_text() {
        let help = "-t,    --threads N   threads (default: -1)\n--cpu-strict <0|1>  use [--no-mmap, --mmap]";
        let known = known(help);
        assert!(
            ["-t", "--threads", "--cpu-strict", "--no-mmap", "--mmap"]
                .iter()
                .all(|flag| known.contains(flag))
        );
        assert!(!known.contains("-1"));
    }
}
