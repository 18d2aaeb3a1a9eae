//! What requests to a model get where they say nothing themselves: `[models.ID.defaults]`.

use muster_proto::{
    parameters::SAMPLING,
    v1::{RequestDefaults, Sampling},
};
use serde_json::{Map, Value};

use super::section::Section;

/// The key of the table.
pub(crate) const KEY: &str = "defaults";

/// Reads the defaults; none if nothing is set.
pub(super) fn read(model: &Section<'_>) -> Option<RequestDefaults> {
    let section = model.section(KEY)?;
    let defaults = RequestDefaults {
        sampling: sampling(&section),
        system_prompt: section.string("system_prompt").unwrap_or_default().to_owned(),
        template_kwargs_json: kwargs(&section),
        stop: section.strings("stop").unwrap_or_default(),
        max_tokens: section.integer("max_tokens", 1),
    };
    section.finish();
    (!defaults.is_empty()).then_some(defaults)
}

/// The sampling parameters, by llama.cpp's names.
fn sampling(section: &Section<'_>) -> Option<Sampling> {
    let mut sampling = Sampling::default();
    for row in SAMPLING.iter() {
        let Some(given) = section.leaf(row.name) else {
            continue;
        };
        let json = serde_json::to_value(given).unwrap_or_default();
        let read = row.kind.read(&json).ok_or_else(|| "has another type".to_owned());
        match read.and_then(|value| row.kind.check(&value).map(|()| value)) {
            Ok(value) => (row.set)(&mut sampling, value),
            Err(wrong) => section.problem(row.name, wrong),
        }
    }
    (sampling != Sampling::default()).then_some(sampling)
}

/// `chat_template_kwargs = '{"enable_thinking": false}'`, as llama.cpp's flag of that name.
fn kwargs(section: &Section<'_>) -> String {
    const KEY: &str = "chat_template_kwargs";
    let Some(text) = section.string(KEY) else {
        return String::new();
    };
    match serde_json::from_str::<Map<String, Value>>(text) {
        Ok(members) if members.is_empty() => String::new(),
        Ok(members) => Value::Object(members).to_string(),
        Err(error) => {
            section.problem(KEY, format!("want a JSON object as text: {error}"));
            String::new()
        }
    }
}
