//! Accepting and serving connections of one thread. The public port keeps hyper's strict HTTP/2 limits; only our internal channels lift them.

use std::time::Duration;

use axum::Router;
use http::Request;
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use muster_proto::net::{Listener, Socket};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use tower::ServiceExt as _;

use super::stall::Patient;
use crate::routes::access::Peer;

/// Longest wait for a request's headers, against clients that hold connections open by sending slowly.
const HEADERS: Duration = Duration::from_secs(30);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Pause after a failed accept, for example when out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Accepts until `stop`; the listener (TCP_NODELAY on each socket) is closed before this returns.
pub(super) async fn accept(
    listener: Listener,
    router: &Router,
    connections: &TaskTracker,
    stop: &CancellationToken,
) {
    loop {
        let socket = tokio::select! {
            () = stop.cancelled() => return,
            socket = listener.accept() => socket,
        };
        match socket {
            Ok(socket) => {
                connections.spawn(serve(socket, router.clone(), stop.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Who speaks on a connection.
fn peer(socket: &Socket) -> Peer {
    match socket {
        Socket::Unix(_) => Peer::Here,
        Socket::Tcp(_, Some(address)) if address.ip().to_canonical().is_loopback() => Peer::Here,
        Socket::Tcp(_, _) => Peer::Elsewhere,
    }
}

/// Serves one connection to its end; on `stop` it finishes the request it has.
async fn serve(socket: Socket, router: Router, stop: CancellationToken) {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEPALIVE_EVERY)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT);
    let peer = peer(&socket);
    let service = router.map_request(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        request
    });
    let connection = builder.serve_connection(
        TokioIo::new(Patient::new(socket)),
        TowerToHyperService::new(service),
    );
    let mut connection = std::pin::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        // Clients go as they please.
        tracing::trace!(%error, "a connection broke");
    }
}
