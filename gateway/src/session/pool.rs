//! The sessions of one I/O thread, by worker address.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{Session, link};

/// Opens sessions on demand and keeps them.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// Touched by one thread only and never held across an await: a std mutex is enough.
    sessions: Mutex<HashMap<String, Arc<Session>>>,
}

impl Pool {
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
                tokio::spawn(link::run(Arc::clone(&session)));
                sessions.insert(key, Arc::clone(&session));
                session
            }
        }
    }

    /// The open session to the worker at `addresses`, if there is one.
    pub(crate) fn existing(&self, addresses: &[String]) -> Option<Arc<Session>> {
        self.sessions().get(&addresses.join(",")).cloned()
    }

    /// Forgets sessions that broke and that nobody reopened.
    pub(crate) fn prune(&self) {
        self.sessions().retain(|_, session| !session.is_closed());
    }
}
