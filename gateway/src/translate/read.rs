//! Bodies of requests, each defined once: a struct whose fields give its reader with every error, and its schema in the document.
//!
//! ```text
//!                                            ┌─► Fields::take_from  reads an object, names the field at fault
//!  body! { struct { ..group, name: Type } } ─┤
//!                                            └─► ToSchema       what the document says of it
//! ```
//!
//! What a field may hold is its type's to know ([`Read`]): how it is read, and how it is shown. What it means is the translation's.

use std::marker::PhantomData;

use muster_proto::{Code, v1::ErrorInfo};
use serde_json::Value;
use utoipa::{
    ToSchema,
    openapi::{
        KnownFormat, RefOr, Schema, SchemaFormat,
        schema::{Array, ObjectBuilder, OneOf, SchemaType, Type},
    },
};

use super::object::{self, Field, Object, invalid};

/// Types of the document, by name.
pub(crate) type Schemas = Vec<(String, RefOr<Schema>)>;

/// What a field may hold.
pub(crate) trait Read<'a>: Sized {
    /// Whether the document says that it must be there.
    const REQUIRED: bool = true;

    /// # Errors
    /// What is wrong with it.
    fn read(field: &Field<'a>) -> Result<Self, ErrorInfo>;

    /// Takes it out of `object`, by the first of its names that is there.
    ///
    /// # Errors
    /// As [`Self::read`]; or it is missing.
    fn take(object: &mut Object<'a>, names: &[&str]) -> Result<Self, ErrorInfo> {
        match object.take_any(names) {
            Some(field) => Self::read(&field),
            None => Err(invalid(&object.path_of(names[0]), "is required")),
        }
    }

    /// As the document shows it.
    fn schema() -> RefOr<Schema>;

    /// The types that its schema refers to.
    fn referred(_: &mut Schemas) {}
}

/// Fields that stand together in an object: a body, or a group that several bodies have.
pub(crate) trait Fields<'a>: Sized {
    /// # Errors
    /// What is wrong with one of them.
    fn take_from(object: &mut Object<'a>) -> Result<Self, ErrorInfo>;

    /// Adds them to what the document says.
    fn describe(shape: &mut Shape);

    /// Reads a request that has no other fields, or whose other fields mean nothing.
    ///
    /// # Errors
    /// `invalid_json`, or `invalid_request` naming the field.
    fn body(text: &'a [u8]) -> Result<Self, ErrorInfo> {
        Self::take_from(&mut Object::body(object::text(text)?)?)
    }
}

/// A schema of an object as it grows.
#[derive(Default)]
pub(crate) struct Shape {
    pub(crate) object: ObjectBuilder,
    pub(crate) referred: Schemas,
}

impl Shape {
    pub(crate) fn field<T: Read<'static>>(&mut self, name: &str, about: &str) {
        let mut object = std::mem::take(&mut self.object).property(name, described(T::schema(), about));
        if T::REQUIRED {
            object = object.required(name);
        }
        self.object = object;
        T::referred(&mut self.referred);
    }

    #[allow(
        deprecated,
        reason = "as the derive does: what shows documents knows `example`"
    )]
    pub(crate) fn whole(self, about: &str, example: Option<Value>) -> RefOr<Schema> {
        let object = self.object.schema_type(Type::Object);
        object.description(Some(lines(about))).example(example).into()
    }
}

/// The text of a comment.
fn lines(about: &str) -> String {
    let lines: Vec<_> = about.trim().lines().map(str::trim).collect();
    lines.join("\n")
}

fn described(schema: RefOr<Schema>, about: &str) -> RefOr<Schema> {
    let text = lines(about);
    match schema {
        RefOr::Ref(mut to) => {
            to.description = text;
            RefOr::Ref(to)
        }
        RefOr::T(mut schema) => {
            match &mut schema {
                Schema::Object(object) => object.description = Some(text),
                Schema::Array(list) => list.description = Some(text),
                Schema::OneOf(either) => match either.items.last_mut() {
                    Some(RefOr::Ref(to)) => to.description = text,
                    Some(RefOr::T(_)) | None => either.description = Some(text),
                },
                Schema::AllOf(_) | Schema::AnyOf(_) | _ => {}
            }
            RefOr::T(schema)
        }
    }
}

