//! The sessions of one I/O thread, by worker address.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use muster_core::WorkerAddress;
use muster_proto::{
    MAX_MESSAGE_BYTES,
    net::{self, Channel},
    trust::Credentials,
    v1::inference_client::InferenceClient,
};

use super::{Session, link};

/// Opens sessions on demand and keeps them; beside each a channel for calls that are not part of a session.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// Clients for unary calls, by worker, as in `sessions`.
    clients: Mutex<HashMap<WorkerAddress, InferenceClient<Channel>>>,
    /// Touched by one thread only and never held across an await: a std mutex is enough.
    sessions: Mutex<HashMap<WorkerAddress, Arc<Session>>>,
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

    fn sessions(&self) -> MutexGuard<'_, HashMap<WorkerAddress, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clients(&self) -> MutexGuard<'_, HashMap<WorkerAddress, InferenceClient<Channel>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session to the worker at `address`, opened if there is none. Must be called on the pool's own runtime.
    pub(crate) fn session(&self, address: &WorkerAddress) -> Arc<Session> {
        let mut sessions = self.sessions();
        match sessions.get(address) {
            Some(session) if !session.is_closed() => Arc::clone(session),
            Some(_) | None => {
                let session = Arc::new(Session::new(address.clone()));
                tokio::spawn(link::run(Arc::clone(&session), self.credentials.clone()));
                sessions.insert(address.clone(), Arc::clone(&session));
                session
            }
        }
    }

    /// The open session to the worker at `address`, if there is one.
    pub(crate) fn existing(&self, address: &WorkerAddress) -> Option<Arc<Session>> {
        self.sessions().get(address).cloned()
    }

    /// A client for short calls to the worker at `address`; it connects when first used and again when it broke.
    pub(crate) fn client(&self, address: &WorkerAddress) -> InferenceClient<Channel> {
        let mut clients = self.clients();
        let client = clients.entry(address.clone()).or_insert_with(|| {
            InferenceClient::new(net::channel_lazy(address.first(), &self.credentials))
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES)
        });
        client.clone()
    }

    /// Forgets the clients of workers that have gone.
    pub(crate) fn keep_clients(&self, known: &HashSet<WorkerAddress>) {
        self.clients().retain(|address, _| known.contains(address));
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
