//! The receiving end of sd_notify: a unix datagram socket per child, so that readiness arrives as an event without polling.
//! The crate `sd-notify`, which our children use, is the sending end only.

use std::{io, path::Path};

use muster_proto::net::Address;
use tokio::net::UnixDatagram;

/// The socket of one child. Its path is the child's `NOTIFY_SOCKET`.
#[derive(Debug)]
pub(crate) struct NotifySocket(UnixDatagram);

/// A message of a child.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Message {
    /// The child is ready.
    pub(crate) ready: bool,
    /// The child gives a sign of life.
    pub(crate) alive: bool,
    /// The address that the child listens on.
    pub(crate) address: Option<Address>,
}

impl NotifySocket {
    /// Binds `path` in place of what a predecessor left: the lock makes the run directory ours.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        UnixDatagram::bind(path).map(Self)
    }

    /// Waits for the next message.
    pub(crate) async fn recv(&self) -> io::Result<Message> {
        let mut buffer = [0; 4096];
        let length = self.0.recv(&mut buffer).await?;
        let text = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default());
        Ok(parse(&text))
    }
}

fn parse(text: &str) -> Message {
    let mut message = Message::default();
    for line in text.lines() {
        match line.split_once('=') {
            Some(("READY", "1")) => message.ready = true,
            Some(("WATCHDOG", "1")) => message.alive = true,
            Some(("MUSTER_ADDRESS", address)) => message.address = address.parse().ok(),
            _ => {}
        }
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_comes_with_an_address() {
        let message = parse("MUSTER_ADDRESS=127.0.0.1:17\nREADY=1\n");
        assert!(message.ready);
        assert_eq!(message.address, Some(Address::Tcp("127.0.0.1:17".to_owned())));
        assert_eq!(parse("STATUS=warming up"), Message::default());
        assert!(parse("WATCHDOG=1\n").alive);
    }
}
