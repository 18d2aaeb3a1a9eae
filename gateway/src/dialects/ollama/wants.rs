//! Options of a request that are settings of its model's load. Those that would name a device, or say how much of a model goes to one, are the
//! configuration's and policy's (proto/README.md, Trust): they are none of these.

use muster_proto::{
    llamacpp::{self, LoadMode, default},
    settings,
    v1::ModelSettings,
};

use super::requests::LoadOptions;
use crate::translate::read::{Int, Uint};

/// What a request wants of the load that serves it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wants {
    /// As many tokens of context, or more.
    pub(crate) context: Option<u32>,
    /// Exactly these settings.
    pub(crate) exactly: Vec<Setting>,
}

/// A setting of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    /// Tokens per call.
    Batch(u32),
    /// Threads that generate.
    Threads(u32),
    /// How the file comes into memory; none = either way.
    Loaded { map: Option<bool>, lock: Option<bool> },
}

impl Wants {
    /// Reads options; 0 and negative numbers leave a setting to the engine.
    pub(super) fn of(options: &LoadOptions) -> Self {
        let positive = |Int(number): Int<-1>| u32::try_from(number).ok().filter(|number| *number > 0);
        let (map, lock) = (options.use_mmap, options.use_mlock);
        let exactly = [
            options.num_batch.and_then(positive).map(Setting::Batch),
            options.num_thread.and_then(positive).map(Setting::Threads),
            map.or(lock).map(|_| Setting::Loaded { map, lock }),
        ];
        Self {
            context: options.num_ctx.map(|Uint(tokens)| tokens),
            exactly: exactly.into_iter().flatten().collect(),
        }
    }
}

/// llama.cpp's flags of a setting with a field of its own.
fn flags(name: &str) -> &'static [&'static str] {
    settings::named(name).map_or(&[], |setting| setting.flags)
}

impl Setting {
    /// The option that says it.
    pub(super) const fn option(self) -> &'static str {
        match self {
            Self::Batch(_) => "num_batch",
            Self::Threads(_) => "num_thread",
            Self::Loaded { map: Some(_), .. } => "use_mmap",
            Self::Loaded { map: None, .. } => "use_mlock",
        }
    }

    /// The words of a command line with this setting, in place of what they say of it.
    pub(super) fn put(self, words: &[String]) -> Vec<String> {
        let (flags, said) = match self {
            Self::Batch(number) => (flags("batch_size"), Self::word("batch_size", number)),
            Self::Threads(number) => (flags("threads"), Self::word("threads", number)),
            Self::Loaded { map, lock } => {
                let present = LoadMode::of(words).unwrap_or_default();
                let mode = LoadMode {
                    map: map.or(present.map),
                    lock: lock.unwrap_or(present.lock),
                };
                (&LoadMode::FLAGS[..], mode.words())
            }
        };
        [llamacpp::without(words, flags), said].concat()
    }

    fn word(name: &str, number: u32) -> Vec<String> {
        let flag = flags(name).iter().take(1).map(|flag| (*flag).to_owned());
        flag.chain([number.to_string()]).collect()
    }

    /// Whether `settings` say anything of it.
    pub(super) fn said(self, settings: &ModelSettings) -> bool {
        let folded = llamacpp::said(settings);
        match self {
            Self::Batch(_) => folded.batch_size > 0,
            Self::Threads(_) => folded.threads > 0,
            Self::Loaded { .. } => LoadMode::of(&settings.args).is_some(),
        }
    }

    /// Whether a load with these settings has it.
    pub(super) fn holds(self, settings: &ModelSettings) -> bool {
        let folded = llamacpp::said(settings);
        match self {
            Self::Batch(number) if folded.batch_size == 0 => number == default::BATCH,
            Self::Batch(number) => number == folded.batch_size,
            // Where nobody says them they are as many as there are cores, which the worker knows.
            Self::Threads(number) => number == folded.threads,
            Self::Loaded { map, lock } => {
                let mode = LoadMode::of(&settings.args).unwrap_or_default();
                // llama.cpp maps where it can, unless told otherwise.
                map.is_none_or(|map| map == mode.map.unwrap_or(true))
                    && lock.is_none_or(|lock| lock == mode.lock)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn with(args: &str) -> ModelSettings {
        ModelSettings {
            args: words(args),
            ..ModelSettings::default()
        }
    }

    #[test]
    fn what_is_wanted_is_told_from_what_is_there() {
        let mapped = |map| Setting::Loaded {
            map: Some(map),
            lock: None,
        };
        let locked = |lock| Setting::Loaded {
            map: None,
            lock: Some(lock),
        };
        for (setting, without, other, with_it) in [
            (Setting::Batch(64), false, "-b 32", "--batch-size=64"),
            (Setting::Batch(default::BATCH), true, "-b 32", "-b 2048"),
            (Setting::Threads(2), false, "-t 3", "-t 3 --threads 2"),
            (mapped(true), true, "--no-mmap", "--no-mmap --mmap"),
            (mapped(false), false, "--mmap", "--load-mode none"),
            (locked(true), false, "--mmap", "--mlock"),
            (locked(false), true, "--mlock", "--mmap"),
        ] {
            assert_eq!(setting.holds(&with("")), without, "{setting:?}");
            assert!(!setting.holds(&with(other)), "{setting:?} {other}");
            assert!(setting.holds(&with(with_it)), "{setting:?} {with_it}");
            let put = with(&setting.put(&words(other)).join(" "));
            assert!(setting.holds(&put) && setting.said(&put), "{setting:?} {put:?}");
            assert!(!setting.said(&with("--slots")));
        }
        assert_eq!(
            mapped(false).put(&words("--mlock -t 2")),
            words("-t 2 --load-mode mlock")
        );
        let by_field = ModelSettings {
            threads: 2,
            ..ModelSettings::default()
        };
        assert!(Setting::Threads(2).holds(&by_field) && !Setting::Threads(3).holds(&by_field));
    }
}
