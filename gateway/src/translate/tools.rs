//! Reads tools and tool choice in OpenAI's form.

use muster_core::{Code, Error};
use muster_proto::v1::{Tool, ToolChoice, ToolChoiceMode, tool_choice};

use utoipa::openapi::{RefOr, Schema};

use super::{
    object::{self, Field, Kind, Object},
    read::{At, Fields, Read, Schemas, Shape, body, one_of, words},
};

body! {
    /// A tool that the model may call.
    struct ToolBody as ChatTool {
        /// The word `function`; may be omitted.
        r#type: Option<FunctionKind>,
        /// The function to call.
        function: Function,
    }

    /// A function that the model may call.
    struct Function as ChatFunction {
        /// Name by which the model calls the function.
        name: FunctionName,
        /// What the function does, for the model.
        description: Option<String>,
        /// JSON schema of the arguments.
        parameters: Option<Parameters>,
        /// Whether the arguments must follow `parameters` exactly.
        strict: Option<bool>,
    }

    /// The tools of a request, and how to use them.
    pub(crate) struct ToolUse<'a> as ToolUse {
        ..tools: Tools,
        /// Whether the model may, must or must not call functions: `auto`, `none`, `required`, or one function.
        tool_choice: Option<Choice<'a>>,
        /// Whether one answer may have several calls.
        parallel_tool_calls: Option<bool>,
    }

    /// The function to call.
    struct NamedChoice<'a> as ChatNamedTool {
        /// The word `function`; may be omitted.
        r#type: Option<FunctionKind>,
        /// The function to call.
        function: Option<Named<'a>>,
        /// Name of the function, in the form of Responses.
        name: Option<At<'a, String>>,
    }

    /// The name of a function.
    struct Named<'a> as ChatNamed {
        /// Name of a function in `tools`.
        name: At<'a, String>,
    }
}

words! {
    /// The `type` of a tool; only functions exist.
    struct FunctionKind: "function" => "`function`"
}

/// The tools of a body.
#[derive(Debug)]
pub(crate) struct Tools(pub(crate) Vec<Tool>);

impl Fields<'_> for Tools {
    fn take_from(object: &mut Object<'_>) -> Result<Self, Error> {
        for old in ["functions", "function_call"] {
            if let Some(field) = object.take(old) {
                let error =
                    Code::UnsupportedByRuntime.error(format!("`{old}` is OpenAI's old form: use `tools`"));
                return Err(error.with_param(field.path()));
            }
        }
        let tools = Option::<Vec<OneTool>>::find(object, &["tools"])?.unwrap_or_default();
        Ok(Self(tools.into_iter().map(|OneTool(tool)| tool).collect()))
    }

    fn describe(shape: &mut Shape) {
        shape.field::<Option<Vec<OneTool>>>("tools", "Functions the model may call.");
    }
}

struct OneTool(Tool);

impl Read<'_> for OneTool {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        let mut object = field.object()?;
        // Responses has the function's fields beside `type`.
        let beside = object.peek("function").is_none() && object.peek("name").is_some();
        let function = if beside {
            Option::<FunctionKind>::find(&mut object, &["type"])?;
            Function::take_from(&mut object)?
        } else {
            let ToolBody {
                r#type: None | Some(FunctionKind(_)),
                function,
            } = ToolBody::take_from(&mut object)?;
            function
        };
        Ok(Self(Tool {
            name: function.name.0,
            description: function.description.unwrap_or_default(),
            parameters_json: function.parameters.map_or(String::new(), |Parameters(json)| json),
            strict: function.strict,
        }))
    }

    fn schema() -> RefOr<Schema> {
        ToolBody::schema()
    }

    fn referred(out: &mut Schemas) {
        ToolBody::referred(out);
    }
}

#[derive(Debug)]
struct FunctionName(String);

