//! llama.cpp's flags in `ModelSettings.args`: who may set which, and which of them our embedded engine has.
//!
//! The configuration's flags decide at the controller which of the two runtimes hosts a model (controller/README.md, Settings).
//! `muster-llama` takes its own flags and refuses others. Controller and worker [check] flags before a process is started. Requests may
//! only use flags [from a list](requested): a path in a flag means that a file is read or written, and some flags run a shell.

pub mod control;
mod flags;
mod load_mode;

pub use flags::{By, CACHE_TYPES, Flag, POOLING, SLOT_FILES, SWITCH, Takes, find, flags};
pub use load_mode::LoadMode;

use muster_core::{Code, Error};

use crate::{settings, v1::ModelSettings};

/// What llama.cpp's runtimes take where the settings set nothing; the context is no longer than the model was trained with.
pub mod default {
    /// Number of tokens in the context, over all sequences.
    pub const CONTEXT: u32 = 4096;
    /// Number of sequences.
    pub const SEQUENCES: u32 = 4;
    /// Tokens per call.
    pub const BATCH: u32 = 2048;
    /// Tokens per graph.
    pub const UBATCH: u32 = 512;
}

/// Most tokens that our engine guesses ahead in one call, over all sequences.
pub const DRAFTS: u32 = 16;

/// llama.cpp rounds the cells of a cache up to a multiple of this.
const BLOCK: u32 = 256;

/// The setting that has the flags.
const KEY: &str = "llamacpp_args";

/// The first flag in `args` that our embedded engine cannot honour.
///
/// ```
/// let args = ["-c", "-1", "--grp-attn-n", "--ubatch-size=64"].map(str::to_owned);
/// assert_eq!(muster_proto::llamacpp::beyond_embedded(&args), Some("--grp-attn-n"));
/// assert_eq!(muster_proto::llamacpp::beyond_embedded(&args[..2]), None);
/// ```
#[must_use]
pub fn beyond_embedded(args: &[String]) -> Option<&str> {
    words(args)
        .find(|word| !word.flag.is_some_and(|flag| flag.is_ours(word.value)))
        .map(|word| word.name)
}

/// Whether our embedded engine takes `args`, as far as that can be told without the model.
///
/// # Errors
/// `invalid_load_request`, naming the flag: one that it cannot honour, that lacks its value, or whose value is no number where one is wanted.
///
/// ```
/// let check = |text: &str| muster_proto::llamacpp::check(&text.split(' ').map(str::to_owned).collect::<Vec<_>>());
/// assert!(check("--flash-attn on --no-mmap").is_ok());
/// assert!(check("-c many").unwrap_err().message.contains("`-c`"));
/// ```
pub fn check(args: &[String]) -> Result<(), Error> {
    for word in words(args) {
        let Some(flag) = word.flag.filter(|flag| flag.is_ours(word.value)) else {
            return Err(wrong(format_args!(
                "`{}` is not a flag this engine can honour",
                word.name
            )));
        };
        match flag.takes {
            Takes::Nothing => {}
            // Which words there are, the engine itself knows best.
            Takes::Word(_) | Takes::Words(_) | Takes::Text => {
                word.valued()?;
            }
            Takes::Range => {
                word.range()?;
            }
            Takes::Count | Takes::Layers | Takes::Integer | Takes::Number | Takes::Parameter(_) => {
                let value = word.valued()?;
                if !flag.fits(value) {
                    return Err(wrong(format_args!(
                        "`{}` needs a number, not `{value}`",
                        word.name
                    )));
                }
            }
        }
    }
    Ok(())
}

