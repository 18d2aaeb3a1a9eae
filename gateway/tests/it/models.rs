//! Lemonade's pull, delete and registration (seed 000) over a scripted controller, whose answers depend on the model's name only.

use serde_json::{Value, json};

use crate::gateway::{Gateway, read};

/// The events of a streamed pull: kind and data.
async fn streamed(gateway: &Gateway, model: &str) -> Vec<(String, Value)> {
    let body = json!({"model_name": model, "stream": true});
    let response = gateway.post("/api/v1/pull", &body).await;
    assert_eq!(response.status(), 200);
    let text = response.text().await.unwrap();
    let event = |frame: &str| {
        let (kind, data) = frame.split_once('\n').unwrap();
        let kind = kind.strip_prefix("event: ").unwrap().to_owned();
        (
            kind,
            serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap(),
        )
    };
    text.trim_end().split("\n\n").map(event).collect()
}

#[tokio::test]
async fn seed_000_pull_streams_progress_and_one_last_event() {
    let (gateway, _controller) = Gateway::with(vec![]).await;
    let events = streamed(&gateway, "m").await;
    let progress = |done: u32, percent: u32| {
        let data = json!({
            "file": "model.gguf", "file_index": 1, "total_files": 1,
            "bytes_downloaded": done, "bytes_total": 200, "percent": percent
        });
        ("progress".to_owned(), data)
    };
    let complete = json!({"file_index": 1, "total_files": 1, "percent": 100});
    assert_eq!(
        events,
        [
            progress(50, 25),
            progress(200, 100),
            ("complete".to_owned(), complete)
        ]
    );
    let events = streamed(&gateway, "broken").await;
    let (kind, data) = events.last().unwrap();
    assert_eq!(
        (kind.as_str(), &data["error"]),
        ("error", &json!("the line is cut"))
    );
    assert_eq!(data["details"]["code"], "hub_unavailable");
}

#[tokio::test]
async fn seed_000_pull_and_delete_answer_as_the_seed_says() {
    let (gateway, _controller) = Gateway::with(vec![]).await;
    let post = async |path: &str, model: &str| {
        let (status, body) = read(gateway.post(path, &json!({"model_name": model})).await).await;
        (status.as_u16(), body)
    };
    let success = |message: &str| (200, json!({"status": "success", "message": message}));
    assert_eq!(post("/api/v1/pull", "m").await, success("Installed model: m"));
    assert_eq!(post("/v1/delete", "m").await, success("Deleted model: m"));
    let (status, body) = post("/api/v1/pull", "broken").await;
    assert_eq!(
        (status, &body["status"], &body["message"]),
        (502, &json!("error"), &json!("the line is cut"))
    );
    for (path, wanted) in [("/api/v1/pull", 404), ("/api/v1/delete", 422)] {
        let (status, body) = post(path, "nobody").await;
        assert_eq!(
            (status, &body["message"]),
            (wanted, &json!("Model not found: nobody")),
            "{path}"
        );
    }
}
