//! Downloads from a hub in this process.

use std::fs;

use muster_core::Code;
use muster_fakes::hub::{COMMIT, Fault, Hub};
use muster_proto::v1::{CancelFetch, CheckFiles, FetchFiles, ListFiles, LookForFiles, RemoveFiles};
use tokio::time::timeout;

use super::*;
use crate::hub::{Limit, Patience};

mod faults;

/// A repository `o/n`, and who fetches from it.
struct Rig {
    hub: Hub,
    desk: Desk,
    dir: tempfile::TempDir,
}

impl Rig {
    async fn new() -> Self {
        let hub = Hub::start().await;
        hub.put("o/n", "m-Q8_0-00001-of-00002.gguf", vec![1; 300_000]);
        hub.put("o/n", "m-Q8_0-00002-of-00002.gguf", vec![2; 200_000]);
        hub.put("o/n", "m-Q4_0.gguf", vec![3; 1000]);
        hub.put("o/n", "README.md", vec![4; 10]);
        let dir = tempfile::tempdir().unwrap();
        let desk = Desk::new(config(hub.endpoint(), dir.path()));
        Self { hub, desk, dir }
    }

    /// Another process takes over what this one leaves.
    fn restart(&mut self) {
        let config = self.desk.0.hub.clone();
        let old = std::mem::replace(&mut self.desk, Desk::new(config));
        old.lock().jobs.values().for_each(|job| job.cancel.cancel());
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
                        News::Cached(_) | News::Listing(_) | News::Checked(_) | News::Failed(_) => {}
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

    /// Waits until so many bytes of content have come.
    async fn came(&self, bytes: u64) {
        let come = async {
            while self.hub.sent() < bytes {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(Duration::from_secs(20), come)
            .await
            .expect("bytes in time");
    }

    async fn fails(&self, variant: &str) -> Error {
        self.order("f", variant, Order::Fetch(FetchFiles::default()));
        match self.last("f").await.0 {
            News::Failed(error) => error.into(),
            other @ (News::Progress(_) | News::Cached(_) | News::Listing(_) | News::Checked(_)) => {
                panic!("{other:?}")
            }
        }
    }

    async fn cached(&self, id: &str) -> CachedFiles {
        match self.last(id).await.0 {
            News::Cached(found) => found,
            other @ (News::Progress(_) | News::Failed(_) | News::Listing(_) | News::Checked(_)) => {
                panic!("{other:?}")
            }
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

fn config(endpoint: String, dir: &std::path::Path) -> HubConfig {
    let pause = Duration::from_millis(1);
    HubConfig {
        endpoint,
        cache: Cache::new(dir.join("hub")),
        token: None,
        offline: false,
        limit: Limit::default(),
        patience: Patience {
            questions: 3,
            content: 4,
            pauses: (pause, pause),
        },
    }
}

#[tokio::test]
async fn what_is_missing_is_fetched_and_what_is_there_is_not() {
    let rig = Rig::new().await;
    rig.order("1", "Q8_0", Order::Look(LookForFiles {}));
    assert!(!rig.cached("1").await.complete);
    rig.order("2", "Q8_0", Order::Fetch(FetchFiles::default()));
    let (last, _) = rig.last("2").await;
    let News::Cached(found) = last else {
        panic!("{last:?}")
    };
    assert_eq!((found.complete, found.size_bytes), (true, 500_000));
    assert!(
        found
            .path
            .ends_with(&format!("snapshots/{COMMIT}/m-Q8_0-00001-of-00002.gguf"))
    );
    assert_eq!(fs::read(&found.path).unwrap(), vec![1; 300_000]);
    assert_eq!(rig.blobs(), 2);
    rig.order("3", "Q8_0", Order::Fetch(FetchFiles::default()));
    assert!(rig.cached("3").await.complete);
    assert_eq!(rig.hub.downloads(), 2);
    rig.order("4", "Q8_0", Order::Remove(RemoveFiles { keep: Vec::new() }));
    let left = rig.cached("4").await;
    assert_eq!((left.complete, left.freed_bytes), (false, 500_000));
    assert_eq!(rig.blobs(), 0);
}

/// An order about a revision's files.
fn at(revision: &str, variant: &str, id: &str, kind: Order) -> FilesOrder {
    FilesOrder {
        order_id: id.to_owned(),
        checkpoint: Some(HubCheckpoint {
            revision: revision.to_owned(),
            ..checkpoint(variant)
        }),
        kind: Some(kind),
    }
}

#[tokio::test]
async fn each_revision_has_its_own_files() {
    let rig = Rig::new().await;
    let pinned = "1111111111111111111111111111111111111111";
    rig.hub
        .publish("o/n", "refs/pr/1", pinned, &[("m-Q4_0.gguf", b"older")]);
    for (id, revision) in [("1", pinned), ("2", "refs/pr/1")] {
        rig.desk
            .obey(at(revision, "Q4_0", id, Order::Fetch(FetchFiles::default())));
        let found = rig.cached(id).await;
        assert_eq!(fs::read(&found.path).unwrap(), b"older", "{revision}");
    }
    assert_eq!(rig.hub.downloads(), 1, "the same content is fetched once");
    // What is pinned is not what `main` means.
    rig.order("3", "Q4_0", Order::Look(LookForFiles {}));
    assert!(!rig.cached("3").await.complete);
    rig.order("4", "Q4_0", Order::Fetch(FetchFiles::default()));
    assert_eq!(fs::read(rig.cached("4").await.path).unwrap(), vec![3; 1000]);
    // Removed where it is no other revision's.
    rig.order("5", "Q4_0", Order::Remove(RemoveFiles { keep: Vec::new() }));
    assert_eq!(rig.cached("5").await.freed_bytes, 1000);
    rig.desk
        .obey(at(pinned, "Q4_0", "6", Order::Look(LookForFiles {})));
    assert!(rig.cached("6").await.complete);
    for (revision, code) in [("none", "checkpoint_not_found"), ("../x", "invalid_request")] {
        rig.desk
            .obey(at(revision, "Q4_0", "7", Order::Fetch(FetchFiles::default())));
        let (last, _) = rig.last("7").await;
        let News::Failed(error) = last else {
            panic!("{last:?}")
        };
        assert_eq!(error.code, code, "{error:?}");
    }
}

#[tokio::test]
async fn newer_files_come_when_they_are_asked_for_and_the_old_ones_stay() {
    let rig = Rig::new().await;
    rig.order("1", "Q4_0", Order::Fetch(FetchFiles::default()));
    let old = rig.cached("1").await;
    let newer = "2222222222222222222222222222222222222222";
    rig.hub
        .publish("o/n", "main", newer, &[("m-Q4_0.gguf", b"newer")]);
    rig.order("2", "Q4_0", Order::Fetch(FetchFiles::default()));
    assert_eq!(rig.cached("2").await, old);
    rig.order("3", "Q4_0", Order::Fetch(FetchFiles { refresh: true }));
    let found = rig.cached("3").await;
    assert!(found.path.contains(newer), "{}", found.path);
    assert_eq!(fs::read(&found.path).unwrap(), b"newer");
    assert_eq!(fs::read(&old.path).unwrap(), vec![3; 1000], "it may be in use");
    // Without the hub, what is here stays.
    rig.hub.fault(Fault::Refuse(503, None), 100);
    rig.order("4", "Q4_0", Order::Fetch(FetchFiles { refresh: true }));
    assert_eq!(rig.cached("4").await, found);
    rig.hub.mend();
    // Both go with the model.
    rig.order("5", "Q4_0", Order::Remove(RemoveFiles { keep: Vec::new() }));
    assert_eq!(rig.cached("5").await.freed_bytes, 1005);
}

#[tokio::test]
async fn a_check_tells_files_that_changed_from_commits_that_changed_nothing() {
    let rig = Rig::new().await;
    let check = async |id: &str| {
        rig.order(id, "Q4_0", Order::Check(CheckFiles {}));
        match rig.last(id).await.0 {
            News::Checked(checked) => checked,
            other @ (News::Progress(_) | News::Cached(_) | News::Listing(_) | News::Failed(_)) => {
                panic!("{other:?}")
            }
        }
    };
    assert_eq!(check("1").await, FilesCheck::default());
    rig.order("2", "Q4_0", Order::Fetch(FetchFiles::default()));
    assert!(rig.cached("2").await.complete);
    let here = check("3").await;
    assert_eq!(
        (here.cached_commit.as_str(), here.hub_commit.as_str()),
        (COMMIT, COMMIT)
    );
    assert!(here.changed_files.is_empty());
    let same = vec![3; 1000];
    rig.hub.publish(
        "o/n",
        "main",
        "c2",
        &[("m-Q4_0.gguf", &same), ("README.md", b"new words")],
    );
    let newer = check("4").await;
    assert_eq!((newer.hub_commit.as_str(), newer.changed_files.len()), ("c2", 0));
    rig.hub.publish("o/n", "main", "c3", &[("m-Q4_0.gguf", b"newer")]);
    let newer = check("5").await;
    assert_eq!(
        (newer.hub_commit.as_str(), newer.changed_files),
        ("c3", vec!["m-Q4_0.gguf".to_owned()])
    );
    assert_eq!(rig.hub.downloads(), 1, "nothing is downloaded");
    // The file is there no longer, and neither is the hub.
    rig.hub.publish("o/n", "main", "c4", &[("m-Q8_0.gguf", b"other")]);
    for (fault, code) in [(None, "checkpoint_not_found"), (Some(503), "hub_unavailable")] {
        if let Some(status) = fault {
            rig.hub.fault(Fault::Refuse(status, None), 100);
        }
        rig.order("6", "Q4_0", Order::Check(CheckFiles {}));
        let (last, _) = rig.last("6").await;
        let News::Failed(error) = last else {
            panic!("{last:?}")
        };
        assert_eq!(error.code, code);
    }
}

#[tokio::test]
async fn orders_for_the_same_files_are_one_download() {
    let rig = Rig::new().await;
    rig.hub.hold(true);
    rig.order("1", "Q4_0", Order::Fetch(FetchFiles::default()));
    rig.order("2", "Q4_0", Order::Fetch(FetchFiles::default()));
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
    rig.hub.hold(false);
    let mut done = Vec::new();
    while done.len() < 2 {
        rig.desk.changed().await;
        let news = rig.desk.news().into_iter();
        done.extend(news.filter(|news| matches!(news.kind, Some(News::Cached(_)))));
    }
    assert_eq!(rig.hub.downloads(), 1);
}

#[tokio::test]
async fn a_cancelled_download_leaves_nothing_and_may_begin_anew() {
    let rig = Rig::new().await;
    rig.hub.hold(true);
    rig.order("1", "Q4_0", Order::Fetch(FetchFiles::default()));
    rig.order("2", "Q4_0", Order::Cancel(CancelFetch { keep: false }));
    let (last, _) = rig.last("1").await;
    let News::Failed(error) = last else {
        panic!("{last:?}")
    };
    assert_eq!(error.code, "download_cancelled");
    rig.hub.hold(false);
    rig.order("3", "Q4_0", Order::Fetch(FetchFiles::default()));
    assert!(rig.cached("3").await.complete);
    assert_eq!(rig.blobs(), 1);
}

#[tokio::test]
async fn errors_say_what_is_wrong() {
    let rig = Rig::new().await;
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
        kind: Some(Order::Fetch(FetchFiles::default())),
    });
    let (last, _) = rig.last("x").await;
    let News::Failed(error) = last else {
        panic!("{last:?}")
    };
    assert_eq!(error.code, "checkpoint_forbidden");
    let away = Rig::new().await;
    let desk = Desk::new(config("http://127.0.0.1:1".to_owned(), away.dir.path()));
    let away = Rig { desk, ..away };
    assert_eq!(away.fails("Q4_0").await.code, Code::HubUnavailable);
}

#[tokio::test]
async fn a_repository_is_listed() {
    let rig = Rig::new().await;
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
