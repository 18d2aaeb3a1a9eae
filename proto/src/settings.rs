//! Load settings, one row each, made at build time from the options of their fields (`muster/v1/options.proto`).
//!
//! The configuration's reader, the Runtime Admin API, llama.cpp's flags and both engines' command lines use these rows. So adding a setting
//! takes two changes: its field, and the place where the runtime uses it.

use serde_json::Value;

use crate::{
    llamacpp::{By, CACHE_TYPES, POOLING, SWITCH, Takes},
    v1::ModelSettings,
};

include!(concat!(env!("OUT_DIR"), "/settings.rs"));

/// A setting: a field of [`ModelSettings`]. Values are JSON, as in the APIs and configurations.
#[derive(Debug)]
pub struct Setting {
    /// Name of the field.
    pub name: &'static str,
    /// What it sets, in one sentence.
    pub about: &'static str,
    /// Key in the configuration.
    pub key: &'static str,
    /// Names in the Runtime Admin API, one per backend (seed 001).
    pub admin: &'static [&'static str],
    /// What that API shows if the setting is not set, as JSON; empty = null.
    pub unset: &'static str,
    /// llama.cpp's flags for it. Muster writes the first one.
    pub flags: &'static [&'static str],
    /// The type of its value.
    pub takes: Takes,
    /// Whether it names a file.
    pub path: bool,
    /// Who may set its flag.
    pub by: By,
    /// Whether `muster-llama` has its flag.
    pub ours: bool,
    /// The names in the Runtime Admin API that one load may set.
    pub load: &'static [&'static str],
    /// Whether a load may set it to null.
    pub nullable: bool,
    /// Its value; none if it is not set.
    pub get: fn(&ModelSettings) -> Option<Value>,
    /// Sets it; null unsets it.
    pub set: fn(&mut ModelSettings, &Value),
}

/// The setting with this name in the Runtime Admin API or in Lemonade.
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
                Takes::Integer | Takes::Number | Takes::Words(_) | Takes::Range | Takes::Parameter(_) => {
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
