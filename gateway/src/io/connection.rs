//! Serving connections of one thread. The public port keeps hyper's strict HTTP/2 limits; only our internal channels lift them.
//!
//! ```text
//!   accepted ──first bytes──► HTTP/2 ─────────── idle for long, or shutdown: GOAWAY ──► closed
//!       │ nothing: closed  └► HTTP/1 ──idle──► parked ──long, or shutdown──► closed
//!       └                        ▲───bytes──────┘
//! ```
//!
//! Hyper keeps two buffers of 8 KiB for each HTTP/1 connection. Most connections are idle most of the time. After [`PARK_AFTER`] an idle
//! one is taken from hyper, and only its socket is kept until more bytes come.
//!
//! On shutdown no started request is cut: running answers are completed, requests just sent are still answered (with `Connection: close`),
//! and idle connections are closed after [`LINGER`].

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::{Service, service_fn},
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use muster_proto::{
    accept::{Place, Places},
    net::{Listener, Socket},
};
use tokio::{
    io::AsyncWriteExt as _,
    time::{Instant, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt as _;

use super::stall::{Patient, Speaks};
use crate::web::{Surface, access::Peer};

/// Longest time for a request's headers to arrive, against clients that hold connections open by sending slowly.
const HEADERS: Duration = Duration::from_secs(30);
/// Idle time after which an HTTP/1 connection gives its buffers back.
const PARK_AFTER: Duration = Duration::from_millis(250);
/// Idle time after which a connection is closed.
const IDLE: Duration = Duration::from_secs(75);
/// The same while few connection slots are left.
const IDLE_IN_A_CROWD: Duration = Duration::from_secs(10);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Number of requests at a time on one HTTP/2 connection; further ones wait.
const STREAMS: u32 = 256;
/// Time after the begin of the shutdown for which an idle connection may still send a request.
const LINGER: Duration = Duration::from_millis(250);
/// Before the listener closes, connections in the kernel's queue are accepted; the queue counts as empty after this long without one.
const LAST_ACCEPT: Duration = Duration::from_millis(5);

/// What all connections of a thread share.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    pub(super) surface: Surface,
    pub(super) places: Places,
    pub(super) stop: CancellationToken,
}

/// Accepts connections until `stop`. The listener is closed when this returns.
pub(super) async fn accept(mut listener: Listener, connections: &TaskTracker, shared: &Shared) {
    loop {
        let (socket, place) = tokio::select! {
            () = shared.stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        connections.spawn(serve(socket, place, shared.clone()));
    }
    // Closing the listener resets the connections in its queue.
    let last = async {
        while let Ok((socket, place)) = timeout(LAST_ACCEPT, listener.accept()).await {
            connections.spawn(serve(socket, place, shared.clone()));
        }
    };
    drop(timeout(LINGER, last).await);
}

/// The peer of a connection.
fn peer(socket: &Socket) -> Peer {
    match socket {
        Socket::Unix(_) => Peer::Here,
        Socket::Tcp(_, Some(address)) if address.ip().to_canonical().is_loopback() => Peer::Here,
        Socket::Tcp(_, _) => Peer::Elsewhere,
    }
}

/// Serves one connection to its end.
async fn serve(socket: Socket, _place: Place, shared: Shared) {
    let peer = peer(&socket);
    let mut socket = Patient::new(socket);
    let speaks = tokio::select! {
        biased;
        speaks = socket.greeting() => speaks,
        () = lingered(&shared.stop) => return,
    };
    match speaks {
        Some(Speaks::Http2) => Box::pin(http2(socket, peer, &shared)).await,
        Some(Speaks::Http1) => loop {
            // Boxed because it is large and usually not needed.
            match Box::pin(http1(socket, peer, &shared)).await {
                Some(idle) => socket = idle,
                None => return,
            }
            if !more(&socket, &shared).await {
                return;
            }
        },
        None => {}
    }
}

/// Resolves [`LINGER`] after the begin of the shutdown.
async fn lingered(stop: &CancellationToken) {
    stop.cancelled().await;
    sleep(LINGER).await;
}

/// Waits on a parked connection. Returns whether the client has sent something, perhaps its end.
async fn more(socket: &Patient, shared: &Shared) -> bool {
    let begin = Instant::now();
    loop {
        tokio::select! {
            biased;
            () = socket.readable() => return true,
            () = lingered(&shared.stop) => return false,
            () = sleep(IDLE_IN_A_CROWD) => {}
        }
        if begin.elapsed() >= IDLE || shared.places.are_scarce() {
            return false;
        }
    }
}

/// Serves HTTP/1 until the connection has ended or is idle. An idle connection is returned.
async fn http1(socket: Patient, peer: Peer, shared: &Shared) -> Option<Patient> {
    let requests = Arc::new(Requests::default());
    // If a request has begun to arrive, hyper's own time limit for headers applies; ours must not restart it.
    let fresh = !socket.has_more();
    let mut leaving = shared.stop.is_cancelled();
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .keep_alive(!leaving)
        .serve_connection(
            TokioIo::new(socket),
            service(peer, shared.surface.clone(), Arc::clone(&requests)),
        );
    let ended = loop {
        tokio::select! {
            biased;
            ended = std::future::poll_fn(|cx| connection.poll_without_shutdown(cx)) => break ended,
            () = requests.idle_for(PARK_AFTER, fresh), if !leaving => {}
            () = shared.stop.cancelled(), if !leaving => {}
        }
        leaving = true;
        // Hyper stops at once between two requests, otherwise after the current answer.
        Pin::new(&mut connection).graceful_shutdown();
        if let Poll::Ready(Ok(())) =
            futures::poll!(std::future::poll_fn(|cx| connection.poll_without_shutdown(cx)))
            && requests.are_over()
        {
            let parts = connection.into_parts();
            let mut socket = parts.io.into_inner();
            tracing::trace!(ahead = parts.read_buf.len(), "a connection is parked");
            socket.put_back(&parts.read_buf);
            return Some(socket);
        }
    };
    match ended {
        Ok(()) => {
            let mut socket = connection.into_parts().io.into_inner();
            // The client may be gone already.
            drop(socket.shutdown().await);
        }
        Err(error) => tracing::trace!(%error, "a connection broke"),
    }
    None
}

/// Serves HTTP/2 until the connection has ended. On shutdown or after a long idle time the client is told to send no more requests.
async fn http2(socket: Patient, peer: Peer, shared: &Shared) {
    let requests = Arc::new(Requests::default());
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .keep_alive_interval(KEEPALIVE_EVERY)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .serve_connection(
            TokioIo::new(socket),
            service(peer, shared.surface.clone(), Arc::clone(&requests)),
        );
    let mut connection = std::pin::pin!(connection);
    let mut leaving = false;
    loop {
        tokio::select! {
            biased;
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::trace!(%error, "a connection broke");
                }
                return;
            }
            () = shared.stop.cancelled(), if !leaving => {}
            () = idle_for_long(&requests, &shared.places), if !leaving => {}
        }
        leaving = true;
        connection.as_mut().graceful_shutdown();
    }
}

