//! Modelfiles, as clients sent them before they took them apart themselves.
//!
//! ```text
//! FROM tiny
//! PARAMETER temperature 0.5
//! SYSTEM """You are Mario."""
//! ```

use muster_core::{Code, Error};
use serde_json::{Map, Value, json};

/// What opens and closes a value of several lines.
const QUOTES: &str = "\"\"\"";

/// A Modelfile as the body of a `create`, without the model's name. Licenses are left out.
///
/// # Errors
/// `invalid_request`: an instruction that is none, or one without a value.
pub(super) fn body(text: &str) -> Result<Map<String, Value>, Error> {
    let mut body = Map::new();
    let mut parameters = Map::new();
    let mut rest = text;
    while let Some((word, after)) = instruction(rest) {
        let (value, next) =
            value(after).ok_or_else(|| wrong(format!("`{word}` has no end: {QUOTES} is missing")))?;
        rest = next;
        match word.to_ascii_lowercase().as_str() {
            "license" => {}
            word @ ("from" | "system" | "template") => drop(body.insert(word.to_owned(), value.into())),
            "parameter" => {
                let (name, value) = value
                    .split_once(char::is_whitespace)
                    .ok_or_else(|| wrong(format!("`PARAMETER {value}` has no value")))?;
                parameter(&mut parameters, name, value.trim());
            }
            word @ ("adapter" | "message") => drop(body.insert(format!("{word}s"), json!([value]))),
            _ => return Err(wrong(format!("`{word}` is no instruction of a Modelfile"))),
        }
    }
    if !parameters.is_empty() {
        body.insert("parameters".to_owned(), parameters.into());
    }
    Ok(body)
}

/// The next instruction, and what follows its word.
fn instruction(text: &str) -> Option<(&str, &str)> {
    let mut rest = text.trim_start();
    while rest.starts_with('#') {
        rest = rest.split_once('\n')?.1.trim_start();
    }
    let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
    (end > 0).then(|| rest.split_at(end))
}

/// The value at the beginning of a text, and the text after it; none if its end is missing.
fn value(text: &str) -> Option<(String, &str)> {
    let text = text.trim_start_matches([' ', '\t']);
    if let Some(quoted) = text.strip_prefix(QUOTES) {
        let (value, rest) = quoted.split_once(QUOTES)?;
        return Some((value.to_owned(), rest));
    }
    let (line, rest) = text.split_once('\n').unwrap_or((text, ""));
    let line = line.trim();
    let plain = serde_json::from_str::<String>(line);
    Some((plain.unwrap_or_else(|_| line.to_owned()), rest))
}

/// A parameter that is given again becomes a list (`stop`).
fn parameter(parameters: &mut Map<String, Value>, name: &str, text: &str) {
    let value = serde_json::from_str(text).unwrap_or_else(|_| text.into());
    match parameters.get_mut(name) {
        Some(Value::Array(values)) => values.push(value),
        Some(first) => *first = json!([first.take(), value]),
        None => drop(parameters.insert(name.to_owned(), value)),
    }
}

fn wrong(message: String) -> Error {
    Code::InvalidRequest.error(message).with_param("modelfile")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_become_fields() {
        let text = "# mine\nFROM tiny:latest\nPARAMETER temperature 0.5\nPARAMETER stop \"a b\"\nparameter stop c\n\
                    SYSTEM \"\"\"You are\nMario.\"\"\"\nTEMPLATE {{ messages }}\nLICENSE \"\"\"MIT\"\"\"\n";
        assert_eq!(
            Value::from(body(text).unwrap()),
            json!({
                "from": "tiny:latest",
                "parameters": {"temperature": 0.5, "stop": ["a b", "c"]},
                "system": "You are\nMario.",
                "template": "{{ messages }}",
            })
        );
        assert_eq!(body("FROM x").unwrap()["from"], "x");
        assert_eq!(body("  \n# nothing").unwrap(), Map::new());
    }

    #[test]
    fn what_is_no_modelfile_is_refused() {
        for text in ["FORM tiny", "SYSTEM \"\"\"open", "PARAMETER stop"] {
            assert_eq!(body(text).unwrap_err().code, Code::InvalidRequest, "{text}");
        }
    }
}
