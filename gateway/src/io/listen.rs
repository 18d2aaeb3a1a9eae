//! Listeners that share one port.

use std::{
    io,
    net::{SocketAddr, TcpListener, ToSocketAddrs as _},
};

use muster_proto::{
    accept::Places,
    net::{Address, Callers, Care, Listener},
};
use socket2::{Domain, Protocol, Socket, Type};

const BACKLOG: i32 = 4096;

/// A listener that is not registered with a runtime yet.
#[derive(Debug)]
pub(super) enum Unbound {
    /// Bound and listening.
    Tcp(TcpListener),
    /// To be bound by the thread that takes it.
    Unix(Address),
}

impl Unbound {
    /// Registers the listener with the runtime of the calling thread.
    pub(super) async fn bind(self, places: Places) -> io::Result<Listener> {
        match self {
            Self::Tcp(listener) => Listener::from_std(listener, Care::PUBLIC, places),
            // Anyone may connect who can reach the file; the API keys decide who may ask.
            Self::Unix(address) => Listener::bind_with(&address, Callers::Anyone, Care::PUBLIC, places).await,
        }
    }
}

/// `count` listeners on one address (a single one for a unix socket), and the address with the actual port.
///
/// # Errors
/// The address is in use, unknown or not permitted.
pub(super) fn listeners(address: &Address, count: usize) -> io::Result<(Vec<Unbound>, Address)> {
    let text = match address {
        Address::Unix(_) => return Ok((vec![Unbound::Unix(address.clone())], address.clone())),
        Address::Tcp(text) => text,
    };
    let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{text} resolves to no address"));
    for wanted in text.to_socket_addrs()? {
        match shared(wanted, count) {
            Ok((listeners, bound)) => return Ok((listeners, Address::Tcp(bound.to_string()))),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn shared(wanted: SocketAddr, count: usize) -> io::Result<(Vec<Unbound>, SocketAddr)> {
    // With SO_REUSEPORT the port would be shared silently with another gateway of the same user; so first bind without it to see whether
    // the port is free.
    let bound = listener(wanted, false)?.local_addr()?;
    let listeners = (0..count)
        .map(|_| listener(bound, true).map(Unbound::Tcp))
        .collect::<io::Result<_>>()?;
    Ok((listeners, bound))
}

fn listener(address: SocketAddr, reuse_port: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(reuse_port)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_share_a_port_that_nobody_else_gets() {
        let any = Address::Tcp("127.0.0.1:0".into());
        let (first, address) = listeners(&any, 2).unwrap();
        assert_eq!(first.len(), 2);
        assert_ne!(address, any);
        assert_eq!(
            listeners(&address, 2).unwrap_err().kind(),
            io::ErrorKind::AddrInUse
        );
    }
}
