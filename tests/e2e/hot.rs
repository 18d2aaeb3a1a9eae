//! The configuration and users' files, edited while everything runs.

use std::{fs, process::Command, time::Duration};

use muster_proto::v1::{ModelStatus, ReloadRequest};
use muster_tests::{Engine, Role, Stack, engines::test_model, eventually, processes};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{clients::run, policy::Events};

const LIMIT: Duration = Duration::from_secs(60);

fn stub(id: &str, more: &str) -> String {
    Engine::Stub.model(id, 1, more)
}

fn edit(stack: &Stack, config: &str) {
    // Under its name only once it is whole, as editors do.
    let coming = stack.path("muster.toml.new");
    fs::write(&coming, config).unwrap();
    fs::rename(coming, stack.path("muster.toml")).unwrap();
}

async fn listed(stack: &Stack, wanted: &[&str]) {
    let probe = async || {
        let list = stack.http().get("/v1/models").await.ok();
        let rows = list["data"].as_array().unwrap().iter();
        let ids: Vec<String> = rows.map(|row| row["id"].as_str().unwrap().to_owned()).collect();
        if ids == wanted { Ok(()) } else { Err(ids) }
    };
    eventually(&format!("models {wanted:?}"), LIMIT, probe).await;
}

/// The instance that a model is loaded as.
async fn instance(stack: &Stack, id: &str) -> String {
    let model = stack.model_is(id, ModelStatus::Loaded, LIMIT).await;
    model.instances[0].r#ref.clone().unwrap().instance_id
}

#[tokio::test]
async fn an_edited_configuration_is_taken_over_and_interrupts_nobody() {
    let slow = "[models.changes.stub]\ntokens = 40\ntokens_per_second = 10\n";
    let all = "[policy]\nmax_loaded_models = -1\n".to_owned();
    let before = all.clone() + &stub("changes", "") + slow + &stub("goes", "") + &stub("stays", "");
    let stack = Stack::with(before).start().await;
    let mut events = Events::of(&stack).await;
    for id in ["goes", "stays"] {
        stack.http().chat(id, json!({"max_tokens": 1})).await.ok();
    }
    let stays = instance(&stack, "stays").await;
    let http = stack.http();
    let long = tokio::spawn(async move { http.chat("changes", json!({"max_tokens": 40})).await.ok() });
    stack.model_is("changes", ModelStatus::Loaded, LIMIT).await;
    let first = instance(&stack, "changes").await;

    edit(
        &stack,
        &(all
            + &stub("changes", "queue_limit = 7")
            + slow
            + &stub("new", "")
            + &stub("stays", "pinned = true")),
    );
    listed(&stack, &["changes", "new", "stays"]).await;
    let told = events.next("reloaded").await;
    for part in ["new: new", "changed: changes, stays", "gone: goes"] {
        assert!(told.reason.contains(part), "{}", told.reason);
    }
    let answer = long.await.unwrap();
    assert_eq!(answer["usage"]["completion_tokens"], 40, "it was not interrupted");
    let anew = async || {
        let now = instance(&stack, "changes").await;
        if now == first { Err(now) } else { Ok(()) }
    };
    eventually("the changed model is loaded anew", LIMIT, anew).await;
    let settings = stack.model("changes").await.settings.unwrap();
    assert_eq!(settings.queue_limit, 7);
    assert_eq!(instance(&stack, "stays").await, stays, "a pin takes no load");
    assert!(stack.model("stays").await.pinned);
    stack.http().chat("new", json!({"max_tokens": 1})).await.ok();
    let gone = async || {
        let hosted = stack.describe(0).await.instances;
        let models = hosted
            .into_iter()
            .filter_map(|found| Some(found.status?.spec?.model_id));
        let models: Vec<String> = models.collect();
        if models.iter().any(|model| model == "goes") {
            Err(models)
        } else {
            Ok(())
        }
    };
    eventually("what left the catalogue is unloaded", LIMIT, gone).await;
}

