//! Value types that many request bodies use.

use std::marker::PhantomData;

use muster_core::{Code, Error};
use serde_json::Value;
use utoipa::openapi::{
    KnownFormat, RefOr, Schema, SchemaFormat,
    schema::{Array, ObjectBuilder, OneOf, SchemaType, Type},
};

use super::{Read, Schemas};
use crate::translate::object::{Field, Object};

pub(crate) fn plain(kind: Type) -> RefOr<Schema> {
    ObjectBuilder::new().schema_type(kind).into()
}

impl Read<'_> for String {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        field.string()
    }

    fn schema() -> RefOr<Schema> {
        plain(Type::String)
    }
}

impl Read<'_> for bool {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        field.bool()
    }

    fn schema() -> RefOr<Schema> {
        plain(Type::Boolean)
    }
}

/// A whole number from `LOW` to `HIGH`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Int<const LOW: i32, const HIGH: i32 = { i32::MAX }>(pub(crate) i32);

impl<const LOW: i32, const HIGH: i32> Read<'_> for Int<LOW, HIGH> {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
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

/// A whole number of 32 bits, at least `LOW`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uint<const LOW: u32>(pub(crate) u32);

impl<const LOW: u32> Read<'_> for Uint<LOW> {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        field.u32(LOW).map(Self)
    }

    fn schema() -> RefOr<Schema> {
        let number = ObjectBuilder::new()
            .schema_type(Type::Integer)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
            .minimum(Some(LOW));
        number.into()
    }
}

impl<'a, T: Read<'a>> Read<'a> for Option<T> {
    const REQUIRED: bool = false;

    fn read(field: &Field<'a>) -> Result<Self, Error> {
        T::read(field).map(Some)
    }

    fn find(object: &mut Object<'a>, names: &[&str]) -> Result<Self, Error> {
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
        RefOr::T(Schema::OneOf(mut either)) => {
            either.items.push(plain(Type::Null));
            RefOr::T(Schema::OneOf(either))
        }
        other @ (RefOr::Ref(_) | RefOr::T(_)) => one_of(vec![other, plain(Type::Null)]),
    }
}

pub(crate) fn one_of(items: Vec<RefOr<Schema>>) -> RefOr<Schema> {
    let mut either = OneOf::new();
    either.items = items;
    RefOr::T(Schema::OneOf(either))
}

impl<'a, T: Read<'a>> Read<'a> for Vec<T> {
    fn read(field: &Field<'a>) -> Result<Self, Error> {
        field.list()?.iter().map(T::read).collect()
    }

    fn schema() -> RefOr<Schema> {
        RefOr::T(Schema::Array(Array::new(T::schema())))
    }

    fn referred(out: &mut Schemas) {
        T::referred(out);
    }
}

/// A list of strings, or a single string.
#[derive(Clone, Debug, Default)]
pub(crate) struct Strings(pub(crate) Vec<String>);

impl Read<'_> for Strings {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        field.strings().map(Self)
    }

    fn schema() -> RefOr<Schema> {
        one_of(vec![String::schema(), <Vec<String> as Read<'_>>::schema()])
    }
}

/// Any value: the translation reads it.
impl<'x: 'a, 'a> Read<'x> for Field<'a> {
    fn read(field: &Field<'x>) -> Result<Self, Error> {
        Ok(field.clone())
    }

    fn schema() -> RefOr<Schema> {
        let any = ObjectBuilder::new().schema_type(SchemaType::AnyValue);
        any.into()
    }
}

/// A value and its path, for an error that is found later.
#[derive(Debug)]
pub(crate) struct At<'a, T> {
    pub(crate) value: T,
    pub(crate) field: Field<'a>,
}

impl<'x: 'a, 'a, T: Read<'x>> Read<'x> for At<'a, T> {
    fn read(field: &Field<'x>) -> Result<Self, Error> {
        Ok(Self {
            value: T::read(field)?,
            field: field.clone(),
        })
    }

    fn schema() -> RefOr<Schema> {
        T::schema()
    }

    fn referred(out: &mut Schemas) {
        T::referred(out);
    }
}

/// A value as the client wrote it. Null is kept and means removal; the document shows a `T`.
#[derive(Debug)]
pub(crate) struct Kept<T>(pub(crate) Option<Value>, PhantomData<T>);

impl<'a, T: Read<'a>> Read<'a> for Kept<T> {
    const REQUIRED: bool = false;

    fn read(field: &Field<'a>) -> Result<Self, Error> {
        let value = serde_json::from_str(&field.json());
        let value = value.map_err(|error| Code::InvalidJson.error(error.to_string()))?;
        Ok(Self(Some(value), PhantomData))
    }

    fn find(object: &mut Object<'a>, names: &[&str]) -> Result<Self, Error> {
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

/// Defines a type whose value is one of several words.
macro_rules! words {
    ($(#[doc = $doc:literal])* $vis:vis struct $name:ident: $($word:literal),+ => $wanted:literal) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis struct $name($vis &'static str);

        impl $crate::translate::read::Read<'_> for $name {
            fn read(field: &$crate::translate::object::Field<'_>) -> Result<Self, muster_core::Error> {
                match field.string()?.as_str() {
                    $($word => Ok(Self($word)),)+
                    _ => Err(field.wrong(concat!("must be ", $wanted))),
                }
            }

            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                $crate::translate::read::plain(utoipa::openapi::schema::Type::String)
            }
        }
    };
}

pub(crate) use words;
