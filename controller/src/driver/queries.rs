//! Answers to questions about the catalogue, devices, workers and counters.

use std::collections::{BTreeMap, BTreeSet};

use muster_core::{DeviceKind, InstanceId};
use muster_policy::{DeviceView, Limit, ModelState, ModelView};
use muster_proto::v1;

use super::{Driver, inbox::Query};
use crate::{
    catalogue::Entry,
    convert::{self, span, span_from},
};

impl Driver {
    /// Answers a question. If the caller has left, that is no failure.
    pub(super) fn query(&mut self, query: Query) {
        match query {
            Query::Models(request, reply) if request.suggested => drop(reply.send(v1::ListModelsResponse {
                models: self.suggestions(),
                settled: self.fleet.settled(),
            })),
            Query::Models(request, reply) => {
                let views = self.views();
                let present = self.fleet.device_kinds();
                let wanted = |view: Option<&ModelView>| {
                    !request.loaded_only || view.is_some_and(|view| view.state != ModelState::Unloaded)
                };
                let entries = self.catalogue.entries().iter();
                let entries = entries.map(|entry| (entry, views.get(entry.model().id.as_str())));
                let entries = entries.filter(|(_, view)| wanted(*view));
                let mut models: Vec<v1::Model> = entries
                    .map(|(entry, view)| self.show(entry, view, &present))
                    .collect();
                let others = views.values().filter(|view| wanted(Some(view)));
                models.extend(others.filter_map(|view| self.unlisted(view)));
                models.sort_by(|a, b| a.id.cmp(&b.id));
                drop(reply.send(v1::ListModelsResponse {
                    models,
                    settled: self.fleet.settled(),
                }));
            }
            Query::Model(id, reply) => {
                let known = self.model(&id).map(|mut model| {
                    if let Some(entry) = self.catalogue.get(&id) {
                        convert::model::whole(&mut model, entry);
                    }
                    model
                });
                let suggested = || self.shelf.get(&id).map(|found| self.suggestion(found));
                drop(reply.send(known.or_else(suggested)));
            }
            Query::Explain(request, places, reply) => drop(reply.send(self.explain(&request, places))),
            Query::Replacement(request, reply) => drop(reply.send(self.replacement(&request))),
            Query::Devices(reply) => {
                let devices = self
                    .fleet
                    .devices()
                    .iter()
                    .map(|view| self.device(view))
                    .collect();
                drop(reply.send(v1::ListDevicesResponse { devices }));
            }
            Query::Workers(reply) => drop(reply.send(v1::ListWorkersResponse {
                workers: self.workers(),
            })),
            Query::Stats(reply) => drop(reply.send(self.counters())),
            Query::Saved(reply) => drop(reply.send(self.writer.saved())),
            Query::Stale(reply) => drop(reply.send(self.stale_and_idle())),
            Query::Routes(reply) => drop(reply.send(self.routes.subscribe())),
        }
    }

    /// One model as operators see it.
    pub(super) fn model(&self, id: &str) -> Option<v1::Model> {
        let view = self.fleet.model(id);
        match self.catalogue.get(id) {
            Some(entry) => Some(self.show(entry, view.as_ref(), &self.fleet.device_kinds())),
            None => self.unlisted(&view?),
        }
    }

    /// A model that left the catalogue (over a restart) and still has instances, as their specs describe it.
    fn unlisted(&self, view: &ModelView) -> Option<v1::Model> {
        if self.catalogue.get(view.id.as_str()).is_some() {
            return None;
        }
        let spec = view
            .instances
            .iter()
            .find_map(|id| self.mirror.spec(id.as_str()))?;
        let mut model = v1::Model {
            id: view.id.to_string(),
            r#type: spec.r#type,
            runtime: spec.runtime.clone(),
            checkpoint: spec
                .settings
                .as_ref()
                .map(|settings| settings.checkpoint.clone())
                .unwrap_or_default(),
            settings: spec.settings.clone(),
            pinned: spec.pinned,
            ..v1::Model::default()
        };
        self.fill(&mut model, view);
        Some(model)
    }

    /// Makes the summaries of changed models again.
    pub(super) fn refresh_summaries(&mut self) {
        if self.changed_models.is_empty() {
            return;
        }
        let changed = std::mem::take(&mut self.changed_models);
        if std::mem::take(&mut self.devices_changed) {
            self.present = self.fleet.device_kinds();
        }
        for id in changed {
            // Clients may not ask for a model that left the catalogue, even if it is loaded.
            let Some(entry) = self.catalogue.get(&id) else {
                self.routes.remove_model(&id);
                continue;
            };
            let view = self.fleet.model(&id);
            let model = self.show(entry, view.as_ref(), &self.present);
            let kinds = self.kinds_of(entry, view.as_ref());
            let any = self
                .catalogue
                .of_any_name()
                .is_some_and(|any| any.model().id == entry.model().id);
            let source = self.source_of(entry);
            let names = (self.aliases_of(&id), any);
            let summary = v1::ModelSummary {
                source: source.into(),
                ..convert::model::summary(model, kinds, entry, names)
            };
            self.routes.put_model(summary);
        }
    }

    fn source_of(&self, entry: &Entry) -> v1::ModelSource {
        let model = entry.model();
        if model.registered.is_some() {
            v1::ModelSource::User
        } else if self.folders.has(model.id.as_str()) {
            v1::ModelSource::Folder
        } else {
            v1::ModelSource::Configuration
        }
    }

