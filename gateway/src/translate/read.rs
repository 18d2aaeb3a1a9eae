//! Definitions of request bodies: a struct whose fields make both the reader, with all its errors, and the schema in the OpenAPI document.
//!
//! ```text
//!                                            ┌─► Fields::take_from  reads an object, names the field at fault
//!  body! { struct { ..group, name: Type } } ─┤
//!                                            └─► ToSchema       what the document says of it
//! ```
//!
//! The type of a field ([`Read`]) decides how its value is read and how the document shows it. The translation decides what it means.

mod values;

use muster_core::Error;
use serde_json::Value;
use utoipa::{
    ToSchema,
    openapi::{
        RefOr, Schema,
        schema::{ObjectBuilder, Type},
    },
};

pub(crate) use self::values::{At, Int, Kept, Strings, Uint, one_of, plain, words};
use super::object::{self, Field, Object, invalid};

/// Types of the document, by name.
pub(crate) type Schemas = Vec<(String, RefOr<Schema>)>;

/// A type of a field's value.
pub(crate) trait Read<'a>: Sized {
    /// Whether the document marks the field as required.
    const REQUIRED: bool = true;

    /// Reads a value.
    ///
    /// # Errors
    /// What is wrong with it.
    fn read(field: &Field<'a>) -> Result<Self, Error>;

    /// Takes the field out of `object` by the first of its names that is present.
    ///
    /// # Errors
    /// As [`Self::read`]; or the field is missing.
    fn find(object: &mut Object<'a>, names: &[&str]) -> Result<Self, Error> {
        match object.take_any(names) {
            Some(field) => Self::read(&field),
            None => Err(invalid(&object.path_of(names[0]), "is required")),
        }
    }

    /// The schema of the value in the document.
    fn schema() -> RefOr<Schema>;

    /// Collects the types that the schema refers to.
    fn referred(_: &mut Schemas) {}
}

/// A set of fields of an object: a whole body, or a group that several bodies share.
pub(crate) trait Fields<'a>: Sized {
    /// Takes the fields out of `object`.
    ///
    /// # Errors
    /// What is wrong with one of them.
    fn take_from(object: &mut Object<'a>) -> Result<Self, Error>;

    /// Adds the fields to a schema.
    fn describe(shape: &mut Shape);

    /// Reads a request that has no other fields, or whose other fields are ignored.
    ///
    /// # Errors
    /// `invalid_json`, or `invalid_request` naming the field.
    fn body(text: &'a [u8]) -> Result<Self, Error> {
        Self::take_from(&mut Object::body(object::text(text)?)?)
    }
}

/// The schema of an object while it is built.
#[derive(Default)]
pub(crate) struct Shape {
    object: ObjectBuilder,
    pub(crate) referred: Schemas,
}

impl Shape {
    pub(crate) fn field<T: Read<'static>>(&mut self, name: &str, about: &str) {
        self.property(name, described(T::schema(), about));
        if T::REQUIRED {
            self.object = std::mem::take(&mut self.object).required(name);
        }
        T::referred(&mut self.referred);
    }

    pub(crate) fn property(&mut self, name: &str, schema: impl Into<RefOr<Schema>>) {
        self.object = std::mem::take(&mut self.object).property(name, schema);
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

/// The text of a comment without its indentation.
fn lines(about: &str) -> String {
    let lines: Vec<_> = about.trim().lines().map(str::trim).collect();
    lines.join("\n")
}

pub(crate) fn described(schema: RefOr<Schema>, about: &str) -> RefOr<Schema> {
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
                Schema::OneOf(either) => match either.items.first_mut() {
                    Some(RefOr::Ref(to)) => to.description = text,
                    Some(RefOr::T(_)) | None => either.description = Some(text),
                },
                Schema::AllOf(_) | Schema::AnyOf(_) | _ => {}
            }
            RefOr::T(schema)
        }
    }
}

/// The schema of a body that its field `tag` tells from others.
pub(crate) fn tagged<T: Fields<'static>>(tag: &str, referred: &mut Schemas) -> RefOr<Schema> {
    let mut shape = Shape::default();
    let word = ObjectBuilder::new()
        .schema_type(Type::String)
        .enum_values(Some([tag]));
    shape.property("type", word);
    T::describe(&mut shape);
    referred.append(&mut shape.referred);
    shape.object.schema_type(Type::Object).required("type").into()
}

/// The name of a field in JSON.
pub(crate) fn name(identifier: &str) -> &str {
    identifier.strip_prefix("r#").unwrap_or(identifier)
}

/// Defines bodies and groups of fields. A comment is the sentence in the document, `..` includes a group, `a | b` gives a field a further
/// name.
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
            ) -> Result<Self, muster_core::Error> {
                use $crate::translate::read::{Read, name};
                Ok(Self {
                    $($group: $crate::translate::read::Fields::take_from(object)?,)*
                    $($field: Read::find(object, &[name(stringify!($field)), $(name(stringify!($alias)),)*])?,)*
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
            ) -> Result<Self, muster_core::Error> {
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

/// Adds a type and the types it refers to.
pub(crate) fn refer<T: ToSchema>(out: &mut Schemas) {
    out.push((T::name().into_owned(), T::schema()));
    T::schemas(out);
}

#[cfg(test)]
mod tests;