/// Checks that a request may set `args`, whoever sent it (proto/README.md, Trust).
///
/// # Errors
/// `invalid_load_request`, naming the flag: it is not on the list, or does not take the value.
pub fn requested(args: &[String]) -> Result<(), Error> {
    for word in words(args) {
        let Some(flag) = word.flag.filter(|flag| flag.by == By::Request) else {
            return Err(wrong(format_args!(
                "`{KEY}` of a request must not hold `{}`: only the configuration sets it",
                word.name
            )));
        };
        let fits = match flag.takes {
            Takes::Nothing => word.value.is_none(),
            Takes::Count
            | Takes::Layers
            | Takes::Integer
            | Takes::Number
            | Takes::Word(_)
            | Takes::Words(_)
            | Takes::Parameter(_)
            | Takes::Text => flag.fits(word.valued()?),
            Takes::Range => word.range().is_ok(),
        };
        if !fits {
            return Err(wrong(format_args!("`{}` does not take that value", word.name)));
        }
    }
    Ok(())
}

/// Splits `args` into those that a request may set and thus replace, and those that only the configuration sets.
#[must_use]
pub fn split(args: &[String]) -> (Vec<String>, Vec<String>) {
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for word in words(args) {
        let by_request = word.flag.is_some_and(|flag| flag.by == By::Request);
        let part = if by_request { &mut theirs } else { &mut ours };
        part.extend_from_slice(word.all);
    }
    (theirs, ours)
}

/// Copies settings with fields of their own from `args` into `into`, as far as they can be parsed.
pub fn fold(args: &[String], into: &mut ModelSettings) {
    for word in words(args) {
        let Some(setting) = settings::flagged(word.name) else {
            continue;
        };
        let value = if setting.takes == Takes::Nothing {
            Some(true.into())
        } else {
            word.value.and_then(|value| setting.takes.read(value))
        };
        if let Some(value) = value {
            (setting.set)(into, &value);
        }
    }
}

/// Settings with fields of their own, as said by field or by flag.
#[must_use]
pub fn said(settings: &ModelSettings) -> ModelSettings {
    let mut folded = settings.clone();
    fold(&settings.args, &mut folded);
    folded
}

/// The last of some flags in `args`, which counts in llama.cpp.
///
/// ```
/// let args = ["--mmap", "-t", "2", "--no-mmap"].map(str::to_owned);
/// assert_eq!(muster_proto::llamacpp::last_of(&args, &["--mmap", "--no-mmap"]), Some("--no-mmap"));
/// ```
#[must_use]
pub fn last_of<'a>(args: &'a [String], flags: &[&str]) -> Option<&'a str> {
    words(args)
        .filter(|word| flags.contains(&word.name))
        .map(|word| word.name)
        .last()
}

/// The value of a flag in `args`; of several the last, which counts in llama.cpp.
///
/// ```
/// let args = ["--slot-save-path", "/a", "--mmap", "--slot-save-path=/b"].map(str::to_owned);
/// assert_eq!(muster_proto::llamacpp::value_of(&args, "--slot-save-path"), Some("/b"));
/// ```
#[must_use]
pub fn value_of<'a>(args: &'a [String], flag: &str) -> Option<&'a str> {
    let found = words(args).filter(|word| word.name == flag);
    found.filter_map(|word| word.value).last()
}

/// `args` without some flags and their values.
///
/// ```
/// let args = ["-b", "64", "--slots", "-t=2"].map(str::to_owned);
/// assert_eq!(muster_proto::llamacpp::without(&args, &["-b", "-t"]), ["--slots"]);
/// ```
#[must_use]
pub fn without(args: &[String], flags: &[&str]) -> Vec<String> {
    let kept = words(args).filter(|word| !flags.contains(&word.name));
    kept.flat_map(|word| word.all).cloned().collect()
}

/// Whether `args` split the KV cache, so that each sequence has a part of its own; as in llama.cpp the last word on it counts.
///
/// ```
/// let splits = |text: &str| muster_proto::llamacpp::splits_cache(&text.split(' ').map(str::to_owned).collect::<Vec<_>>());
/// assert!(splits("-kvu --no-kv-unified") && !splits("--no-kv-unified -kvu") && !splits("-np 2"));
/// ```
#[must_use]
pub fn splits_cache(args: &[String]) -> bool {
    let both = [flags::UNIFIED, flags::SPLIT].concat();
    last_of(args, &both).is_some_and(|flag| flags::SPLIT.contains(&flag))
}

