//! The route table as gateways see it, and who watches it (PROTOCOL.md 2, 21).
//!
//! ```text
//! driver ──put/remove──► Publisher ──commit: one delta per step──► broadcast ring ──► watcher (pulls)
//!                            ▲                                          │ overtaken, or a new epoch
//!                            └────────────── subscribe: snapshot ◄──────┘
//! ```
//!
//! Invariants: each change since the last commit is in exactly one delta; versions count up within an epoch; a snapshot and the ring that
//! continues it are taken in one step of the driver, so nothing is lost between them. The ring is limited: a watcher that lags too far
//! starts again with a snapshot, and nobody waits for it.
//!
//! Architecture invariant: the publisher does not know why a route exists.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use muster_proto::v1::{ModelSummary, Route, RouteDelta, RouteUpdate, SnapshotPart, route_update::Kind};
use tokio::sync::broadcast;

/// Number of deltas that a watcher may lag behind.
const RING: usize = 1024;
/// Number of routes, or models, in one part of a snapshot.
const PART: usize = 256;

/// The route table and its watchers; owned by the driver.
#[derive(Debug)]
pub(crate) struct Publisher {
    epoch: u64,
    version: u64,
    settled: Settled,
    routes: BTreeMap<String, Route>,
    models: BTreeMap<String, ModelSummary>,
    changed_routes: BTreeSet<String>,
    changed_models: BTreeSet<String>,
    sender: broadcast::Sender<Step>,
}

/// Whether the controller has heard from all known workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Settled {
    No,
    /// It has; watchers are told with the next commit.
    Untold,
    Yes,
}

/// An element of the ring.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// A change.
    Delta(Arc<RouteUpdate>),
    /// The epoch changed: watchers must subscribe again.
    Anew,
}

/// A snapshot and the updates that follow it.
#[derive(Debug)]
pub(crate) struct Subscription {
    /// The snapshot in one or more parts.
    pub(crate) snapshot: Vec<RouteUpdate>,
    /// The updates after the snapshot.
    pub(crate) steps: broadcast::Receiver<Step>,
}

impl Publisher {
    /// An empty table that is not settled.
    pub(crate) fn new(epoch: u64) -> Self {
        Self {
            epoch,
            version: 0,
            settled: Settled::No,
            routes: BTreeMap::new(),
            models: BTreeMap::new(),
            changed_routes: BTreeSet::new(),
            changed_models: BTreeSet::new(),
            sender: broadcast::channel(RING).0,
        }
    }

    /// Adds or replaces a route. An equal route changes nothing.
    pub(crate) fn put_route(&mut self, route: Route) {
        let id = route
            .instance
            .as_ref()
            .map(|instance| instance.instance_id.clone())
            .unwrap_or_default();
        if self.routes.get(&id) != Some(&route) {
            self.changed_routes.insert(id.clone());
            self.routes.insert(id, route);
        }
    }

    pub(crate) fn remove_route(&mut self, instance: &str) {
        if self.routes.remove(instance).is_some() {
            self.changed_routes.insert(instance.to_owned());
        }
    }

    /// A route, published or about to be.
    pub(crate) fn route(&self, instance: &str) -> Option<&Route> {
        self.routes.get(instance)
    }

    /// Adds or replaces a model. An equal model changes nothing.
    pub(crate) fn put_model(&mut self, model: ModelSummary) {
        if self.models.get(&model.id) != Some(&model) {
            self.changed_models.insert(model.id.clone());
            self.models.insert(model.id.clone(), model);
        }
    }

    pub(crate) fn remove_model(&mut self, id: &str) {
        if self.models.remove(id).is_some() {
            self.changed_models.insert(id.to_owned());
        }
    }

    /// Marks the table as settled: what it does not have does not exist.
    pub(crate) fn settle(&mut self) {
        if self.settled == Settled::No {
            self.settled = Settled::Untold;
        }
    }

    /// Whether the table is settled.
    pub(crate) fn settled(&self) -> bool {
        self.settled != Settled::No
    }

