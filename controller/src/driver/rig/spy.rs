//! Sees what policy hears and decides inside the driver, and gives models the needs that a history wants: catalogues know only what engines do.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use muster_core::{Bytes, ModelId};
use muster_policy::{Effect, Event, ModelSpec, invariants::Violation};

/// Watches one driver after the other; blind unless a rig looks through it.
#[derive(Debug, Clone, Default)]
pub(in crate::driver) struct Spy(Option<Arc<Mutex<Seen>>>);

#[derive(Debug, Default)]
struct Seen {
    /// What the models of the catalogue really are.
    table: BTreeMap<ModelId, ModelSpec>,
    /// What the next load with settings of its own takes.
    overrides: Option<Bytes>,
    notes: Vec<Note>,
}

/// One thing that was seen.
#[derive(Debug)]
pub(super) enum Note {
    Heard(Event),
    Decided(Vec<Effect>),
    Broken(String),
}

impl Spy {
    pub(super) fn watching(table: BTreeMap<ModelId, ModelSpec>) -> Self {
        let seen = Seen {
            table,
            ..Seen::default()
        };
        Self(Some(Arc::new(Mutex::new(seen))))
    }

    fn seen<T>(&self, look: impl FnOnce(&mut Seen) -> T) -> Option<T> {
        let seen = self.0.as_ref()?;
        Some(look(&mut seen.lock().unwrap()))
    }

    /// From now on the catalogue is this.
    pub(super) fn table(&self, table: &BTreeMap<ModelId, ModelSpec>) {
        self.seen(|seen| seen.table = table.clone());
    }

    pub(super) fn next_load_takes(&self, bytes: Bytes) {
        self.seen(|seen| seen.overrides = Some(bytes));
    }

    /// Everything since the last call.
    pub(super) fn notes(&self) -> Vec<Note> {
        self.seen(|seen| std::mem::take(&mut seen.notes))
            .unwrap_or_default()
    }

    pub(in crate::driver) fn hears(&self, event: Event) -> Event {
        if self.0.is_none() {
            return event;
        }
        let heard = self.seen(|seen| {
            let event = seen.as_wanted(event);
            seen.notes.push(Note::Heard(event.clone()));
            event
        });
        heard.unwrap()
    }

    pub(in crate::driver) fn breaks(&self, broken: &[Violation]) {
        self.seen(|seen| seen.notes.push(Note::Broken(format!("{broken:?}"))));
    }

    pub(in crate::driver) fn decides(&self, effects: &[Effect]) {
        self.seen(|seen| seen.notes.push(Note::Decided(effects.to_vec())));
    }
}

impl Seen {
    fn as_wanted(&mut self, event: Event) -> Event {
        match event {
            Event::ModelsChanged { models } => Event::ModelsChanged {
                models: models.iter().filter_map(|spec| self.wanted(spec)).collect(),
            },
            Event::CatalogueChanged { models } => Event::CatalogueChanged {
                models: models.iter().filter_map(|spec| self.wanted(spec)).collect(),
            },
            Event::LoadRequested {
                request,
                model,
                overrides: Some(spec),
            } => {
                let bytes = self.overrides.take().unwrap_or_default();
                let overrides = self.wanted(&spec).map(|mut spec| {
                    let parts = spec.needs.iter_mut().flat_map(|need| &mut need.parts);
                    parts.for_each(|part| part.bytes = bytes);
                    spec
                });
                Event::LoadRequested {
                    request,
                    model,
                    overrides,
                }
            }
            other => other,
        }
    }

    /// As the driver has it, with what it is in this history; none if it is not there at the moment.
    fn wanted(&self, spec: &ModelSpec) -> Option<ModelSpec> {
        let known = self.table.get(&spec.id)?;
        let mut needs = known.needs.clone();
        if let Some(first) = spec.needs.first() {
            needs
                .iter_mut()
                .for_each(|need| need.settings = first.settings.clone());
        }
        Some(ModelSpec {
            needs,
            pinned: spec.pinned,
            spec_hash: spec.spec_hash.clone(),
            runtime: spec.runtime,
            ..known.clone()
        })
    }
}
