//! Built-in models on their way into the catalogue and out of it.

use std::time::{Duration, SystemTime};

use muster_policy::ModelState;
use muster_proto::v1;

use super::{
    Driver,
    inbox::{Ask, Models, Order, Query},
};
use crate::{
    catalogue::{Entry, Suggestion},
    convert,
};

/// When built-in models came into the list, after the beginning of Unix time (seed 000, `created`).
const LISTED: Duration = Duration::from_secs(1_744_173_590);

impl Driver {
    /// An operator wants a built-in model: it enters the catalogue.
    pub(super) fn off_the_shelf(&mut self, ask: &Ask) {
        let id = match ask {
            Ask::Call {
                order: Order::Load(load),
                ..
            } if load.download => &load.model,
            Ask::Query(Query::Replacement(load, _)) if load.download => &load.model,
            Ask::Models(Models::Pull(pull, _)) if pull.definition.is_none() => &pull.model,
            Ask::Ensure { .. } | Ask::Call { .. } | Ask::Pin(_) | Ask::Query(_) | Ask::Models(_) => return,
        };
        let id = id.clone();
        self.take_from_shelf(&id);
    }

    /// Puts a built-in model into the catalogue, if it is not there.
    pub(super) fn take_from_shelf(&mut self, id: &str) {
        if self.catalogue.get(id).is_none()
            && let Some(found) = self.shelf.get(id)
        {
            let model = found.model.clone();
            tracing::info!(model = id, "a built-in model enters the catalogue");
            self.enter(model);
        }
    }

    /// Takes a built-in model whose files are nowhere out of the catalogue.
    pub(super) fn back_on_shelf(&mut self, id: &str) {
        let absent = self.catalogue.get(id).is_some_and(|entry| {
            entry.workers().is_empty()
                && self
                    .shelf
                    .get(id)
                    .is_some_and(|found| found.model.hub == entry.model().hub)
        });
        let standing = self.fleet.model(id);
        if absent && standing.is_none_or(|view| matches!(view.state, ModelState::Unloaded)) {
            self.catalogue.remove(id);
            self.changed_models.insert(id.to_owned());
            self.catalogue_changed();
        }
    }

    /// Built-in models that are not in the catalogue.
    pub(super) fn suggestions(&self) -> Vec<v1::Model> {
        let absent = |found: &&Suggestion| self.catalogue.get(found.model.id.as_str()).is_none();
        self.shelf
            .all()
            .filter(absent)
            .map(|found| self.suggestion(found))
            .collect()
    }

    /// A built-in model, for people.
    pub(super) fn suggestion(&self, found: &Suggestion) -> v1::Model {
        let entry = Entry::absent(found.model.clone());
        v1::Model {
            size_bytes: found.size.get(),
            created: Some((SystemTime::UNIX_EPOCH + LISTED).into()),
            status: v1::ModelStatus::Unloaded.into(),
            ..convert::model::model(&entry, &self.observed, &self.present)
        }
    }
}
