//! `GET /models/sse`: what happens to models.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use axum::{body::Body, extract::State, response::Response};
use bytes::Bytes;
use http::{HeaderValue, header::CONTENT_TYPE};
use muster_proto::v1::{Download, DownloadState};
use serde_json::{Value, json};

use super::shown_id;
use crate::{
    dialects::openai::listing::{files, word},
    fleet::{Fleet, table::Table},
    web::{App, access::Access, route::Route},
};

/// How often downloads are looked at: the controller tells nobody of its own accord how far they are.
const DOWNLOADS_EVERY: Duration = Duration::from_millis(500);

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/models/sse", Access::User, events)
            .summary("What happens to models, as server-sent events")
            .streams()
            .answer_text("`model`, `event` and `data` each."),
    ]
}

/// What was told so far.
#[derive(Debug, Default)]
struct Told {
    words: Words,
    /// Downloads by model, with their state and how many bytes are here.
    downloads: BTreeMap<String, (DownloadState, u64)>,
}

async fn events(State(app): State<Arc<App>>) -> Response {
    let fleet = Arc::clone(&app.dispatcher.fleet);
    let stopping = app.stopping.clone();
    let mut told = Told {
        words: words(&fleet.table()),
        ..Told::default()
    };
    // What ended before is no news.
    told.news(&fleet, &downloads(&fleet).await);
    let changes = fleet.changes();
    let events = futures::stream::unfold((fleet, changes, told), |(fleet, mut changes, mut told)| async {
        loop {
            let text = match tokio::time::timeout(DOWNLOADS_EVERY, changes.changed()).await {
                Ok(changed) => {
                    changed.ok()?;
                    let now = words(&fleet.table());
                    let text = differences(&told.words, &now);
                    told.words = now;
                    text
                }
                Err(_) => {
                    let downloads = downloads(&fleet).await;
                    told.news(&fleet, &downloads)
                }
            };
            if !text.is_empty() {
                return Some((Ok::<_, Infallible>(Bytes::from(text)), (fleet, changes, told)));
            }
        }
    });
    let events = futures::StreamExt::take_until(events, stopping.cancelled_owned());
    let mut response = Response::new(Body::from_stream(events));
    let kind = HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// All downloads; none while the controller is away.
async fn downloads(fleet: &Fleet) -> Vec<Download> {
    fleet.models().downloads().await.unwrap_or_default()
}

impl Told {
    /// The events of downloads since the last look.
    fn news(&mut self, fleet: &Fleet, downloads: &[Download]) -> String {
        let table = fleet.table();
        let mut text = String::new();
        for download in downloads {
            let here = download
                .progress
                .as_ref()
                .map_or(0, |progress| progress.all_downloaded);
            let now = (download.state(), here);
            if self.downloads.insert(download.model.clone(), now) != Some(now) {
                told(&mut text, shown_id(&table, &download.model), download);
            }
        }
        text
    }
}

fn told(text: &mut String, model: &str, download: &Download) {
    let progress = download.progress.clone().unwrap_or_default();
    match download.state() {
        DownloadState::Running if progress.all_downloaded > 0 => {
            push(
                text,
                &json!({"model": model, "event": "download_progress", "data": files(&progress)}),
            );
        }
        DownloadState::Done => {
            // Clients that show a bar see it full, however fast it was.
            push(
                text,
                &json!({"model": model, "event": "download_progress", "data": files(&progress)}),
            );
            push(text, &json!({"model": model, "event": "download_finished"}));
        }
        DownloadState::Failed | DownloadState::Cancelled => {
            push(text, &json!({"model": model, "event": "download_failed"}));
        }
        DownloadState::Unspecified
        | DownloadState::Waiting
        | DownloadState::Running
        | DownloadState::Paused => {}
    }
}

/// The state of each model, by the name that is shown.
type Words = BTreeMap<String, &'static str>;

fn words(table: &Table) -> Words {
    table
        .models()
        .map(|summary| (shown_id(table, &summary.id).to_owned(), word(summary)))
        .collect()
}

/// The events between two looks.
fn differences(before: &Words, now: &Words) -> String {
    let mut text = String::new();
    for (model, word) in now
        .iter()
        .filter(|(model, word)| before.get(*model) != Some(word))
    {
        let data = match *word {
            "failed" => json!({"status": "unloaded", "failed": true}),
            word => json!({"status": word}),
        };
        push(
            &mut text,
            &json!({"model": model, "event": "model_status", "data": data}),
        );
    }
    for model in before.keys().filter(|model| !now.contains_key(*model)) {
        push(&mut text, &json!({"model": model, "event": "model_remove"}));
    }
    text
}

fn push(text: &mut String, event: &Value) {
    text.push_str("data: ");
    text.push_str(&event.to_string());
    text.push_str("\n\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_of_a_model_is_an_event() {
        let words = |pairs: &[(&str, &'static str)]| -> Words {
            pairs
                .iter()
                .map(|(model, word)| ((*model).to_owned(), *word))
                .collect()
        };
        let before = words(&[("a", "loading"), ("b", "loaded"), ("c", "unloaded")]);
        let now = words(&[("a", "failed"), ("b", "loaded"), ("d", "loaded")]);
        let text = differences(&before, &now);
        let events: Vec<Value> = text
            .split_terminator("\n\n")
            .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
            .collect();
        assert_eq!(
            events,
            [
                json!({"model": "a", "event": "model_status", "data": {"status": "unloaded", "failed": true}}),
                json!({"model": "d", "event": "model_status", "data": {"status": "loaded"}}),
                json!({"model": "c", "event": "model_remove"}),
            ]
        );
        assert!(differences(&now, &now).is_empty());
    }
}