#[tokio::test]
async fn a_broken_edit_changes_nothing_and_says_where_it_is_broken() {
    let stack = Stack::with(stub("m", "")).start().await;
    let mut events = Events::of(&stack).await;
    edit(&stack, "[models.m]\nruntime = \"stub\"\nparalel = 2\n");
    let failed = events.next("reload_failed").await;
    assert!(
        failed.reason.contains("muster.toml: models.m.paralel"),
        "{}",
        failed.reason
    );
    let refused = stack.control().reload(ReloadRequest {}).await.unwrap_err();
    assert!(refused.message().contains("models.m.paralel"), "{refused}");
    let over_http = stack.http().post("/v1/admin/reload", &json!({})).await;
    assert_eq!(over_http.status, 400);
    assert_eq!(over_http.json()["error"]["code"], "invalid_configuration");
    let mut command = Command::new(muster_tests::binaries::find("muster"));
    command.args(["--controller", &stack.socket().to_string(), "reload"]);
    let output = run(command).await;
    assert!(!output.status.success());
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("models.m.paralel"),
        "{output:?}"
    );
    stack.http().chat("m", json!({"max_tokens": 1})).await.ok();

    edit(&stack, &(stub("m", "") + &stub("b", "")));
    listed(&stack, &["b", "m"]).await;
}

#[tokio::test]
async fn operators_need_not_wait_for_the_next_look() {
    let mut stack = Stack::with(stub("m", "")).start().await;
    let limits = "[policy]\nmax_loaded_models = 3\n";
    edit(&stack, &(limits.to_owned() + &stub("m", "") + &stub("b", "")));
    let mut command = Command::new(muster_tests::binaries::find("muster"));
    command.args(["--controller", &stack.socket().to_string(), "reload"]);
    let output = run(command).await;
    let said = String::from_utf8_lossy(&output.stdout);
    // The watcher may have been first.
    assert!(
        said == "new: b\npolicy has other settings\n" || said == "nothing has changed\n",
        "{said}"
    );
    assert!(
        stack
            .control()
            .get_model(muster_proto::v1::GetModelRequest { model: "b".into() })
            .await
            .is_ok()
    );
    // As llama.cpp's clients ask; what was added is in that very list.
    edit(
        &stack,
        &(limits.to_owned() + &stub("m", "") + &stub("b", "") + &stub("c", "")),
    );
    let list = stack.http().get("/models?reload=1").await.ok();
    let ids: Vec<_> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| &row["id"])
        .collect();
    assert_eq!(ids, ["b", "c", "m"]);
    for id in ["b", "m"] {
        stack.http().chat(id, json!({"max_tokens": 1})).await.ok();
    }
    for id in ["b", "m"] {
        stack.model_is(id, ModelStatus::Loaded, LIMIT).await;
    }
    edit(&stack, &(limits.to_owned() + &stub("m", "")));
    processes::signal(stack.process(Role::Controller).pid(), Signal::HUP);
    listed(&stack, &["m"]).await;
}

