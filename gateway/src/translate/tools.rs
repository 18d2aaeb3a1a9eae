//! Tools and tool choice in OpenAI's form.

use muster_core::{Code, Error};
use muster_proto::v1::{Tool, ToolChoice, ToolChoiceMode, tool_choice};

use super::{
    object::{Field, Kind, Object},
    read::{Fields, Shape},
};

/// The tools of a body.
#[derive(Debug)]
pub(crate) struct Tools(pub(crate) Vec<Tool>);

impl Fields<'_> for Tools {
    fn take_from(object: &mut Object<'_>) -> Result<Self, Error> {
        tools(object).map(Self)
    }

    fn describe(shape: &mut Shape) {
        shape.field::<Option<Vec<Field<'_>>>>("tools", "Functions the model may call.");
    }
}

/// Takes `tools` out of `body`.
pub(crate) fn tools(body: &mut Object<'_>) -> Result<Vec<Tool>, Error> {
    for old in ["functions", "function_call"] {
        if let Some(field) = body.take(old) {
            let error =
                Code::UnsupportedByRuntime.error(format!("`{old}` is OpenAI's old form: use `tools`"));
            return Err(error.with_param(field.path()));
        }
    }
    match body.take("tools") {
        Some(field) => field.list()?.iter().map(tool).collect(),
        None => Ok(Vec::new()),
    }
}

fn tool(field: &Field<'_>) -> Result<Tool, Error> {
    let mut tool = field.object()?;
    if let Some(kind) = tool.take("type")
        && kind.string()? != "function"
    {
        return Err(kind.wrong("must be `function`"));
    }
    // Responses has the function's fields beside the type.
    let mut function = match tool.take("function") {
        Some(field) => field.object()?,
        None if tool.peek("name").is_some() => tool,
        None => tool.need("function")?.object()?,
    };
    let name = function.need("name")?;
    let text = name.string()?;
    if text.is_empty() {
        return Err(name.wrong("must not be empty"));
    }
    let description = function
        .take("description")
        .map(|field| field.string())
        .transpose()?;
    let parameters = match function.take("parameters") {
        Some(field) if field.kind() == Kind::Object => field.json(),
        Some(field) => return Err(field.want("a JSON schema")),
        None => String::new(),
    };
    let strict = function.take("strict").map(|field| field.bool()).transpose()?;
    Ok(Tool {
        name: text,
        description: description.unwrap_or_default(),
        parameters_json: parameters,
        strict,
    })
}

/// Takes `tool_choice` out of `body` and checks it against `tools`.
pub(crate) fn tool_choice(body: &mut Object<'_>, tools: &[Tool]) -> Result<Option<ToolChoice>, Error> {
    let Some(field) = body.take("tool_choice") else {
        return Ok(None);
    };
    let kind = match field.kind() {
        Kind::String => word(&field)?,
        Kind::Object => named(&field, tools)?,
        Kind::Null | Kind::Bool | Kind::Number | Kind::Array => {
            return Err(field.want("a string or an object"));
        }
    };
    let required = tool_choice::Kind::Mode(ToolChoiceMode::Required.into());
    if tools.is_empty() && kind == required {
        return Err(field.wrong("asks for a call, but there are no `tools`"));
    }
    Ok(Some(ToolChoice { kind: Some(kind) }))
}

fn word(field: &Field<'_>) -> Result<tool_choice::Kind, Error> {
    let mode = match field.string()?.as_str() {
        "auto" => ToolChoiceMode::Auto,
        "none" => ToolChoiceMode::None,
        "required" => ToolChoiceMode::Required,
        _ => return Err(field.wrong("must be `auto`, `none`, `required` or a function")),
    };
    Ok(tool_choice::Kind::Mode(mode.into()))
}

fn named(field: &Field<'_>, tools: &[Tool]) -> Result<tool_choice::Kind, Error> {
    let mut choice = field.object()?;
    if let Some(kind) = choice.take("type")
        && kind.string()? != "function"
    {
        return Err(kind.wrong("must be `function`"));
    }
    let name = match choice.take("function") {
        Some(function) => function.object()?.need("name")?,
        None if choice.peek("name").is_some() => choice.need("name")?,
        None => choice.need("function")?,
    };
    let text = name.string()?;
    if tools.iter().any(|tool| tool.name == text) {
        return Ok(tool_choice::Kind::Function(text));
    }
    Err(name.wrong("names none of the `tools`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOLS: &str =
        r#""tools": [{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}}}]"#;

    fn read(choice: &str) -> Result<Option<ToolChoice>, Error> {
        let text = format!("{{{TOOLS}, \"tool_choice\": {choice}}}");
        let mut body = Object::body(&text).unwrap();
        let tools = tools(&mut body)?;
        assert_eq!(tools[0].parameters_json, r#"{"b": 1, "a": 2}"#);
        tool_choice(&mut body, &tools)
    }

    #[test]
    fn a_choice_is_a_word_or_one_of_the_tools() {
        let kind = |choice| read(choice).unwrap().unwrap().kind.unwrap();
        assert_eq!(
            kind("\"required\""),
            tool_choice::Kind::Mode(ToolChoiceMode::Required.into())
        );
        let named = r#"{"type": "function", "function": {"name": "f"}}"#;
        assert_eq!(kind(named), tool_choice::Kind::Function("f".into()));
        let other = r#"{"type": "function", "function": {"name": "g"}}"#;
        assert_eq!(
            read(other).unwrap_err().param.unwrap_or_default(),
            "tool_choice.function.name"
        );
        assert_eq!(
            read("\"maybe\"").unwrap_err().param.unwrap_or_default(),
            "tool_choice"
        );
    }

    #[test]
    fn what_is_wrong_in_a_tool_is_named() {
        let mut body = Object::body(r#"{"tools": [{"type": "function", "function": {"name": 3}}]}"#).unwrap();
        assert_eq!(
            tools(&mut body).unwrap_err().param.unwrap_or_default(),
            "tools[0].function.name"
        );
        let mut body = Object::body(r#"{"functions": []}"#).unwrap();
        assert_eq!(tools(&mut body).unwrap_err().code, Code::UnsupportedByRuntime);
    }
}
