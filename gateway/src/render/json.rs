//! Writes JSON directly into a body's buffer, without a tree of values for each token.

use bytes::{BufMut as _, Bytes, BytesMut};
use serde::Serialize;

/// Writes text as it is.
pub(crate) fn raw(out: &mut BytesMut, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

/// Writes any value as JSON.
pub(crate) fn value<T: Serialize + ?Sized>(out: &mut BytesMut, value: &T) {
    if let Err(error) = serde_json::to_writer(out.writer(), value) {
        // Writing strings and numbers to memory does not fail.
        tracing::error!(%error, "could not write JSON");
    }
}

/// A value as a body.
pub(crate) fn body<T: Serialize>(content: &T) -> Bytes {
    let mut out = BytesMut::with_capacity(512);
    value(&mut out, content);
    out.freeze()
}

/// Writes a whole number. Small ones, which are most, take a short path.
pub(crate) fn number(out: &mut BytesMut, number: u32) {
    match u8::try_from(number) {
        Ok(digit) if digit < 10 => out.put_u8(b'0' + digit),
        Ok(_) | Err(_) => value(out, &number),
    }
}

/// Writes `,"key":` and the value.
pub(crate) fn member<T: Serialize + ?Sized>(out: &mut BytesMut, key: &str, content: &T) {
    raw(out, ",");
    value(out, key);
    raw(out, ":");
    value(out, content);
}

/// Writes the fields of an engine's `extra_json`, each after a comma. Invalid JSON is left out.
pub(crate) fn extra(out: &mut BytesMut, json: &str) {
    let inner = json
        .trim()
        .strip_prefix('{')
        .and_then(|json| json.strip_suffix('}'));
    match inner.map(str::trim) {
        Some(inner) if !inner.is_empty() && !inner.contains(['\n', '\r']) => {
            raw(out, ",");
            raw(out, inner);
        }
        Some(_) | None => {}
    }
}

/// Writes an array; `item` writes each element.
pub(crate) fn list<I: IntoIterator>(
    out: &mut BytesMut,
    items: I,
    mut item: impl FnMut(&mut BytesMut, I::Item),
) {
    raw(out, "[");
    for (index, one) in items.into_iter().enumerate() {
        if index > 0 {
            raw(out, ",");
        }
        item(out, one);
    }
    raw(out, "]");
}
