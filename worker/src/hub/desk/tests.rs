//! Downloads from a hub in this process.

use std::{
    fs,
    net::SocketAddr,
    sync::atomic::{AtomicU32, Ordering},
};

use axum::{
    Router,
    body::Body,
    extract::{Path, State as Shared},
    http::{Method, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use muster_core::Code;
use muster_proto::v1::{CancelFetch, FetchFiles, ListFiles, LookForFiles, RemoveFiles};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::{net::TcpListener, sync::watch, time::timeout};

use super::*;

/// A hub with one repository `o/n`; what it does wrong is the test's to say.
#[derive(Debug, Default)]
struct Hub {
    files: Vec<(&'static str, Vec<u8>)>,
    /// Content of this file is not what it was announced as.
    corrupt: Option<&'static str>,
    /// Content of this file ends early.
    short: Option<&'static str>,
    /// Content waits until this is true.
    gate: Option<watch::Receiver<bool>>,
    downloads: AtomicU32,
}

async fn listing(Shared(hub): Shared<Arc<Hub>>, Path((org, name)): Path<(String, String)>) -> Response {
    if (org.as_str(), name.as_str()) != ("o", "n") {
        return StatusCode::NOT_FOUND.into_response();
    }
    let siblings: Vec<_> = hub
        .files
        .iter()
        .map(|(path, content)| json!({"rfilename": path, "size": content.len()}))
        .collect();
    json!({"sha": "c0ffee", "siblings": siblings})
        .to_string()
        .into_response()
}

async fn resolve(
    Shared(hub): Shared<Arc<Hub>>,
    method: Method,
    Path((.., path)): Path<(String, String, String, String)>,
) -> Response {
    let Some((name, content)) = hub.files.iter().find(|(name, _)| *name == path) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let sum: String = Sha256::digest(content)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let head = [
        (header::ETAG, format!("\"{sum}\"")),
        (header::CONTENT_LENGTH, content.len().to_string()),
    ];
    if method == Method::HEAD {
        return (head, Body::empty()).into_response();
    }
    hub.downloads.fetch_add(1, Ordering::Relaxed);
    if let Some(mut gate) = hub.gate.clone() {
        gate.wait_for(|open| *open).await.unwrap();
    }
    let mut content = content.clone();
    if hub.corrupt == Some(*name) {
        content[0] ^= 1;
    }
    if hub.short == Some(*name) {
        content.pop();
        return content.into_response();
    }
    content.into_response()
}

struct Rig {
    hub: Arc<Hub>,
    desk: Desk,
    dir: tempfile::TempDir,
}

impl Rig {
    async fn new(hub: Hub) -> Self {
        let hub = Arc::new(hub);
        let app = Router::new()
            .route("/api/models/{org}/{name}/revision/main", get(listing))
            .route("/{org}/{name}/resolve/{commit}/{*path}", get(resolve))
            .with_state(Arc::clone(&hub));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        let dir = tempfile::tempdir().unwrap();
        let desk = Desk::new(HubConfig {
            endpoint: format!("http://{address}"),
            cache: Cache::new(dir.path().join("hub")),
            token: None,
            offline: false,
        });
        Self { hub, desk, dir }
    }

    fn order(&self, id: &str, variant: &str, kind: Order) {
        self.desk.obey(FilesOrder {
            order_id: id.to_owned(),
            checkpoint: Some(checkpoint(variant)),
            kind: Some(kind),
        });
    }

    /// The last word on an order, and how often there was progress on the way.
    async fn last(&self, id: &str) -> (News, u32) {
        let mut progress = 0;
        let last = async {
            loop {
                for news in self.desk.news() {
                    match news.kind.unwrap() {
                        News::Progress(_) => progress += 1,
                        kind if news.order_id == id => return kind,
                        News::Cached(_) | News::Listing(_) | News::Failed(_) => {}
                    }
                }
                self.desk.changed().await;
            }
        };
        let last = timeout(Duration::from_secs(20), last)
            .await
            .expect("an answer in time");
        (last, progress)
    }

    async fn fails(&self, variant: &str) -> Error {
        self.order("f", variant, Order::Fetch(FetchFiles {}));
        match self.last("f").await.0 {
            News::Failed(error) => error.into(),
            other @ (News::Progress(_) | News::Cached(_) | News::Listing(_)) => panic!("{other:?}"),
        }
    }

    async fn cached(&self, id: &str) -> CachedFiles {
        match self.last(id).await.0 {
            News::Cached(found) => found,
            other @ (News::Progress(_) | News::Failed(_) | News::Listing(_)) => panic!("{other:?}"),
        }
    }

    /// Files in `blobs`, locks apart.
    fn blobs(&self) -> usize {
        let blobs = fs::read_dir(self.dir.path().join("hub/models--o--n/blobs"));
        let names = blobs
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name());
        names
            .filter(|name| !name.to_string_lossy().ends_with(".lock"))
            .count()
    }
}

fn checkpoint(variant: &str) -> HubCheckpoint {
    HubCheckpoint {
        repo: "o/n".to_owned(),
        variant: variant.to_owned(),
        ..HubCheckpoint::default()
    }
}

fn two_models() -> Hub {
    Hub {
        files: vec![
            ("m-Q8_0-00001-of-00002.gguf", vec![1; 300_000]),
            ("m-Q8_0-00002-of-00002.gguf", vec![2; 200_000]),
            ("m-Q4_0.gguf", vec![3; 1000]),
            ("README.md", vec![4; 10]),
        ],
        ..Hub::default()
    }
}

#[tokio::test]
async fn what_is_missing_is_fetched_and_what_is_there_is_not() {
    let rig = Rig::new(two_models()).await;
    rig.order("1", "Q8_0", Order::Look(LookForFiles {}));
    assert!(!rig.cached("1").await.complete);
    rig.order("2", "Q8_0", Order::Fetch(FetchFiles {}));
    let (last, _) = rig.last("2").await;
    let News::Cached(found) = last else {
        panic!("{last:?}")
    };
    assert_eq!((found.complete, found.size_bytes), (true, 500_000));
    assert!(
        found
            .path
            .ends_with("snapshots/c0ffee/m-Q8_0-00001-of-00002.gguf")
    );
    assert_eq!(fs::read(&found.path).unwrap(), vec![1; 300_000]);
    assert_eq!(rig.blobs(), 2);
    rig.order("3", "Q8_0", Order::Fetch(FetchFiles {}));
    assert!(rig.cached("3").await.complete);
    assert_eq!(rig.hub.downloads.load(Ordering::Relaxed), 2);
    rig.order("4", "Q8_0", Order::Remove(RemoveFiles { keep: Vec::new() }));
    let left = rig.cached("4").await;
    assert_eq!((left.complete, left.freed_bytes), (false, 500_000));
    assert_eq!(rig.blobs(), 0);
}

#[tokio::test]
async fn orders_for_the_same_files_are_one_download() {
    let (open, gate) = watch::channel(false);
    let rig = Rig::new(Hub {
        gate: Some(gate),
        ..two_models()
    })
    .await;
    rig.order("1", "Q4_0", Order::Fetch(FetchFiles {}));
    rig.order("2", "Q4_0", Order::Fetch(FetchFiles {}));
    // Each hears how far it is, also before the content comes.
    let mut told = Vec::new();
    while told.len() < 2 {
        rig.desk.changed().await;
        told.extend(
            rig.desk
                .news()
                .into_iter()
                .map(|news| (news.order_id, news.kind.unwrap())),
        );
    }
    for (id, (order, news)) in ["1", "2"].into_iter().zip(told) {
        let News::Progress(progress) = news else {
            panic!("{news:?}")
        };
        assert_eq!((order.as_str(), progress.file.as_str()), (id, "m-Q4_0.gguf"));
        assert_eq!(
            (progress.file_index, progress.total_files, progress.bytes_total),
            (1, 1, 1000)
        );
    }
    open.send_replace(true);
    let mut done = Vec::new();
    while done.len() < 2 {
        rig.desk.changed().await;
        let news = rig.desk.news().into_iter();
        done.extend(news.filter(|news| matches!(news.kind, Some(News::Cached(_)))));
    }
    assert_eq!(rig.hub.downloads.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_cancelled_download_leaves_nothing_and_may_begin_anew() {
    let (open, gate) = watch::channel(false);
    let rig = Rig::new(Hub {
        gate: Some(gate),
        ..two_models()
    })
    .await;
    rig.order("1", "Q4_0", Order::Fetch(FetchFiles {}));
    rig.order("2", "Q4_0", Order::Cancel(CancelFetch {}));
    let (last, _) = rig.last("1").await;
    let News::Failed(error) = last else {
        panic!("{last:?}")
    };
    assert_eq!(error.code, "download_cancelled");
    open.send_replace(true);
    rig.order("3", "Q4_0", Order::Fetch(FetchFiles {}));
    assert!(rig.cached("3").await.complete);
    assert_eq!(rig.blobs(), 1);
}

#[tokio::test]
async fn what_is_not_what_was_announced_is_not_kept() {
    let rig = Rig::new(Hub {
        corrupt: Some("m-Q4_0.gguf"),
        ..two_models()
    })
    .await;
    assert_eq!(rig.fails("Q4_0").await.code, Code::DownloadCorrupt);
    assert_eq!(rig.blobs(), 0);
    let rig = Rig::new(Hub {
        short: Some("m-Q4_0.gguf"),
        ..two_models()
    })
    .await;
    let error = rig.fails("Q4_0").await;
    assert_eq!(
        (error.code.as_str(), error.details["received_bytes"].as_str()),
        ("download_corrupt", "999")
    );
    assert_eq!(rig.blobs(), 0);
}

#[tokio::test]
async fn errors_say_what_is_wrong() {
    let rig = Rig::new(two_models()).await;
    let error = rig.fails("Q5_K_M").await;
    assert_eq!(error.code, Code::CheckpointNotFound);
    assert!(
        error.message.contains("Q4_0") && error.message.contains("Q8_0"),
        "{error}"
    );
    rig.desk.obey(FilesOrder {
        order_id: "x".to_owned(),
        checkpoint: Some(HubCheckpoint {
            repo: "o/other".to_owned(),
            ..HubCheckpoint::default()
        }),
        kind: Some(Order::Fetch(FetchFiles {})),
    });
    let (last, _) = rig.last("x").await;
    let News::Failed(error) = last else {
        panic!("{last:?}")
    };
    assert_eq!(error.code, "checkpoint_not_found");
    let away = Rig::new(Hub::default()).await;
    let desk = Desk::new(HubConfig {
        endpoint: "http://127.0.0.1:1".to_owned(),
        ..away.desk.0.hub.clone()
    });
    let away = Rig { desk, ..away };
    assert_eq!(away.fails("Q4_0").await.code, Code::HubUnavailable);
}

#[tokio::test]
async fn a_repository_is_listed() {
    let rig = Rig::new(two_models()).await;
    rig.order("1", "", Order::List(ListFiles {}));
    let (last, _) = rig.last("1").await;
    let News::Listing(listing) = last else {
        panic!("{last:?}")
    };
    let shown: Vec<_> = listing
        .variants
        .iter()
        .map(|one| (one.name.as_str(), one.size_bytes))
        .collect();
    assert_eq!(shown, [("Q8_0", 500_000), ("Q4_0", 1000)]);
}
