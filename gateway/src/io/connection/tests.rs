use std::convert::Infallible;

use axum::Router;
use axum::routing::{get, post};
use futures::StreamExt as _;
use muster_proto::net::{Address, Callers, Care};
use tokio::{io::AsyncReadExt as _, net::TcpStream, sync::watch, task::JoinHandle};

use super::*;

/// Whatever a test waits for comes within this time or not at all.
const LONG: Duration = Duration::from_secs(30);

/// A thread's server, what ends it, and what lets its streams go on.
struct Rig {
    address: Address,
    stop: CancellationToken,
    gate: watch::Sender<bool>,
    server: JoinHandle<TaskTracker>,
}

impl Rig {
    async fn new() -> Self {
        let (gate, open) = watch::channel(false);
        let stream = move || {
            let mut open = open.clone();
            let rest = async move {
                drop(open.wait_for(|open| *open).await);
                Ok::<_, Infallible>("end")
            };
            let begin = futures::stream::once(async { Ok::<_, Infallible>("begin ") });
            let body = Body::from_stream(begin.chain(futures::stream::once(rest)));
            async { body }
        };
        let router = Router::new()
            .route("/", get(async || "hello"))
            .route("/echo", post(async |body: String| body))
            .route("/early", post(async || "unread"))
            .route("/stream", get(stream));
        let places = Places::new(8);
        let any = "127.0.0.1:0".parse().unwrap();
        let listener = Listener::bind_with(&any, Callers::Anyone, Care::PUBLIC, places.clone())
            .await
            .unwrap();
        let address = listener.address().unwrap();
        let stop = CancellationToken::new();
        let shared = Shared {
            surface: router.into(),
            places,
            stop: stop.clone(),
        };
        let server = tokio::spawn(async move {
            let connections = TaskTracker::new();
            accept(listener, &connections, &shared).await;
            connections.close();
            connections
        });
        Self {
            address,
            stop,
            gate,
            server,
        }
    }

    async fn client(&self) -> Client {
        Client(TcpStream::connect(self.address.to_string()).await.unwrap())
    }

    /// Waits until every connection has ended.
    async fn over(self) {
        let connections = timeout(LONG, self.server).await.unwrap().unwrap();
        timeout(LONG, connections.wait()).await.unwrap();
    }
}

struct Client(TcpStream);

impl Client {
    async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads until what was read ends so; all of it.
    async fn until(&mut self, end: &str) -> String {
        let mut read = Vec::new();
        let reading = async {
            while !read.ends_with(end.as_bytes()) {
                read.push(self.0.read_u8().await.unwrap());
            }
        };
        timeout(LONG, reading).await.unwrap();
        String::from_utf8(read).unwrap()
    }

    async fn is_closed(&mut self) -> bool {
        timeout(LONG, self.0.read_u8()).await.unwrap().is_err()
    }
}

const GET: &str = "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";

#[tokio::test]
async fn a_parked_connection_serves_on_and_loses_nothing() {
    let rig = Rig::new().await;
    let mut client = rig.client().await;
    client.send(GET).await;
    client.until("hello").await;
    sleep(2 * PARK_AFTER).await;
    client.send(GET).await;
    client.until("hello").await;
    // Half of a request's head, when it is about to be parked.
    let (head, tail) = GET.split_at(20);
    client.send(head).await;
    sleep(2 * PARK_AFTER).await;
    client.send(tail).await;
    client.until("hello").await;
    // A body that takes its time is no idle connection.
    client
        .send("POST /echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\nbody")
        .await;
    sleep(2 * PARK_AFTER).await;
    client.send(" body").await;
    client.until("body body").await;
    drop(client);
    rig.stop.cancel();
    rig.over().await;
}

#[tokio::test]
async fn the_rest_of_a_body_is_never_taken_for_a_request() {
    let rig = Rig::new().await;
    let mut client = rig.client().await;
    client
        .send("POST /early HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9999\r\n\r\n")
        .await;
    client.until("unread").await;
    sleep(2 * PARK_AFTER).await;
    // It may be closed by now.
    drop(client.0.write_all(GET.as_bytes()).await);
    let mut rest = Vec::new();
    drop(timeout(LONG, client.0.read_to_end(&mut rest)).await.unwrap());
    assert_eq!(String::from_utf8(rest).unwrap(), "");
}

#[tokio::test]
async fn a_shutdown_answers_whatever_has_been_sent_and_then_closes() {
    let rig = Rig::new().await;
    let mut streaming = rig.client().await;
    streaming
        .send("GET /stream HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await;
    streaming.until("begin \r\n").await;
    let (mut idle, mut parked) = (rig.client().await, rig.client().await);
    for client in [&mut idle, &mut parked] {
        client.send(GET).await;
        client.until("hello").await;
    }
    let mut silent = rig.client().await;
    // Accepted by the kernel alone: this thread does not come to it before the shutdown.
    let mut queued = Client(
        std::net::TcpStream::connect(rig.address.to_string())
            .and_then(|stream| {
                stream.set_nonblocking(true)?;
                TcpStream::from_std(stream)
            })
            .unwrap(),
    );
    rig.stop.cancel();
    for client in [&mut idle, &mut queued] {
        client.send(GET).await;
        let answer = client.until("hello").await;
        assert!(answer.contains("connection: close"), "{answer}");
        assert!(client.is_closed().await);
    }
    assert!(parked.is_closed().await);
    assert!(silent.is_closed().await);
    rig.gate.send_replace(true);
    let rest = streaming.until("0\r\n\r\n").await;
    assert!(rest.contains("end"), "{rest}");
    assert!(streaming.is_closed().await);
    rig.over().await;
}

#[tokio::test]
async fn an_idle_connection_goes_where_places_are_scarce() {
    let rig = Rig::new().await;
    let mut idle = rig.client().await;
    idle.send(GET).await;
    idle.until("hello").await;
    // Seven of eight places: they say nothing, and have longer than who has said something.
    let mut silent = Vec::new();
    for _ in 0..6 {
        silent.push(rig.client().await);
    }
    let begin = Instant::now();
    assert!(idle.is_closed().await);
    assert!(begin.elapsed() < IDLE);
}
