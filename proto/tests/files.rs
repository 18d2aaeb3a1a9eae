//! A process that is out of files. A test of its own, since it takes all files of its process.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    fs::File,
    io::{Read as _, Seek as _},
    time::Duration,
};

use muster_proto::net::{Address, Callers, Listener, Socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::time::timeout;

/// Time of the processor that a thread has used, as `/proc/thread-self/schedstat` shows it.
fn used(schedstat: &mut File) -> Duration {
    let mut text = String::new();
    schedstat.rewind().unwrap();
    schedstat.read_to_string(&mut text).unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

#[tokio::test]
async fn a_listener_out_of_files_waits_without_spinning_and_then_accepts() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let few = Rlimit {
        current: Some(64),
        maximum,
    };
    setrlimit(Resource::Nofile, few).unwrap();
    let any: Address = "127.0.0.1:0".parse().unwrap();
    let mut listener = Listener::bind(&any, Callers::Own).await.unwrap();
    let _client = Socket::connect(&listener.address().unwrap()).await.unwrap();
    let mut schedstat = File::open("/proc/thread-self/schedstat").unwrap();
    let mut taken = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    let before = used(&mut schedstat);
    let tried = timeout(Duration::from_secs(3), listener.accept()).await;
    assert!(tried.is_err(), "{tried:?}");
    let used = used(&mut schedstat) - before;
    assert!(
        used < Duration::from_secs(1),
        "{used:?} of the processor for waiting"
    );
    drop(taken);
    timeout(Duration::from_secs(20), listener.accept()).await.unwrap();
}
