//! Request parameters in the OpenAPI document, from their tables (`muster_proto::parameters`).
//!
//! A body that is defined (`translate::read`) has them by [`describe`]. An answer's type has one field of the type below; [`spread`] puts the
//! parameters in its place.

use muster_proto::parameters::{Kind, Parameter, SAMPLING};
use serde::Serialize;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        Components, KnownFormat, Ref, RefOr, Schema, SchemaFormat,
        schema::{Array, Object, ObjectBuilder, SchemaType, Type},
    },
};

use super::{read::Shape, sampling::Ranges};

/// The sampling parameters that an answer shows.
#[derive(Serialize)]
pub(crate) struct SamplingShown;

/// Whether the parameters are asked for, within whose ranges, and may be absent; or are shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Asked(Ranges),
    Shown,
}

impl PartialSchema for SamplingShown {
    fn schema() -> RefOr<Schema> {
        let mut object = ObjectBuilder::new();
        for parameter in SAMPLING.iter() {
            object = object.property(parameter.name, field(parameter, Form::Shown));
            // Not every engine shows its lists.
            if !matches!(parameter.kind, Kind::Words { .. }) {
                object = object.required(parameter.name);
            }
        }
        object.into()
    }
}

impl ToSchema for SamplingShown {}

/// Adds the parameters to a body.
pub(super) fn describe(shape: &mut Shape, ranges: Ranges) {
    for parameter in SAMPLING.iter() {
        shape.property(parameter.name, field(parameter, Form::Asked(ranges)));
    }
}

fn field<M>(parameter: &Parameter<M>, form: Form) -> Schema {
    let of = |kind: Type| match form {
        Form::Shown => SchemaType::Type(kind),
        Form::Asked(_) => SchemaType::Array(vec![kind, Type::Null]),
    };
    let object = ObjectBuilder::new().description(Some(parameter.about));
    let object = match parameter.kind {
        Kind::Float { range, openai, above } => {
            let (low, high) = if form == Form::Asked(Ranges::OpenAi) {
                openai
            } else {
                range
            };
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

/// Puts the parameters themselves where a body has a [`SamplingShown`].
pub(crate) fn spread(components: &mut Components) {
    let name = SamplingShown::name();
    let Some(RefOr::T(Schema::Object(table))) = components.schemas.remove(name.as_ref()) else {
        return;
    };
    let place = Ref::from_schema_name(name).ref_location;
    for schema in components.schemas.values_mut() {
        let RefOr::T(Schema::Object(body)) = schema else {
            continue;
        };
        let is_place = |field: &RefOr<Schema>| matches!(field, RefOr::Ref(to) if to.ref_location == place);
        let held = body.properties.iter().find(|(_, field)| is_place(field));
        if let Some(held) = held.map(|(name, _)| name.clone()) {
            body.properties.remove(&held);
            body.required.retain(|name| *name != held);
            body.properties.extend(table.properties.clone());
            body.required.extend(table.required.clone());
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
        assert_eq!(schemas["SamplingShown"], Value::Null, "it is spread");
        for body in [
            "ChatRequest",
            "CompletionRequest",
            "ResponseRequest",
            "MessageRequest",
            "OllamaOptions",
            "LlamaCppCompletionRequest",
            "LlamaCppInfillRequest",
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
