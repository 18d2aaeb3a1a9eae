//! Addresses, and the one place where internal channels get their settings (PROTOCOL.md 20). Who may use them is [`crate::trust`]'s business.
//!
//! h2 charges small unread DATA frames against the connection window and ends the *whole connection* when it runs out, and counts resets over a
//! connection's life. So all internal channels have large, never adaptive windows and no such counters. Back-pressure of one client is credits
//! (PROTOCOL.md 18), never HTTP/2 flow control.

use std::{
    fmt,
    io::{self, ErrorKind},
    net::{SocketAddr, ToSocketAddrs as _},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    pin::Pin,
    str::FromStr,
    task::{Context, Poll},
    time::{Duration, SystemTime},
};

use hyper_util::rt::TokioIo;
use rustix::process::geteuid;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
};
use tokio_stream::Stream;
use tonic::{
    service::interceptor::InterceptedService,
    transport::{Channel as Bare, Endpoint, Server, Uri, server::Connected},
};

use crate::trust::{Credentials, Peer};

/// Connection window of internal channels, in bytes; below 32 MiB h2 cuts streams that tick often.
pub const CONNECTION_WINDOW: u32 = 64 << 20;
/// Stream window of internal channels, in bytes.
pub const STREAM_WINDOW: u32 = 16 << 20;
const ROOT: u32 = 0;
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

impl Address {
    /// Whether only this machine can reach it.
    ///
    /// # Errors
    /// Its name means nothing here.
    pub fn is_local(&self) -> io::Result<bool> {
        match self {
            Self::Unix(_) => Ok(true),
            Self::Tcp(text) => Ok(text.to_socket_addrs()?.all(|address| address.ip().is_loopback())),
        }
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
    Unix(UnixListener, SocketFile, Callers),
}

/// Who may connect to a unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callers {
    /// Processes of this user, and root's.
    Own,
    /// Whoever may open its file.
    Anyone,
}

/// Removes a socket's file at the end, unless it is another's by now.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    mark: Mark,
}

/// Tells a file from a later one of the same path; numbers of inodes are used again.
type Mark = (u64, Option<SystemTime>);

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            mark: Self::mark(path)?,
        })
    }

    fn mark(path: &Path) -> io::Result<Mark> {
        let found = std::fs::symlink_metadata(path)?;
        Ok((found.ino(), found.created().ok()))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if Self::mark(&self.path).is_ok_and(|mark| mark == self.mark) {
            // Nothing can be done about a failure, and a stale file is replaced at the next bind.
            drop(std::fs::remove_file(&self.path));
        }
    }
}

impl Listener {
    /// Binds `address`. A socket file that nobody serves any more is replaced. `callers` is about unix sockets.
    ///
    /// # Errors
    /// The address is taken, unreachable or not permitted.
    pub async fn bind(address: &Address, callers: Callers) -> io::Result<Self> {
        let path = match address {
            Address::Tcp(text) => return Ok(Self::Tcp(TcpListener::bind(text).await?)),
            Address::Unix(path) => path,
        };
        let listener = bind_unix(path).await?;
        let file = SocketFile::of(path)?;
        if callers == Callers::Own {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        }
        Ok(Self::Unix(listener, file, callers))
    }

    /// The address really bound (port 0 replaced).
    ///
    /// # Errors
    /// The operating system does not say.
    pub fn address(&self) -> io::Result<Address> {
        match self {
            Self::Tcp(listener) => Ok(Address::Tcp(listener.local_addr()?.to_string())),
            Self::Unix(_, file, _) => Ok(Address::Unix(file.path.clone())),
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
            Self::Unix(listener, _, callers) => loop {
                let stream = listener.accept().await?.0;
                if admits(*callers, &stream) {
                    return Ok(Socket::Unix(stream));
                }
            },
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
            Self::Unix(listener, _, callers) => loop {
                match std::task::ready!(listener.poll_accept(cx)) {
                    Ok((stream, _)) if !admits(*callers, &stream) => {}
                    accepted => break accepted.map(|(stream, _)| Socket::Unix(stream)),
                }
            },
        };
        Poll::Ready(Some(socket))
    }
}

fn admits(callers: Callers, stream: &UnixStream) -> bool {
    let admitted = callers == Callers::Anyone || peer(stream) == Peer::Own;
    if !admitted {
        tracing::warn!(peer = ?stream.peer_cred(), "another user's process knocked at a socket of ours");
    }
    admitted
}

/// Who is at the other end; unknown counts as a stranger.
fn peer(stream: &UnixStream) -> Peer {
    let own = geteuid().as_raw();
    match stream.peer_cred() {
        Ok(peer) if peer.uid() == own || peer.uid() == ROOT => Peer::Own,
        Ok(_) | Err(_) => Peer::Stranger,
    }
}

async fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => match UnixStream::connect(path).await {
            Ok(_) => Err(error),
            Err(_) => {
                // Its listener may just have removed it.
                match std::fs::remove_file(path) {
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                    Ok(()) | Err(_) => {}
                }
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
    /// Connects to `address`, Nagle's algorithm off. A unix socket that another user serves is no place for what we have to say.
    ///
    /// # Errors
    /// Nobody listens there, the wrong one does, or the network says no.
    pub async fn connect(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(text) => {
                let stream = TcpStream::connect(text).await?;
                stream.set_nodelay(true)?;
                let peer = stream.peer_addr().ok();
                Ok(Self::Tcp(stream, peer))
            }
            Address::Unix(path) => {
                let stream = UnixStream::connect(path).await?;
                // Root trusts whom it is told to, for example a service that has a user of its own.
                if peer(&stream) == Peer::Stranger && !geteuid().is_root() {
                    let message = format!("{} is served by another user", path.display());
                    return Err(io::Error::new(ErrorKind::PermissionDenied, message));
                }
                Ok(Self::Unix(stream))
            }
        }
    }
}

impl Connected for Socket {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        match self {
            Self::Tcp(_, _) => Peer::Stranger,
            Self::Unix(stream) => peer(stream),
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

/// A gRPC server with the settings of internal channels; [`crate::trust::Door`] puts its rule around it.
pub(crate) fn server() -> Server {
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

/// A channel between our processes; shows on a network who we are.
pub type Channel = InterceptedService<Bare, Credentials>;

/// A client endpoint with the settings of internal channels. Its authority is never dialled: `connector` knows where to.
fn endpoint(address: &Address) -> Endpoint {
    let inside = || Endpoint::from_static("http://muster.internal");
    let endpoint = match address {
        Address::Tcp(text) => Endpoint::from_shared(format!("http://{text}")).unwrap_or_else(|_| inside()),
        Address::Unix(_) => inside(),
    };
    endpoint
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

/// What is shown at `address`.
fn shown(address: &Address, credentials: &Credentials) -> Credentials {
    match address {
        Address::Tcp(_) => credentials.clone(),
        Address::Unix(_) => Credentials::none(),
    }
}

/// A channel that connects at the first call and reconnects by itself.
#[must_use]
pub fn channel_lazy(address: &Address, credentials: &Credentials) -> Channel {
    let bare = endpoint(address).connect_with_connector_lazy(connector(address));
    InterceptedService::new(bare, shown(address, credentials))
}

/// A channel that is connected now.
///
/// # Errors
/// Nobody listens there, or the network says no.
pub async fn channel(
    address: &Address,
    credentials: &Credentials,
) -> Result<Channel, tonic::transport::Error> {
    let bare = endpoint(address)
        .connect_with_connector(connector(address))
        .await?;
    Ok(InterceptedService::new(bare, shown(address, credentials)))
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
}
