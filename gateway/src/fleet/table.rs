//! The route table, and how the controller's updates change it (PROTOCOL.md 2; `WatchRoutes`).
//!
//! ```text
//!   snapshot parts … last ─► settled: replaces everything        not settled: merges, deletes nothing
//!   delta                 ─► upserts and removals                settled: also drops what this epoch never mentioned
//!   lower epoch           ─► refused: an older controller speaks
//! ```
//!
//! A table is immutable and shared by all threads; [`Tracker`] makes the next one.
//! A route or model that lacks a required field is left out, logged and counted.
//! Architecture invariant: pure; no clock, no connection.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use muster_core::{Code, Error, InstanceId, ModelId, WorkerAddress, name::spellings};
use muster_proto::v1::{
    self, ModelStatus, ModelSummary, RouteDelta, RouteUpdate, SnapshotPart, route_update,
};

use super::{gauge::Gauge, route::Route};
use crate::{
    metrics,
    translate::{LONGEST_NAME, object::invalid},
};

/// A route with the gauge of its instance.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) route: Route,
    pub(crate) gauge: Arc<Gauge>,
    epoch: u64,
}

impl Target {
    /// A target outside the table, for a route from `EnsureLoaded`.
    pub(crate) fn new(route: Route, gauge: Arc<Gauge>, epoch: u64) -> Self {
        Self { route, gauge, epoch }
    }

    /// The instance's id.
    pub(crate) fn instance_id(&self) -> &InstanceId {
        &self.route.to.instance
    }

    /// The address of its worker.
    pub(crate) fn at(&self) -> &WorkerAddress {
        &self.route.to.at
    }
}

/// Whether a model takes requests.
pub(crate) fn is_loaded(summary: &ModelSummary) -> bool {
    summary.status == i32::from(ModelStatus::Loaded)
}

/// Why a model does not take requests now, as an error (seed 001, request behaviour by runtime state).
pub(crate) fn state_error(summary: &ModelSummary) -> Error {
    let id = &summary.id;
    match ModelStatus::try_from(summary.status).unwrap_or_default() {
        ModelStatus::Loading => Code::ModelLoading.error(format!("model {id} is loading")),
        ModelStatus::Unloading => Code::ModelUnloading.error(format!("model {id} is unloading")),
        ModelStatus::Failed => {
            let why = summary.last_error.as_ref().map_or("", |error| &error.message);
            Code::ModelFailed.error(format!("model {id} failed: {why}"))
        }
        ModelStatus::Unloaded | ModelStatus::Loaded | ModelStatus::Unspecified => {
            Code::ModelNotLoaded.error(format!("model {id} is not loaded"))
        }
    }
}

#[derive(Clone, Debug)]
struct Entry {
    summary: Arc<ModelSummary>,
    epoch: u64,
}

/// All models and their targets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    models: BTreeMap<ModelId, Entry>,
    targets: HashMap<ModelId, Vec<Arc<Target>>>,
    known: bool,
    epoch: u64,
    version: u64,
}

impl Table {
    /// Whether a snapshot has come. Before that an unknown model may exist.
    pub(crate) fn known(&self) -> bool {
        self.known
    }

    /// The model with this id or alias.
    pub(crate) fn model(&self, name: &str) -> Option<&Arc<ModelSummary>> {
        let by_id = self.models.get(name);
        // Names that are not ids are rare, so no index of aliases is kept.
        let named = |entry: &&Entry| entry.summary.aliases.iter().any(|alias| alias == name);
        by_id
            .or_else(|| self.models.values().find(named))
            .map(|entry| &entry.summary)
    }

    /// The name of the model that a request means: the one it gives, as somebody here has it; without one that of the only model that is loaded,
    /// else of the only one whose files are here. A name that nobody has stays what it is.
    ///
    /// # Errors
    /// `invalid_request`: it gives none and there are several, or none; or no model's name is as long as that.
    pub(crate) fn meant(&self, named: Option<&str>) -> Result<String, Error> {
        if let Some(name) = named.filter(|name| !name.is_empty()) {
            if name.len() > LONGEST_NAME {
                let wrong = format_args!("must not be longer than {LONGEST_NAME} bytes");
                return Err(invalid("model", wrong));
            }
            let known = self.known_as(name).map(Cow::into_owned);
            let any = || self.models().find(|summary| summary.any_name);
            let meant = known.or_else(|| any().map(|summary| summary.id.clone()));
            return Ok(meant.unwrap_or_else(|| name.to_owned()));
        }
        let only = |wanted: fn(&ModelSummary) -> bool| {
            let mut found = self.models().filter(|summary| wanted(summary));
            let first = found.next();
            if found.next().is_none() { first } else { None }
        };
        if let Some(summary) = only(is_loaded).or_else(|| only(|summary| summary.downloaded)) {
            return Ok(summary.id.clone());
        }
        Err(invalid(
            "model",
            if self.models().any(|summary| is_loaded(summary)) {
                "is required: several models are loaded"
            } else {
                "is required: no model is loaded"
            },
        ))
    }