/// Whether our engine may guess tokens ahead: it does unless the last `--spec-type` is `none`.
///
/// ```
/// let guesses = |text: &str| muster_proto::llamacpp::guesses(&text.split(' ').map(str::to_owned).collect::<Vec<_>>());
/// assert!(guesses("-np 2") && guesses("--spec-type none --spec-type ngram-simple") && !guesses("--spec-type=none"));
/// ```
#[must_use]
pub fn guesses(args: &[String]) -> bool {
    drafts(args) != Some(flags::NO_DRAFTS)
}

/// What the last `--spec-type` says.
#[must_use]
pub fn drafts(args: &[String]) -> Option<&str> {
    value_of(args, flags::SPEC_TYPE)
}

/// Whether a text goes on when its context is full (the last of `--context-shift` and `--no-context-shift`; by default it ends), and how many tokens of its beginning
/// it keeps then if the request does not say (`--keep`; below 0 = the prompt).
///
/// ```
/// let shifts = |text: &str| muster_proto::llamacpp::shifts(&text.split(' ').map(str::to_owned).collect::<Vec<_>>());
/// assert_eq!(shifts("--keep 3 --context-shift"), Some(3));
/// assert_eq!(shifts("--context-shift --keep -1"), Some(-1));
/// assert_eq!(shifts("--context-shift --no-context-shift"), None);
/// ```
#[must_use]
pub fn shifts(args: &[String]) -> Option<i64> {
    let on = last_of(args, &[flags::SHIFT, flags::NO_SHIFT]) == Some(flags::SHIFT);
    let keep = value_of(args, flags::KEEP).and_then(|keep| keep.parse().ok());
    on.then(|| keep.unwrap_or(0))
}

/// Most outputs of one call of our engine that generates with so many sequences: the next token of each, and of each token that is guessed ahead.
#[must_use]
pub fn outputs(sequences: u32, args: &[String]) -> u32 {
    sequences.saturating_add(if guesses(args) { DRAFTS } else { 0 })
}

/// Number of tokens of context that settings say, by field or by flag; 0 if they leave it to the runtime.
#[must_use]
pub fn context(settings: &ModelSettings) -> u32 {
    let mut folded = ModelSettings {
        ctx_size: settings.ctx_size,
        ..ModelSettings::default()
    };
    fold(&settings.args, &mut folded);
    folded.ctx_size
}

/// Of a context of `all` tokens, those that one sequence may use: all, or its part where [the cache is split](splits_cache), which llama.cpp
/// rounds up.
///
/// ```
/// # use muster_proto::{llamacpp::of_each, v1::ModelSettings};
/// let with = |args: &str| ModelSettings { args: args.split(' ').map(str::to_owned).collect(), ..ModelSettings::default() };
/// assert_eq!(of_each(512, &with("-np 4")), 512);
/// assert_eq!(of_each(512, &with("-np 4 -no-kvu")), 256);
/// assert_eq!(of_each(4096, &with("-no-kvu")), 1024);
/// ```
#[must_use]
pub fn of_each(all: u32, settings: &ModelSettings) -> u32 {
    if !splits_cache(&settings.args) {
        return all;
    }
    let mut folded = ModelSettings {
        sequences: settings.sequences,
        ..ModelSettings::default()
    };
    fold(&settings.args, &mut folded);
    let sequences = match folded.sequences {
        0 => default::SEQUENCES,
        set => set,
    };
    (all / sequences).max(1).next_multiple_of(BLOCK)
}

/// Number of tokens of context where nobody says one, for a model that was trained with `trained` (0 = not known).
#[must_use]
pub const fn automatic_context(trained: u32) -> u32 {
    if trained == 0 || trained > default::CONTEXT {
        default::CONTEXT
    } else {
        trained
    }
}

/// Whether a key of a load's settings says the context.
#[must_use]
pub fn is_context(key: &str) -> bool {
    let setting = settings::named("ctx_size");
    setting.is_some_and(|setting| key == setting.key || setting.admin.contains(&key))
}

