//! Saved options, shown and changed.

use muster_proto::v1::{Capabilities, FileFacts, Instance, InstanceSpec, InstanceStatus};

use super::*;

fn json(options: ModelOptions) -> Value {
    serde_json::to_value(options).unwrap()
}

fn change(body: &Value) -> Result<Map<String, Value>, Error> {
    changes(body.to_string().as_bytes()).map(|(changes, _)| changes)
}

#[test]
fn options_are_merged_and_null_takes_one_away() {
    let model = Model {
        options_json: r#"{"ctx_size":8192,"llamacpp_args":"--no-mmap"}"#.into(),
        ..Model::default()
    };
    let merge = |body: Value| Value::Object(merged(&model, change(&body).unwrap()));
    assert_eq!(
        merge(json!({"llamacpp_backend": "cpu", "model_name": "x"})),
        json!({"ctx_size": 8192, "llamacpp_args": "--no-mmap", "llamacpp_backend": "cpu"})
    );
    assert_eq!(
        merge(json!({"ctx_size": -1})),
        json!({"llamacpp_args": "--no-mmap"})
    );
    assert_eq!(merge(json!({"llamacpp_args": null})), json!({"ctx_size": 8192}));
    let error = change(&json!({"pinned": true})).unwrap_err();
    assert_eq!(
        (error.code, error.param.as_deref().unwrap_or_default()),
        (Code::InvalidRequest, "pinned")
    );
}

#[test]
fn effective_is_a_load_and_defaults_are_without_what_was_saved() {
    let settings = |ctx_size, args: &[&str]| ModelSettings {
        ctx_size,
        args: args.iter().map(|word| (*word).to_owned()).collect(),
        ..ModelSettings::default()
    };
    let model = Model {
        id: "m".into(),
        recipe: "llamacpp".into(),
        options_json: r#"{"ctx_size":8192}"#.into(),
        settings: Some(settings(8192, &["-fa", "on"])),
        definition: Some(settings(0, &["--log-file", "/srv/log", "-fa", "on"])),
        ..Model::default()
    };
    let shown = json(shown(&model));
    assert_eq!(
        shown["effective"],
        json!({"model_name": "m", "ctx_size": 8192, "llamacpp_args": "-fa on", "llamacpp_backend": ""})
    );
    assert_eq!(
        (
            &shown["defaults"]["ctx_size"],
            &shown["defaults"]["llamacpp_args"]
        ),
        (&json!(-1), &json!("-fa on"))
    );
    assert_eq!(shown["saved"], json!({"ctx_size": 8192}));
}

#[test]
fn a_preview_shows_what_would_be_and_checks_what_saving_checks() {
    let model = Model {
        id: "m".into(),
        runtime: "llama_cpp".into(),
        options_json: r#"{"ctx_size":8192}"#.into(),
        settings: Some(ModelSettings {
            ctx_size: 8192,
            ..ModelSettings::default()
        }),
        definition: Some(ModelSettings::default()),
        ..Model::default()
    };
    let dry = |body: Value| preview(&model, merged(&model, change(&body).unwrap())).map(json);
    let shown = dry(json!({"ctx_size": 512, "llamacpp_backend": "cpu", "llamacpp_args": "-t 2"})).unwrap();
    assert_eq!(
        shown["effective"],
        json!({"model_name": "m", "ctx_size": 512, "llamacpp_args": "-t 2", "llamacpp_backend": "cpu"})
    );
    assert_eq!(
        (&shown["saved"], &shown["resolved_ctx_size"]),
        (&json!({"ctx_size": 8192}), &json!(512))
    );
    for wrong in [
        json!({"llamacpp_backend": "nope"}),
        json!({"llamacpp_args": "--port 1"}),
        json!({"ctx_size": 3_000_000_000_u64}),
    ] {
        let error = dry(wrong.clone()).unwrap_err();
        assert_eq!(error.code, Code::InvalidLoadRequest, "{wrong}");
    }
    let big = dry(json!({"ctx_size": 3_000_000_000_u64})).unwrap_err();
    assert_eq!(big.param.unwrap_or_default(), "ctx_size");
}

#[test]
fn an_automatic_context_is_what_is_loaded_so_or_what_llama_cpp_would_take() {
    let automatic = |ctx_size| Model {
        settings: Some(ModelSettings::default()),
        instances: vec![Instance {
            status: Some(InstanceStatus {
                capabilities: Some(Capabilities {
                    context_length: 4096,
                    ..Capabilities::default()
                }),
                spec: Some(InstanceSpec {
                    settings: Some(ModelSettings {
                        ctx_size,
                        ..ModelSettings::default()
                    }),
                    ..InstanceSpec::default()
                }),
                ..InstanceStatus::default()
            }),
            ..Instance::default()
        }],
        ..Model::default()
    };
    assert_eq!(shown(&automatic(0)).resolved_ctx_size, Some(4096));
    assert_eq!(shown(&automatic(512)).resolved_ctx_size, None);
    assert_eq!(shown(&Model::default()).resolved_ctx_size, None);
    let cold = |train_context_length| Model {
        runtime: "llama_cpp".into(),
        file: Some(FileFacts {
            train_context_length,
            ..FileFacts::default()
        }),
        ..Model::default()
    };
    assert_eq!(shown(&cold(512)).resolved_ctx_size, Some(512));
    assert_eq!(
        shown(&cold(1 << 20)).resolved_ctx_size,
        Some(llamacpp::default::CONTEXT)
    );
}

#[test]
fn what_is_effective_can_be_sent_back_and_changes_nothing() {
    let model = Model {
        id: "m".into(),
        runtime: "llama_cpp".into(),
        options_json: r#"{"ctx_size":8192}"#.into(),
        settings: Some(ModelSettings {
            ctx_size: 8192,
            ..ModelSettings::default()
        }),
        definition: Some(ModelSettings::default()),
        ..Model::default()
    };
    let effective = json(shown(&model))["effective"].clone();
    let again = merged(&model, change(&effective).unwrap());
    assert_eq!(Value::Object(again), json!({"ctx_size": 8192}));
    let cleared = json!({"ctx_size": -1, "llamacpp_args": "", "llamacpp_backend": ""});
    assert_eq!(merged(&model, change(&cleared).unwrap()).len(), 0);
}
