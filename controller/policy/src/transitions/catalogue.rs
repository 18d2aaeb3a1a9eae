//! The catalogue changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::{LoadError, ModelId, ModelSpec};
use crate::fleet::Fleet;
use crate::state::Model;

impl Fleet {
    /// Takes the catalogue whole. Instances of models that left it take no new requests and go when they are idle; queued loads of such
    /// models end.
    pub(crate) fn catalogue_changed(&mut self, models: Vec<ModelSpec>) {
        let mut incoming: BTreeMap<ModelId, Arc<ModelSpec>> = models
            .into_iter()
            .map(|spec| (spec.id.clone(), Arc::new(spec)))
            .collect();
        let known: Vec<ModelId> = self.models.keys().cloned().collect();
        for id in known {
            let spec = incoming.remove(&id);
            let left = spec.is_none();
            if let Some(model) = self.models.get_mut(&id) {
                if let (Some(old), Some(new)) = (&model.spec, &spec)
                    && differs(old, new)
                {
                    model.failure_is_old_news();
                }
                model.spec = spec;
                // Pins and idle times may have changed.
                self.attention.extend(model.instances.iter().cloned());
            }
            if left && self.models.get(&id).is_some_and(|model| model.queued.is_some()) {
                self.refuse_load(&id, &LoadError::UnknownModel(id.clone()));
            }
            self.touch_model(&id);
        }
        for (id, spec) in incoming {
            self.touch_model(&id);
            self.models.insert(id, Model::new(Some(spec)));
        }
        self.room_changed();
    }
}

/// Whether a load of `new` may succeed where one of `old` failed: another definition, or files in other places.
fn differs(old: &ModelSpec, new: &ModelSpec) -> bool {
    (&old.runtime, &old.spec_hash, &old.workers) != (&new.runtime, &new.spec_hash, &new.workers)
}
