//! The fleet as policy knows it, and the one function that changes it.

use crate::api::{Effect, Event, IdSource, Moment, WorkerFacts};
use crate::config::Config;
use crate::view::{DeviceView, InstanceView, ModelView, WorkerView};

/// All policy knows. One task owns it.
#[derive(Debug)]
pub struct Fleet {
    config: Config,
    roster: Vec<WorkerFacts>,
    now: Moment,
}

impl Fleet {
    /// A fleet at its start: it settles until every worker of the roster has joined or `config.settle` has passed (PROTOCOL 2).
    #[must_use]
    pub fn new(config: Config, roster: Vec<WorkerFacts>, now: Moment) -> Self {
        Self { config, roster, now }
    }

    /// Takes one event and says what to do. `now` is clamped to never run backwards (PROTOCOL 19).
    pub fn step(&mut self, now: Moment, event: Event, ids: &mut dyn IdSource) -> Vec<Effect> {
        self.now = self.now.max(now);
        let _ = (event, ids, &self.config, &self.roster);
        Vec::new()
    }

    /// Whether settling is over.
    #[must_use]
    pub fn settled(&self) -> bool {
        true
    }

    /// Models of the catalogue, and those that still have instances, by id.
    #[must_use]
    pub fn models(&self) -> Vec<ModelView> {
        Vec::new()
    }

    /// Instances by id.
    #[must_use]
    pub fn instances(&self) -> Vec<InstanceView> {
        Vec::new()
    }

    /// Devices by host and id.
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceView> {
        Vec::new()
    }

    /// Workers by id.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerView> {
        Vec::new()
    }
}
