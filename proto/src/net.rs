//! Addresses, and the one place where internal channels get their settings (PROTOCOL.md 20).
//!
//! h2 charges small unread DATA frames against the connection window and ends the *whole connection* when it runs out, and counts resets over a
//! connection's life. So all internal channels have large, never adaptive windows and no such counters. Back-pressure of one client is credits
//! (PROTOCOL.md 18), never HTTP/2 flow control.

use std::{
    fmt,
    io::{self, ErrorKind},
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::Pin,
    str::FromStr,
    task::{Context, Poll},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
};
use tokio_stream::Stream;
use tonic::transport::{Channel, Endpoint, Server, Uri, server::Connected};

/// Connection window of internal channels, in bytes; below 32 MiB h2 cuts streams that tick often.
pub const CONNECTION_WINDOW: u32 = 64 << 20;
/// Stream window of internal channels, in bytes.
pub const STREAM_WINDOW: u32 = 16 << 20;
const RESET_STREAMS: usize = 1 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Where a process listens: `HOST:PORT` or `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// Host name or IP address, and port.
    Tcp(String),
    /// Path of a unix socket.
    Unix(PathBuf),
}

/// Why a text is no address.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is no address: want HOST:PORT or unix:PATH")]
pub struct AddressError(String);

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() {
                Err(wrong())
            } else {
                Ok(Self::Unix(path.into()))
            };
        }
        let bare = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
        let (host, port) = bare.rsplit_once(':').ok_or_else(wrong)?;
        if host.is_empty() || port.parse::<u16>().is_err() {
            return Err(wrong());
        }
        Ok(Self::Tcp(bare.to_owned()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(text) => f.write_str(text),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A bound socket of either kind.
#[derive(Debug)]
pub enum Listener {
    /// TCP, with Nagle's algorithm off on every accepted connection.
    Tcp(TcpListener),
    /// A unix socket; its file is removed when the listener is dropped.
    Unix(UnixListener, SocketFile),
}

/// Removes a socket's file at the end.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Nothing can be done about a failure, and a stale file is replaced at the next bind.
        drop(std::fs::remove_file(&self.0));
    }
}

impl Listener {
    /// Binds `address`. A socket file that nobody serves any more is replaced.
    ///
    /// # Errors
    /// The address is taken, unreachable or not permitted.
    pub async fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(text) => Ok(Self::Tcp(TcpListener::bind(text).await?)),
            Address::Unix(path) => Ok(Self::Unix(bind_unix(path).await?, SocketFile(path.clone()))),
        }
    }

    /// The address really bound (port 0 replaced).
    ///
    /// # Errors
    /// The operating system does not say.
    pub fn address(&self) -> io::Result<Address> {
        match self {
            Self::Tcp(listener) => Ok(Address::Tcp(listener.local_addr()?.to_string())),
            Self::Unix(_, file) => Ok(Address::Unix(file.0.clone())),
        }
    }

    /// Accepts one connection.
    ///
    /// # Errors
    /// The operating system refuses, for example out of file descriptors.
    pub async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Socket::Tcp(stream, Some(peer)))
            }
            Self::Unix(listener, _) => Ok(Socket::Unix(listener.accept().await?.0)),
        }
    }
}

impl Stream for Listener {
    type Item = io::Result<Socket>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let socket = match self.get_mut() {
            Self::Tcp(listener) => std::task::ready!(listener.poll_accept(cx)).and_then(|(stream, peer)| {
                stream.set_nodelay(true).map(|()| Socket::Tcp(stream, Some(peer)))
            }),
            Self::Unix(listener, _) => {
                std::task::ready!(listener.poll_accept(cx)).map(|(stream, _)| Socket::Unix(stream))
            }
        };
        Poll::Ready(Some(socket))
    }
}

async fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => match UnixStream::connect(path).await {
            Ok(_) => Err(error),
            Err(_) => {
                std::fs::remove_file(path)?;
                UnixListener::bind(path)
            }
        },
        other => other,
    }
}

/// A connection of either kind.
#[derive(Debug)]
pub enum Socket {
    /// TCP with its peer, if known.
    Tcp(TcpStream, Option<SocketAddr>),
    /// Unix.
    Unix(UnixStream),
}

impl Socket {
    /// Connects to `address`, Nagle's algorithm off.
    ///
    /// # Errors
    /// Nobody listens there, or the network says no.
    pub async fn connect(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(text) => {
                let stream = TcpStream::connect(text).await?;
                stream.set_nodelay(true)?;
                let peer = stream.peer_addr().ok();
                Ok(Self::Tcp(stream, peer))
            }
            Address::Unix(path) => Ok(Self::Unix(UnixStream::connect(path).await?)),
        }
    }
}

impl Connected for Socket {
    type ConnectInfo = Option<SocketAddr>;

    fn connect_info(&self) -> Self::ConnectInfo {
        match self {
            Self::Tcp(_, peer) => *peer,
            Self::Unix(_) => None,
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream, _) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream, _) => Pin::new(stream).poll_write(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream, _) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream, _) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream, _) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}

/// A gRPC server with the settings of internal channels. Serve it with [`Listener`] as `incoming`.
#[must_use]
pub fn server() -> Server {
    Server::builder()
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_stream_window_size(STREAM_WINDOW)
        .max_concurrent_streams(None)
        .http2_adaptive_window(Some(false))
        .http2_max_local_error_reset_streams(None)
        .http2_max_pending_accept_reset_streams(Some(RESET_STREAMS))
        .http2_keepalive_interval(Some(KEEPALIVE_EVERY))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
}

/// A client endpoint with the settings of internal channels.
fn endpoint() -> Endpoint {
    // The authority is never dialled: `channel` brings its own connector.
    Endpoint::from_static("http://muster.internal")
        .connect_timeout(CONNECT_TIMEOUT)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_stream_window_size(STREAM_WINDOW)
        .http2_adaptive_window(false)
        .http2_max_local_error_reset_streams(None)
        .http2_max_concurrent_reset_streams(RESET_STREAMS)
        .http2_keep_alive_interval(KEEPALIVE_EVERY)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
}

/// A channel that connects at the first call and reconnects by itself.
#[must_use]
pub fn channel_lazy(address: &Address) -> Channel {
    endpoint().connect_with_connector_lazy(connector(address))
}

/// A channel that is connected now.
///
/// # Errors
/// Nobody listens there, or the network says no.
pub async fn channel(address: &Address) -> Result<Channel, tonic::transport::Error> {
    endpoint().connect_with_connector(connector(address)).await
}

type Connecting = Pin<Box<dyn Future<Output = io::Result<TokioIo<Socket>>> + Send>>;

fn connector(
    address: &Address,
) -> impl tower::Service<Uri, Response = TokioIo<Socket>, Error = io::Error, Future = Connecting>
+ Send
+ 'static
+ use<> {
    let address = address.clone();
    tower::service_fn(move |_: Uri| -> Connecting {
        let address = address.clone();
        Box::pin(async move { Socket::connect(&address).await.map(TokioIo::new) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_parse_and_print() {
        for text in ["127.0.0.1:8000", "[::1]:80", "host.example:1", "unix:/run/x.sock"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!(
            "http://localhost:1/".parse::<Address>().unwrap().to_string(),
            "localhost:1"
        );
        for text in ["", "nohost", ":80", "host:", "host:99999", "unix:"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn a_stale_socket_file_is_replaced_and_a_live_one_is_not() {
        let path = std::env::temp_dir().join(format!("muster-net-{}.sock", std::process::id()));
        let address = Address::Unix(path.clone());
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let live = Listener::bind(&address).await.unwrap();
        assert_eq!(
            Listener::bind(&address).await.unwrap_err().kind(),
            ErrorKind::AddrInUse
        );
        drop(live);
        assert!(!path.exists());
    }
}
