//! `load_constraints` and `load_recommendations` of each backend, exactly as seed 001 prints them (UI-Facing `load_constraints`). They
//! depend only on the backend, so rows of unloaded models have them too.

use std::sync::LazyLock;

use muster_core::runtime::Family;
use serde_json::value::RawValue;

macro_rules! table {
    ($file:literal) => {{
        static TABLE: LazyLock<Box<RawValue>> = LazyLock::new(|| parse(include_str!($file)));
        &TABLE
    }};
}

/// The settings that a user interface may offer for one load, with their bounds.
pub(super) fn constraints(family: Family) -> &'static RawValue {
    match family {
        Family::LlamaCpp => table!("tables/llama_cpp.constraints.json"),
        Family::LlamaServer => table!("tables/llama_server.constraints.json"),
        Family::ExLlamaV3 => table!("tables/exllamav3.constraints.json"),
        Family::Vllm => table!("tables/vllm.constraints.json"),
        Family::Other => none(),
    }
}

/// The settings that a user interface should offer first.
pub(super) fn recommendations(family: Family) -> &'static RawValue {
    match family {
        Family::LlamaCpp => table!("tables/llama_cpp.recommendations.json"),
        Family::ExLlamaV3 => table!("tables/exllamav3.recommendations.json"),
        Family::LlamaServer | Family::Vllm | Family::Other => none(),
    }
}

fn none() -> &'static RawValue {
    static NONE: LazyLock<Box<RawValue>> = LazyLock::new(|| parse("{}"));
    &NONE
}

/// Parses a table that is compiled in. Tests parse each of them.
fn parse(text: &str) -> Box<RawValue> {
    serde_json::from_str(text.trim()).unwrap_or_else(|error| {
        tracing::error!(%error, "a table of load constraints is broken");
        Box::default()
    })
}

#[cfg(test)]
mod tests {
    use muster_proto::overrides::Draft;
    use serde_json::{Map, Value, json};

    use super::*;

    const RUNTIMES: [&str; 5] = ["llama_cpp", "llama_server", "exllamav3", "vllm", "vllm_serve"];

    fn table(runtime: &str) -> Map<String, Value> {
        serde_json::from_str(constraints(Family::of(runtime)).get()).unwrap()
    }

    /// The HTTP status that a load with this body gets.
    fn verdict(runtime: &str, body: &Value) -> u16 {
        let draft = Draft::parse(body.to_string().as_bytes());
        match draft.and_then(|draft| draft.check(Family::of(runtime), 1)) {
            Ok(_) => 200,
            Err(error) => error.code.http(),
        }
    }

    /// A body with one key; `exllama_cache_k_bits` and `exllama_cache_v_bits` must come together.
    fn body(key: &str, value: &Value) -> Value {
        match key {
            "exllama_cache_k_bits" | "exllama_cache_v_bits" => {
                json!({"exllama_cache_k_bits": value, "exllama_cache_v_bits": value})
            }
            _ => json!({ key: value }),
        }
    }

    #[test]
    fn seed_001_runtimes_without_live_load_fields_have_none() {
        for runtime in ["ct2", "openai_remote", "stub"] {
            assert_eq!(constraints(Family::of(runtime)).get(), "{}");
            assert_eq!(recommendations(Family::of(runtime)).get(), "{}");
        }
    }

    #[test]
    fn what_the_constraints_offer_is_accepted_and_what_they_rule_out_is_not() {
        for runtime in RUNTIMES {
            let table = table(runtime);
            assert!(!table.is_empty(), "{runtime}");
            for (key, rule) in table {
                let offered = ["allowed_values", "examples"]
                    .iter()
                    .filter_map(|list| rule[list].as_array());
                for value in offered.flatten() {
                    assert_eq!(
                        verdict(runtime, &body(&key, value)),
                        200,
                        "{runtime} {key} {value}"
                    );
                }
                for bound in ["minimum", "maximum", "default"] {
                    if let Some(value) = rule.get(bound) {
                        assert_eq!(
                            verdict(runtime, &body(&key, value)),
                            200,
                            "{runtime} {key} {value}"
                        );
                    }
                }
                let kind = rule["kind"].as_str().unwrap();
                let integer = kind.starts_with("integer");
                assert_eq!(verdict(runtime, &body(&key, &json!([]))), 422, "{runtime} {key}");
                if integer {
                    assert_eq!(verdict(runtime, &body(&key, &json!(0))), 422, "{runtime} {key}");
                    assert_eq!(verdict(runtime, &body(&key, &json!("1"))), 422, "{runtime} {key}");
                }
                if let Some(most) = rule.get("maximum") {
                    let over = if integer {
                        json!(most.as_u64().unwrap() + 1)
                    } else {
                        json!(most.as_f64().unwrap() + 0.5)
                    };
                    assert_eq!(verdict(runtime, &body(&key, &over)), 400, "{runtime} {key}");
                }
                if kind.ends_with("_or_null") {
                    assert_eq!(
                        verdict(runtime, &body(&key, &Value::Null)),
                        200,
                        "{runtime} {key}"
                    );
                }
            }
        }
    }

    #[test]
    fn recommended_pairs_are_loads_that_are_accepted() {
        for runtime in ["llama_cpp", "exllamav3"] {
            let presets: Value = serde_json::from_str(recommendations(Family::of(runtime)).get()).unwrap();
            for preset in presets.as_object().unwrap().values() {
                let pairs = preset["recommended_pairs"].as_array().unwrap();
                assert_eq!(pairs.len(), 3);
                for pair in pairs {
                    let mut body = pair.clone();
                    body.as_object_mut().unwrap().remove("label");
                    assert_eq!(verdict(runtime, &body), 200, "{runtime} {body}");
                }
            }
        }
    }
}
