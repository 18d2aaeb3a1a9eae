//! Changes of the catalogue.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::api::{LoadError, ModelSpec};
use crate::config::Config;
use crate::fleet::Fleet;
use crate::plan::Memos;
use crate::state::{Instance, Model};
use crate::strategy::Appraiser;
use muster_core::{InstanceId, ModelId, WorkerId};

impl Fleet {
    /// Takes the whole catalogue. Instances of models that left it take no new requests and go when they are idle; queued loads of such
    /// models end.
    pub(crate) fn catalogue_changed(&mut self, models: Vec<ModelSpec>) {
        let mut incoming: BTreeMap<ModelId, Arc<ModelSpec>> = models
            .into_iter()
            .map(|spec| (spec.id.clone(), Arc::new(spec)))
            .collect();
        let known: Vec<ModelId> = self.models.keys().cloned().collect();
        for id in known {
            let spec = incoming.remove(&id);
            self.model_changed(&id, spec);
        }
        for (id, spec) in incoming {
            self.model_changed(&id, Some(spec));
        }
        self.room_changed();
    }

    /// Takes other settings.
    pub(crate) fn config_changed(&mut self, config: Config) {
        if config.eviction != self.config.eviction {
            self.appraiser = Appraiser::new(config.eviction);
        }
        self.config = config;
        // They remember plans made by the former settings.
        self.memos = Memos::default();
        let instances: Vec<InstanceId> = self.instances.keys().cloned().collect();
        for id in &instances {
            // What is worth keeping is reckoned again.
            self.instances.get_mut(id);
        }
        self.attention.extend(instances);
        for id in self.models.keys().cloned().collect::<Vec<_>>() {
            self.touch_model(&id);
        }
        self.room_changed();
    }

    /// Takes the entries that are new or changed.
    pub(crate) fn models_changed(&mut self, models: Vec<ModelSpec>) {
        for spec in models {
            let id = spec.id.clone();
            self.model_changed(&id, Some(Arc::new(spec)));
        }
        self.room_changed();
    }

    /// Takes one entry; none = the model left the catalogue.
    fn model_changed(&mut self, id: &ModelId, spec: Option<Arc<ModelSpec>>) {
        let left = spec.is_none();
        match self.models.get_mut(id) {
            Some(model) => {
                if let (Some(old), Some(new)) = (&model.spec, &spec)
                    && differs(old, new)
                {
                    model.failure_is_old_news();
                }
                model.spec = spec;
                // Pins and idle times may have changed.
                self.attention.extend(model.instances.iter().cloned());
            }
            None => drop(self.models.insert(id.clone(), Model::new(spec))),
        }
        self.files_moved(id);
        if left && self.models.get(id).is_some_and(|model| model.queued.is_some()) {
            self.refuse_load(id, &LoadError::UnknownModel(id.clone()));
        }
        self.touch_model(id);
    }

    /// Updates what is known of how and where a queued load can run. What it was asked to load is fixed: other settings are a load of their own
    /// (a model whose settings changed is loaded anew when it is idle). But files come and go while it waits (PROTOCOL 15), and which runtime
    /// hosts it is known only when workers have joined.
    fn files_moved(&mut self, id: &ModelId) {
        let Some(model) = self.models.get_mut(id) else {
            return;
        };
        let Some(newer) = model.spec.clone() else {
            return;
        };
        if let Some(spec) = &mut model.loaded_with {
            are_at(spec, &newer.workers);
        }
        if let Some(load) = model.queued
            && self
                .queue
                .get_mut(&load)
                .is_some_and(|load| learns(&mut load.spec, &newer))
        {
            self.forget_memo(load);
        }
        let Some(model) = self.models.get(id) else { return };
        for instance in &model.instances {
            if self.instances.get(instance).is_some_and(Instance::carries_load)
                && let Some(load) = self.instances.get_mut(instance).and_then(Instance::load_mut)
            {
                are_at(&mut load.spec, &newer.workers);
            }
        }
    }
}

/// Takes over what is newer known of the same load; of one with other settings, only where its files are. Returns whether that changed anything.
fn learns(spec: &mut Arc<ModelSpec>, newer: &Arc<ModelSpec>) -> bool {
    let same =
        (&spec.spec_hash, &spec.device, spec.replicas) == (&newer.spec_hash, &newer.device, newer.replicas);
    if !same {
        return are_at(spec, &newer.workers);
    }
    let news = spec != newer;
    *spec = Arc::clone(newer);
    news
}

/// Sets the workers that have the files. Returns whether they were others before.
fn are_at(spec: &mut Arc<ModelSpec>, workers: &BTreeSet<WorkerId>) -> bool {
    let moved = spec.workers != *workers;
    if moved {
        Arc::make_mut(spec).workers.clone_from(workers);
    }
    moved
}

/// Whether a load of `new` may succeed where one of `old` failed: other settings, or files in other places.
fn differs(old: &ModelSpec, new: &ModelSpec) -> bool {
    (&old.runtime, &old.spec_hash, &old.workers) != (&new.runtime, &new.spec_hash, &new.workers)
}
