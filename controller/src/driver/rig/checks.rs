//! What is checked after each input of the driver.

use muster_policy::{Effect, Event};

use super::{Rig, spy::Note};

/// Events of policy in one input, at most: one for what came, and one for each command that could not be sent.
const MOST_STEPS: usize = 64;

/// However busy the machine is, no input takes as long as this by the real clock.
const LONGEST: std::time::Duration = std::time::Duration::from_secs(20);

impl Rig {
    /// Holds what policy heard and decided against the truth.
    pub(super) fn heed_spy(&mut self) {
        let notes = self.spy.notes();
        let steps = notes.iter().filter(|note| matches!(note, Note::Heard(_))).count();
        let mut effects = 0;
        for note in notes {
            match note {
                Note::Heard(event) => self.heard(&event),
                Note::Decided(decided) => {
                    effects += decided.len();
                    decided.iter().for_each(|effect| self.decided(effect));
                }
                Note::Broken(broken) => panic!("{broken}\n{}", self.world.tail()),
            }
        }
        self.figures.most_steps = self.figures.most_steps.max(steps);
        self.figures.most_effects = self.figures.most_effects.max(effects);
        if self.driver.as_ref().is_some_and(|driver| driver.fleet.settled()) {
            self.world.policy_has_settled();
        }
    }

    fn heard(&mut self, event: &Event) {
        self.world.policy_hears(event);
        match event {
            Event::WorkerJoined { facts, .. } => {
                self.world.workers.get_mut(&facts.id).unwrap().known = true;
            }
            Event::ModelsChanged { models } | Event::CatalogueChanged { models } => {
                for spec in models {
                    if let Some(known) = self.world.catalogue.get_mut(&spec.id) {
                        known.pinned = spec.pinned;
                    }
                }
            }
            _ => {}
        }
    }

    fn decided(&mut self, effect: &Effect) {
        self.world.policy_decides(effect);
        if let Effect::Command {
            worker,
            instance,
            command,
            ..
        } = effect
        {
            self.world.policy_commands(worker, instance, command);
        }
    }

    /// One input is bounded work: counted, since a busy machine's clock says little.
    pub(super) fn check_input(&self) {
        assert!(
            self.figures.longest < LONGEST,
            "an input took {:?}",
            self.figures.longest
        );
        assert!(
            self.figures.most_steps <= MOST_STEPS,
            "{} events of policy in one input\n{}",
            self.figures.most_steps,
            self.world.tail()
        );
    }
}