    /// Whether a model has this id.
    pub(crate) fn has_id(&self, id: &str) -> bool {
        self.models.contains_key(id)
    }

    /// The id or alias by which a model stands here that somebody calls `name`. A model that takes any name takes it for requests only: whoever
    /// changes or removes a model must name it.
    pub(crate) fn known_as<'a>(&self, name: &'a str) -> Option<Cow<'a, str>> {
        spellings(name).find(|spelling| self.model(spelling).is_some())
    }

    /// All models by id.
    pub(crate) fn models(&self) -> impl Iterator<Item = &Arc<ModelSummary>> {
        self.models.values().map(|entry| &entry.summary)
    }

    /// The targets of the model with this id or alias.
    pub(crate) fn targets(&self, name: &str) -> &[Arc<Target>] {
        let by_id = self.targets.get(name);
        let found = by_id.or_else(|| {
            let model = self.model(name).filter(|model| model.id != name)?;
            self.targets.get(model.id.as_str())
        });
        found.map_or(&[], Vec::as_slice)
    }

    /// The targets of all models.
    pub(crate) fn all_targets(&self) -> impl Iterator<Item = &Arc<Target>> {
        self.targets.values().flatten()
    }

    /// The gauge of an instance. It is the same one as long as the instance's route is known.
    pub(crate) fn gauge(&self, instance_id: &str) -> Arc<Gauge> {
        let found = self
            .all_targets()
            .find(|target| target.instance_id().as_str() == instance_id);
        found.map(|target| Arc::clone(&target.gauge)).unwrap_or_default()
    }

    /// Adds or replaces a route. Its gauge comes from the table `before`.
    fn upsert(&mut self, route: v1::Route, epoch: u64, before: &Self) {
        let route = match Route::try_from(route) {
            Ok(route) => route,
            Err(missing) => return metrics::malformed("route", missing),
        };
        let id = route.to.instance.as_str();
        let gauge = before.gauge(id);
        self.remove(id);
        let model = route.model.clone();
        let target = Arc::new(Target::new(route, gauge, epoch));
        self.targets.entry(model).or_default().push(target);
    }

    fn remove(&mut self, instance_id: &str) {
        self.targets.retain(|_, targets| {
            targets.retain(|target| target.instance_id().as_str() != instance_id);
            !targets.is_empty()
        });
    }

    fn put_model(&mut self, summary: ModelSummary, epoch: u64) {
        match ModelId::new(summary.id.as_str()) {
            Ok(id) => {
                let summary = Arc::new(summary);
                self.models.insert(id, Entry { summary, epoch });
            }
            Err(missing) => metrics::malformed("model", missing),
        }
    }

    fn drop_unmentioned(&mut self, epoch: u64) {
        self.models.retain(|_, entry| entry.epoch == epoch);
        self.targets.retain(|_, targets| {
            targets.retain(|target| target.epoch == epoch);
            !targets.is_empty()
        });
    }
}

/// The error for an update of an earlier controller, or of an earlier version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stale;

/// Applies the updates of one stream. Each stream needs a new tracker ([`Tracker::resume`]).
#[derive(Debug, Default)]
pub(crate) struct Tracker {
    table: Table,
    parts: Vec<SnapshotPart>,
}

impl Tracker {
    /// Starts from a table after a reconnect; an unfinished snapshot is discarded.
    pub(crate) fn resume(table: &Table) -> Self {
        Self {
            table: table.clone(),
            parts: Vec::new(),
        }
    }

    /// The current table.
    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    /// Applies an update. Returns whether the table changed.
    pub(crate) fn apply(&mut self, update: RouteUpdate) -> Result<bool, Stale> {
        if update.epoch < self.table.epoch {
            return Err(Stale);
        }
        let newer = update.epoch > self.table.epoch;
        match update.kind {
            Some(route_update::Kind::Snapshot(part)) => {
                let last = part.last;
                self.parts.push(part);
                if last {
                    self.snapshot(update.epoch);
                    self.advance(update.epoch, update.version);
                }
                Ok(last)
            }
            Some(route_update::Kind::Delta(delta)) => {
                if !newer && update.version < self.table.version {
                    // A snapshot already includes this update.
                    return Ok(false);
                }
                self.delta(delta, update.epoch);
                self.advance(update.epoch, update.version);
                Ok(true)
            }
            Some(route_update::Kind::Heartbeat(_)) | None => Ok(false),
        }
    }

