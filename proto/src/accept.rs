//! Accepts connections, in the same way in every process. Outsiders can neither make it use the CPU in a loop, nor use up its files, nor
//! occupy places with silent connections.
//!
//! ```text
//!   a place is free ──► accept ──► options set ──► served ──► closed: the place is free again
//!        ▲ full: wait     │ error of the system (out of files …): pause, said once a minute
//!        └────────────────┘
//! ```
//!
//! Invariants: a failed `accept` is never retried at once. A listener takes at most half of the process's files ([`Places`]), so that the
//! process can still do its work. On internal sockets a connection is closed after [`GREETING`] unless it has sent the first bytes of
//! HTTP/2. That is one limit for all these bytes: `tokio-io-timeout` would limit each read, so one byte now and then would keep the place.

use std::{
    io::{self, ErrorKind},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, SystemTime},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, UnixListener, UnixStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep, sleep},
};
use tokio_stream::Stream;
use tonic::transport::server::Connected;

use crate::{
    net::{Address, Care, Socket, peer},
    process,
    trust::Peer,
};

/// Number of connections on an internal listener: one for each of ten thousand workers and some more, if there are enough files.
const INTERNAL_PLACES: usize = 1 << 14;
/// Time for a connection on an internal listener to begin with HTTP/2.
pub const GREETING: Duration = Duration::from_secs(30);
/// Length of HTTP/2's first bytes (RFC 9113, 3.4).
const PREFACE_BYTES: usize = 24;
/// Pause after a failed accept; connections wait in the kernel's queue.
const PAUSE: Duration = Duration::from_millis(500);
/// Interval at which the same problem is logged.
const SAID_EVERY: Duration = Duration::from_secs(60);

/// A limit on the number of connections. Several listeners may share it.
#[derive(Clone, Debug)]
pub struct Places {
    free: Arc<Semaphore>,
    all: usize,
}

/// The place of one connection; free again when dropped.
#[derive(Debug)]
pub struct Place {
    _permit: OwnedSemaphorePermit,
}

impl Places {
    /// At most `most` places, and at most half of the files that this process may open.
    #[must_use]
    pub fn new(most: usize) -> Self {
        let half = usize::try_from(process::file_limit() / 2).unwrap_or(usize::MAX);
        let all = most.min(half).clamp(1, Semaphore::MAX_PERMITS);
        Self {
            free: Arc::new(Semaphore::new(all)),
            all,
        }
    }

    /// Whether less than a quarter of the places is free.
    #[must_use]
    pub fn are_scarce(&self) -> bool {
        self.free.available_permits() < self.all.div_ceil(4)
    }
}

/// A bound socket of either kind, with its connection limit and options.
#[derive(Debug)]
pub struct Listener {
    kind: Kind,
    care: Care,
    places: Places,
    /// The place for the next connection.
    place: Next,
    /// Runs after a failed accept.
    pause: Option<Pin<Box<Sleep>>>,
    failed: Rarely,
    full: Rarely,
    knocked: Rarely,
}

#[derive(Debug)]
enum Kind {
    Tcp(TcpListener),
    /// The socket's file is removed when the listener is dropped.
    Unix(UnixListener, SocketFile, Callers),
}

/// Who may connect to a unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callers {
    /// Processes of this user and of root.
    Own,
    /// Everybody who may open its file.
    Anyone,
}

type Acquiring = Pin<Box<dyn Future<Output = Option<Place>> + Send>>;

enum Next {
    None,
    Waiting(Acquiring),
    Free(Place),
}

impl std::fmt::Debug for Next {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Waiting(_) => "Waiting",
            Self::Free(_) => "Free",
        })
    }
}

/// Removes a socket's file when dropped, unless the file belongs to another socket by now.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    mark: Mark,
}

/// Identifies a file, since a later file with the same path may have the same inode number.
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
            // A failure has no consequence: a stale file is replaced at the next bind.
            drop(std::fs::remove_file(&self.path));
        }
    }
}

