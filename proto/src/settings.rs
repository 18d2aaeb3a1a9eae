//! Settings of a model's load: a row for each, made at build time from the options of its field (`muster/v1/options.proto`).
//!
//! The configuration's reader, the Runtime Admin API's names, llama.cpp's flags and both engines' command lines go over these rows, so that a setting is two
//! changes: its field, and where the runtime uses it.

use serde_json::Value;

use crate::{
    llamacpp::{By, CACHE_TYPES, POOLING, SWITCH, Takes},
    v1::ModelSettings,
};

include!(concat!(env!("OUT_DIR"), "/settings.rs"));

/// One setting: a field of [`ModelSettings`]. Values are JSON, as the APIs and configurations have them.
#[derive(Debug)]
pub struct Setting {
    /// The field.
    pub name: &'static str,
    /// What it sets, in a sentence.
    pub about: &'static str,
    /// Its key in the configuration.
    pub key: &'static str,
    /// Its names in the Runtime Admin API, for each backend one (seed 001).
    pub admin: &'static [&'static str],
    /// What that API shows where nothing was said, as JSON; empty = null.
    pub unset: &'static str,
    /// llama.cpp's flags for it; the first is the one that is written.
    pub flags: &'static [&'static str],
    /// What it takes.
    pub takes: Takes,
    /// It names a file.
    pub path: bool,
    /// Who may say its flag.
    pub by: By,
    /// `muster-llama` honours its flag.
    pub ours: bool,
    /// Those of its names in the Runtime Admin API that one load may set.
    pub load: &'static [&'static str],
    /// A load may say null.
    pub nullable: bool,
    /// What is set; none if nothing was said.
    pub get: fn(&ModelSettings) -> Option<Value>,
    /// Sets it; null takes it back.
    pub set: fn(&mut ModelSettings, &Value),
}

/// The setting that the Runtime Admin API or Lemonade calls so.
#[must_use]
pub fn named(name: &str) -> Option<&'static Setting> {
    SETTINGS
        .iter()
        .find(|setting| setting.key == name || setting.admin.contains(&name))
}

/// The setting that a flag of llama.cpp's sets.
#[must_use]
pub fn flagged(flag: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.flags.contains(&flag))
}

fn count(value: &Value) -> u32 {
    let count = value.as_u64().and_then(|count| count.try_into().ok());
    count.unwrap_or_default()
}

fn layers(value: &Value) -> Option<i32> {
    value.as_i64().and_then(|layers| layers.try_into().ok())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_name_means_one_setting_and_each_is_read_as_it_was_set() {
        let mut names = std::collections::HashSet::new();
        for setting in SETTINGS {
            for name in setting.admin.iter().chain([&setting.key]) {
                assert!(names.insert(*name), "{name} is there twice");
                assert_eq!(named(name).map(|found| found.name), Some(setting.name));
            }
            let shown = |name: &&str| setting.admin.contains(name);
            assert!(setting.load.iter().all(shown), "{}", setting.name);
            let value = match setting.takes {
                Takes::Count | Takes::Layers => json!(3),
                Takes::Nothing => json!(true),
                Takes::Word(words) => json!(words[0]),
                Takes::Text => json!("x"),
                Takes::Integer | Takes::Number | Takes::Words(_) | Takes::Parameter(_) => {
                    panic!("{} takes what no setting takes", setting.name)
                }
            };
            let mut settings = ModelSettings::default();
            assert_eq!((setting.get)(&settings), None, "{}", setting.name);
            (setting.set)(&mut settings, &value);
            assert_eq!((setting.get)(&settings), Some(value), "{}", setting.name);
            (setting.set)(&mut settings, &Value::Null);
            assert_eq!(settings, ModelSettings::default(), "{}", setting.name);
        }
    }
}
