//! A socket that closes if its client sends nothing at the beginning, or later stops reading.
//!
//! The worker ends the request of a client that does not read after 60 s (PROTOCOL.md 18), and the error waits here to be read. Without a
//! limit here the connection would stay open for as long as the client likes. Hyper's own limits apply once it knows which HTTP version a
//! client speaks; until then this module limits the connection.
//!
//! Ours, not `tokio-io-timeout`'s: that limits each read, so a client that sends a byte now and then could say nothing for ever, and it keeps a timer
//! in every connection, idle ones too.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf as _, Bytes};
use muster_proto::net::Socket;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf},
    time::{Sleep, sleep, timeout},
};

/// Longest time without a successful write. Longer than the worker's limit, so that a late reader still gets its error.
const LIMIT: Duration = Duration::from_secs(90);

/// Longest time until the client's HTTP version is known.
const GREETING: Duration = Duration::from_secs(30);
/// The bytes with which HTTP/2 begins (RFC 9113, 3.4); anything else is HTTP/1.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The HTTP version that a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speaks {
    Http1,
    Http2,
}

/// A connection with time limits.
#[derive(Debug)]
pub(super) struct Patient<S = Socket> {
    socket: S,
    /// Bytes read from the socket that nobody has consumed yet.
    ahead: Bytes,
    /// Runs while a write is blocked.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    /// Waits until there is something to read, perhaps the end.
    pub(super) async fn readable(&self) {
        if !self.has_more() {
            // The next read returns the error.
            drop(self.socket.readable().await);
        }
    }
}

impl<S> Patient<S> {
    pub(super) fn new(socket: S) -> Self {
        Self {
            socket,
            ahead: Bytes::new(),
            timer: None,
        }
    }

    /// Whether there are bytes that nobody has consumed yet.
    pub(super) fn has_more(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// Puts back bytes that were read too far. Copied, since even an empty slice would keep the whole buffer alive.
    pub(super) fn put_back(&mut self, bytes: &[u8]) {
        self.ahead = [bytes, &self.ahead].concat().into();
    }

    fn limit_wait<T>(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.timer = None;
            return poll;
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(LIMIT)));
        std::task::ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the client takes nothing",
        )))
    }
}

impl<S: AsyncRead + Unpin> Patient<S> {
    /// Reads the first bytes, which stay available, and returns the HTTP version; `None` if the client leaves or is silent for too long.
    pub(super) async fn greeting(&mut self) -> Option<Speaks> {
        let mut bytes = [0; PREFACE.len()];
        let mut filled = 0;
        let read = async {
            loop {
                match self.socket.read(&mut bytes[filled..]).await {
                    Ok(0) | Err(_) => return None,
                    Ok(more) => filled += more,
                }
                if bytes[..filled] != PREFACE[..filled] {
                    return Some(Speaks::Http1);
                }
                if filled == PREFACE.len() {
                    return Some(Speaks::Http2);
                }
            }
        };
        let speaks = timeout(GREETING, read).await.ok().flatten()?;
        self.ahead = Bytes::copy_from_slice(&bytes[..filled]);
        Some(speaks)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.socket).poll_read(cx, buf);
        }
        let count = self.ahead.len().min(buf.remaining());
        buf.put_slice(&self.ahead[..count]);
        self.ahead.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.socket).poll_write(cx, buf);
        self.limit_wait(cx, poll)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.socket).poll_flush(cx);
        self.limit_wait(cx, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.socket).poll_shutdown(cx);
        self.limit_wait(cx, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        self.limit_wait(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        time::{Instant, pause},
    };

    use super::*;

    #[tokio::test]
    async fn a_client_that_says_nothing_is_left_and_its_first_words_are_not_lost() {
        pause();
        for (said, speaks) in [
            (&b""[..], None),
            (b"PRI * HTTP/2.0", None),
            (b"P", None),
            (b"POST", Some(Speaks::Http1)),
            (PREFACE, Some(Speaks::Http2)),
        ] {
            let (near, mut far) = tokio::io::duplex(64);
            let mut patient = Patient::new(near);
            let say = async {
                for byte in said {
                    far.write_all(&[*byte]).await.unwrap();
                    tokio::task::yield_now().await;
                }
            };
            let began = Instant::now();
            let (told, ()) = tokio::join!(patient.greeting(), say);
            assert_eq!(told, speaks, "{said:?}");
            assert_eq!(began.elapsed() >= GREETING, speaks.is_none());
            if speaks.is_some() {
                far.write_all(b"!").await.unwrap();
                let mut read = vec![0; said.len() + 1];
                patient.read_exact(&mut read).await.unwrap();
                assert_eq!(read, [said, b"!"].concat());
            }
        }
    }

    #[tokio::test]
    async fn a_client_that_takes_nothing_is_left_and_a_slow_one_is_not() {
        pause();
        let (near, mut far) = tokio::io::duplex(8);
        let mut patient = Patient::new(near);
        let began = Instant::now();
        let slow = async {
            for _ in 0..4 {
                sleep(LIMIT / 2).await;
                far.read_exact(&mut [0; 8]).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(patient.write_all(&[0; 40]), slow);
        written.unwrap();
        assert!(began.elapsed() > LIMIT);
        let error = patient.write_all(&[0; 9]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
