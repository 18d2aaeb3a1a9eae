//! More connections than a process has files for: it waits without spinning and without a word a moment, and serves on once they have gone.

use std::{fs, time::Duration};

use muster_proto::net::{Address, Socket};
use muster_tests::{Engine, Role, Stack, eventually, http};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Time over which a flooded process is watched.
const WATCHED: Duration = Duration::from_secs(3);
/// Files that a process has left when the flood begins; and connections of the flood.
const SPARE: u64 = 16;
const FLOOD: usize = 80;

/// Leaves a process only a few more files than it has open.
fn run_short_of_files(pid: u32) {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64;
    let few = Rlimit {
        current: Some(open + SPARE),
        // The child has ours.
        maximum: getrlimit(Resource::Nofile).maximum,
    };
    prlimit(Pid::from_raw(i32::try_from(pid).unwrap()), Resource::Nofile, few).unwrap();
}

/// Seconds of the processor that a process has used; a hundredth each.
fn used(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = [11, 12]
        .map(|field| fields[field].parse::<u64>().unwrap())
        .iter()
        .sum();
    Duration::from_millis(10 * ticks)
}

fn complaints(log: &str) -> usize {
    log.lines()
        .filter(|line| line.contains(" WARN ") || line.contains(" ERROR "))
        .count()
}

async fn flood(stack: &mut Stack, role: Role, address: &Address) {
    let pid = stack.process(role).pid();
    run_short_of_files(pid);
    let mut clients = Vec::new();
    for _ in 0..FLOOD {
        clients.push(Socket::connect(address).await.unwrap());
    }
    let (before, said) = (used(pid), complaints(&stack.process(role).log()));
    tokio::time::sleep(WATCHED).await;
    let (used, said) = (used(pid) - before, complaints(&stack.process(role).log()) - said);
    println!(
        "{role:?} with {FLOOD} connections too many: {used:?} of the processor in {WATCHED:?}, {said} complaints"
    );
    assert!(used < WATCHED / 2, "{role:?} spins: {used:?} in {WATCHED:?}");
    assert!(said <= 5, "{role:?}: {said} lines in {WATCHED:?}");
}

#[tokio::test]
async fn a_flooded_process_neither_spins_nor_floods_its_log_and_serves_on() {
    let mut stack = Stack::with(Engine::Stub.model("m", 2, "")).start().await;
    stack.http().chat("m", json!({"max_tokens": 2})).await.ok();
    let addresses = [
        (Role::Gateway, stack.gateway_address().clone()),
        (Role::Controller, stack.controller_address().clone()),
        (Role::Worker(0), stack.worker_address(0).clone()),
    ];
    for (role, address) in &addresses {
        flood(&mut stack, *role, address).await;
    }
    // The clients have gone with the loop; everything is reached anew.
    stack.http().chat("m", json!({"max_tokens": 2})).await.ok();
    stack.stats().await;
    stack.describe(0).await;
}

/// Resident memory of a process in bytes.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    1024 * line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap()
}

/// Opens connections that ask once and then say nothing more.
async fn idle(address: &Address, count: usize) -> Vec<Socket> {
    let mut sockets = Vec::new();
    for _ in 0..count {
        let mut socket = Socket::connect(address).await.unwrap();
        socket
            .write_all(b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n")
            .await
            .unwrap();
        let mut answer = vec![0; 1024];
        assert!(socket.read(&mut answer).await.unwrap() > 0);
        sockets.push(socket);
    }
    sockets
}

#[tokio::test]
async fn an_idle_connection_takes_little_memory() {
    const COUNT: usize = 2000;
    const MOST: u64 = 12 << 10;
    muster_proto::process::raise_file_limit();
    let mut stack = Stack::with(Engine::Stub.model("m", 2, "")).start().await;
    let address = stack.gateway_address().clone();
    // What the first connections take for all.
    drop(idle(&address, 50).await);
    let pid = stack.process(Role::Gateway).pid();
    let before = resident(pid);
    let sockets = idle(&address, COUNT).await;
    let each = |now: u64| now.saturating_sub(before) / COUNT as u64;
    println!("{COUNT} connections: {} bytes each at first", each(resident(pid)));
    let rests = async || {
        let now = each(resident(pid));
        if now <= MOST { Ok(now) } else { Err(now) }
    };
    let (rest, _) = eventually("idle connections take little", Duration::from_secs(40), rests).await;
    println!("{COUNT} connections: {rest} bytes each once idle");
    drop(sockets);
}

/// What a crowd of streams took is given back once they have ended.
#[tokio::test]
async fn memory_of_a_crowd_is_given_back() {
    const CLIENTS: usize = 200;
    const EACH: usize = 10;
    const MOST: u64 = 48 << 20;
    let config = Engine::Stub.model("m", 64, "queue_limit = 4096\nstub.tokens_per_second = 2000");
    let mut stack = Stack::with(config).start().await;
    let pid = stack.process(Role::Gateway).pid();
    stack.http().chat("m", json!({"max_tokens": 2})).await.ok();
    let before = resident(pid);
    http::all(CLIENTS, async |_| {
        let http = stack.http();
        for _ in 0..EACH {
            http.chat_stream("m", json!({"max_tokens": 64}))
                .await
                .chat()
                .await
                .whole();
        }
    })
    .await;
    let busy = resident(pid);
    let rests = async || {
        let now = resident(pid).saturating_sub(before);
        if now <= MOST { Ok(now) } else { Err(now) }
    };
    let (rest, _) = eventually("memory is given back", Duration::from_secs(40), rests).await;
    println!(
        "{} streams of {CLIENTS} clients: {} MiB more while they ran, {} MiB once they have gone",
        CLIENTS * EACH,
        busy.saturating_sub(before) >> 20,
        rest >> 20
    );
}