    /// Kinds of device that a model runs on, or would run on.
    fn kinds_of(&self, entry: &Entry, view: Option<&ModelView>) -> Vec<String> {
        let hosted = view.map(|view| view.instances.as_slice()).unwrap_or_default();
        let mut kinds: Vec<_> = hosted
            .iter()
            .flat_map(|id| self.mirror.kinds(id.as_str()))
            .collect();
        if kinds.is_empty() {
            kinds.extend(convert::model::preferred(entry, &self.present));
        }
        kinds.sort();
        kinds.dedup();
        kinds.into_iter().map(|kind| kind.name().to_owned()).collect()
    }

    fn show(&self, entry: &Entry, view: Option<&ModelView>, present: &BTreeSet<DeviceKind>) -> v1::Model {
        let mut model = convert::model::model(entry, &self.observed, present);
        model.idle_ttl = self.config.policy.ttl(entry.model().idle_ttl).map(span);
        match view {
            Some(view) => self.fill(&mut model, view),
            None => model.set_status(v1::ModelStatus::Unloaded),
        }
        model.thinking = entry.thinking(convert::model::engine_thinking(&model));
        let hub = entry.model().hub.as_ref();
        model.download = hub.and_then(|checkpoint| self.pulls.progress(checkpoint));
        model
    }

    /// Adds state and instances to a model.
    fn fill(&self, model: &mut v1::Model, view: &ModelView) {
        let (status, last_error) = convert::model::state(&view.state);
        model.set_status(status);
        model.last_error = last_error.map(Into::into);
        let shown = |id: &InstanceId| {
            let ghost = self.fleet.instance(id).is_some_and(|instance| instance.ghost);
            self.mirror.view(id.as_str(), ghost)
        };
        model.instances = view.instances.iter().filter_map(shown).collect();
        model.progress = model
            .instances
            .iter()
            .filter_map(|instance| instance.status.as_ref())
            .find(|status| status.state() == v1::InstanceState::Loading)
            .and_then(|status| status.progress);
        model.queue_position = view.queue_position.unwrap_or_default();
        model.last_used = view.last_used.map(|at| self.timestamp(at));
    }

    fn views(&self) -> BTreeMap<String, ModelView> {
        self.fleet
            .models()
            .into_iter()
            .map(|view| (view.id.to_string(), view))
            .collect()
    }

    fn device(&self, view: &DeviceView) -> v1::DeviceStatus {
        let id = view.key.device.as_str();
        let workers = || {
            view.workers
                .iter()
                .filter_map(|worker| self.mirror.worker(worker.as_str()))
        };
        let described = workers().find_map(|worker| worker.device(id)).cloned();
        let device = described.unwrap_or_else(|| v1::Device {
            // Of an absent worker only the facts in the roster are known.
            device_id: id.to_owned(),
            kind: v1::DeviceKind::from(view.kind).into(),
            name: String::new(),
            capacity_bytes: view.capacity.get(),
            exclusive: false,
            index: None,
            driver_version: String::new(),
            api: String::new(),
        });
        v1::DeviceStatus {
            device: Some(device),
            host_id: view.key.host.to_string(),
            worker_ids: view.workers.iter().map(ToString::to_string).collect(),
            sample: workers()
                .filter_map(|worker| worker.sample(id))
                .min_by_key(|sample| span_from(sample.age.as_ref())),
            reserved_bytes: view.reserved.get(),
            ghost_bytes: view.ghosts.get(),
            models: view.models.iter().map(ToString::to_string).collect(),
        }
    }

    fn workers(&self) -> Vec<v1::WorkerStatus> {
        let views = self.fleet.workers();
        let show = |view: &muster_policy::WorkerView| {
            let known = self.mirror.worker(view.facts.id.as_str());
            let hello = known.map(|worker| &worker.hello);
            v1::WorkerStatus {
                worker_id: view.facts.id.to_string(),
                boot_id: view.facts.boot.to_string(),
                host_id: view.facts.host.to_string(),
                connected: view.connected,
                draining: view.facts.draining || hello.is_some_and(|hello| hello.draining),
                addresses: hello.map(|hello| hello.addresses.clone()).unwrap_or_default(),
                device_ids: view
                    .facts
                    .devices
                    .iter()
                    .map(|device| device.id.to_string())
                    .collect(),
                runtimes: hello.map(|hello| hello.runtimes.clone()).unwrap_or_default(),
                version: hello.map(|hello| hello.version.clone()).unwrap_or_default(),
                silence: known.map(|worker| span(worker.pulse.last().elapsed())),
            }
        };
        views.iter().map(show).collect()
    }

    /// Models of each type that may be loaded at once on a host.
    fn limits(&self) -> Vec<i32> {
        let number = |limit: &Limit| match limit {
            Limit::Unlimited => -1,
            Limit::AtMost(most) => i32::try_from(most.get()).unwrap_or(i32::MAX),
        };
        self.config.policy.limits.per_type.iter().map(number).collect()
    }

    fn counters(&self) -> v1::GetStatsResponse {
        v1::GetStatsResponse {
            epoch: *self.epoch.borrow(),
            uptime: Some(span(self.started.elapsed())),
            loads_started: self.stats.loads_started,
            loads_done: self.stats.loads_done,
            loads_failed: self.stats.loads_failed,
            evictions: self.stats.evictions,
            ensures: self.stats.ensures,
            workers: u32::try_from(self.sessions.len()).unwrap_or(u32::MAX),
            policy_steps: self.stats.policy_steps,
            troubles: self.writer.troubles().borrow().clone(),
            max_loaded_models: self.limits(),
        }
    }
}
