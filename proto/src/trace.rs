//! W3C trace context, carried untouched from the client's HTTP headers to the engine: `traceparent` and `tracestate`.

use std::collections::HashMap;

/// Header names of the W3C trace context.
pub const HEADERS: [&str; 2] = ["traceparent", "tracestate"];

/// Picks the trace headers out of HTTP headers, for `Start.trace`.
#[must_use]
pub fn from_headers(headers: &http::HeaderMap) -> HashMap<String, String> {
    HEADERS
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), headers.get(*name)?.to_str().ok()?.to_owned())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_headers_pass_and_others_do_not() {
        let mut headers = http::HeaderMap::new();
        headers.insert(
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
                .parse()
                .unwrap(),
        );
        headers.insert("authorization", "Bearer x".parse().unwrap());
        let trace = from_headers(&headers);
        assert_eq!(trace.len(), 1);
        assert!(trace.contains_key("traceparent"));
    }
}
