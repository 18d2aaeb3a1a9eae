//! Engines of a host share its cores: who is busy says so by a lock, which ends with it however it ends.
#![cfg(target_os = "linux")]

mod support;

use std::{os::unix::fs::MetadataExt as _, path::Path, process::Stdio};

use muster_proto::v1::ModelSettings;
use support::{Engine, completion, settings, until};

/// Lengths of the locks on a file: the threads that busy engines want.
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
fn locked(path: &Path) -> Vec<u64> {
    let inode = std::fs::metadata(path).unwrap().ino().to_string();
    let locks = std::fs::read_to_string("/proc/locks").unwrap();
    let mut wanted: Vec<u64> = locks
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, "OFDLCK", _, "WRITE", _, file, first, last] = words.as_slice() else {
                return None;
            };
            let same = file.rsplit(':').next() == Some(&inode);
            same.then(|| last.parse::<u64>().unwrap() - first.parse::<u64>().unwrap() + 1)
        })
        .collect();
    wanted.sort_unstable();
    wanted
}

#[allow(clippy::expect_used, reason = "a test fails by panicking")]
async fn engine(path: &Path, threads: u32) -> Engine {
    let cores = path.display().to_string();
    let mut engine = Engine::start(&["--log-level", "warning", "--cores", &cores], Stdio::inherit()).await;
    engine.description = engine
        .try_load(ModelSettings {
            threads,
            ctx_size: 32_768,
            ..settings("tiny-chat.gguf")
        })
        .await
        .expect("the model loads");
    engine
}

#[tokio::test]
async fn busy_engines_count_and_idle_or_dead_ones_do_not() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cores");
    let (mut one, mut two) = (engine(&path, 1).await, engine(&path, 3).await);
    assert!(locked(&path).is_empty());
    let (mut session, mut other) = (one.session().await, two.session().await);
    let mut first = session.generate(completion("One", 30_000)).await;
    let mut second = other.generate(completion("Two", 30_000)).await;
    first.first_delta().await;
    second.first_delta().await;
    assert_eq!(locked(&path), [1, 3]);
    let threads = two.describe().await.metadata.remove("muster_llama.threads");
    assert_eq!(threads.as_deref(), Some("3"), "what the operator said is used");
    // idle
    session.cancel(first.handle).await;
    first.answer().await;
    until(&mut one, "idle", |_| locked(&path) == [3]).await;
    // dead
    two.kill();
    assert!(locked(&path).is_empty());
}
