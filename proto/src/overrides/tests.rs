use serde_json::{Value, json};

use super::*;
use crate::v1::ModelSettings;

fn parse(body: &str) -> Result<Draft, Error> {
    Draft::parse(body.as_bytes())
}

fn check(runtime: &str, body: &Value) -> Result<Overrides, Error> {
    parse(&body.to_string())?.check(Family::of(runtime), 4)
}

fn applied(runtime: &str, body: &Value, mut settings: ModelSettings) -> ModelSettings {
    check(runtime, body).unwrap().apply(&mut settings).unwrap();
    settings
}

#[test]
fn seed_001_all_example_load_bodies_are_accepted() {
    for (runtime, body) in [
        ("llama_cpp", json!({"replicas": 3})),
        ("llama_cpp", json!({"gguf_n_ctx": 8192})),
        ("llama_cpp", json!({"gguf_n_ctx": 16384})),
        ("llama_cpp", json!({"gguf_n_ctx": 32768})),
        (
            "llama_cpp",
            json!({"gguf_n_ctx": 32768, "gguf_flash_attn": "auto", "gguf_type_k": "q8_0", "gguf_type_v": "q4_0"}),
        ),
        (
            "exllamav3",
            json!({"exllama_cache_size": 32768, "exllama_cache_quant": null, "exllama_max_rq_tokens": 32768}),
        ),
        (
            "exllamav3",
            json!({"exllama_cache_size": 32768, "exllama_cache_quant": "8,8", "exllama_max_rq_tokens": 32768}),
        ),
        (
            "exllamav3",
            json!({"exllama_cache_size": 32768, "exllama_cache_quant": "8,4", "exllama_max_rq_tokens": 32768}),
        ),
        (
            "exllamav3",
            json!({"exllama_cache_size": 32768, "exllama_cache_k_bits": 8, "exllama_cache_v_bits": 4, "exllama_max_rq_tokens": 32768}),
        ),
        (
            "vllm",
            json!({"vllm_max_model_len": 16384, "vllm_kv_cache_dtype": "fp8", "vllm_kv_cache_memory_bytes": 2_147_483_648_u64,
            "vllm_max_pixels": 4_014_080, "vllm_speculative_method": "mtp",
            "vllm_speculative_model": "google/gemma-4-26B-A4B-it-assistant", "vllm_num_speculative_tokens": 1}),
        ),
        ("vllm_serve", json!({"vllm_max_model_len": 16384})),
        (
            "llama_server",
            json!({"llama_server_n_ctx": 4096, "llama_server_image_max_tokens": 512, "llama_server_spec_type": "draft-mtp",
            "llama_server_spec_draft_n_max": 4, "llama_server_spec_draft_p_min": 0.25}),
        ),
    ] {
        check(runtime, &body).unwrap_or_else(|error| panic!("{runtime} {body}: {error:?}"));
    }
}

#[test]
fn seed_001_422_is_for_shapes() {
    for body in [
        // The seed's own examples.
        r#"{"gguf_n_ctx": 0}"#,
        r#"{"exllama_cache_size": 0}"#,
        r#"{"exllama_max_rq_tokens": 0}"#,
        // Its rules (gateway/README.md, Runtime Admin API).
        "{",
        "[]",
        "3",
        "null",
        r#"{"gguf_n_ctx": 1e999}"#,
        r#"{"gguf_n_ctx": "8192"}"#,
        r#"{"gguf_n_ctx": true}"#,
        r#"{"gguf_n_ctx": 1.5}"#,
        r#"{"gguf_n_ctx": -1}"#,
        r#"{"gguf_n_ctx": null}"#,
        r#"{"gguf_flash_attn": null}"#,
        r#"{"gguf_flash_attn": 1}"#,
        r#"{"gguf_type_k": 8}"#,
        r#"{"replicas": 0}"#,
        r#"{"replicas": null}"#,
        r#"{"replicas": "3"}"#,
        r#"{"vllm_kv_cache_dtype": null}"#,
        r#"{"llama_server_spec_draft_p_min": "0.5"}"#,
        r#"{"llama_server_spec_draft_p_min": null}"#,
        r#"{"model_path": "/x"}"#,
        // Lemonade's keys are none of this API's.
        r#"{"ctx_size": 4096}"#,
        r#"{"llamacpp_args": "--no-mmap"}"#,
    ] {
        let error = parse(body).expect_err(body);
        assert_eq!(
            (error.code, error.code.http()),
            (Code::InvalidSchema, 422),
            "{body}"
        );
    }
}

#[test]
fn a_number_that_is_too_large_is_refused_as_it_was_written() {
    for (key, value) in [("gguf_n_ctx", "1e30"), ("gguf_n_ctx", "18446744073709551616")] {
        let error = parse(&format!("{{\"{key}\": {value}}}")).unwrap();
        let error = error.check(Family::LlamaCpp, 4).unwrap_err();
        assert!(
            !error.message.contains("18446744073709551615"),
            "{}",
            error.message
        );
        assert!(
            error.message.contains("must be at most 2147483647"),
            "{}",
            error.message
        );
    }
}

