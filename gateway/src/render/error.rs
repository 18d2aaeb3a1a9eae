//! Errors in OpenAI's form: `{"error": {message, type, param, code}}`, with `details` where the catalogue has numbers to give.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use muster_proto::{ErrorExt as _, v1::ErrorInfo};

use super::json::{member, raw, value};

/// The error as a body.
pub(crate) fn body(error: &ErrorInfo) -> Bytes {
    body_of(error, error.kind().openai_type())
}

/// The error as a body under another `type`.
pub(crate) fn body_of(error: &ErrorInfo, kind: &str) -> Bytes {
    let mut out = BytesMut::with_capacity(192);
    write(&mut out, error, kind);
    out.freeze()
}

/// The error as the last event of a stream that already began.
pub(crate) fn event(out: &mut BytesMut, error: &ErrorInfo) {
    raw(out, "event: error\ndata: ");
    write(out, error, error.kind().openai_type());
    raw(out, "\n\n");
}

fn write(out: &mut BytesMut, error: &ErrorInfo, kind: &str) {
    raw(out, "{\"error\":{\"message\":");
    value(out, &error.message);
    member(out, "type", kind);
    member(
        out,
        "param",
        &Some(&error.param).filter(|param| !param.is_empty()),
    );
    member(out, "code", &error.code);
    if !error.details.is_empty() {
        member(out, "details", &error.details.iter().collect::<BTreeMap<_, _>>());
    }
    raw(out, "}}");
}