    /// Begins a new epoch: every watcher starts again.
    pub(crate) fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.version = 0;
        // If nobody listens, that is no failure.
        drop(self.sender.send(Step::Anew));
    }

    /// Sends watchers the changes since the last commit.
    pub(crate) fn commit(&mut self) {
        let settling = self.settled == Settled::Untold;
        if self.changed_routes.is_empty() && self.changed_models.is_empty() && !settling {
            return;
        }
        self.version += 1;
        let (changed, removed): (Vec<String>, Vec<String>) = std::mem::take(&mut self.changed_routes)
            .into_iter()
            .partition(|id| self.routes.contains_key(id));
        let (models, removed_models): (Vec<String>, Vec<String>) = std::mem::take(&mut self.changed_models)
            .into_iter()
            .partition(|id| self.models.contains_key(id));
        let delta = RouteDelta {
            // A watcher may have subscribed at any time before, so the update that settles the table contains all of it.
            upserted: if settling {
                self.routes.values().cloned().collect()
            } else {
                changed
                    .iter()
                    .filter_map(|id| self.routes.get(id))
                    .cloned()
                    .collect()
            },
            removed_instances: removed,
            models: models
                .iter()
                .filter_map(|id| self.models.get(id))
                .cloned()
                .collect(),
            removed_models,
            settled: settling,
        };
        if settling {
            self.settled = Settled::Yes;
        }
        let update = self.update(Kind::Delta(delta));
        drop(self.sender.send(Step::Delta(Arc::new(update))));
    }

    /// The whole table, and the updates that follow.
    pub(crate) fn subscribe(&self) -> Subscription {
        let routes: Vec<&Route> = self.routes.values().collect();
        let models: Vec<&ModelSummary> = self.models.values().collect();
        let parts = routes
            .len()
            .div_ceil(PART)
            .max(models.len().div_ceil(PART))
            .max(1);
        let part = |number: usize| SnapshotPart {
            routes: routes
                .iter()
                .skip(number * PART)
                .take(PART)
                .map(|route| (*route).clone())
                .collect(),
            models: models
                .iter()
                .skip(number * PART)
                .take(PART)
                .map(|model| (*model).clone())
                .collect(),
            last: number + 1 == parts,
            settled: self.settled(),
        };
        Subscription {
            snapshot: (0..parts)
                .map(|number| self.update(Kind::Snapshot(part(number))))
                .collect(),
            steps: self.sender.subscribe(),
        }
    }

    fn update(&self, kind: Kind) -> RouteUpdate {
        RouteUpdate {
            epoch: self.epoch,
            version: self.version,
            kind: Some(kind),
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::InstanceRef;

    use super::*;

    fn route(id: &str, limit: u32) -> Route {
        Route {
            instance: Some(InstanceRef {
                instance_id: id.to_owned(),
                ..InstanceRef::default()
            }),
            queue_limit: limit,
            ..Route::default()
        }
    }

    fn delta(subscription: &mut Subscription) -> (u64, RouteDelta) {
        match subscription.steps.try_recv().unwrap() {
            Step::Delta(update) => match update.kind.clone() {
                Some(Kind::Delta(delta)) => (update.version, delta),
                other => panic!("{other:?}"),
            },
            Step::Anew => panic!("anew"),
        }
    }

    fn ids(routes: &[Route]) -> Vec<String> {
        routes
            .iter()
            .map(|route| route.instance.clone().unwrap().instance_id)
            .collect()
    }

    fn last(subscription: &Subscription) -> SnapshotPart {
        match subscription.snapshot.last().unwrap().kind.clone() {
            Some(Kind::Snapshot(part)) => part,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_commit_tells_each_change_once_and_nothing_twice() {
        let mut table = Publisher::new(7);
        let mut watcher = table.subscribe();
        assert!(last(&watcher).last);
        table.put_route(route("a", 1));
        table.put_route(route("b", 1));
        table.commit();
        table.put_route(route("a", 1));
        table.commit();
        table.put_route(route("a", 2));
        table.remove_route("b");
        table.remove_route("c");
        table.commit();
        let (version, first) = delta(&mut watcher);
        assert_eq!(
            (version, ids(&first.upserted)),
            (1, vec!["a".to_owned(), "b".to_owned()])
        );
        let (version, second) = delta(&mut watcher);
        assert_eq!((version, ids(&second.upserted)), (2, vec!["a".to_owned()]));
        assert_eq!(second.removed_instances, ["b"]);
        assert!(watcher.steps.try_recv().is_err());
        assert_eq!(ids(&last(&table.subscribe()).routes), ["a"]);
    }

    #[test]
    fn settling_is_told_once_with_all_routes() {
        let mut table = Publisher::new(1);
        table.put_route(route("a", 1));
        table.commit();
        let mut watcher = table.subscribe();
        assert!(!last(&watcher).settled);
        table.settle();
        table.commit();
        let (_, told) = delta(&mut watcher);
        assert!(told.settled);
        assert_eq!(ids(&told.upserted), ["a"]);
        table.put_route(route("b", 1));
        table.commit();
        assert!(!delta(&mut watcher).1.settled);
        assert!(last(&table.subscribe()).settled);
    }

    #[test]
    fn a_large_snapshot_comes_in_parts() {
        let mut table = Publisher::new(1);
        for number in 0..PART + 1 {
            table.put_route(route(&format!("{number:05}"), 1));
        }
        table.commit();
        let watcher = table.subscribe();
        assert_eq!(watcher.snapshot.len(), 2);
        assert_eq!(last(&watcher).routes.len(), 1);
        assert!(last(&watcher).last);
    }

    #[test]
    fn an_overtaken_watcher_notices_and_a_new_epoch_starts_anew() {
        let mut table = Publisher::new(1);
        let mut watcher = table.subscribe();
        for number in 0..u32::try_from(RING).unwrap() + 2 {
            table.put_route(route("a", number + 1));
            table.commit();
        }
        assert!(matches!(
            watcher.steps.try_recv(),
            Err(broadcast::error::TryRecvError::Lagged(_))
        ));
        let mut watcher = table.subscribe();
        table.set_epoch(5);
        assert!(matches!(watcher.steps.try_recv(), Ok(Step::Anew)));
        assert_eq!(table.subscribe().snapshot[0].epoch, 5);
    }
}
