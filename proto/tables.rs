//! Tables of parameters: one row for each field that has the option `parameter` (`muster/v1/options.proto`).

use std::{error::Error, fmt::Write as _};

use protox::prost_reflect::{DescriptorPool, DynamicMessage, FieldDescriptor, Kind, Value};

/// Messages with parameters, and the name of the table of each.
const TABLES: [(&str, &str); 1] = [("Sampling", "SAMPLING")];

/// Rust source of all tables.
pub(crate) fn of_parameters(pool: &DescriptorPool) -> Result<String, Box<dyn Error>> {
    let option = pool
        .get_extension_by_name("muster.v1.parameter")
        .ok_or("there is no option `parameter`")?;
    let mut out = String::new();
    for (message, table) in TABLES {
        let fields = pool
            .get_message_by_name(&format!("muster.v1.{message}"))
            .ok_or("a table is of no message")?;
        writeln!(
            out,
            "/// Parameters in [`v1::{message}`].\npub static {table}: Parameters<v1::{message}> = Parameters(&["
        )?;
        for field in fields.fields() {
            let options = field.options();
            if let Value::Message(given) = &*options.get_extension(&option)
                && options.has_extension(&option)
            {
                out +=
                    &row(&field, &Row(given)).map_err(|error| format!("{}: {error}", field.full_name()))?;
            }
        }
        out += "]);\n";
    }
    Ok(out)
}

/// What the option of a field says.
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

    fn most(&self) -> u32 {
        let most = self.0.get_field_by_name("most").and_then(|value| value.as_u32());
        most.unwrap_or_default()
    }
}

fn row(field: &FieldDescriptor, row: &Row<'_>) -> Result<String, Box<dyn Error>> {
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
        "    Parameter {{ name: {name:?}, aliases: &{:?}, about: {:?}, kind: {kind}, default: {default}, whole_context: {}, flags: &{:?}, get: |m| {get}, set: |m, value| m.{name} = {set} }},\n",
        row.words("aliases"),
        comment(field)?,
        row.is("whole_context"),
        row.words("flags"),
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

/// The sentence before a field.
fn comment(field: &FieldDescriptor) -> Result<String, Box<dyn Error>> {
    let file = field.parent_file();
    let places = file.file_descriptor_proto().source_code_info.iter();
    let place = places
        .flat_map(|info| &info.location)
        .find(|place| place.path == field.path());
    let text = place.map_or("", |place| place.leading_comments()).trim();
    if text.is_empty() {
        return Err("a parameter needs a comment".into());
    }
    Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
}