#[tokio::test]
async fn users_files_may_be_edited_too() {
    let stack = Stack::with(stub("m", "")).start().await;
    let mut events = Events::of(&stack).await;
    let file = stack.path("state/user_models.json");
    let write = |text: &str| {
        let coming = stack.path("state/coming.json");
        fs::write(&coming, text).unwrap();
        fs::rename(coming, &file).unwrap();
    };
    write(r#"{"mine": {"base": "m", "defaults": {"max_tokens": 2}}}"#);
    listed(&stack, &["m", "user.mine"]).await;
    let chat = stack.http().chat("mine", json!({})).await.ok();
    assert_eq!(chat["usage"]["completion_tokens"], 2);
    write(r#"{"mine": {"base": "m", "#);
    let failed = events.next("reload_failed").await;
    assert!(
        failed.reason.contains("user_models.json") && failed.reason.contains("line 1"),
        "{}",
        failed.reason
    );
    stack.http().chat("mine", json!({})).await.ok();
    // As Muster writes it.
    write(r#"{"version": 1, "models": {"mine": {"base": "m", "defaults": {"max_tokens": 3}}}}"#);
    let changed = async || {
        let usage = stack.http().chat("mine", json!({})).await.ok()["usage"].clone();
        if usage["completion_tokens"] == 3 {
            Ok(())
        } else {
            Err(usage)
        }
    };
    eventually("the edit is taken over", LIMIT, changed).await;
    write("{}");
    listed(&stack, &["m"]).await;
    // Of a newer Muster: refused, and never written over.
    let newer = r#"{"version": 9, "models": "in another form"}"#;
    write(newer);
    let failed = events.next("reload_failed").await;
    assert!(failed.reason.contains("is of version 9"), "{}", failed.reason);
    let register = json!({"model_name": "user.other", "checkpoint": "o/n:Q4_0", "recipe": "llamacpp"});
    let refused = stack.http().post("/api/v1/models/register", &register).await;
    let said = refused.json().to_string();
    assert!(
        refused.status == 500 && said.contains("is of version 9"),
        "{said}"
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), newer);
    fs::rename(&file, stack.path("state/user_models.json.newer")).unwrap();
    let written = async || {
        let text = fs::read_to_string(&file).unwrap_or_default();
        if text.contains("other") { Ok(()) } else { Err(text) }
    };
    eventually("what was refused is written", LIMIT, written).await;
}

/// Lemonade's `/internal/set`: taken over at once, kept over a restart, and all or none.
#[tokio::test]
async fn settings_of_the_fleet_are_set_while_it_runs_and_kept() {
    let folders = tempfile::tempdir().unwrap();
    fs::create_dir(folders.path().join("mine")).unwrap();
    fs::copy(test_model("tiny-chat"), folders.path().join("mine/found.gguf")).unwrap();
    let config = format!("[catalogue]\nallowed_models_dirs = [{:?}]\n", folders.path());
    let llama = Engine::LlamaCpp.serving(&test_model("tiny-chat"), "m", 1, "");
    let mut stack = Stack::with(config + &llama + &stub("a", "") + &stub("b", ""))
        .start()
        .await;
    let set = async |stack: &Stack, body: Value| stack.http().post("/internal/set", &body).await;
    let shown = async |stack: &Stack| stack.http().get("/internal/config").await.ok();
    assert_eq!(shown(&stack).await["max_loaded_models"], 1);
    stack.http().chat("a", json!({"max_tokens": 1})).await.ok();
    let mine = folders.path().join("mine");
    let all =
        json!({"max_loaded_models": 2, "ctx_size": 96, "llamacpp_args": "-b 64", "extra_models_dir": mine});
    let answer = set(&stack, all).await.ok();
    assert_eq!(answer["updated"]["max_loaded_models"], 2, "{answer}");
    listed(&stack, &["a", "b", "found", "m"]).await;
    stack.http().chat("b", json!({"max_tokens": 1})).await.ok();
    stack.model_is("a", ModelStatus::Loaded, LIMIT).await;

    // As Lemonade's own command sets it and shows it.
    set(&stack, json!({"llamacpp": {"args": "-b 32"}})).await.ok();
    assert_eq!(shown(&stack).await["llamacpp"]["args"], "-b 32");

    for (wrong, names) in [
        (
            json!({"llamacpp": {"vulkan_bin": "/bin/sh"}}),
            "llamacpp.vulkan_bin",
        ),
        (
            json!({"llamacpp": {"args": "--log-file /tmp/x"}}),
            "llamacpp_args",
        ),
        (
            json!({"auto_evict_threshold_pct": 0.8}),
            "auto_evict_threshold_pct",
        ),
        (json!({"max_loaded_models": 0}), "max_loaded_models"),
        (json!({"llamacpp_args": "--log-file /tmp/x"}), "llamacpp_args"),
        (json!({"extra_models_dir": "/etc"}), "extra_models_dir"),
        (json!({"ctx_size": 128, "port": 1}), "port"),
    ] {
        let refused = set(&stack, wrong).await;
        assert!(
            refused.status == 400 && refused.text.contains(names),
            "{}",
            refused.text
        );
    }
    stack.kill(Role::Controller);
    stack.start_process(Role::Controller).await;
    let probe = async || match stack.http().get("/internal/config").await {
        reply if reply.status == 200 => Ok(reply.ok()),
        reply => Err(reply.text),
    };
    let (kept, _) = eventually("the settings after a restart", LIMIT, probe).await;
    assert_eq!(
        (&kept["max_loaded_models"], &kept["ctx_size"]),
        (&json!(2), &json!(96)),
        "{kept}"
    );
    let answer = stack.http().chat("m", json!({"max_tokens": 1})).await.ok();
    assert!(answer["usage"].is_object());
    let loaded = stack.model_is("m", ModelStatus::Loaded, LIMIT).await;
    assert_eq!(loaded.settings.unwrap().ctx_size, 96);

    set(&stack, json!({"ctx_size": null})).await.ok();
    assert_eq!(shown(&stack).await["ctx_size"], -1);

    // What does not fit any more keeps nothing from starting.
    stack.kill(Role::Controller);
    fs::remove_dir_all(&mine).unwrap();
    stack.start_process(Role::Controller).await;
    let probe = async || match stack.http().get("/internal/config").await {
        reply if reply.status == 200 => Ok(reply.ok()),
        reply => Err(reply.text),
    };
    let (without, _) = eventually("the settings without what did not fit", LIMIT, probe).await;
    assert_eq!(without["max_loaded_models"], 1, "{without}");
    assert!(stack.path("state/settings.json.unfit").exists());
}
