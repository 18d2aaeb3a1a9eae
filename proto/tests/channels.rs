//! What internal channels survive (PROTOCOL.md 20): with h2's own limits each of these ends the whole connection.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures::future::join_all;
use http::{Request, Response, uri::PathAndQuery};
use muster_proto::{
    net::{self, Address, Channel},
    trust::{Credentials, Door, Keys, Token},
};
use tokio::{sync::watch, time::timeout};
use tokio_stream::{Stream, StreamExt as _};
use tonic::{
    Status, Streaming,
    body::Body,
    client,
    server::{self, NamedService, ServerStreamingService},
};
use tonic_prost::ProstCodec;
use tower::Service;

/// A tick, as small as they come.
type Tick = prost_types::Duration;

const PATH: &str = "/test.Ticks/Watch";
const LIMIT: Duration = Duration::from_secs(60);

/// Sends as many ticks as it is asked for (`seconds`), one per frame, and then waits for the gate.
#[derive(Clone)]
struct Ticks {
    gate: watch::Receiver<bool>,
}

impl NamedService for Ticks {
    const NAME: &'static str = "test.Ticks";
}

impl ServerStreamingService<Tick> for Ticks {
    type Response = Tick;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<Tick, Status>> + Send>>;
    type Future = Pin<Box<dyn Future<Output = Result<tonic::Response<Self::ResponseStream>, Status>> + Send>>;

    fn call(&mut self, request: tonic::Request<Tick>) -> Self::Future {
        let count = request.into_inner().seconds;
        let mut gate = self.gate.clone();
        let (tx, rx) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            for seconds in 0..count {
                if tx.send(Ok(Tick { seconds, nanos: 0 })).await.is_err() {
                    return;
                }
                // So that every tick gets a frame of its own.
                tokio::task::yield_now().await;
            }
            drop(gate.wait_for(|open| *open).await);
        });
        let stream: Self::ResponseStream = Box::pin(tokio_stream::wrappers::ReceiverStream::new(rx));
        Box::pin(async { Ok(tonic::Response::new(stream)) })
    }
}

impl Service<Request<Body>> for Ticks {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let ticks = self.clone();
        Box::pin(async move {
            let mut server = server::Grpc::new(ProstCodec::<Tick, Tick>::default());
            Ok(server.server_streaming(ticks, request).await)
        })
    }
}

/// A channel to a server, both as our processes make them, and what ends its streams.
async fn connected() -> (Channel, watch::Sender<bool>) {
    let (open, gate) = watch::channel(false);
    let wanted: Address = "127.0.0.1:0".parse().unwrap();
    let token = Token::new(&["0123456789abcdef".to_owned()]).unwrap();
    let door = Door::parts(&wanted, Some(&token), &Keys::default())
        .await
        .unwrap();
    let address = door.address().clone();
    let (mut server, listener) = door.open();
    tokio::spawn(server.add_service(Ticks { gate }).serve_with_incoming(listener));
    let credentials = Credentials::from(Some(&token));
    (net::channel(&address, &credentials).await.unwrap(), open)
}

async fn watch(channel: &Channel, ticks: i64) -> Result<Streaming<Tick>, Status> {
    let mut client = client::Grpc::new(channel.clone());
    client
        .ready()
        .await
        .map_err(|error| Status::unavailable(error.to_string()))?;
    let request = tonic::Request::new(Tick {
        seconds: ticks,
        nanos: 0,
    });
    let response = client
        .server_streaming(
            request,
            PathAndQuery::from_static(PATH),
            ProstCodec::<Tick, Tick>::default(),
        )
        .await?;
    Ok(response.into_inner())
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_nobody_reads_for_a_while_are_not_cut() {
    const STREAMS: usize = 1_500;
    const TICKS: i64 = 64;
    let (channel, open) = connected().await;
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        streams.push(timeout(LIMIT, watch(&channel, TICKS)).await.unwrap().unwrap());
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    open.send_replace(true);
    for stream in streams {
        let ticks: Vec<_> = timeout(LIMIT, stream.collect()).await.unwrap();
        let whole = ticks.iter().filter(|tick| tick.is_ok()).count();
        assert_eq!(whole, usize::try_from(TICKS).unwrap(), "{:?}", ticks.last());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bursts_of_cancels_do_not_end_the_connection() {
    let (channel, open) = connected().await;
    let mut survivor = watch(&channel, 1).await.unwrap();
    assert_eq!(survivor.message().await.unwrap().unwrap().seconds, 0);
    for round in 0..100 {
        // Ticks are on their way when it is cancelled.
        let burst = (0..64).map(|_| watch(&channel, i64::MAX));
        for stream in join_all(burst).await {
            drop(stream.unwrap_or_else(|status| panic!("round {round}: {status}")));
        }
    }
    open.send_replace(true);
    let end = timeout(LIMIT, survivor.message()).await.unwrap();
    assert_eq!(end.unwrap(), None);
}
