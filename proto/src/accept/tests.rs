use std::os::fd::AsFd as _;

use rustix::net::sockopt;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};
use tokio_stream::StreamExt as _;

use super::*;

const LONG: Duration = Duration::from_secs(20);

async fn listener(places: usize) -> (Listener, Address) {
    let any = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind_with(&any, Callers::Anyone, Care::PUBLIC, Places::new(places))
        .await
        .unwrap();
    let address = listener.address().unwrap();
    (listener, address)
}

fn options(socket: &Socket) -> (bool, bool, Duration, u32) {
    let Socket::Tcp(stream, _) = socket else {
        panic!("no TCP")
    };
    let fd = stream.as_fd();
    (
        stream.nodelay().unwrap(),
        sockopt::socket_keepalive(fd).unwrap(),
        sockopt::tcp_keepidle(fd).unwrap(),
        sockopt::tcp_user_timeout(fd).unwrap(),
    )
}

#[tokio::test]
async fn a_peer_that_vanished_is_noticed_on_every_accepted_and_dialled_socket() {
    let (mut public, address) = listener(4).await;
    let dialled = Socket::connect(&address).await.unwrap();
    assert_eq!(options(&dialled), (true, true, Duration::from_secs(10), 30_000));
    let (accepted, _place) = public.accept().await;
    assert_eq!(options(&accepted), (true, true, Duration::from_secs(30), 100_000));
    let mut internal = Listener::bind(&"127.0.0.1:0".parse().unwrap(), Callers::Own)
        .await
        .unwrap();
    let _dialled = Socket::connect(&internal.address().unwrap()).await.unwrap();
    let accepted = internal.next().await.unwrap().unwrap();
    assert_eq!(
        options(&accepted.socket),
        (true, true, Duration::from_secs(10), 30_000)
    );
}

#[tokio::test]
async fn no_more_connections_than_places_and_a_closed_one_makes_room() {
    let (mut listener, address) = listener(2).await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(Socket::connect(&address).await.unwrap());
    }
    let first = listener.accept().await;
    let _second = listener.accept().await;
    assert!(listener.places.are_scarce());
    let third = timeout(Duration::from_millis(50), listener.accept()).await;
    assert!(third.is_err(), "{third:?}");
    drop(first);
    timeout(LONG, listener.accept()).await.unwrap();
}

#[tokio::test]
async fn who_says_nothing_on_an_internal_listener_is_left() {
    let mut internal = Listener::bind(&"127.0.0.1:0".parse().unwrap(), Callers::Own)
        .await
        .unwrap();
    let address = internal.address().unwrap();
    tokio::time::pause();
    for (said, stays) in [(0, false), (PREFACE_BYTES - 1, false), (PREFACE_BYTES, true)] {
        let mut client = Socket::connect(&address).await.unwrap();
        let mut accepted = internal.next().await.unwrap().unwrap();
        client.write_all(&vec![b'x'; said]).await.unwrap();
        let mut read = vec![0; said];
        accepted.read_exact(&mut read).await.unwrap();
        let more = timeout(2 * GREETING, accepted.read_u8()).await;
        assert_eq!(more.is_err(), stays, "{said}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_same_trouble_is_said_once_a_minute() {
    let mut rarely = Rarely::default();
    let mut said = Vec::new();
    for _ in 0..240 {
        rarely.say(|times| said.push(times));
        tokio::time::advance(PAUSE).await;
    }
    assert_eq!(said, [1, 120]);
}

#[tokio::test]
async fn a_stale_socket_file_is_replaced_and_a_live_one_is_not() {
    let path = std::env::temp_dir().join(format!("muster-net-{}.sock", std::process::id()));
    let address = Address::Unix(path.clone());
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let live = Listener::bind(&address, Callers::Own).await.unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(
        Listener::bind(&address, Callers::Own).await.unwrap_err().kind(),
        ErrorKind::AddrInUse
    );
    drop(live);
    assert!(!path.exists());
}