impl Listener {
    /// Binds `address` for Muster's own processes. A socket file that nobody serves is replaced. `callers` applies to unix sockets.
    ///
    /// # Errors
    /// The address is in use, unreachable or not permitted.
    pub async fn bind(address: &Address, callers: Callers) -> io::Result<Self> {
        Self::bind_with(address, callers, Care::INTERNAL, Places::new(INTERNAL_PLACES)).await
    }

    /// Binds `address` with these options for connections and this limit on their number.
    ///
    /// # Errors
    /// The address is in use, unreachable or not permitted.
    pub async fn bind_with(
        address: &Address,
        callers: Callers,
        care: Care,
        places: Places,
    ) -> io::Result<Self> {
        let path = match address {
            Address::Tcp(text) => {
                let kind = Kind::Tcp(TcpListener::bind(text).await?);
                return Ok(Self::new(kind, care, places));
            }
            Address::Unix(path) => path,
        };
        let listener = bind_unix(path).await?;
        let file = SocketFile::of(path)?;
        if callers == Callers::Own {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        }
        Ok(Self::new(Kind::Unix(listener, file, callers), care, places))
    }

    /// Takes a socket that listens already.
    ///
    /// # Errors
    /// The runtime cannot watch it.
    pub fn from_std(listener: std::net::TcpListener, care: Care, places: Places) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self::new(
            Kind::Tcp(TcpListener::from_std(listener)?),
            care,
            places,
        ))
    }

    fn new(kind: Kind, care: Care, places: Places) -> Self {
        Self {
            kind,
            care,
            places,
            place: Next::None,
            pause: None,
            failed: Rarely::default(),
            full: Rarely::default(),
            knocked: Rarely::default(),
        }
    }

    /// The address that was bound, with the real port in place of port 0.
    ///
    /// # Errors
    /// The operating system does not tell.
    pub fn address(&self) -> io::Result<Address> {
        match &self.kind {
            Kind::Tcp(listener) => Ok(Address::Tcp(listener.local_addr()?.to_string())),
            Kind::Unix(_, file, _) => Ok(Address::Unix(file.path.clone())),
        }
    }

    /// Waits for the next connection and its place. Never fails: errors are logged and accepting goes on later.
    pub async fn accept(&mut self) -> (Socket, Place) {
        std::future::poll_fn(|cx| self.poll_accept(cx)).await
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<(Socket, Place)> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            let place = ready!(self.poll_place(cx));
            let accepted = match self.kind.poll_accept(cx) {
                Poll::Ready(accepted) => accepted,
                Poll::Pending => {
                    self.place = Next::Free(place);
                    return Poll::Pending;
                }
            };
            let error = match accepted {
                Ok(socket) if !self.admits(&socket) => None,
                Ok(socket) => match self.care.take(socket) {
                    Ok(socket) => return Poll::Ready((socket, place)),
                    // Options cannot be set on a connection that has ended already.
                    Err(_) => None,
                },
                Err(error) => Some(error).filter(|error| !concerns_one(error)),
            };
            self.place = Next::Free(place);
            if let Some(error) = error {
                self.pause = Some(Box::pin(sleep(PAUSE)));
                self.failed.say(|times| {
                    tracing::warn!(%error, times, "connections cannot be accepted; they wait");
                });
            }
        }
    }

    fn admits(&mut self, socket: &Socket) -> bool {
        let (Kind::Unix(_, file, Callers::Own), Socket::Unix(stream)) = (&self.kind, socket) else {
            return true;
        };
        let admitted = peer(stream) == Peer::Own;
        if !admitted {
            self.knocked.say(|times| {
                let (socket, peer) = (file.path.display(), stream.peer_cred());
                tracing::warn!(%socket, ?peer, times, "another user's process knocked at a socket of ours");
            });
        }
        admitted
    }

    fn poll_place(&mut self, cx: &mut Context<'_>) -> Poll<Place> {
        loop {
            match std::mem::replace(&mut self.place, Next::None) {
                Next::Free(place) => return Poll::Ready(place),
                Next::None => {
                    let free = Arc::clone(&self.places.free);
                    self.place = match Arc::clone(&free).try_acquire_owned() {
                        Ok(permit) => Next::Free(Place { _permit: permit }),
                        Err(_) => {
                            let most = self.places.all;
                            self.full.say(|times| {
                                tracing::warn!(
                                    most,
                                    times,
                                    "as many connections as there may be; others wait"
                                )
                            });
                            Next::Waiting(Box::pin(async move {
                                let permit = free.acquire_owned().await.ok()?;
                                Some(Place { _permit: permit })
                            }))
                        }
                    };
                }
                Next::Waiting(mut waiting) => match waiting.as_mut().poll(cx) {
                    // The semaphore is never closed.
                    Poll::Ready(None) => return Poll::Pending,
                    Poll::Ready(Some(place)) => self.place = Next::Free(place),
                    Poll::Pending => {
                        self.place = Next::Waiting(waiting);
                        return Poll::Pending;
                    }
                },
            }
        }
    }
}