async fn idle_for_long(requests: &Requests, places: &Places) {
    loop {
        requests.idle_for(IDLE_IN_A_CROWD, true).await;
        if requests.idle() >= IDLE || places.are_scarce() {
            return;
        }
        sleep(IDLE_IN_A_CROWD).await;
    }
}

type Answering = Pin<Box<dyn Future<Output = Result<Response<Sent>, Infallible>> + Send>>;

/// The service that hyper calls for each request of a connection.
fn service(
    peer: Peer,
    surface: Surface,
    requests: Arc<Requests>,
) -> impl Service<Request<Incoming>, Response = Response<Sent>, Error = Infallible, Future = Answering> {
    service_fn(move |mut request: Request<Incoming>| -> Answering {
        let running = requests.begin();
        request.extensions_mut().insert(peer);
        let request = request.map(|body| {
            Body::new(Received {
                body,
                requests: Arc::clone(&requests),
            })
        });
        let answer = surface.clone().oneshot(request);
        Box::pin(async move {
            let response = answer.await?;
            Ok(response.map(|body| Sent {
                body,
                _running: running,
            }))
        })
    })
}

/// Counts the requests of one connection.
#[derive(Debug)]
struct Requests {
    running: AtomicUsize,
    any: AtomicBool,
    /// A request's body was not read to its end: the next bytes may be the rest of it.
    unread: AtomicBool,
    /// When the last request ended. A std mutex, held only to copy the value.
    since: Mutex<Instant>,
}

impl Default for Requests {
    fn default() -> Self {
        Self {
            running: AtomicUsize::new(0),
            any: AtomicBool::new(false),
            unread: AtomicBool::new(false),
            since: Mutex::new(Instant::now()),
        }
    }
}

impl Requests {
    fn begin(self: &Arc<Self>) -> Running {
        self.running.fetch_add(1, Ordering::Relaxed);
        self.any.store(true, Ordering::Relaxed);
        Running(Arc::clone(self))
    }

    /// Time since the last request ended; zero while one runs.
    fn idle(&self) -> Duration {
        if self.running.load(Ordering::Relaxed) > 0 {
            return Duration::ZERO;
        }
        self.since
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .elapsed()
    }

    /// Whether no request runs and everything sent was read.
    fn are_over(&self) -> bool {
        self.running.load(Ordering::Relaxed) == 0 && !self.unread.load(Ordering::Relaxed)
    }

    /// Waits until the connection was idle for `time`. If it is not `fresh`, it must have had a request first.
    async fn idle_for(&self, time: Duration, fresh: bool) {
        loop {
            let idle = if fresh || self.any.load(Ordering::Relaxed) {
                self.idle()
            } else {
                Duration::ZERO
            };
            match time.checked_sub(idle) {
                None | Some(Duration::ZERO) => return,
                Some(left) => sleep(left).await,
            }
        }
    }
}

/// A request in progress, until its answer was taken.
#[derive(Debug)]
struct Running(Arc<Requests>);

impl Drop for Running {
    fn drop(&mut self) {
        *self.0.since.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of an answer.
#[derive(Debug)]
struct Sent {
    body: Body,
    _running: Running,
}

impl http_body::Body for Sent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of a request.
#[derive(Debug)]
struct Received {
    body: Incoming,
    requests: Arc<Requests>,
}

impl Drop for Received {
    fn drop(&mut self) {
        if !http_body::Body::is_end_stream(&self.body) {
            self.requests.unread.store(true, Ordering::Relaxed);
        }
    }
}

impl http_body::Body for Received {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        http_body::Body::is_end_stream(&self.body)
    }

    fn size_hint(&self) -> SizeHint {
        http_body::Body::size_hint(&self.body)
    }
}

#[cfg(test)]
#[path = "connection/tests.rs"]
mod tests;