impl Read<'_> for FunctionName {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        match field.string()? {
            name if name.is_empty() => Err(field.wrong("must not be empty")),
            name => Ok(Self(name)),
        }
    }

    fn schema() -> RefOr<Schema> {
        String::schema()
    }
}

/// The text of a JSON schema for an object.
#[derive(Debug)]
struct Parameters(String);

impl Read<'_> for Parameters {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        match field.kind() {
            Kind::Object => Ok(Self(field.json())),
            Kind::Null | Kind::Bool | Kind::Number | Kind::String | Kind::Array => {
                Err(field.want("a JSON schema"))
            }
        }
    }

    fn schema() -> RefOr<Schema> {
        Field::schema()
    }
}

/// Whether the model must call a function, and which.
#[derive(Debug)]
pub(crate) enum Choice<'a> {
    Mode(ToolChoiceMode),
    /// The function with this name.
    Named(At<'a, String>),
}

impl<'x: 'a, 'a> Read<'x> for Choice<'a> {
    fn read(field: &Field<'x>) -> Result<Self, Error> {
        match field.kind() {
            Kind::String => match field.string()?.as_str() {
                "auto" => Ok(Self::Mode(ToolChoiceMode::Auto)),
                "none" => Ok(Self::Mode(ToolChoiceMode::None)),
                "required" => Ok(Self::Mode(ToolChoiceMode::Required)),
                _ => Err(field.wrong("must be `auto`, `none`, `required` or a function")),
            },
            Kind::Object => {
                let NamedChoice {
                    r#type: None | Some(FunctionKind(_)),
                    function,
                    name,
                } = NamedChoice::read(field)?;
                let name = function.map(|Named { name }| name).or(name);
                let missing = || object::invalid(&format!("{}.function", field.path()), "is required");
                name.map(Self::Named).ok_or_else(missing)
            }
            Kind::Null | Kind::Bool | Kind::Number | Kind::Array => Err(field.want("a string or an object")),
        }
    }

    fn schema() -> RefOr<Schema> {
        one_of(vec![String::schema(), NamedChoice::schema()])
    }

    fn referred(out: &mut Schemas) {
        NamedChoice::referred(out);
    }
}

/// Checks a choice against the tools of the request.
pub(crate) fn tool_choice(choice: Option<Choice<'_>>, tools: &[Tool]) -> Result<Option<ToolChoice>, Error> {
    let kind = match choice {
        None => return Ok(None),
        Some(Choice::Mode(ToolChoiceMode::Required)) if tools.is_empty() => {
            let wrong = "asks for a call, but there are no `tools`";
            return Err(object::invalid("tool_choice", wrong));
        }
        Some(Choice::Mode(mode)) => tool_choice::Kind::Mode(mode.into()),
        Some(Choice::Named(name)) => {
            if !tools.iter().any(|tool| tool.name == name.value) {
                return Err(name.field.wrong("names none of the `tools`"));
            }
            tool_choice::Kind::Function(name.value)
        }
    };
    Ok(Some(ToolChoice { kind: Some(kind) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOLS: &str =
        r#""tools": [{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}}}]"#;

    fn read(choice: &str) -> Result<Option<ToolChoice>, Error> {
        let text = format!("{{{TOOLS}, \"tool_choice\": {choice}}}");
        let ToolUse {
            tools, tool_choice, ..
        } = ToolUse::body(text.as_bytes())?;
        assert_eq!(tools.0[0].parameters_json, r#"{"b": 1, "a": 2}"#);
        super::tool_choice(tool_choice, &tools.0)
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
        let fault = |text: &'static str| Tools::body(text.as_bytes()).unwrap_err();
        let error = fault(r#"{"tools": [{"type": "function", "function": {"name": 3}}]}"#);
        assert_eq!(error.param.as_deref(), Some("tools[0].function.name"));
        assert_eq!(fault(r#"{"functions": []}"#).code, Code::UnsupportedByRuntime);
    }
}