/// A flag among arguments, or a word that is no known flag.
#[derive(Clone, Copy, Debug)]
pub struct Said<'a> {
    /// The flag as it was written.
    pub name: &'a str,
    /// What is known of it.
    pub flag: Option<Flag>,
    /// Its value, or the first of two.
    value: Option<&'a str>,
    /// The words that it consists of.
    all: &'a [String],
}

impl<'a> Said<'a> {
    /// Its value.
    ///
    /// # Errors
    /// `invalid_load_request`: it has none.
    pub fn valued(&self) -> Result<&'a str, Error> {
        self.value
            .ok_or_else(|| wrong(format_args!("`{}` needs a value", self.name)))
    }

    /// Both of its values.
    ///
    /// # Errors
    /// `invalid_load_request`: they are not two whole numbers.
    pub fn range(&self) -> Result<[i32; 2], Error> {
        let both = self.all.get(1..).unwrap_or_default();
        let numbers: Vec<i32> = both.iter().filter_map(|word| word.parse().ok()).collect();
        <[i32; 2]>::try_from(numbers)
            .map_err(|_| wrong(format_args!("`{}` needs two whole numbers", self.name)))
    }

    /// The first of the flag's spellings; the word itself if it is no known flag.
    #[must_use]
    pub fn known_as(&self) -> &'a str {
        self.flag
            .and_then(|flag| flag.names.first().copied())
            .unwrap_or(self.name)
    }
}

/// The flags in `args`, in their order.
pub fn words(args: &[String]) -> impl Iterator<Item = Said<'_>> {
    let mut rest = args;
    std::iter::from_fn(move || {
        let word = rest.first()?;
        let (name, inline) = word
            .split_once('=')
            .map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
        let flag = find(name);
        let values = match flag.map_or(Takes::Nothing, |flag| flag.takes) {
            Takes::Nothing => 0,
            _ if inline.is_some() => 0,
            Takes::Range => 2,
            Takes::Count
            | Takes::Layers
            | Takes::Integer
            | Takes::Number
            | Takes::Word(_)
            | Takes::Words(_)
            | Takes::Parameter(_)
            | Takes::Text => 1,
        };
        let (all, after) = rest.split_at(rest.len().min(1 + values));
        rest = after;
        Some(Said {
            name,
            flag,
            value: inline.or(all.get(1).map(String::as_str)),
            all,
        })
    })
}

