//! Every fault a hub may have, and what becomes of a download then.

use std::time::SystemTime;

use super::*;

/// Bytes of the model: several pieces.
const BIG: usize = 5 << 20;

/// What cannot be guessed.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    (0..length).map(next).collect()
}

impl Rig {
    /// With a model `BF16` of several pieces.
    async fn big() -> (Self, Vec<u8>) {
        let rig = Self::new().await;
        let content = noise(BIG);
        rig.hub.put("o/n", "m-BF16.gguf", content.clone());
        (rig, content)
    }

    /// Fetches it, and looks at every byte.
    async fn arrives(&self, content: &[u8]) {
        self.order("a", "BF16", Order::Fetch(FetchFiles::default()));
        let found = self.cached("a").await;
        assert!(fs::read(&found.path).unwrap() == content, "another content");
        assert_eq!(self.blobs(), 1, "nothing is left over");
    }

    /// What began to come was written so long ago for the last time.
    fn untouched_for(&self, age: Duration) {
        let hub = self.dir.path().join("hub");
        for lock in fs::read_dir(hub.join(".locks/models--o--n")).unwrap() {
            // Whoever writes has it.
            fs::File::open(lock.unwrap().path()).unwrap().lock().unwrap();
        }
        for part in fs::read_dir(hub.join("models--o--n/blobs")).unwrap() {
            let part = fs::File::options().write(true).open(part.unwrap().path());
            part.unwrap().set_modified(SystemTime::now() - age).unwrap();
        }
    }
}

#[tokio::test]
async fn what_passes_is_waited_for() {
    for fault in [
        Fault::Refuse(429, Some(0)),
        Fault::Refuse(503, None),
        Fault::Refuse(500, None),
        Fault::Break(100_000),
    ] {
        let (rig, content) = Rig::big().await;
        rig.hub.fault(fault, 2);
        rig.arrives(&content).await;
    }
}

#[tokio::test]
async fn what_does_not_pass_is_said_and_nothing_wrong_is_kept() {
    let always = u32::MAX;
    for (fault, code, says) in [
        (Fault::Refuse(429, Some(0)), Code::HubUnavailable, "HF_TOKEN"),
        (Fault::Refuse(429, Some(3600)), Code::HubUnavailable, "HF_TOKEN"),
        (Fault::Refuse(502, None), Code::HubUnavailable, "502"),
        (Fault::Circles, Code::HubUnavailable, "redirect"),
        (Fault::Short, Code::DownloadCorrupt, "another part"),
        (
            Fault::Corrupt,
            Code::DownloadCorrupt,
            "not what the hub announced",
        ),
        (Fault::Token("other"), Code::CheckpointForbidden, "gated"),
        (Fault::Break(0), Code::HubUnavailable, "cannot be read"),
    ] {
        let (rig, content) = Rig::big().await;
        rig.hub.fault(fault.clone(), always);
        let error = rig.fails("BF16").await;
        assert_eq!(error.code, code, "{fault:?}: {error}");
        assert!(error.message.contains(says), "{fault:?}: {error}");
        // As soon as the hub is well, so is the download.
        rig.hub.mend();
        rig.arrives(&content).await;
    }
}

#[tokio::test]
async fn a_hub_without_ranges_is_read_from_the_beginning() {
    let (mut rig, content) = Rig::big().await;
    rig.hub.fault(Fault::NoRanges, u32::MAX);
    rig.hub.fault(Fault::Break(2_000_000), 3);
    rig.arrives(&content).await;
    // Also where another process had got further.
    rig.order("r", "BF16", Order::Remove(RemoveFiles { keep: Vec::new() }));
    rig.cached("r").await;
    rig.hub.mend();
    rig.hub.fault(Fault::Slow(Duration::from_millis(2)), u32::MAX);
    let before = rig.hub.sent();
    rig.order("1", "BF16", Order::Fetch(FetchFiles::default()));
    rig.came(before + 500_000).await;
    rig.restart();
    rig.hub.mend();
    rig.hub.fault(Fault::NoRanges, u32::MAX);
    rig.arrives(&content).await;
}

#[tokio::test]
async fn what_came_before_is_not_fetched_again() {
    let (mut rig, content) = Rig::big().await;
    rig.hub.fault(Fault::Slow(Duration::from_millis(5)), u32::MAX);
    for part in 1..4 {
        rig.order("1", "BF16", Order::Fetch(FetchFiles::default()));
        rig.came(part * BIG as u64 / 5).await;
        rig.restart();
    }
    rig.hub.mend();
    rig.arrives(&content).await;
    let sent = rig.hub.sent();
    assert!(sent <= BIG as u64 * 11 / 10, "{sent} bytes were sent of {BIG}");
}

