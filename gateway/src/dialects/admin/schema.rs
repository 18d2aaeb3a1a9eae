//! The schema of a load's body, made from the table of settings. [`muster_proto::overrides`] reads the body.

use muster_core::runtime::Family;
use muster_proto::overrides::{Holds, KEYS, Key};
use serde_json::json;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        KnownFormat, RefOr, Schema, SchemaFormat,
        schema::{Object, ObjectBuilder, SchemaType, Type},
    },
};

/// Settings for a single load.
pub(super) struct LoadBody;

impl ToSchema for LoadBody {
    fn name() -> std::borrow::Cow<'static, str> {
        "AdminLoad".into()
    }
}

impl PartialSchema for LoadBody {
    fn schema() -> RefOr<Schema> {
        let replicas = integer(1, u32::MAX.into())
            .schema_type(Type::Integer)
            .description(Some("Replicas, all or none, at most the model's `replica_max`."));
        let body = ObjectBuilder::new()
            .description(Some(
                "Settings for one load (seed 001, Supported load override fields). They are gone with its unload; what is absent stays as defined.",
            ))
            .examples([json!({"replicas": 2, "gguf_n_ctx": 32768, "gguf_type_k": "q8_0"})])
            .property("replicas", replicas);
        let body = KEYS
            .iter()
            .fold(body, |body, key| body.property(key.name, field(key)));
        body.into()
    }
}

fn field(key: &Key) -> Object {
    let (kind, object) = match key.holds {
        Holds::Count { most, step } => {
            let least = u32::try_from(step).unwrap_or(u32::MAX);
            let steps = (least > 1).then_some(f64::from(least));
            // A bound as large as the type allows is not shown.
            let bound = i32::try_from(most).ok().filter(|most| *most < i32::MAX);
            let object = integer(least, most).multiple_of(steps);
            (Type::Integer, object.maximum(bound.map(f64::from)))
        }
        Holds::Bits => (Type::Integer, integer(2, 8).maximum(Some(8.0))),
        Holds::Share => (
            Type::Number,
            ObjectBuilder::new().minimum(Some(0.0)).maximum(Some(1.0)),
        ),
        Holds::Word(words) => {
            // In JSON schema, null must be among the enumerated values if it is allowed.
            let words = words.iter().map(|word| json!(word));
            let null = key.nullable.then_some(serde_json::Value::Null);
            (
                Type::String,
                ObjectBuilder::new().enum_values(Some(words.chain(null))),
            )
        }
        Holds::Name | Holds::Checkpoint | Holds::Quant | Holds::Text => (Type::String, ObjectBuilder::new()),
    };
    let kind = if key.nullable {
        SchemaType::Array(vec![kind, Type::Null])
    } else {
        SchemaType::Type(kind)
    };
    let whose = key.family().map(Family::name).unwrap_or_default();
    object
        .schema_type(kind)
        .description(Some(format!("{whose}: {}", key.about)))
        .build()
}

/// The schema of an integer from `least` to `most`.
fn integer(least: u32, most: u64) -> ObjectBuilder {
    let wide = most > u64::from(u32::MAX);
    let format = if wide {
        KnownFormat::Int64
    } else {
        KnownFormat::Int32
    };
    ObjectBuilder::new()
        .format(Some(SchemaFormat::KnownFormat(format)))
        .minimum(Some(f64::from(least)))
}
