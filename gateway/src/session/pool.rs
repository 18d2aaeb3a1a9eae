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
    v1::{inference_client::InferenceClient, uploads_client::UploadsClient},
};

use super::{Session, link};

/// Opens and keeps sessions, and clients for calls outside sessions.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// Clients for unary calls, by worker.
    clients: Mutex<HashMap<WorkerAddress, InferenceClient<Channel>>>,
    /// One thread uses them, and no guard is held across an await: a std mutex is enough.
    sessions: Mutex<HashMap<WorkerAddress, Arc<Session>>>,
    /// Credentials for workers.
    credentials: Credentials,
}

impl Pool {
    /// A pool without sessions.
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

    /// The session with the worker at `address`; opens one if there is none. Must be called on the pool's own runtime.
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

    /// The session with the worker at `address`, if there is one.
    pub(crate) fn existing(&self, address: &WorkerAddress) -> Option<Arc<Session>> {
        self.sessions().get(address).cloned()
    }

    /// A client for short calls to the worker at `address`. It connects at the first call and again after a break.
    pub(crate) fn client(&self, address: &WorkerAddress) -> InferenceClient<Channel> {
        let mut clients = self.clients();
        let client = clients.entry(address.clone()).or_insert_with(|| {
            InferenceClient::new(net::channel_lazy(address.first(), &self.credentials))
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES)
        });
        client.clone()
    }

    /// A client for uploads to the worker at `address`, with a connection of its own.
    pub(crate) fn uploads(&self, address: &WorkerAddress) -> UploadsClient<Channel> {
        UploadsClient::new(net::channel_lazy(address.first(), &self.credentials))
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// Removes the clients of workers that are not `known`.
    pub(crate) fn keep_clients(&self, known: &HashSet<WorkerAddress>) {
        self.clients().retain(|address, _| known.contains(address));
    }

    /// Closes all sessions. Their requests end with an error that their clients get.
    pub(crate) fn close(&self) {
        for session in self.sessions().values() {
            session.close();
        }
    }

    /// Removes closed sessions.
    pub(crate) fn prune(&self) {
        self.sessions().retain(|_, session| !session.is_closed());
    }
}
