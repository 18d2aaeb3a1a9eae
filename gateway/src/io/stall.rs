//! A socket that gives up on a client which says nothing at first, or later takes nothing.
//!
//! The worker ends such a client's request after 60 s (PROTOCOL.md 18), and the error waits here to be read; this ends the connection itself,
//! or it would stay for as long as the client likes. Hyper's own limits begin once it knows which HTTP a client speaks; until then a
//! connection without a word is ours to end.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use muster_proto::net::Socket;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// Longest time in which nothing can be written; longer than the worker's, so that a late reader still sees its error.
const LIMIT: Duration = Duration::from_secs(90);

/// Longest time until it is clear which HTTP the client speaks.
const GREETING: Duration = Duration::from_secs(30);
/// How HTTP/2 begins (RFC 9113, 3.4); anything else is HTTP/1.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The beginning of a connection.
#[derive(Debug)]
struct Greeting {
    timer: Pin<Box<Sleep>>,
    /// Bytes of the preface so far.
    seen: usize,
}

impl Greeting {
    /// Whether these further bytes tell which HTTP it is.
    fn is_told(&mut self, bytes: &[u8]) -> bool {
        let rest = PREFACE.iter().skip(self.seen);
        let same = rest.zip(bytes).take_while(|(a, b)| a == b).count();
        self.seen += same;
        same < bytes.len() || self.seen == PREFACE.len()
    }
}

/// A connection with patience.
#[derive(Debug)]
pub(super) struct Patient<S = Socket> {
    socket: S,
    /// Until the client's first words.
    greeting: Option<Greeting>,
    /// Runs while a write waits.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    pub(super) fn new(socket: S) -> Self {
        let greeting = Greeting {
            timer: Box::pin(sleep(GREETING)),
            seen: 0,
        };
        Self {
            socket,
            greeting: Some(greeting),
            timer: None,
        }
    }

    fn judge<T>(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
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

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let poll = Pin::new(&mut self.socket).poll_read(cx, buf);
        if let Some(greeting) = &mut self.greeting {
            if greeting.is_told(&buf.filled()[before..]) {
                self.greeting = None;
            } else if poll.is_pending() {
                std::task::ready!(greeting.timer.as_mut().poll(cx));
                return Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the client says nothing",
                )));
            }
        }
        poll
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.socket).poll_write(cx, buf);
        self.judge(cx, poll)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.socket).poll_flush(cx);
        self.judge(cx, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.socket).poll_shutdown(cx);
        self.judge(cx, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        self.judge(cx, poll)
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
    async fn a_client_that_says_nothing_is_left_and_one_that_waits_later_is_not() {
        pause();
        for (said, is_told) in [
            (&b""[..], false),
            (b"PRI * HTTP/2.0", false),
            (b"P", false),
            (b"POST", true),
            (PREFACE, true),
        ] {
            let (near, mut far) = tokio::io::duplex(64);
            let mut patient = Patient::new(near);
            for byte in said {
                far.write_all(&[*byte]).await.unwrap();
                patient.read_u8().await.unwrap();
            }
            let began = Instant::now();
            let more = tokio::time::timeout(2 * GREETING, patient.read_u8()).await;
            assert_eq!(more.is_err(), is_told, "{said:?}");
            if let Ok(read) = more {
                assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut);
                assert!(began.elapsed() < GREETING * 2);
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
