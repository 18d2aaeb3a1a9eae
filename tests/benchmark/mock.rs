//! The direct baseline of the `stub` rows: one HTTP server that writes SSE chunks as fast as it can, without any of our processes behind it.
//! Built from the same parts as the gateway (hyper through axum, one `current_thread` runtime per core, SO_REUSEPORT), so that the ratio shows the cost of the
//! hops and not of a library.

use std::convert::Infallible;

use axum::{
    Router, body::Body, extract::Request, response::Response, routing::post, serve::ListenerExt as _,
};
use bytes::Bytes;
use futures::stream;

const FRAME: &[u8] = b"data: {\"id\":\"chatcmpl-mock\",\"object\":\"chat.completion.chunk\",\"created\":1750000000,\"model\":\"stub\",\"system_fingerprint\":\"mock\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"tok \"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";

/// Serves until killed. Frames per answer come from `max_tokens`; each is a body chunk of its own, as a server that renders token by token writes them.
pub(crate) fn serve(address: std::net::SocketAddr) -> anyhow::Result<()> {
    let threads: Vec<_> = (0..std::thread::available_parallelism()?.get())
        .map(|_| {
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()?;
                runtime.block_on(accept(address))
            })
        })
        .collect();
    for thread in threads {
        thread
            .join()
            .map_err(|_| anyhow::anyhow!("a thread of the mock panicked"))??;
    }
    Ok(())
}

async fn accept(address: std::net::SocketAddr) -> anyhow::Result<()> {
    let socket = tokio::net::TcpSocket::new_v4()?;
    socket.set_reuseport(true)?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let listener = socket.listen(1024)?.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::warn!(%error, "cannot switch Nagle's algorithm off");
        }
    });
    let routes = Router::new().route("/v1/chat/completions", post(answer));
    axum::serve(listener, routes).await?;
    Ok(())
}

async fn answer(request: Request) -> Response {
    let body = axum::body::to_bytes(request.into_body(), 1 << 20)
        .await
        .unwrap_or_default();
    let request: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let count = request["max_tokens"].as_u64().unwrap_or(64);
    let frames = (0..count).map(|_| Ok::<_, Infallible>(Bytes::from_static(FRAME)));
    let done = [Ok(Bytes::from_static(b"data: [DONE]\n\n"))];
    let mut response = Response::new(Body::from_stream(stream::iter(frames.chain(done))));
    response.headers_mut().insert(
        "content-type",
        axum::http::HeaderValue::from_static("text/event-stream"),
    );
    response
}