#[test]
fn seed_001_400_is_for_values() {
    for (runtime, body) in [
        // The seed's own examples.
        ("llama_cpp", json!({"gguf_type_k": "q8-0"})),
        ("llama_cpp", json!({"gguf_type_k": "foo"})),
        ("exllamav3", json!({"exllama_cache_k_bits": 8})),
        (
            "exllamav3",
            json!({"exllama_cache_quant": "8", "exllama_cache_k_bits": 8, "exllama_cache_v_bits": 8}),
        ),
        ("exllamav3", json!({"exllama_cache_size": 8000})),
        ("exllamav3", json!({"exllama_cache_quant": "fp16"})),
        ("llama_server", json!({"llama_server_spec_type": "medusa"})),
        ("llama_server", json!({"llama_server_spec_draft_n_max": 7})),
        ("llama_server", json!({"llama_server_spec_draft_p_min": 1.5})),
        ("llama_cpp", json!({"exllama_cache_size": 32768})),
        ("vllm", json!({"llama_server_n_ctx": 4096})),
        // Its rules.
        ("llama_cpp", json!({"gguf_flash_attn": "maybe"})),
        ("llama_cpp", json!({"gguf_n_ctx": 3_000_000_000_u64})),
        ("llama_cpp", json!({"gguf_n_ctx": 1e30})),
        ("llama_cpp", json!({"llama_server_n_ctx": 4096})),
        ("llama_cpp", json!({"replicas": 5})),
        ("exllamav3", json!({"exllama_cache_v_bits": null})),
        (
            "exllamav3",
            json!({"exllama_cache_k_bits": 8, "exllama_cache_v_bits": null}),
        ),
        (
            "exllamav3",
            json!({"exllama_cache_k_bits": null, "exllama_cache_v_bits": 8}),
        ),
        (
            "exllamav3",
            json!({"exllama_cache_k_bits": 9, "exllama_cache_v_bits": 8}),
        ),
        (
            "exllamav3",
            json!({"exllama_cache_k_bits": 8, "exllama_cache_v_bits": 1}),
        ),
        ("exllamav3", json!({"exllama_cache_quant": "8,"})),
        ("exllamav3", json!({"exllama_cache_quant": "+8"})),
        ("exllamav3", json!({"exllama_cache_quant": "9"})),
        ("llama_server", json!({"llama_server_spec_draft_p_min": -0.1})),
        ("vllm", json!({"vllm_kv_cache_dtype": ""})),
        ("stub", json!({"gguf_n_ctx": 4096})),
        ("ct2", json!({"vllm_max_model_len": 4096})),
    ] {
        let error = check(runtime, &body).expect_err(&body.to_string());
        assert_eq!(
            (error.code, error.code.http()),
            (Code::InvalidLoadRequest, 400),
            "{runtime} {body}"
        );
        assert!(error.param.is_some(), "{body}");
    }
}

#[test]
fn shapes_are_judged_before_values_whatever_their_order() {
    let body = json!({"gguf_type_k": "foo", "vllm_max_model_len": 0});
    assert_eq!(check("llama_cpp", &body).unwrap_err().code, Code::InvalidSchema);
}

#[test]
fn seed_001_what_the_service_accepts_beyond_its_constraints() {
    // "The service accepts any dtype string vLLM supports"; steps are for UIs; a null speculative type is legal.
    check(
        "vllm",
        &json!({"vllm_kv_cache_dtype": "fp8_inc", "vllm_max_model_len": 1000}),
    )
    .unwrap();
    check("llama_server", &json!({"llama_server_spec_type": null})).unwrap();
    assert_eq!(
        check("llama_cpp", &json!({"gguf_n_ctx": 4096.0}))
            .unwrap()
            .to_json(),
        r#"{"gguf_n_ctx":4096}"#
    );
}

