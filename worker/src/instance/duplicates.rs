//! Ids of requests in progress. A second request with the same id replaces the first (PROTOCOL.md 16).

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use crate::session::outbox::Route;

/// All ids of requests in progress. A std Mutex is enough: it is held for one lookup.
#[derive(Debug, Default)]
pub(crate) struct Duplicates {
    routes: Mutex<HashMap<Arc<str>, Route>>,
}

impl Duplicates {
    /// Claims an id for a request. Returns the route to the request that had it before, which must be told that it was replaced.
    pub(crate) fn claim(self: &Arc<Self>, id: &str, route: Route) -> (Option<Claim>, Option<Route>) {
        if id.is_empty() {
            return (None, None);
        }
        let id: Arc<str> = Arc::from(id);
        let ticket = route.ticket;
        let older = self.lock().insert(Arc::clone(&id), route);
        let all = Arc::clone(self);
        (Some(Claim { all, id, ticket }), older)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Arc<str>, Route>> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Holds a request id until the request has ended.
#[derive(Debug)]
pub(crate) struct Claim {
    all: Arc<Duplicates>,
    id: Arc<str>,
    ticket: u64,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut routes = self.all.lock();
        if routes
            .get(&self.id)
            .is_some_and(|route| route.ticket == self.ticket)
        {
            routes.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instance::Instance;

    #[test]
    fn the_newer_request_owns_the_id_until_it_ends() {
        let all = Arc::new(Duplicates::default());
        let (instance, _inbox) = Instance::for_test("i");
        let route = |ticket| Route {
            instance: instance.clone(),
            ticket,
        };
        let (first, older) = all.claim("r", route(1));
        assert!(older.is_none());
        let (second, older) = all.claim("r", route(2));
        assert_eq!(older.unwrap().ticket, 1);
        drop(first);
        assert_eq!(
            all.lock().len(),
            1,
            "the older one's end frees nothing of the newer one"
        );
        drop(second);
        assert!(all.lock().is_empty());
        assert!(all.claim("", route(3)).0.is_none());
    }
}
