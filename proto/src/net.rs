//! Addresses, and the one place where internal channels get their settings (PROTOCOL.md 20). Who may use them is [`crate::trust`]'s business.
//!
//! h2 charges small unread DATA frames against the connection window and ends the *whole connection* when that runs out; it also counts
//! resets over a connection's life. So all internal channels have large, fixed windows and no such counters. Credits limit a single client
//! (PROTOCOL.md 18), never HTTP/2 flow control.

use std::{
    io::{self, ErrorKind},
    net::{SocketAddr, ToSocketAddrs as _},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use rustix::{net::sockopt, process::geteuid};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tonic::{
    service::interceptor::InterceptedService,
    transport::{Channel as Bare, Endpoint, Server, Uri, server::Connected},
};

use crate::trust::{Credentials, Peer};

pub use crate::accept::{Callers, Listener};
pub use muster_core::address::{Address, AddressError};

/// Connection window of internal channels in bytes. Below 32 MiB h2 cuts streams with frequent ticks.
pub const CONNECTION_WINDOW: u32 = 64 << 20;
/// Stream window of internal channels, in bytes.
pub const STREAM_WINDOW: u32 = 16 << 20;
const ROOT: u32 = 0;
/// Largest number of streams on one connection; further ones wait. A session is one stream, so this concerns calls of operators and waiting
/// loads.
const STREAMS: u32 = 4096;
const RESET_STREAMS: usize = 1 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Whether only this machine can reach an address.
///
/// # Errors
/// The host name cannot be resolved.
pub fn is_local(address: &Address) -> io::Result<bool> {
    match address {
        Address::Unix(_) => Ok(true),
        Address::Tcp(text) => Ok(text.to_socket_addrs()?.all(|address| address.ip().is_loopback())),
    }
}

/// How soon the kernel gives up on a peer that disappeared without closing the connection (power, cable, a firewall).
#[derive(Clone, Copy, Debug)]
pub struct Care {
    /// Idle time before the first probe, and between probes.
    probe_every: Duration,
    /// Longest time for data or a probe to stay unanswered (TCP_USER_TIMEOUT, which replaces the number of probes).
    unanswered: Duration,
}

impl Care {
    /// Between Muster's own processes, whose HTTP/2 pings detect it sooner.
    pub const INTERNAL: Self = Self {
        probe_every: Duration::from_secs(10),
        unanswered: Duration::from_secs(30),
    };
    /// For clients. The gateway closes the connection of a client that does not read after 90 s, so that a late reader still gets the
    /// error.
    pub const PUBLIC: Self = Self {
        probe_every: Duration::from_secs(30),
        unanswered: Duration::from_secs(100),
    };

    /// Sets a new connection's options: no delay (Nagle's algorithm off), and these times.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn take(self, socket: Socket) -> io::Result<Socket> {
        if let Socket::Tcp(stream, _) = &socket {
            stream.set_nodelay(true)?;
            sockopt::set_tcp_keepidle(stream, self.probe_every)?;
            sockopt::set_tcp_keepintvl(stream, self.probe_every)?;
            sockopt::set_socket_keepalive(stream, true)?;
            let unanswered = u32::try_from(self.unanswered.as_millis()).unwrap_or(u32::MAX);
            sockopt::set_tcp_user_timeout(stream, unanswered)?;
        }
        Ok(socket)
    }
}

/// The user at the other end; unknown counts as a stranger.
pub(crate) fn peer(stream: &UnixStream) -> Peer {
    let own = geteuid().as_raw();
    match stream.peer_cred() {
        Ok(peer) if peer.uid() == own || peer.uid() == ROOT => Peer::Own,
        Ok(_) | Err(_) => Peer::Stranger,
    }
}

/// A connection of either kind.
#[derive(Debug)]
pub enum Socket {
    /// TCP with its peer, if known.
    Tcp(TcpStream, Option<SocketAddr>),
    /// A unix socket.
    Unix(UnixStream),
}

impl Socket {
    /// Connects to `address` for Muster's own processes. A unix socket of another user is refused.
    ///
    /// # Errors
    /// Nobody listens there, another user does, or the network refuses.
    pub async fn connect(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(text) => {
                let stream = TcpStream::connect(text).await?;
                let peer = stream.peer_addr().ok();
                Care::INTERNAL.take(Self::Tcp(stream, peer))
            }
            Address::Unix(path) => {
                let stream = UnixStream::connect(path).await?;
                // Root trusts the address it was given, for example that of a service with a user of its own.
                if peer(&stream) == Peer::Stranger && !geteuid().is_root() {
                    let message = format!("{} is served by another user", path.display());
                    return Err(io::Error::new(ErrorKind::PermissionDenied, message));
                }
                Ok(Self::Unix(stream))
            }
        }
    }
}

impl Socket {
    /// Waits until there is something to read, perhaps the end.
    ///
    /// # Errors
    /// The runtime has ended.
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream, _) => stream.readable().await,
            Self::Unix(stream) => stream.readable().await,
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

/// A gRPC server with the settings of internal channels. [`crate::trust::Door`] adds the access rule.
pub(crate) fn server() -> Server {
    Server::builder()
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_stream_window_size(STREAM_WINDOW)
        .max_concurrent_streams(STREAMS)
        .http2_adaptive_window(Some(false))
        .http2_max_local_error_reset_streams(None)
        .http2_max_pending_accept_reset_streams(Some(RESET_STREAMS))
        .http2_keepalive_interval(Some(KEEPALIVE_EVERY))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
}

/// A channel between Muster's processes. On a network it sends credentials.
pub type Channel = InterceptedService<Bare, Credentials>;

/// A client endpoint with the settings of internal channels. Its authority is not used to connect; `connector` has the address.
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

/// The credentials for `address`: none on a unix socket.
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
/// Nobody listens there, or the network refuses.
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
