//! Parameters of requests in the document, from their tables (`muster_proto::parameters`).
//!
//! A body that is defined (`translate::read`) has them by [`describe`]. A type that is only shown has one field of a type below; [`spread`] puts
//! the parameters in its place.

use std::borrow::Cow;

use muster_proto::parameters::{Kind, Parameter, SAMPLING};
use serde::Serialize;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        Components, KnownFormat, Ref, RefOr, Schema, SchemaFormat,
        schema::{Array, Object, ObjectBuilder, SchemaType, Type},
    },
};

use super::read::Shape;

/// How tokens are to be chosen, with the ranges of llama.cpp's samplers.
#[derive(Serialize)]
pub(crate) struct LlamaCppSamplingAsked;

/// How tokens are chosen.
#[derive(Serialize)]
pub(crate) struct SamplingShown;

/// Whose ranges a schema has, and whether the parameters may be absent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    OpenAi,
    LlamaCpp,
    Shown,
}

macro_rules! fields {
    ($type:ty, $form:expr) => {
        impl PartialSchema for $type {
            fn schema() -> RefOr<Schema> {
                let mut object = ObjectBuilder::new();
                for parameter in SAMPLING.iter() {
                    object = object.property(parameter.name, field(parameter, $form));
                    // Not every engine shows its lists.
                    if $form == Form::Shown && !matches!(parameter.kind, Kind::Words { .. }) {
                        object = object.required(parameter.name);
                    }
                }
                object.into()
            }
        }

        impl ToSchema for $type {}
    };
}

fields!(LlamaCppSamplingAsked, Form::LlamaCpp);
fields!(SamplingShown, Form::Shown);

/// Adds the parameters to a body, with OpenAI's ranges.
pub(super) fn describe(shape: &mut Shape) {
    for parameter in SAMPLING.iter() {
        shape.property(parameter.name, field(parameter, Form::OpenAi));
    }
}

fn field<M>(parameter: &Parameter<M>, form: Form) -> Schema {
    let of = |kind: Type| match form {
        Form::Shown => SchemaType::Type(kind),
        Form::OpenAi | Form::LlamaCpp => SchemaType::Array(vec![kind, Type::Null]),
    };
    let object = ObjectBuilder::new().description(Some(parameter.about));
    let object = match parameter.kind {
        Kind::Float { range, openai, above } => {
            let (low, high) = if form == Form::OpenAi { openai } else { range };
            let least = Some(low).filter(|low| *low > f64::from(f32::MIN));
            object
                .schema_type(of(Type::Number))
                .format(Some(SchemaFormat::KnownFormat(KnownFormat::Double)))
                .minimum(least.filter(|_| !above))
                .exclusive_minimum(least.filter(|_| above))
                .maximum(Some(high).filter(|high| *high < f64::from(f32::MAX)))
        }
        Kind::Int { range: (low, high) } => {
            let narrow = i32::try_from(low).is_ok() && i32::try_from(high).is_ok();
            let format = if narrow {
                KnownFormat::Int32
            } else {
                KnownFormat::Int64
            };
            object
                .schema_type(of(Type::Integer))
                .format(Some(SchemaFormat::KnownFormat(format)))
                .minimum(Some(low).filter(|low| i32::try_from(*low).is_ok_and(|low| low > i32::MIN)))
                .maximum(Some(high).filter(|high| *high < i32::MAX.into()))
        }
        Kind::Bool => object.schema_type(of(Type::Boolean)),
        Kind::Words { .. } => {
            let word = ObjectBuilder::new().schema_type(Type::String);
            let mut list = Array::new(Object::from(word));
            list.schema_type = of(Type::Array);
            list.description = Some(parameter.about.to_owned());
            return Schema::Array(list);
        }
    };
    Schema::Object(object.build())
}

/// Puts the parameters themselves where a body has a field of one of the types above.
pub(crate) fn spread(components: &mut Components) {
    let names: [Cow<'static, str>; 2] = [LlamaCppSamplingAsked::name(), SamplingShown::name()];
    for name in names {
        let Some(RefOr::T(Schema::Object(table))) = components.schemas.remove(name.as_ref()) else {
            continue;
        };
        let place = Ref::from_schema_name(name).ref_location;
        for schema in components.schemas.values_mut() {
            let RefOr::T(Schema::Object(body)) = schema else {
                continue;
            };
            let is_place =
                |field: &RefOr<Schema>| matches!(field, RefOr::Ref(to) if to.ref_location == place);
            let held = body.properties.iter().find(|(_, field)| is_place(field));
            if let Some(held) = held.map(|(name, _)| name.clone()) {
                body.properties.remove(&held);
                body.required.retain(|name| *name != held);
                body.properties.extend(table.properties.clone());
                body.required.extend(table.required.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_proto::settings::SETTINGS;
    use serde_json::Value;

    fn schemas() -> Value {
        let document = crate::openapi::document(crate::dialects::routes());
        serde_json::to_value(document).unwrap()["components"]["schemas"].clone()
    }

    #[test]
    fn every_parameter_is_in_the_document_wherever_it_is_taken_or_shown() {
        let schemas = schemas();
        for table in ["LlamaCppSamplingAsked", "SamplingShown"] {
            assert_eq!(schemas[table], Value::Null, "it is spread");
        }
        for body in [
            "ChatRequest",
            "CompletionRequest",
            "ResponseRequest",
            "MessageRequest",
            "OllamaOptions",
        ] {
            for parameter in super::SAMPLING.iter() {
                let field = &schemas[body]["properties"][parameter.name];
                assert_eq!(
                    field["description"], parameter.about,
                    "{body}: {}",
                    parameter.name
                );
            }
        }
        let range = |body: &str, name: &str| schemas[body]["properties"][name]["maximum"].as_f64();
        assert_eq!(range("ChatRequest", "temperature"), Some(2.0));
        assert_eq!(range("ChatRequest", "top_p"), Some(1.0));
        let shown = schemas["GenerationSettings"]["required"].as_array().unwrap();
        assert!(shown.contains(&"temperature".into()) && !shown.contains(&"dry_sequence_breakers".into()));
    }

    #[test]
    fn every_setting_that_a_load_may_set_is_in_the_document() {
        let body = &schemas()["AdminLoad"]["properties"];
        for name in SETTINGS.iter().flat_map(|setting| setting.load) {
            assert!(body[name].is_object(), "{name}");
        }
    }
}