/// The name of a field as JSON has it.
pub(crate) fn name(identifier: &str) -> &str {
    identifier.strip_prefix("r#").unwrap_or(identifier)
}

/// Defines bodies, or groups of fields: a comment is what the document says, `..` a group that stands here, `a | b` a field with a further name.
macro_rules! body {
    ($(
        $(#[doc = $doc:literal])*
        $(#[example $example:tt])?
        $vis:vis struct $name:ident $(<$life:lifetime>)? as $shown:ident {
            $(..$group:ident: $group_type:ty,)*
            $(
                $(#[doc = $about:literal])*
                $field:ident $(| $alias:ident)*: $type:ty,
            )*
        }
    )*) => {$(
        $(#[doc = $doc])*
        #[derive(Debug)]
        $vis struct $name $(<$life>)? {
            $($vis $group: $group_type,)*
            $($(#[doc = $about])* $vis $field: $type,)*
        }

        impl<'x $(: $life)?, $($life)?> $crate::translate::read::Fields<'x> for $name $(<$life>)? {
            fn take_from(
                object: &mut $crate::translate::object::Object<'x>,
            ) -> Result<Self, muster_proto::v1::ErrorInfo> {
                use $crate::translate::read::{Read, name};
                Ok(Self {
                    $($group: $crate::translate::read::Fields::take_from(object)?,)*
                    $($field: Read::take(object, &[name(stringify!($field)), $(name(stringify!($alias)),)*])?,)*
                })
            }

            fn describe(shape: &mut $crate::translate::read::Shape) {
                $(<$group_type as $crate::translate::read::Fields<'static>>::describe(shape);)*
                $(shape.field::<$type>(
                    $crate::translate::read::name(stringify!($field)),
                    concat!($($about, "\n"),*),
                );)*
            }
        }

        impl<'x $(: $life)?, $($life)?> $crate::translate::read::Read<'x> for $name $(<$life>)? {
            fn read(
                field: &$crate::translate::object::Field<'x>,
            ) -> Result<Self, muster_proto::v1::ErrorInfo> {
                $crate::translate::read::Fields::take_from(&mut field.object()?)
            }

            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                utoipa::openapi::Ref::from_schema_name(stringify!($shown)).into()
            }

            fn referred(out: &mut $crate::translate::read::Schemas) {
                $crate::translate::read::refer::<Self>(out);
            }
        }

        impl $(<$life>)? utoipa::PartialSchema for $name $(<$life>)? {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                let mut shape = $crate::translate::read::Shape::default();
                <Self as $crate::translate::read::Fields<'static>>::describe(&mut shape);
                #[allow(unused_mut, unused_assignments, reason = "not every body has an example")]
                let mut example: Option<serde_json::Value> = None;
                $(example = Some(serde_json::json!($example));)?
                shape.whole(concat!($($doc, "\n"),*), example)
            }
        }

        impl $(<$life>)? utoipa::ToSchema for $name $(<$life>)? {
            fn name() -> std::borrow::Cow<'static, str> {
                stringify!($shown).into()
            }

            fn schemas(out: &mut $crate::translate::read::Schemas) {
                let mut shape = $crate::translate::read::Shape::default();
                <Self as $crate::translate::read::Fields<'static>>::describe(&mut shape);
                out.extend(shape.referred);
            }
        }
    )*};
}

pub(crate) use body;

/// Adds a type and what it refers to.
pub(crate) fn refer<T: ToSchema>(out: &mut Schemas) {
    out.push((T::name().into_owned(), T::schema()));
    T::schemas(out);
}

fn plain(kind: Type) -> RefOr<Schema> {
    ObjectBuilder::new().schema_type(kind).into()
}

impl Read<'_> for String {
    fn read(field: &Field<'_>) -> Result<Self, ErrorInfo> {
        field.string()
    }

    fn schema() -> RefOr<Schema> {
        plain(Type::String)
    }
}

impl Read<'_> for bool {
    fn read(field: &Field<'_>) -> Result<Self, ErrorInfo> {
        field.bool()
    }

    fn schema() -> RefOr<Schema> {
        plain(Type::Boolean)
    }
}

/// A whole number between two others, both included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Int<const LOW: i32, const HIGH: i32 = { i32::MAX }>(pub(crate) i32);

impl<const LOW: i32, const HIGH: i32> Read<'_> for Int<LOW, HIGH> {
    fn read(field: &Field<'_>) -> Result<Self, ErrorInfo> {
        field.i32(LOW, HIGH).map(Self)
    }

    fn schema() -> RefOr<Schema> {
        let number = ObjectBuilder::new()
            .schema_type(Type::Integer)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int32)))
            .minimum(Some(LOW))
            .maximum(Some(HIGH).filter(|high| *high < i32::MAX));
        number.into()
    }
}

