//! Generates the tables of parameters and settings: one row per field that has such an option (`muster/v1/options.proto`).

use std::{error::Error, fmt::Write as _};

use protox::prost_reflect::{DescriptorPool, DynamicMessage, FieldDescriptor, Kind, Value};

/// Rust source of the parameters in `Sampling`.
pub(crate) fn of_parameters(pool: &DescriptorPool) -> Result<String, Box<dyn Error>> {
    let rows = rows(pool, "Sampling", "parameter", parameter)?;
    Ok(format!(
        "/// Parameters in [`v1::Sampling`].\npub static SAMPLING: Parameters<v1::Sampling> = Parameters(&[\n{rows}]);\n"
    ))
}

/// Rust source of the settings in `ModelSettings`.
pub(crate) fn of_settings(pool: &DescriptorPool) -> Result<String, Box<dyn Error>> {
    let rows = rows(pool, "ModelSettings", "setting", setting)?;
    Ok(format!(
        "/// Settings in [`ModelSettings`], in the order of its fields.\npub static SETTINGS: &[Setting] = &[\n{rows}];\n"
    ))
}

type Make = fn(&FieldDescriptor, &Row<'_>) -> Result<String, Box<dyn Error>>;

/// The rows of the fields of `message` that have `option`.
fn rows(pool: &DescriptorPool, message: &str, option: &str, make: Make) -> Result<String, Box<dyn Error>> {
    let option = pool
        .get_extension_by_name(&format!("muster.v1.{option}"))
        .ok_or("there is no such option")?;
    let fields = pool
        .get_message_by_name(&format!("muster.v1.{message}"))
        .ok_or("there is no such message")?;
    let mut out = String::new();
    for field in fields.fields() {
        let options = field.options();
        if let Value::Message(given) = &*options.get_extension(&option)
            && options.has_extension(&option)
        {
            let row = make(&field, &Row(given)).map_err(|error| format!("{}: {error}", field.full_name()))?;
            writeln!(out, "    {row},")?;
        }
    }
    Ok(out)
}

/// The option of a field.
struct Row<'a>(&'a DynamicMessage);

impl Row<'_> {
    fn number(&self, key: &str) -> Option<f64> {
        let given = self.0.has_field_by_name(key);
        self.0.get_field_by_name(key).filter(|_| given)?.as_f64()
    }

    fn words(&self, key: &str) -> Vec<String> {
        let list = self.0.get_field_by_name(key);
        let list = list.as_deref().and_then(Value::as_list).unwrap_or_default();
        let word = |word: &Value| word.as_str().map(str::to_owned);
        list.iter().filter_map(word).collect()
    }

    fn is(&self, key: &str) -> bool {
        self.0.get_field_by_name(key).and_then(|value| value.as_bool()) == Some(true)
    }

    fn text(&self, key: &str) -> String {
        let text = self.0.get_field_by_name(key);
        text.as_deref()
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    }

    fn most(&self) -> u32 {
        let most = self.0.get_field_by_name("most").and_then(|value| value.as_u32());
        most.unwrap_or_default()
    }
}

fn parameter(field: &FieldDescriptor, row: &Row<'_>) -> Result<String, Box<dyn Error>> {
    let name = field.name();
    let default = row.number("default").unwrap_or_default();
    let (kind, default, get, set) = match (field.kind(), field.is_list()) {
        (Kind::Float, false) => (
            float(row),
            format!("Default::Float({default:?})"),
            format!("m.{name}.map(Value::Float)"),
            "value.float()",
        ),
        (Kind::Int32, false) => whole(name, row, (i32::MIN.into(), i32::MAX.into())),
        (Kind::Uint32, false) => whole(name, row, (0, u32::MAX.into())),
        (Kind::Int64, false) => {
            let (kind, default, _, set) = whole(name, row, (i64::MIN, i64::MAX));
            (kind, default, format!("m.{name}.map(Value::Int)"), set)
        }
        (Kind::Bool, false) => (
            "Kind::Bool".to_owned(),
            format!("Default::Bool({})", default != 0.0),
            format!("m.{name}.map(Value::Bool)"),
            "value.bool()",
        ),
        (Kind::String, true) => (
            list(row),
            format!("Default::Words(&{:?})", row.words("default_words")),
            format!("(!m.{name}.is_empty()).then(|| Value::Words(m.{name}.clone()))"),
            "value.words().unwrap_or_default()",
        ),
        (Kind::Message(words), false) if words.name() == "Words" => (
            list(row),
            format!("Default::Words(&{:?})", row.words("default_words")),
            format!("m.{name}.as_ref().map(|list| Value::Words(list.words.clone()))"),
            "value.words().map(|words| v1::Words { words })",
        ),
        (other, _) => return Err(format!("a parameter cannot be of type {other:?}").into()),
    };
    Ok(format!(
        "Parameter {{ name: {name:?}, aliases: &{:?}, about: {:?}, kind: {kind}, default: {default}, whole_context: {}, flags: &{:?}, get: |m| {get}, set: |m, value| m.{name} = {set} }}",
        row.words("aliases"),
        comment(field)?,
        row.is("whole_context"),
        row.words("flags"),
    ))
}

