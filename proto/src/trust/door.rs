//! A listener with its access rule; the only way to serve gRPC.

use std::{io, sync::Arc};

use tonic::transport::Server;
use tower::layer::util::{Identity, Stack};

use super::{
    credentials::Token,
    guard::{Guard, Rule, audience},
    keys::Keys,
};
use crate::net::{self, Address, Callers, Listener};

/// A bound socket with its access rule.
#[derive(Debug)]
pub struct Door {
    listener: Listener,
    address: Address,
    guard: Guard,
}

/// Why a door cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// Anybody who reaches the port could do everything.
    #[error(
        "{0} can be reached by others than this user's processes: give --token-file, or listen on unix:PATH"
    )]
    NoToken(Address),
    /// Anybody who reaches the port could load and unload models.
    #[error(
        "{0} can be reached from other machines: give --admin-api-key-file or --api-key-file, or listen on 127.0.0.1"
    )]
    NoKeys(Address),
    /// The socket cannot be bound.
    #[error("cannot listen on {address}")]
    Bind { address: Address, source: io::Error },
}

impl Door {
    /// A door for Muster's own processes. On HOST:PORT operators may use it too, if there are keys.
    ///
    /// # Errors
    /// There is no token although others than this user's processes can connect; or the socket cannot be bound.
    pub async fn parts(address: &Address, token: Option<&Token>, keys: &Keys) -> Result<Self, DoorError> {
        if matches!(address, Address::Tcp(_)) && token.is_none() {
            return Err(DoorError::NoToken(address.clone()));
        }
        let rule = Rule::Parts {
            token: token.cloned(),
            keys: keys.clone(),
        };
        Self::bind(address, Callers::Own, rule).await
    }

    /// A door for operators.
    ///
    /// # Errors
    /// There are no keys although other machines can connect; or the socket cannot be bound.
    pub async fn operators(address: &Address, keys: &Keys) -> Result<Self, DoorError> {
        let local = net::is_local(address).map_err(|source| DoorError::Bind {
            address: address.clone(),
            source,
        })?;
        if !local && !keys.guard_changes() {
            return Err(DoorError::NoKeys(address.clone()));
        }
        let rule = Rule::Operators {
            keys: keys.clone(),
            tcp: matches!(address, Address::Tcp(_)),
        };
        Self::bind(address, Callers::Anyone, rule).await
    }

    async fn bind(address: &Address, callers: Callers, rule: Rule) -> Result<Self, DoorError> {
        let failed = |source| DoorError::Bind {
            address: address.clone(),
            source,
        };
        let listener = Listener::bind(address, callers).await.map_err(failed)?;
        let bound = listener.address().map_err(failed)?;
        Ok(Self {
            listener,
            address: bound,
            guard: Guard(Arc::new(rule)),
        })
    }

    /// The address that was bound, with the real port in place of port 0.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Whether the door offers a service, by its full name.
    #[must_use]
    pub fn offers(&self, service: &str) -> bool {
        self.guard.0.offers(audience(&format!("/{service}/")))
    }

    /// A server that checks the rule for each request, and the socket to serve it on.
    #[must_use]
    pub fn open(self) -> (Server<Stack<Guard, Identity>>, Listener) {
        (net::server().layer(self.guard), self.listener)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_door_beyond_this_machine_opens_without_credentials() {
        let any: Address = "0.0.0.0:0".parse().unwrap();
        let local: Address = "127.0.0.1:0".parse().unwrap();
        let token = Token::new(&["0123456789abcdef".to_owned()]).unwrap();
        let keys = Keys::new(["k"], [""]);
        for address in [&any, &local] {
            let refused = Door::parts(address, None, &keys).await;
            assert!(matches!(refused, Err(DoorError::NoToken(_))), "{refused:?}");
            Door::parts(address, Some(&token), &Keys::default())
                .await
                .unwrap();
        }
        let refused = Door::operators(&any, &Keys::default()).await;
        assert!(matches!(refused, Err(DoorError::NoKeys(_))), "{refused:?}");
        Door::operators(&any, &keys).await.unwrap();
        let door = Door::operators(&local, &Keys::default()).await.unwrap();
        assert!(door.offers("muster.v1.Control") && !door.offers("muster.v1.Fleet"));
    }
}
