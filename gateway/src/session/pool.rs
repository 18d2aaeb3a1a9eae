//! The sessions of one I/O thread, by worker address.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use muster_proto::{
    Code, MAX_MESSAGE_BYTES,
    net::{self, Address, Channel},
    trust::Credentials,
    v1::{ErrorInfo, inference_client::InferenceClient},
};

use super::{Session, link};

/// Opens sessions on demand and keeps them; beside each a channel for calls that are not part of a session.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// As `sessions`.
    clients: Mutex<HashMap<String, InferenceClient<Channel>>>,
    /// Touched by one thread only and never held across an await: a std mutex is enough.
    sessions: Mutex<HashMap<String, Arc<Session>>>,
    /// What workers are shown.
    credentials: Credentials,
}

impl Pool {
    /// No session is open yet.
    pub(crate) fn new(credentials: Credentials) -> Self {
        Self {
            credentials,
            ..Self::default()
        }
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<String, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session to the worker at `addresses`, opened if there is none. Must be called on the pool's own runtime.
    pub(crate) fn session(&self, addresses: &[String]) -> Arc<Session> {
        let key = addresses.join(",");
        let mut sessions = self.sessions();
        match sessions.get(&key) {
            Some(session) if !session.is_closed() => Arc::clone(session),
            Some(_) | None => {
                let session = Arc::new(Session::new(addresses.to_vec()));
                tokio::spawn(link::run(Arc::clone(&session), self.credentials.clone()));
                sessions.insert(key, Arc::clone(&session));
                session
            }
        }
    }

    /// The open session to the worker at `addresses`, if there is one.
    pub(crate) fn existing(&self, addresses: &[String]) -> Option<Arc<Session>> {
        self.sessions().get(&addresses.join(",")).cloned()
    }

    /// A client for short calls to the worker at `addresses`; it connects when first used and again when it broke.
    ///
    /// # Errors
    /// `worker_lost` if none of the addresses is one.
    pub(crate) fn client(&self, addresses: &[String]) -> Result<InferenceClient<Channel>, ErrorInfo> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(&addresses.join(",")) {
            return Ok(client.clone());
        }
        let address: Option<Address> = addresses.iter().find_map(|text| text.parse().ok());
        let address = address.ok_or_else(|| Code::WorkerLost.error("the worker has no address"))?;
        let client = InferenceClient::new(net::channel_lazy(&address, &self.credentials))
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        clients.insert(addresses.join(","), client.clone());
        Ok(client)
    }

    /// Forgets the clients of workers that have gone.
    pub(crate) fn keep_clients(&self, known: impl Fn(&str) -> bool) {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.retain(|addresses, _| known(addresses));
    }

    /// Ends all sessions: their requests are told so, and tell their clients.
    pub(crate) fn close(&self) {
        for session in self.sessions().values() {
            session.close();
        }
    }

    /// Forgets sessions that broke and that nobody reopened.
    pub(crate) fn prune(&self) {
        self.sessions().retain(|_, session| !session.is_closed());
    }
}