fn setting(field: &FieldDescriptor, row: &Row<'_>) -> Result<String, Box<dyn Error>> {
    let name = field.name();
    let words = row.text("words");
    let (takes, get, set) = match (field.kind(), field.is_list()) {
        (Kind::Uint32, false) => (
            "Takes::Count".to_owned(),
            format!("(m.{name} != 0).then(|| m.{name}.into())"),
            "count(value)",
        ),
        (Kind::Int32, false) => (
            "Takes::Layers".to_owned(),
            format!("m.{name}.map(Value::from)"),
            "layers(value)",
        ),
        (Kind::Bool, false) => (
            "Takes::Nothing".to_owned(),
            format!("m.{name}.then_some(Value::Bool(true))"),
            "value.as_bool() == Some(true)",
        ),
        (Kind::String, false) => (
            match words.as_str() {
                "" => "Takes::Text".to_owned(),
                list => format!("Takes::Word(&{list})"),
            },
            format!("(!m.{name}.is_empty()).then(|| m.{name}.as_str().into())"),
            "text(value)",
        ),
        (other, _) => return Err(format!("a setting cannot be of type {other:?}").into()),
    };
    let key = match row.text("key") {
        key if key.is_empty() => name.to_owned(),
        key => key,
    };
    Ok(format!(
        "Setting {{ name: {name:?}, about: {:?}, key: {key:?}, admin: &{:?}, unset: {:?}, flags: &{:?}, takes: {takes}, path: {}, by: {}, ours: {}, load: &{:?}, nullable: {}, get: |m| {get}, set: |m, value| m.{name} = {set} }}",
        meaning(&comment(field)?),
        row.words("admin"),
        row.text("unset"),
        row.words("flags"),
        row.is("path"),
        if row.is("by_request") {
            "By::Request"
        } else {
            "By::Configuration"
        },
        row.is("ours"),
        row.words("load"),
        row.is("nullable"),
    ))
}

fn float(row: &Row<'_>) -> String {
    let (low, high) = (f64::from(f32::MIN), f64::from(f32::MAX));
    let above = row.number("above");
    let low = above.or(row.number("min")).unwrap_or(low);
    let high = row.number("max").unwrap_or(high);
    let openai = (
        row.number("openai_min").unwrap_or(low),
        row.number("openai_max").unwrap_or(high),
    );
    format!(
        "Kind::Float {{ range: ({low:?}, {high:?}), openai: {openai:?}, above: {} }}",
        above.is_some()
    )
}

#[allow(clippy::cast_possible_truncation, reason = "the bounds of a row are small")]
fn whole(name: &str, row: &Row<'_>, all: (i64, i64)) -> (String, String, String, &'static str) {
    let low = row.number("min").map_or(all.0, |low| low as i64);
    let high = row.number("max").map_or(all.1, |high| high as i64);
    (
        format!("Kind::Int {{ range: ({low}, {high}) }}"),
        format!(
            "Default::Int({})",
            row.number("default").unwrap_or_default() as i64
        ),
        format!("m.{name}.map(|value| Value::Int(value.into()))"),
        "value.int()",
    )
}

fn list(row: &Row<'_>) -> String {
    let most = match row.most() {
        0 => "usize::MAX".to_owned(),
        most => most.to_string(),
    };
    format!("Kind::Words {{ words: &{:?}, most: {most} }}", row.words("words"))
}

/// The part of a setting's sentence before `; `, which leaves out the meaning of zero or empty.
fn meaning(comment: &str) -> String {
    let what = comment.split("; ").next().unwrap_or_default();
    format!("{}.", what.trim_end_matches('.'))
}

/// The comment before a field.
fn comment(field: &FieldDescriptor) -> Result<String, Box<dyn Error>> {
    let file = field.parent_file();
    let places = file.file_descriptor_proto().source_code_info.iter();
    let place = places
        .flat_map(|info| &info.location)
        .find(|place| place.path == field.path());
    let text = place.map_or("", |place| place.leading_comments()).trim();
    if text.is_empty() {
        return Err("a field of a table needs a comment".into());
    }
    Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
}
