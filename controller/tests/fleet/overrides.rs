//! Settings for one load (seed 001, `load_override`).

use muster_core::{Code, Error};
use muster_proto::{
    StatusExt as _,
    v1::{self},
};

use crate::{Client, Rig, files::models, worker::Worker};

const MODEL: &str = "
[policy]
settle = '300ms'
[models.a]
runtime = 'stub'
ctx_size = 512
enabled = false
autoload = false
";

async fn load(client: &mut Client, override_json: &str) -> Result<v1::Model, Error> {
    let request = v1::LoadModelRequest {
        override_json: override_json.to_owned(),
        ..Client::load_of("a")
    };
    client
        .load_as(request)
        .await
        .map_err(|status| Error::from_status(&status))
}

#[tokio::test]
async fn an_override_lives_as_long_as_its_load() {
    let rig = Rig::start(MODEL).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    let loaded = load(&mut client, r#"{"ctx_size": 1024}"#).await.unwrap();
    let spec = |model: &v1::Model| {
        let status = model.instances[0].status.clone().unwrap();
        status.spec.unwrap().settings.unwrap()
    };
    assert_eq!(spec(&loaded).ctx_size, 1024);
    assert_eq!(spec(&loaded).load_override_json, r#"{"ctx_size":1024}"#);
    // The definition is not modified (seed 001, Configured Model Definition).
    let definition = loaded.settings.as_ref().unwrap();
    assert_eq!(
        (definition.ctx_size, definition.load_override_json.as_str()),
        (512, "")
    );
    assert_eq!(loaded.autoload, Some(false));

    // Seed 001: overrides while it is loaded are refused, even equal ones; a bare load is well.
    let error = load(&mut client, r#"{"ctx_size": 1024}"#).await.unwrap_err();
    assert_eq!(error.code, Code::InvalidLoadRequest);
    load(&mut client, "").await.unwrap();

    client.unload("a", false).await.unwrap();
    let plain = load(&mut client, "{}").await.unwrap();
    assert_eq!(
        (spec(&plain).ctx_size, spec(&plain).load_override_json.as_str()),
        (512, "")
    );
}

#[tokio::test]
async fn what_the_runtime_does_not_take_changes_nothing() {
    let rig = Rig::start(MODEL).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    for wrong in [r#"{"gguf_n_ctx": 1}"#, r#"{"ctx_size": 0}"#, r#"{"x": 1}"#, "["] {
        let error = load(&mut client, wrong).await.unwrap_err();
        assert_eq!(error.code, Code::InvalidLoadRequest, "{wrong}");
    }
    assert_eq!(client.model("a").await.status(), v1::ModelStatus::Unloaded);
    assert_eq!(worker.count("load"), 0);
}

#[tokio::test]
async fn a_load_makes_as_many_replicas_as_it_says_and_no_more_than_allowed() {
    let rig = Rig::start(&format!("{MODEL}replica_max = 3\n")).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    let of = |replicas| v1::LoadModelRequest {
        replicas,
        ..Client::load_of("a")
    };
    let error = client.load_as(of(4)).await.unwrap_err();
    let error = Error::from_status(&error);
    assert_eq!(
        (error.code, error.param.as_deref().unwrap_or_default()),
        (Code::InvalidLoadRequest, "replicas")
    );
    assert_eq!(worker.count("load"), 0);
    let loaded = client.load_as(of(3)).await.unwrap();
    assert_eq!(loaded.instances.len(), 3);
    // Seed 001: it does not modify `definition.replicas`.
    assert_eq!((loaded.replicas, loaded.replica_max), (1, 3));
    client.unload("a", false).await.unwrap();
    let plain = load(&mut client, "").await.unwrap();
    assert_eq!(plain.instances.len(), 1);
}

/// Entries that want more than our engine can, or name it.
const BEYOND: &str = "
[policy]
settle = '300ms'
[models.a]
checkpoint = 'a.gguf'
[models.beyond]
checkpoint = 'a.gguf'
recipe = 'llamacpp'
llamacpp_args = '--grp-attn-n 2'
[models.insists]
checkpoint = 'a.gguf'
runtime = 'llama_cpp'
llamacpp_args = '--grp-attn-n 2'
[models.adapted]
checkpoint = 'a.gguf'
recipe = 'llamacpp'
lora = ['a.gguf']
[models.sees]
checkpoint = 'a.gguf'
recipe = 'llamacpp'
mmproj = 'a.gguf'
[models.compares]
checkpoint = 'a.gguf'
recipe = 'llamacpp'
labels = ['embeddings']
mmproj = 'a.gguf'
[models.drafts]
checkpoint = 'a.gguf'
recipe = 'llamacpp'
draft = 'a.gguf'
";

/// controller/README.md, Settings: a flag that our engine cannot honour selects llama.cpp's server where there is one.
#[tokio::test]
async fn arguments_beyond_our_engine_go_to_llama_cpps_server() {
    let rig = Rig::start(BEYOND).await;
    std::fs::write(rig.path("a.gguf"), b"x").unwrap();
    let mut client = rig.client().await;
    let runtime = async |client: &mut Client, id: &str| client.model(id).await.runtime;
    // Without a server our engine gets it, and refuses it by the flag's name.
    let mut ours = Worker::new("ours");
    ours.join(&rig.address()).await;
    assert_eq!(runtime(&mut client, "beyond").await, "llama_cpp");
    let mut both = Worker::new("both");
    let error = client.load("beyond").await.unwrap_err();
    let error = Error::from_status(&error);
    assert_eq!(error.code, Code::InvalidLoadRequest);
    assert!(error.message.contains("`--grp-attn-n`"), "{}", error.message);
    assert_eq!(ours.count("load"), 0);
    both.runtimes.push("llama_server");
    both.join(&rig.address()).await;
    for (id, expected) in [
        ("a", "llama_cpp"),
        ("beyond", "llama_server"),
        ("insists", "llama_cpp"),
        ("adapted", "llama_server"),
        ("sees", "llama_cpp"),
        ("compares", "llama_server"),
        ("drafts", "llama_server"),
    ] {
        assert_eq!(runtime(&mut client, id).await, expected, "{id}");
    }
    // Settings for one load are those of the runtime that hosts it, which nobody named.
    for id in ["sees", "adapted"] {
        let request = v1::LoadModelRequest {
            model: id.into(),
            override_json: r#"{"ctx_size": 512}"#.into(),
            ..v1::LoadModelRequest::default()
        };
        let loaded = client.load_as(request).await.unwrap();
        let status = loaded.instances[0].status.clone().unwrap();
        assert_eq!(status.spec.unwrap().settings.unwrap().ctx_size, 512);
        client.unload(id, false).await.unwrap();
    }
    let ran_on = |model: &v1::Model| {
        let status = model.instances[0].status.clone().unwrap();
        status.spec.unwrap().runtime
    };
    let loaded = client.load("beyond").await.unwrap();
    assert_eq!(ran_on(&loaded), "llama_server");
    client.unload("beyond", false).await.unwrap();
    // A request's arguments choose nothing, for one load as little as saved; where the configuration chose, they are for that server.
    let mut api = models(&rig).await;
    for args in ["--grp-attn-n 2", "--image-min-tokens 5"] {
        let json = format!(r#"{{"llamacpp_args": "{args}"}}"#);
        let error = load(&mut client, &json).await.unwrap_err();
        let save = v1::SetModelOptionsRequest {
            model: "a".into(),
            options_json: json,
        };
        let saved = api.set_model_options(save).await.unwrap_err();
        for error in [error, Error::from_status(&saved)] {
            assert_eq!(error.code, Code::InvalidLoadRequest, "{args}");
            let flag = args.split(' ').next().unwrap_or_default();
            assert!(error.message.contains(flag), "{}", error.message);
        }
    }
    assert_eq!(runtime(&mut client, "a").await, "llama_cpp");
    assert_eq!(ran_on(&load(&mut client, "").await.unwrap()), "llama_cpp");
    let hot = v1::LoadModelRequest {
        model: "beyond".into(),
        override_json: r#"{"llamacpp_args": "--image-min-tokens 5"}"#.into(),
        ..v1::LoadModelRequest::default()
    };
    let loaded = client.load_as(hot).await.unwrap();
    assert_eq!(ran_on(&loaded), "llama_server");
    let status = loaded.instances[0].status.clone().unwrap();
    let args = status.spec.unwrap().settings.unwrap().args;
    assert_eq!(args, ["--grp-attn-n", "2", "--image-min-tokens", "5"]);
}

/// Issue 10, 3.2: every way by which a request could name a file, an address, a tool or a log. Nothing is loaded, kept or registered for it.
#[tokio::test]
async fn no_request_names_a_file_of_this_machine() {
    let config = format!("{MODEL}[models.mine]\ncheckpoint = 'a.gguf'\nrecipe = 'llamacpp'\n");
    let rig = Rig::start(&config).await;
    std::fs::write(rig.path("a.gguf"), b"x").unwrap();
    let mut worker = Worker::new("w");
    worker.runtimes.push("llama_server");
    worker.join(&rig.address()).await;
    let (mut client, mut api) = (rig.client().await, models(&rig).await);
    for args in [
        "--chat-template-file /etc/passwd",
        "--grammar-file /etc/passwd",
        "--log-file /tmp/x",
        "--tools all",
        "--slots",
    ] {
        let json = format!(r#"{{"llamacpp_args": "{args}"}}"#);
        let load = v1::LoadModelRequest {
            model: "mine".into(),
            override_json: json.clone(),
            ..v1::LoadModelRequest::default()
        };
        let explain = v1::ExplainLoadRequest {
            model: "mine".into(),
            anew: true,
            override_json: json.clone(),
            ..v1::ExplainLoadRequest::default()
        };
        let save = v1::SetModelOptionsRequest {
            model: "mine".into(),
            options_json: json,
        };
        for status in [
            client.load_as(load).await.unwrap_err(),
            client.0.explain_load(explain).await.unwrap_err(),
            api.set_model_options(save).await.unwrap_err(),
        ] {
            let error = Error::from_status(&status);
            assert_eq!(error.code, Code::InvalidLoadRequest, "{args}");
            assert!(!error.message.contains("root:"), "{}", error.message);
        }
    }
    for (checkpoint, mmproj, recipe, param) in [
        ("/etc/passwd", "", "llamacpp", "checkpoint"),
        ("/etc", "", "vllm", "checkpoint"),
        ("relative.gguf", "", "llamacpp", "checkpoint"),
        ("/etc/passwd", "", "ryzenai-llm", "checkpoint"),
        ("--flag", "", "flm", "checkpoint"),
        ("o/n:Q4_0", "/etc/passwd", "llamacpp", "mmproj"),
        ("o/n:Q4_0", "../../etc/passwd", "llamacpp", "mmproj"),
    ] {
        let definition = v1::ModelDefinition {
            model: "user.theirs".into(),
            checkpoint: checkpoint.into(),
            mmproj: mmproj.into(),
            recipe: recipe.into(),
            ..v1::ModelDefinition::default()
        };
        let register = v1::RegisterModelRequest {
            definition: Some(definition.clone()),
        };
        let pull = v1::PullModelRequest {
            model: "user.theirs".into(),
            definition: Some(definition),
        };
        let registered = api.register_model(register).await.unwrap_err();
        let pulled = api.pull_model(pull).await.unwrap_err();
        for status in [registered, pulled] {
            let error = Error::from_status(&status);
            assert_eq!(
                (error.code, error.param.as_deref().unwrap_or_default()),
                (Code::InvalidRequest, param),
                "{checkpoint} {mmproj}: {}",
                error.message
            );
        }
    }
    let shown = client.model("mine").await;
    assert_eq!(
        (shown.runtime.as_str(), shown.options_json.as_str()),
        ("llama_cpp", "")
    );
    assert_eq!(worker.count("load"), 0);
}
