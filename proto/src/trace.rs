//! W3C trace context, from the client's HTTP headers to the engine: `traceparent` and `tracestate` travel unchanged in [`Start`], and each
//! request at a worker runs in a [`span`] of that trace.
//!
//! The spans are for an exporter; nothing is exported yet.

use std::collections::HashMap;

use tracing::Span;

use crate::v1::Start;

/// The header with the trace's id, the caller's span, and whether it is recorded.
const PARENT: &str = "traceparent";
/// Header names of the W3C trace context.
pub const HEADERS: [&str; 2] = [PARENT, "tracestate"];

/// The trace headers among HTTP headers, for `Start.trace`. Invalid ones are left out, as W3C requires.
#[must_use]
pub fn from_headers(headers: &http::HeaderMap) -> HashMap<String, String> {
    let pick = |name: &&str| Some(((*name).to_owned(), headers.get(*name)?.to_str().ok()?.to_owned()));
    let trace: HashMap<_, _> = HEADERS.iter().filter_map(pick).collect();
    if id(&trace).is_some() {
        trace
    } else {
        HashMap::new()
    }
}

/// The span of a request, with the id of its trace.
#[must_use]
pub fn span(start: &Start) -> Span {
    tracing::debug_span!("request", id = start.request_id, trace = id(&start.trace))
}

/// The id of the trace (W3C Trace Context, 3.2.2): 32 hexadecimal digits, not all 0.
fn id(trace: &HashMap<String, String>) -> Option<&str> {
    let mut parts = trace.get(PARENT)?.split('-');
    let (version, id, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |text: &str, length| {
        text.len() == length
            && text
                .bytes()
                .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    let known = is_hex(version, 2) && version != "ff" && (version != "00" || parts.next().is_none());
    let named = is_hex(id, 32) && is_hex(parent, 16) && is_hex(flags, 2);
    let is_nothing = |text: &str| text.bytes().all(|byte| byte == b'0');
    (known && named && !is_nothing(id) && !is_nothing(parent)).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0af7651916cd43dd8448eb211c80319c";

    fn picked(parent: &str) -> HashMap<String, String> {
        let mut headers = http::HeaderMap::new();
        headers.insert("traceparent", parent.parse().unwrap());
        headers.insert("tracestate", "vendor=1".parse().unwrap());
        headers.insert("authorization", "Bearer x".parse().unwrap());
        from_headers(&headers)
    }

    #[test]
    fn trace_headers_pass_and_others_do_not() {
        let trace = picked(&format!("00-{ID}-b7ad6b7169203331-01"));
        assert_eq!(trace.len(), 2);
        assert_eq!(id(&trace), Some(ID));
        // A later version may have more fields.
        assert_eq!(picked(&format!("01-{ID}-b7ad6b7169203331-01-more")).len(), 2);
    }

    #[test]
    fn what_names_no_trace_goes_no_further() {
        let zeros = "0".repeat(32);
        for parent in [
            "",
            ID,
            &format!("00-{ID}-b7ad6b7169203331"),
            &format!("00-{ID}-b7ad6b7169203331-01-more"),
            &format!("ff-{ID}-b7ad6b7169203331-01"),
            &format!("00-{}-b7ad6b7169203331-01", ID.to_uppercase()),
            &format!("00-{zeros}-b7ad6b7169203331-01"),
            &format!("00-{ID}-0000000000000000-01"),
        ] {
            assert!(picked(parent).is_empty(), "{parent}");
        }
    }
}