fn wrong(message: std::fmt::Arguments<'_>) -> Error {
    Code::InvalidLoadRequest
        .error(message.to_string())
        .with_param(KEY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words_of(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// Regression (issue 10, 3.2): a caller that may load could do each of these to the running product.
    #[test]
    fn a_request_names_no_file_no_address_no_tool_and_no_log() {
        for args in [
            "--chat-template-file /etc/passwd",
            "--chat-template-file=/etc/passwd",
            "--chat-template x",
            "--grammar-file /etc/passwd",
            "--log-file /tmp/x",
            "--log_file /tmp/x",
            "--log-prompts-dir /tmp",
            "--tools all",
            "--path /etc",
            "--models-dir /",
            "--media-path /",
            "--ssl-key-file /tmp/x",
            "--slot-save-path /tmp",
            "--rpc 192.0.2.1:1",
            "--slots",
            "--props",
            "--metrics",
            "-m x",
            "--port 1",
            "--ctx-size=7",
            "-ngl 3",
            "--flag-of-tomorrow 1",
            "stray",
            "-t 2 stray",
            // Where a model lies on the box, and what else is read.
            "-ot exps=CPU",
            "--cpu-moe",
            "--split-mode none",
            "--main-gpu 1",
            "--tensor-split 1,0",
            "--no-kv-offload",
            "--numa isolate",
            "--override-kv a=int:1",
            "--control-vector /etc/passwd",
            "--control-vector-layer-range 1 2",
            // A value cannot smuggle a flag past the list, however it is parsed.
            "-t --tools all",
            "--mmap --tools all",
            "--mmap=--tools all",
        ] {
            let error = requested(&words_of(args)).expect_err(args);
            assert_eq!(
                (error.code, error.param.as_deref().unwrap_or_default()),
                (Code::InvalidLoadRequest, KEY),
                "{args}"
            );
            let flag = args.split([' ', '=']).next().unwrap_or_default();
            let named = [flag, "stray", "--tools"]
                .iter()
                .any(|flag| error.message.contains(flag));
            assert!(named, "{args}: {}", error.message);
            assert!(!error.message.contains("/etc/passwd"), "{}", error.message);
        }
    }

    #[test]
    fn a_request_sets_numbers_and_words_of_its_list() {
        for args in [
            "--flash-attn on --no-mmap",
            "-t 2 -b 512 --ubatch-size=64",
            "-ctk q8_0 --temp 0.7 --top-k 40 --samplers top_k;temperature",
            "--keep -1 --rope-scaling yarn --yarn-orig-ctx 4096",
            "--spec-type ngram-simple,draft-mtp --spec-draft-n-max 4",
            "--reasoning off --reasoning-budget 0 -n 100 --no-cache-prompt --rope-scale 2",
        ] {
            assert!(requested(&words_of(args)).is_ok(), "{args}");
        }
        for args in [
            "-t many",
            "-t",
            "--rope-scaling /etc/passwd",
            "-ctk /etc/passwd",
            "--temp inf",
            "--samplers top_k;x",
            // A parameter's own range applies to its flag as well.
            "--mirostat 3",
            "--top-p 1.5",
        ] {
            assert!(requested(&words_of(args)).is_err(), "{args}");
        }
    }

    #[test]
    fn what_the_configuration_says_is_told_from_what_requests_may() {
        let (theirs, ours) = split(&words_of("--slots -t 4 --chat-template-file x -fa=on --alias y"));
        assert_eq!(theirs, ["-t", "4", "-fa=on"]);
        assert_eq!(ours, ["--slots", "--chat-template-file", "x", "--alias", "y"]);
    }

    #[test]
    fn a_flag_with_two_values_has_both() {
        let args = words_of("--control-vector-layer-range 2 -1 -t 4");
        let all: Vec<Said<'_>> = words(&args).collect();
        assert_eq!(
            all.iter().map(Said::known_as).collect::<Vec<_>>(),
            ["--control-vector-layer-range", "-t"]
        );
        assert_eq!(all[0].range().ok(), Some([2, -1]));
        assert!(check(&args).is_ok() && beyond_embedded(&args).is_none());
        for wrong in ["1", "1 x", ""] {
            let args = words_of(&format!("--control-vector-layer-range {wrong}"));
            let error = check(&args).expect_err(wrong);
            assert!(error.message.contains("two whole numbers"), "{}", error.message);
        }
    }

    #[test]
    fn flags_of_settings_are_folded_into_their_fields() {
        let mut folded = ModelSettings {
            batch_size: 7,
            ..ModelSettings::default()
        };
        let args = "-c 512 --temp 3 -ngl=all -ctk q8_0 --swa-full -b many --parallel 2 -t";
        fold(&words_of(args), &mut folded);
        let wanted = ModelSettings {
            ctx_size: 512,
            gpu_layers: Some(-1),
            cache_type_k: "q8_0".into(),
            swa_full: true,
            batch_size: 7,
            sequences: 2,
            ..ModelSettings::default()
        };
        assert_eq!(folded, wanted);
    }

    #[test]
    fn no_name_is_there_twice_and_no_text_comes_from_a_request() {
        let names: Vec<&str> = flags().flat_map(|flag| flag.names).copied().collect();
        let once: std::collections::HashSet<&str> = names.iter().copied().collect();
        assert_eq!(names.len(), once.len());
        let text = flags().find(|flag| flag.by == By::Request && flag.takes == Takes::Text);
        assert!(text.is_none(), "{text:?}");
    }
}
