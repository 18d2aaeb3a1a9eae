//! The OpenAPI 3.1 document of every route, and a page that shows it ([`page`]). Both are made of what is in the binary: no outside assets.
//!
//! Architecture invariant: knows no dialect; it is given the routes.
//!
//! The document is made of the routes themselves ([`crate::web::route`]). What requests look like is said where they are defined, in each dialect's
//! `requests`; what answers look like, where they are written, or in each dialect's `schema`.

pub(crate) mod page;

use utoipa::{
    OpenApi,
    openapi::Tag,
    openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme},
};

use crate::{
    translate::{parameters, read::Schemas},
    web::route::{Dialect, Route},
};

/// What the routes are added to.
#[derive(Debug, OpenApi)]
#[openapi(
    info(
        title = "Muster",
        description = "Many local models behind one address. Routes shown under `/v1` stand under `/api/v1`, `/v0` and `/api/v0` as well.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    security((), ("bearer" = []), ("x-api-key" = []))
)]
struct Whole;

/// The document of these routes.
pub(crate) fn document(routes: impl Iterator<Item = (&'static Dialect, Route)>) -> utoipa::openapi::OpenApi {
    let mut whole = Whole::openapi();
    muster_proto::VERSION.clone_into(&mut whole.info.version);
    let components = whole.components.get_or_insert_default();
    let mut tags: Vec<Tag> = Vec::new();
    for (dialect, route) in routes {
        let operation = route.operation(dialect);
        if tags.last().is_none_or(|tag| tag.name != dialect.name) {
            tags.push(Tag::new(dialect.name));
        }
        for path in route.shown_paths() {
            let mut operation = operation.clone();
            operation.operation_id = Some(operation_id(&route, &path));
            whole
                .paths
                .add_path_operation(path, vec![route.shown_method.clone()], operation);
        }
        let mut schemas = Schemas::new();
        route.schemas(dialect, &mut schemas);
        components.schemas.extend(schemas);
    }
    parameters::spread(components);
    whole.tags = Some(tags);
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
    let key = ApiKey::Header(ApiKeyValue::new("x-api-key"));
    components.add_security_scheme("x-api-key", SecurityScheme::ApiKey(key));
    whole
}

/// An id of its own for each operation: handlers of several dialects have the same name.
fn operation_id(route: &Route, path: &str) -> String {
    let name = path.replace(|char: char| !char.is_ascii_alphanumeric(), "_");
    format!("{}{name}", route.method.as_str().to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::dialects;

    fn json() -> Value {
        serde_json::to_value(document(dialects::routes())).unwrap()
    }

    #[test]
    fn it_is_openapi_3_1_and_every_route_says_what_it_does() {
        let document = json();
        assert_eq!(document["openapi"], "3.1.0");
        assert_eq!(document["info"]["version"], muster_proto::VERSION);
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let said = operation["summary"]
                    .as_str()
                    .or(operation["description"].as_str());
                assert!(said.is_some_and(|said| !said.is_empty()), "{method} {path}");
                assert!(operation["responses"].is_object(), "{method} {path}");
            }
        }
    }

    #[test]
    fn every_operation_has_an_id_of_its_own() {
        let document = json();
        let operations = document["paths"].as_object().unwrap().values();
        let operations = operations.flat_map(|item| item.as_object().unwrap().values());
        let mut ids: Vec<_> = operations
            .map(|operation| operation["operationId"].as_str().unwrap())
            .collect();
        let all = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), all);
    }

    #[test]
    fn no_two_types_have_one_name() {
        let mut all = std::collections::HashMap::new();
        for (dialect, route) in dialects::routes() {
            let mut schemas = Schemas::new();
            route.schemas(dialect, &mut schemas);
            for (name, schema) in schemas {
                let schema = serde_json::to_value(schema).unwrap();
                let other = all.entry(name.clone()).or_insert_with(|| schema.clone());
                assert_eq!(*other, schema, "{name}");
            }
        }
        assert!(all.len() > 100, "{}", all.len());
    }

    #[test]
    fn every_reference_leads_somewhere() {
        fn references<'a>(value: &'a Value, out: &mut Vec<&'a str>) {
            match value {
                Value::Object(fields) => {
                    out.extend(fields.get("$ref").and_then(Value::as_str));
                    fields.values().for_each(|value| references(value, out));
                }
                Value::Array(items) => items.iter().for_each(|value| references(value, out)),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
        let document = json();
        let mut all = Vec::new();
        references(&document, &mut all);
        assert!(!all.is_empty());
        for reference in all {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
    }

    #[test]
    fn whatever_can_be_streamed_says_in_what_form() {
        let document = json();
        let mut streaming = Vec::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            let asked = &item["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"];
            let Some(schema) = asked.as_str() else { continue };
            let schema = document.pointer(schema.strip_prefix('#').unwrap()).unwrap();
            // Counting takes the body of what would be generated.
            if schema["properties"].get("stream").is_none() || path.ends_with("/count_tokens") {
                continue;
            }
            let forms = item["post"]["responses"]["200"]["content"].as_object().unwrap();
            let line_by_line = |form: &&str| forms.contains_key(*form);
            let form = ["text/event-stream", "application/x-ndjson"]
                .iter()
                .find(|form| line_by_line(form));
            assert!(
                forms.contains_key("application/json") && form.is_some(),
                "{path}: {forms:?}"
            );
            streaming.push(path.as_str());
        }
        assert!(streaming.contains(&"/v1/chat/completions") && streaming.contains(&"/v1/pull"));
    }

    /// Every body that is JSON, with where it stands.
    fn bodies(document: &Value) -> Vec<(String, &Value)> {
        let mut found = Vec::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let answers = operation["responses"].as_object().unwrap();
                let bodies = answers
                    .iter()
                    .map(|(status, answer)| (status.as_str(), &answer["content"]))
                    .chain([("request", &operation["requestBody"]["content"])]);
                for (which, content) in bodies {
                    if let Some(body) = content.get("application/json") {
                        found.push((format!("{method} {path} {which}"), &body["schema"]));
                    }
                }
            }
        }
        found
    }

    #[test]
    fn every_body_has_a_type() {
        // Nothing of the one is read; the other is the document itself.
        const FREE: [&str; 2] = ["post /props request", "get /openapi.json 200"];
        let document = json();
        let bodies = bodies(&document);
        assert!(bodies.len() > 100, "{}", bodies.len());
        let untyped: Vec<_> = bodies
            .iter()
            .filter(|(name, schema)| {
                !FREE.contains(&name.as_str()) && !schema.to_string().contains("\"$ref\"")
            })
            .collect();
        assert!(untyped.is_empty(), "{untyped:#?}");
    }

    #[test]
    fn every_example_is_of_its_type() {
        let document = json();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let mut examples = 0;
        for (name, schema) in schemas {
            let Some(example) = schema.get("example") else {
                continue;
            };
            let mut schema = schema.clone();
            schema["components"] = document["components"].clone();
            let validator = jsonschema::draft202012::new(&schema).unwrap();
            let wrong: Vec<_> = validator
                .iter_errors(example)
                .map(|error| error.to_string())
                .collect();
            assert!(wrong.is_empty(), "{name}: {wrong:?}");
            let named = schema["properties"].as_object().unwrap();
            for key in example.as_object().unwrap().keys() {
                assert!(named.contains_key(key), "{name}: {key}");
            }
            examples += 1;
        }
        assert!(examples > 20, "{examples}");
    }

    #[test]
    fn every_field_says_what_it_is() {
        fn fields<'a>(at: &str, schema: &'a Value, out: &mut Vec<(String, &'a Value)>) {
            match schema {
                Value::Object(parts) => {
                    let named = parts.get("properties").and_then(Value::as_object);
                    for (name, field) in named.into_iter().flatten() {
                        out.push((format!("{at}.{name}"), field));
                    }
                    parts.values().for_each(|part| fields(at, part, out));
                }
                Value::Array(items) => items.iter().for_each(|item| fields(at, item, out)),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
        /// What may be null says it of what it is otherwise.
        fn says(field: &Value) -> bool {
            let mut either = field["oneOf"].as_array().into_iter().flatten();
            field["description"].is_string() || either.any(says)
        }
        let document = json();
        let mut all = Vec::new();
        for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
            all.push((name.clone(), schema));
            fields(name, schema, &mut all);
        }
        assert!(all.len() > 300, "{}", all.len());
        let silent: Vec<_> = all
            .iter()
            // The tag of an enum says which of its variants it is.
            .filter(|(_, field)| field.get("enum").is_none() && field.get("const").is_none())
            .filter(|(_, field)| !says(field))
            .map(|(name, _)| name)
            .collect();
        assert!(silent.is_empty(), "{silent:#?}");
    }
}