impl<'a, T: Read<'a>> Read<'a> for Option<T> {
    const REQUIRED: bool = false;

    fn read(field: &Field<'a>) -> Result<Self, ErrorInfo> {
        T::read(field).map(Some)
    }

    fn take(object: &mut Object<'a>, names: &[&str]) -> Result<Self, ErrorInfo> {
        let field = object.take_any(names);
        field.map(|field| T::read(&field)).transpose()
    }

    fn schema() -> RefOr<Schema> {
        or_null(T::schema())
    }

    fn referred(out: &mut Schemas) {
        T::referred(out);
    }
}

fn or_null(schema: RefOr<Schema>) -> RefOr<Schema> {
    let nullable = |kind: &mut SchemaType| {
        if let SchemaType::Type(one) = kind {
            *kind = SchemaType::Array(vec![one.clone(), Type::Null]);
        }
    };
    match schema {
        RefOr::T(Schema::Object(mut object)) => {
            nullable(&mut object.schema_type);
            RefOr::T(Schema::Object(object))
        }
        RefOr::T(Schema::Array(mut list)) => {
            nullable(&mut list.schema_type);
            RefOr::T(Schema::Array(list))
        }
        other @ (RefOr::Ref(_) | RefOr::T(_)) => {
            let mut either = OneOf::new();
            either.items = vec![plain(Type::Null), other];
            RefOr::T(Schema::OneOf(either))
        }
    }
}

impl<'a, T: Read<'a>> Read<'a> for Vec<T> {
    fn read(field: &Field<'a>) -> Result<Self, ErrorInfo> {
        field.list()?.iter().map(T::read).collect()
    }

    fn schema() -> RefOr<Schema> {
        RefOr::T(Schema::Array(Array::new(T::schema())))
    }

    fn referred(out: &mut Schemas) {
        T::referred(out);
    }
}

/// Strings, or one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Strings(pub(crate) Vec<String>);

impl Read<'_> for Strings {
    fn read(field: &Field<'_>) -> Result<Self, ErrorInfo> {
        field.strings().map(Self)
    }

    fn schema() -> RefOr<Schema> {
        <Vec<String> as Read<'_>>::schema()
    }
}

/// Whatever it is: the translation decides.
impl<'x: 'a, 'a> Read<'x> for Field<'a> {
    fn read(field: &Field<'x>) -> Result<Self, ErrorInfo> {
        Ok(field.clone())
    }

    fn schema() -> RefOr<Schema> {
        let any = ObjectBuilder::new().schema_type(SchemaType::AnyValue);
        any.into()
    }
}