#[test]
fn an_absent_body_is_a_bare_load() {
    for body in ["", " \n", "{}"] {
        assert!(parse(body).unwrap().is_empty(), "{body:?}");
    }
    assert!(!parse(r#"{"gguf_type_k": null}"#).unwrap().is_empty());
    assert!(!parse(r#"{"replicas": 1}"#).unwrap().is_empty());
}

#[test]
fn exllama_bits_come_back_as_its_quant() {
    let bits = check(
        "exllamav3",
        &json!({"exllama_cache_k_bits": 8, "exllama_cache_v_bits": 4}),
    )
    .unwrap();
    assert_eq!(bits.to_json(), r#"{"exllama_cache_quant":"8,4"}"#);
    let none = check(
        "exllamav3",
        &json!({"exllama_cache_k_bits": null, "exllama_cache_v_bits": null}),
    )
    .unwrap();
    assert_eq!(none.to_json(), r#"{"exllama_cache_quant":null}"#);
}

#[test]
fn overrides_are_folded_into_settings_and_noted() {
    let defined = || ModelSettings {
        ctx_size: 4096,
        cache_type_k: "q8_0".into(),
        flash_attention: "on".into(),
        ..ModelSettings::default()
    };
    let settings = applied(
        "llama_cpp",
        &json!({"gguf_n_ctx": 8192, "gguf_type_k": null}),
        defined(),
    );
    assert_eq!((settings.ctx_size, settings.cache_type_k.as_str()), (8192, ""));
    assert_eq!(settings.flash_attention, "on", "omitted keeps the definition's");
    assert_eq!(
        settings.load_override_json,
        r#"{"gguf_n_ctx":8192,"gguf_type_k":null}"#
    );
    assert_eq!(applied("llama_cpp", &json!({}), defined()), defined());
    let vllm = ModelSettings {
        runtime_json: r#"{"vllm_max_model_len":4096,"vllm_x":1}"#.into(),
        ..ModelSettings::default()
    };
    let vllm = applied("vllm", &json!({"vllm_max_model_len": 8192}), vllm);
    assert_eq!(vllm.runtime_json, r#"{"vllm_max_model_len":8192,"vllm_x":1}"#);
}

#[test]
fn overrides_replace_flags_of_llama_server() {
    let defined = || ModelSettings {
        args: ["--no-mmap", "--spec-type=draft", "--draft-max", "16", "-v"]
            .map(String::from)
            .into(),
        ..ModelSettings::default()
    };
    let settings = applied(
        "llama_server",
        &json!({"llama_server_spec_draft_n_max": 4}),
        defined(),
    );
    assert_eq!(
        settings.args,
        ["--no-mmap", "--spec-type=draft", "-v", "--spec-draft-n-max", "4"]
    );
    let settings = applied(
        "llama_server",
        &json!({"llama_server_spec_type": null}),
        defined(),
    );
    assert_eq!(settings.args, ["--no-mmap", "--draft-max", "16", "-v"]);
    let settings = applied(
        "llama_server",
        &json!({"llama_server_spec_draft_p_min": 0.25}),
        defined(),
    );
    assert_eq!(settings.args.last().unwrap(), "0.25");
}

#[test]
fn flags_of_a_request_leave_those_of_the_configuration() {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect();
    let mut settings = ModelSettings {
        args: words("--slots -t 4 --chat-template-file x"),
        ..ModelSettings::default()
    };
    let args = Overrides::from_json(Family::LlamaCpp, r#"{"llamacpp_args": "-b 64"}"#).unwrap();
    args.apply(&mut settings).unwrap();
    assert_eq!(settings.args, words("--slots --chat-template-file x -b 64"));
}

#[test]
fn names_are_no_paths_and_no_flags() {
    for (key, good) in [
        ("vllm_kv_cache_dtype", "fp8_e4m3"),
        ("vllm_speculative_method", "mlp_speculator"),
        ("vllm_speculative_model", "google/gemma-4-26B-A4B-it-assistant"),
    ] {
        assert!(check("vllm", &json!({key: good})).is_ok(), "{key}");
        for bad in ["/etc/passwd", "../x", "--flag", "a b", "./m", "~/m"] {
            assert!(check("vllm", &json!({key: bad})).is_err(), "{key} {bad}");
        }
    }
}

#[test]
fn the_wire_takes_lemonades_options_too() {
    let read = |runtime, json: Value| Overrides::from_json(Family::of(runtime), &json.to_string());
    let own = |runtime| read(runtime, json!({"ctx_size": 8192})).unwrap().to_json();
    assert_eq!(own("llama_cpp"), r#"{"gguf_n_ctx":8192}"#);
    assert_eq!(own("llama_server"), r#"{"llama_server_n_ctx":8192}"#);
    let mut settings = ModelSettings::default();
    let args = read(
        "llama_server",
        json!({"llamacpp_args": "--flash-attn on --no-mmap"}),
    )
    .unwrap();
    args.apply(&mut settings).unwrap();
    assert_eq!(settings.args, ["--flash-attn", "on", "--no-mmap"]);
    // Seed 000, `llamacpp_args`: must not conflict with managed arguments.
    for args in ["-m x", "--port 1", "--ctx-size=7", "-ngl 3", "'unclosed"] {
        let error = read("llama_cpp", json!({"llamacpp_args": args})).unwrap_err();
        assert_eq!(error.code, Code::InvalidLoadRequest, "{args}");
    }
    // A request's flag chooses no other runtime.
    let beyond = json!({"llamacpp_args": "--image-min-tokens 5"});
    assert!(read("llama_server", beyond.clone()).is_ok());
    let error = read("llama_cpp", beyond).unwrap_err();
    assert!(
        error.message.contains("`--image-min-tokens`"),
        "{}",
        error.message
    );
    assert!(read("vllm", json!({"llamacpp_args": "-v"})).is_err());
    // No 422 here: the other end is a program.
    assert_eq!(
        read("llama_cpp", json!({"gguf_n_ctx": 0})).unwrap_err().code,
        Code::InvalidLoadRequest
    );
}