    fn advance(&mut self, epoch: u64, version: u64) {
        self.table.epoch = epoch;
        self.table.version = version;
    }

    fn snapshot(&mut self, epoch: u64) {
        let parts = std::mem::take(&mut self.parts);
        let before = self.table.clone();
        if parts.last().is_some_and(|part| part.settled) {
            self.table.models.clear();
            self.table.targets.clear();
        }
        for part in parts {
            for model in part.models {
                self.table.put_model(model, epoch);
            }
            for route in part.routes {
                self.table.upsert(route, epoch, &before);
            }
        }
        self.table.known = true;
    }

    fn delta(&mut self, delta: RouteDelta, epoch: u64) {
        let before = self.table.clone();
        for route in delta.upserted {
            self.table.upsert(route, epoch, &before);
        }
        for instance in delta.removed_instances {
            self.table.remove(&instance);
        }
        for model in delta.models {
            self.table.put_model(model, epoch);
        }
        for model in delta.removed_models {
            self.table.models.remove(model.as_str());
        }
        if delta.settled {
            self.table.drop_unmentioned(epoch);
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::Heartbeat;

    use super::{super::route::wire as route, *};

    fn model(id: &str) -> ModelSummary {
        ModelSummary {
            id: id.into(),
            ..ModelSummary::default()
        }
    }

    fn snapshot(epoch: u64, version: u64, settled: bool, instances: &[&str]) -> RouteUpdate {
        let part = SnapshotPart {
            routes: instances.iter().map(|id| route("m", id)).collect(),
            models: vec![model("m")],
            last: true,
            settled,
        };
        RouteUpdate {
            epoch,
            version,
            kind: Some(route_update::Kind::Snapshot(part)),
        }
    }

    fn delta(epoch: u64, version: u64, delta: RouteDelta) -> RouteUpdate {
        RouteUpdate {
            epoch,
            version,
            kind: Some(route_update::Kind::Delta(delta)),
        }
    }

    fn instances(tracker: &Tracker) -> Vec<&str> {
        let mut ids: Vec<_> = tracker
            .table()
            .targets("m")
            .iter()
            .map(|target| target.instance_id().as_str())
            .collect();
        ids.sort_unstable();
        ids
    }

    #[test]
    fn a_request_means_the_model_it_names_or_the_only_one() {
        let here = |id: &str, status: ModelStatus| ModelSummary {
            status: status.into(),
            downloaded: true,
            aliases: vec![format!("{id}-alias")],
            ..model(id)
        };
        let table = |models: Vec<ModelSummary>| {
            let mut tracker = Tracker::default();
            let part = SnapshotPart {
                models,
                last: true,
                settled: true,
                ..SnapshotPart::default()
            };
            let kind = Some(route_update::Kind::Snapshot(part));
            let update = RouteUpdate {
                epoch: 1,
                version: 1,
                kind,
            };
            tracker.apply(update).unwrap();
            tracker.table
        };
        let two = |status| {
            table(vec![
                here("a", ModelStatus::Unloaded),
                here("user.b", status),
                model("never-pulled"),
            ])
        };
        let cold = two(ModelStatus::Unloaded);
        for (name, means) in [
            ("a", "a"),
            ("a:latest", "a"),
            ("a-alias", "a-alias"),
            ("b", "user.b"),
            ("builtin.a", "a"),
            ("gpt-4", "gpt-4"),
        ] {
            assert_eq!(cold.meant(Some(name)).unwrap(), means);
        }
        let error = cold.meant(None).unwrap_err();
        assert_eq!(
            (error.param.as_deref(), error.message.as_str()),
            (Some("model"), "`model` is required: no model is loaded")
        );
        assert_eq!(
            cold.meant(Some(&"x".repeat(2000))).unwrap_err().code,
            Code::InvalidRequest
        );
        assert_eq!(two(ModelStatus::Loaded).meant(Some("")).unwrap(), "user.b");
        let mut only = here("a", ModelStatus::Unloaded);
        assert_eq!(
            table(vec![only.clone(), model("never-pulled")])
                .meant(None)
                .unwrap(),
            "a"
        );
        only.any_name = true;
        assert_eq!(table(vec![only]).meant(Some("gpt-4")).unwrap(), "a");
    }

    #[test]
    fn a_settled_snapshot_replaces_and_an_unsettled_one_merges() {
        let mut tracker = Tracker::default();
        assert!(!tracker.table().known());
        tracker.apply(snapshot(1, 1, true, &["a", "b"])).unwrap();
        tracker.apply(snapshot(2, 1, false, &["c"])).unwrap();
        assert_eq!(instances(&tracker), ["a", "b", "c"]);
        let settled = RouteDelta {
            settled: true,
            ..RouteDelta::default()
        };
        tracker.apply(delta(2, 2, settled)).unwrap();
        assert_eq!(instances(&tracker), ["c"]);
        tracker.apply(snapshot(2, 3, true, &["d"])).unwrap();
        assert_eq!(instances(&tracker), ["d"]);
    }

    #[test]
    fn an_older_controller_is_refused() {
        let mut tracker = Tracker::default();
        tracker.apply(snapshot(5, 1, true, &["a"])).unwrap();
        assert_eq!(tracker.apply(snapshot(4, 9, true, &[])), Err(Stale));
        let heartbeat = RouteUpdate {
            epoch: 4,
            version: 9,
            kind: Some(route_update::Kind::Heartbeat(Heartbeat::default())),
        };
        assert_eq!(tracker.apply(heartbeat), Err(Stale));
        assert_eq!(instances(&tracker), ["a"]);
    }

    #[test]
    fn deltas_change_and_overtaken_ones_do_not() {
        let mut tracker = Tracker::default();
        tracker.apply(snapshot(1, 5, true, &["a"])).unwrap();
        let add = RouteDelta {
            upserted: vec![route("m", "b")],
            ..RouteDelta::default()
        };
        assert_eq!(tracker.apply(delta(1, 4, add.clone())), Ok(false));
        assert_eq!(tracker.apply(delta(1, 6, add)), Ok(true));
        let remove = RouteDelta {
            removed_instances: vec!["a".into()],
            removed_models: vec!["m".into()],
            ..RouteDelta::default()
        };
        tracker.apply(delta(1, 7, remove)).unwrap();
        assert_eq!(instances(&tracker), ["b"]);
        assert!(tracker.table().model("m").is_none());
    }

    #[test]
    fn parts_count_only_when_the_last_has_come() {
        let mut tracker = Tracker::default();
        let part = |last, id: &str| SnapshotPart {
            routes: vec![route("m", id)],
            last,
            settled: true,
            ..SnapshotPart::default()
        };
        let update = |part| RouteUpdate {
            epoch: 1,
            version: 1,
            kind: Some(route_update::Kind::Snapshot(part)),
        };
        assert_eq!(tracker.apply(update(part(false, "a"))), Ok(false));
        assert!(instances(&tracker).is_empty());
        assert_eq!(tracker.apply(update(part(true, "b"))), Ok(true));
        assert_eq!(instances(&tracker), ["a", "b"]);
    }

    #[test]
    fn a_gauge_survives_an_update_of_its_route() {
        let mut tracker = Tracker::default();
        tracker.apply(snapshot(1, 1, true, &["a"])).unwrap();
        let guard = tracker.table().targets("m")[0].gauge.enter();
        tracker.apply(snapshot(1, 2, true, &["a"])).unwrap();
        assert_eq!(tracker.table().targets("m")[0].gauge.load(), 1);
        tracker.table().gauge("a").report(3);
        assert_eq!(tracker.table().gauge("a").load(), 4);
        drop(guard);
        assert_eq!(tracker.table().gauge("a").load(), 0);
    }

    /// Regression: such a route became one to the instance "" of the worker "", and each further one replaced it.
    #[test]
    fn what_lacks_what_it_must_have_is_left_out() {
        let mut tracker = Tracker::default();
        let without = |change: fn(&mut v1::Route)| {
            let mut route = route("m", "a");
            change(&mut route);
            route
        };
        let add = RouteDelta {
            upserted: vec![
                without(|route| route.instance = None),
                without(|route| route.instance.as_mut().unwrap().instance_id.clear()),
                without(|route| route.instance.as_mut().unwrap().worker_id.clear()),
                without(|route| route.instance.as_mut().unwrap().worker_boot_id.clear()),
                without(|route| route.addresses = vec!["nowhere".into()]),
                without(|route| route.model_id.clear()),
                route("m", "b"),
            ],
            models: vec![model(""), model("m")],
            ..RouteDelta::default()
        };
        tracker.apply(delta(1, 1, add)).unwrap();
        assert_eq!(instances(&tracker), ["b"]);
        assert_eq!(tracker.table().all_targets().count(), 1);
        assert_eq!(tracker.table().models().count(), 1);
    }
}
