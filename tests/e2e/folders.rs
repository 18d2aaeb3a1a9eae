//! Folders whose GGUF files are models, as they come and go.

use std::{fs, time::Duration};

use muster_tests::{Stack, engines, eventually};

const LIMIT: Duration = Duration::from_secs(60);

async fn shows(stack: &Stack, wanted: &[&str]) {
    let probe = async || {
        let list = stack.http().get("/api/v1/models").await.ok();
        let rows = list["data"].as_array().unwrap().iter();
        let ids: Vec<String> = rows.map(|row| row["id"].as_str().unwrap().to_owned()).collect();
        if ids == wanted { Ok(()) } else { Err(ids) }
    };
    eventually(&format!("models {wanted:?}"), LIMIT, probe).await;
}

#[tokio::test]
async fn a_model_that_ollama_downloaded_is_served_from_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("manifests/registry.ollama.ai/library/tiny");
    fs::create_dir_all(&manifest).unwrap();
    fs::create_dir_all(folder.path().join("blobs")).unwrap();
    fs::copy(
        engines::test_model("tiny-chat"),
        folder.path().join("blobs/sha256-0a1b"),
    )
    .unwrap();
    let layers = r#"{"layers":[{"mediaType":"application/vnd.ollama.image.model","digest":"sha256:0a1b"}]}"#;
    fs::write(manifest.join("latest"), layers).unwrap();
    let config = format!(
        "[catalogue]\nextra_models_dir = [\"{}\"]\n",
        folder.path().display()
    );
    let stack = Stack::with(config).start().await;
    shows(&stack, &["tiny"]).await;
    let body = serde_json::json!({"max_tokens": 4});
    assert!(
        !stack
            .http()
            .chat("tiny:latest", body)
            .await
            .chat_text()
            .is_empty()
    );
}

#[tokio::test]
async fn models_of_a_folder_come_and_go_with_their_files() {
    let folder = tempfile::tempdir().unwrap();
    let put = |path: &str| {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // Under its name only once it is whole, as programs that download do.
        let coming = path.with_extension("part");
        fs::copy(engines::test_model("tiny-chat"), &coming).unwrap();
        fs::rename(coming, path).unwrap();
    };
    put("first.gguf");
    put("configured.gguf");
    let config = format!(
        "[catalogue]\nextra_models_dir = [\"{}\"]\n[models.configured]\nrecipe = \"llamacpp\"\ncheckpoint = \"{}\"\n",
        folder.path().display(),
        engines::test_model("tiny-chat").display()
    );
    let stack = Stack::with(config).start().await;
    shows(&stack, &["configured", "first"]).await;
    let http = stack.http();
    let chat = async |model: &str| http.chat(model, serde_json::json!({"max_tokens": 4})).await;
    assert!(!chat("extra.first").await.chat_text().is_empty());
    // As LM Studio keeps them.
    put("publisher/repository/second.gguf");
    shows(&stack, &["configured", "first", "second"]).await;
    assert!(!chat("second").await.chat_text().is_empty());
    // The file of a model that runs may go; the model goes once it is unloaded.
    fs::remove_file(folder.path().join("publisher/repository/second.gguf")).unwrap();
    http.post("/api/v1/unload", &serde_json::json!({"model_name": "second"}))
        .await
        .ok();
    shows(&stack, &["configured", "first"]).await;
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        3,
        "nothing is written there"
    );
}