impl Kind {
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Socket>> {
        match self {
            Self::Tcp(listener) => listener
                .poll_accept(cx)
                .map_ok(|(stream, peer)| Socket::Tcp(stream, Some(peer))),
            Self::Unix(listener, _, _) => listener
                .poll_accept(cx)
                .map_ok(|(stream, _)| Socket::Unix(stream)),
        }
    }
}

/// Whether an error is about the connection and not about this process or system (accept(2), "Error handling").
fn concerns_one(error: &io::Error) -> bool {
    use ErrorKind as Is;
    matches!(
        error.kind(),
        Is::ConnectionAborted
            | Is::ConnectionReset
            | Is::ConnectionRefused
            | Is::NotConnected
            | Is::BrokenPipe
            | Is::Interrupted
            | Is::HostUnreachable
            | Is::NetworkUnreachable
            | Is::NetworkDown
            | Is::TimedOut
    )
}

/// Logs a message at most once a minute, with the number of times it happened.
#[derive(Debug, Default)]
struct Rarely {
    said: Option<Instant>,
    times: u64,
}

impl Rarely {
    fn say(&mut self, line: impl FnOnce(u64)) {
        self.times += 1;
        if self.said.is_none_or(|said| said.elapsed() >= SAID_EVERY) {
            line(self.times);
            self.said = Some(Instant::now());
            self.times = 0;
        }
    }
}

async fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => match UnixStream::connect(path).await {
            Ok(_) => Err(error),
            Err(_) => {
                // Its listener may have removed it a moment ago.
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

/// For tonic: connections of Muster's own processes, which speak HTTP/2 at once.
impl Stream for Listener {
    type Item = io::Result<Accepted>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let (socket, place) = ready!(self.get_mut().poll_accept(cx));
        Poll::Ready(Some(Ok(Accepted {
            socket,
            greeting: Some((Box::pin(sleep(GREETING)), PREFACE_BYTES)),
            _place: place,
        })))
    }
}

/// A connection with its place that must still identify itself.
#[derive(Debug)]
pub struct Accepted {
    socket: Socket,
    /// Until the first bytes have come: the deadline, and the number of missing bytes. Whoever reads the bytes checks them.
    greeting: Option<(Pin<Box<Sleep>>, usize)>,
    _place: Place,
}

impl Connected for Accepted {
    type ConnectInfo = <Socket as Connected>::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.socket.connect_info()
    }
}

impl AsyncRead for Accepted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let poll = Pin::new(&mut self.socket).poll_read(cx, buf);
        let Some((timer, missing)) = &mut self.greeting else {
            return poll;
        };
        *missing = missing.saturating_sub(buf.filled().len() - before);
        if *missing == 0 {
            self.greeting = None;
        } else if poll.is_pending() {
            ready!(timer.as_mut().poll(cx));
            return Poll::Ready(Err(io::Error::new(
                ErrorKind::TimedOut,
                "the connection says nothing",
            )));
        }
        poll
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}

#[cfg(test)]
#[path = "accept/tests.rs"]
mod tests;
