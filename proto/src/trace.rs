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

/// The trace id inside a `traceparent`, for logs; 32 hexadecimal digits.
#[must_use]
pub fn trace_id(trace: &HashMap<String, String>) -> Option<&str> {
    let id = trace.get("traceparent")?.split('-').nth(1)?;
    (id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(id)
}

/// Puts the trace headers into an outgoing gRPC request.
pub fn inject<T>(trace: &HashMap<String, String>, request: &mut tonic::Request<T>) {
    for name in HEADERS {
        if let Some(value) = trace.get(name).and_then(|value| value.parse().ok()) {
            request.metadata_mut().insert(name, value);
        }
    }
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
        assert_eq!(trace_id(&trace), Some("0af7651916cd43dd8448eb211c80319c"));
        let mut request = tonic::Request::new(());
        inject(&trace, &mut request);
        assert!(request.metadata().contains_key("traceparent"));
    }
}
