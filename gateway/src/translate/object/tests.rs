use super::*;

fn object(text: &str) -> Object<'_> {
    Object::body(text).unwrap()
}

#[test]
fn wrong_types_name_their_path() {
    let mut body = object(r#"{"a": [{"b": "x"}]}"#);
    let list = body.need("a").unwrap().list().unwrap();
    let mut inner = list[0].object().unwrap();
    let error = inner.need("b").unwrap().bool().unwrap_err();
    assert_eq!(error.param.unwrap_or_default(), "a[0].b");
    assert_eq!(error.message, "`a[0].b` must be a boolean, not a string");
    assert_eq!(inner.need("c").unwrap_err().param.unwrap_or_default(), "a[0].c");
}

#[test]
fn null_is_absent_and_the_last_duplicate_counts() {
    let mut body = object(r#"{"a": null, "b": 1, "b": 2}"#);
    assert!(body.take("a").is_none());
    assert_eq!(body.need("b").unwrap().integer(0, 9).unwrap(), 2);
    assert_eq!(body.rest(), "");
}

#[test]
fn what_nobody_took_stays_as_it_was_written() {
    let mut body = object(r#"{"z": 1.50, "b": 1, "a": {"y": 1, "x": [ 2 ]}}"#);
    body.discard(&["b"]);
    assert_eq!(body.rest(), r#"{"z":1.50,"a":{"y": 1, "x": [ 2 ]}}"#);
}

#[test]
fn numbers_are_checked() {
    let mut body = object(r#"{"a": 3.0, "b": 3.5, "c": 1e99, "d": 2}"#);
    assert_eq!(body.need("a").unwrap().integer(0, 9).unwrap(), 3);
    assert!(body.need("b").unwrap().integer(0, 9).is_err());
    assert!(body.need("c").unwrap().float(0.0, f64::from(f32::MAX)).is_err());
    let error = body.need("d").unwrap().float(0.0, 1.0).unwrap_err();
    assert_eq!(error.message, "`d` must be between 0 and 1, not 2");
}

#[test]
fn malformed_and_deep_bodies_are_refused_before_parsing() {
    assert_eq!(text(b"\xff").unwrap_err().code, Code::InvalidJson);
    let deep = "[".repeat(100_000);
    assert_eq!(text(deep.as_bytes()).unwrap_err().code, Code::InvalidJson);
    assert!(text(br#"{"a": "[[[[\"[["}"#).is_ok());
    assert_eq!(Object::body("{").unwrap_err().code, Code::InvalidJson);
    assert_eq!(Object::body("[]").unwrap_err().code, Code::InvalidRequest);
}
