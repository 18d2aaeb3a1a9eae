//! Checks that an address is free before anything is started, so that the error names the port and not a child's exit.

use std::{io::ErrorKind, net::TcpListener};

use muster_proto::net::Address;

use super::UpError;

/// Fails if `what` cannot listen on `address` now.
pub(crate) fn check(what: &'static str, flag: &'static str, address: &Address) -> Result<(), UpError> {
    // The process that replaces a stale socket checks that file itself.
    let Address::Tcp(text) = address else {
        return Ok(());
    };
    match TcpListener::bind(text) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AddrInUse => Err(UpError::PortTaken {
            what,
            address: text.clone(),
            flag,
        }),
        Err(source) => Err(UpError::PortRefused {
            what,
            address: text.clone(),
            source,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_named() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let text = taken.local_addr().unwrap().to_string();
        let address: Address = text.parse().unwrap();
        let error = check("the gateway", "--http", &address).unwrap_err();
        assert!(error.to_string().contains(&text), "{error}");
        drop(taken);
        check("the gateway", "--http", &address).unwrap();
    }
}