#[tokio::test]
async fn what_a_lost_machine_left_wrong_is_fetched_once_more() {
    let (mut rig, content) = Rig::big().await;
    rig.hub.fault(Fault::Slow(Duration::from_millis(5)), u32::MAX);
    rig.order("1", "BF16", Order::Fetch(FetchFiles::default()));
    rig.came(1_000_000).await;
    rig.restart();
    let blobs = rig.dir.path().join("hub/models--o--n/blobs");
    let part = fs::read_dir(blobs).unwrap().next().unwrap().unwrap().path();
    // The journal was on the disk before the content: nulls.
    let file = fs::File::options().write(true).open(part).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 64], 0).unwrap();
    rig.hub.mend();
    rig.arrives(&content).await;
}

#[tokio::test]
async fn a_pause_keeps_what_came_and_a_cancel_does_not() {
    let (rig, content) = Rig::big().await;
    rig.hub.fault(Fault::Slow(Duration::from_millis(5)), u32::MAX);
    for keep in [true, false] {
        let before = rig.hub.sent();
        rig.order("1", "BF16", Order::Fetch(FetchFiles::default()));
        rig.came(before + 500_000).await;
        rig.order("2", "BF16", Order::Cancel(CancelFetch { keep }));
        assert!(!rig.cached("2").await.complete);
        assert_eq!(rig.blobs(), usize::from(keep));
    }
    // One that is paused goes with its model.
    let before = rig.hub.sent();
    rig.order("1", "BF16", Order::Fetch(FetchFiles::default()));
    rig.came(before + 500_000).await;
    rig.order("2", "BF16", Order::Cancel(CancelFetch { keep: true }));
    rig.cached("2").await;
    let gone = async {
        while rig.blobs() > 0 {
            rig.order("3", "BF16", Order::Remove(RemoveFiles { keep: Vec::new() }));
            rig.cached("3").await;
        }
    };
    timeout(Duration::from_secs(20), gone).await.unwrap();
    rig.hub.mend();
    rig.arrives(&content).await;
}

#[tokio::test]
async fn what_began_to_come_of_an_older_content_is_removed_a_week_later() {
    let day = Duration::from_secs(24 * 60 * 60);
    for (age, left) in [(day, 2), (8 * day, 1)] {
        let (rig, mut content) = Rig::big().await;
        rig.hub.fault(Fault::Slow(Duration::from_millis(5)), u32::MAX);
        rig.order("1", "BF16", Order::Fetch(FetchFiles::default()));
        rig.came(500_000).await;
        rig.order("2", "BF16", Order::Cancel(CancelFetch { keep: true }));
        rig.cached("2").await;
        rig.untouched_for(age);
        rig.hub.mend();
        content[0] ^= 1;
        rig.hub.put("o/n", "m-BF16.gguf", content.clone());
        rig.order("3", "BF16", Order::Fetch(FetchFiles::default()));
        assert!(fs::read(rig.cached("3").await.path).unwrap() == content);
        assert_eq!(rig.blobs(), left);
    }
}

#[tokio::test]
async fn a_token_goes_to_the_hub_and_nowhere_else() {
    let (rig, content) = Rig::big().await;
    let other = Hub::start().await;
    other.put("o/n", "m-BF16.gguf", content.clone());
    rig.hub.fault(Fault::Token("secret"), u32::MAX);
    rig.hub.fault(Fault::Elsewhere(other.endpoint()), u32::MAX);
    let config = HubConfig {
        token: Some("secret".to_owned()),
        ..config(rig.hub.endpoint(), rig.dir.path())
    };
    let rig = Rig {
        desk: Desk::new(config),
        ..rig
    };
    rig.arrives(&content).await;
    assert_eq!((other.saw_credentials(), rig.hub.downloads()), (Some(false), 0));
}

#[tokio::test]
async fn a_limit_holds_over_all_lanes() {
    let (rig, content) = Rig::big().await;
    let config = HubConfig {
        limit: Limit::new(Some(10 << 20)),
        ..config(rig.hub.endpoint(), rig.dir.path())
    };
    let rig = Rig {
        desk: Desk::new(config),
        ..rig
    };
    let started = Instant::now();
    rig.arrives(&content).await;
    assert!(
        started.elapsed() >= Duration::from_millis(450),
        "{:?}",
        started.elapsed()
    );
}