/// A value as it is written, null too, which says that something is to go; in the document a `T`.
#[derive(Debug)]
pub(crate) struct Kept<T>(pub(crate) Option<Value>, PhantomData<T>);

impl<'a, T: Read<'a>> Read<'a> for Kept<T> {
    const REQUIRED: bool = false;

    fn read(field: &Field<'a>) -> Result<Self, ErrorInfo> {
        let value = serde_json::from_str(&field.json());
        let value = value.map_err(|error| Code::InvalidJson.error(error.to_string()))?;
        Ok(Self(Some(value), PhantomData))
    }

    fn take(object: &mut Object<'a>, names: &[&str]) -> Result<Self, ErrorInfo> {
        let mut given = names.iter().filter_map(|name| object.remove(name));
        given
            .next()
            .map_or(Ok(Self(None, PhantomData)), |field| Self::read(&field))
    }

    fn schema() -> RefOr<Schema> {
        or_null(T::schema())
    }

    fn referred(out: &mut Schemas) {
        T::referred(out);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    body! {
        /// Something to eat.
        #[example {"name": "soup"}]
        struct Meal<'a> as TestMeal {
            ..size: Size,
            /// What it is.
            name | title: String,
            /// Who eats,
            /// and when.
            guests: Option<Vec<Guest>>,
            /// Anything.
            notes: Option<Field<'a>>,
            /// The price; null takes it away.
            price: Kept<Int<1, 9>>,
        }

        /// Who eats.
        struct Guest as TestGuest {
            /// Whether at noon.
            r#type: bool,
        }

        /// How much it is.
        struct Size as TestSize {
            /// In grams.
            weight: Option<Int<0>>,
        }
    }

    fn fault(text: &str) -> (String, String) {
        let error = Meal::body(text.as_bytes()).unwrap_err();
        (error.param, error.message)
    }

    #[test]
    fn a_body_is_read_by_its_definition_and_faults_have_their_path() {
        let text =
            r#"{"title": "soup", "guests": [{"type": true}], "weight": 3.0, "notes": 1.50, "price": null}"#;
        let mut object = Object::body(text).unwrap();
        let meal = Meal::take_from(&mut object).unwrap();
        assert_eq!((meal.name.as_str(), meal.size.weight.unwrap().0), ("soup", 3));
        assert!(meal.guests.unwrap()[0].r#type);
        assert_eq!(
            (meal.notes.unwrap().json(), meal.price.0),
            ("1.50".into(), Some(Value::Null))
        );
        assert_eq!(object.rest(), "");
        assert_eq!(fault("{}").1, "`name` is required");
        let wrong = r#"{"name": "a", "guests": [{"type": 1}]}"#;
        assert_eq!(fault(wrong).1, "`guests[0].type` must be a boolean, not a number");
        assert_eq!(fault(r#"{"name": "a", "weight": -1}"#).0, "weight");
    }

    #[test]
    fn the_document_says_of_a_body_what_its_definition_says() {
        let meal = serde_json::to_value(<Meal<'_> as utoipa::PartialSchema>::schema()).unwrap();
        let expected = json!({
            "type": "object",
            "description": "Something to eat.",
            "required": ["name"],
            "properties": {
                "weight": {"type": ["integer", "null"], "format": "int32", "minimum": 0, "description": "In grams."},
                "name": {"type": "string", "description": "What it is."},
                "guests": {
                    "type": ["array", "null"],
                    "items": {"$ref": "#/components/schemas/TestGuest"},
                    "description": "Who eats,\nand when."
                },
                "notes": {"description": "Anything."},
                "price": {
                    "type": ["integer", "null"], "format": "int32", "minimum": 1, "maximum": 9,
                    "description": "The price; null takes it away."
                }
            },
            "example": {"name": "soup"}
        });
        assert_eq!(meal, expected);
        let mut referred = Schemas::new();
        <Meal<'_> as ToSchema>::schemas(&mut referred);
        assert_eq!(referred[0].0, "TestGuest");
    }
}
