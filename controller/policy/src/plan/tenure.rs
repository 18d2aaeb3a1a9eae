//! How firmly an instance sits where it is, for the eye of one load: the one place that says what may be evicted (I1, I6, I9, I10).

use crate::api::Moment;
use crate::fleet::Fleet;
use crate::state::{Claim, Instance, InstanceState, Place};
use muster_core::InstanceId;

/// How firmly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tenure {
    /// Gone soon, whatever happens: leaving, or the victim of an earlier claim.
    Going,
    /// May be evicted now.
    Idle,
    /// Takes no new work, so as to be evicted once it has finished what it has (PROTOCOL 11).
    Finishing,
    /// May be evicted later: busy, held, used too densely or too young until then, or being loaded for somebody.
    Busy { until: Option<Moment> },
    /// Never by policy.
    Pinned,
    /// Cannot be reached.
    Ghost,
}

impl Tenure {
    /// It may be evicted, now or later.
    pub(crate) fn movable(self) -> bool {
        match self {
            Self::Idle | Self::Finishing | Self::Busy { .. } => true,
            Self::Going | Self::Pinned | Self::Ghost => false,
        }
    }

    /// In which order victims are taken: idle ones, those that finish their last work, those that time alone makes idle, busy ones (I9).
    pub(crate) fn rank(self) -> u8 {
        match self {
            Self::Going | Self::Idle => 0,
            Self::Finishing => 1,
            Self::Busy { until: Some(_) } => 2,
            Self::Busy { until: None } => 3,
            Self::Pinned | Self::Ghost => 4,
        }
    }
}

impl Fleet {
    /// The tenure of an instance, given the claims of earlier loads.
    pub(crate) fn tenure(&self, instance: &Instance, claims: &[Claim]) -> Tenure {
        let claimed = |id: &InstanceId| claims.iter().any(|claim| claim.victims.contains(id));
        if instance.lost() {
            Tenure::Ghost
        } else if instance.going() || claimed(&instance.id) {
            Tenure::Going
        } else if self.pinned(instance) {
            Tenure::Pinned
        } else {
            self.present_tenure(instance)
        }
    }

    fn present_tenure(&self, instance: &Instance) -> Tenure {
        let busy = Tenure::Busy { until: None };
        match &instance.state {
            InstanceState::Loading {
                unwanted_since: Some(since),
                ..
            } => self.idle_from(*since + self.config.abandon_grace, instance.pending.is_some()),
            InstanceState::Ready if !instance.published => busy,
            InstanceState::Ready => {
                if self.in_use(instance) {
                    busy
                } else {
                    let settled = instance
                        .ready_since
                        .map(|since| since + self.config.min_residency);
                    let quiet = instance.usage.idle_from(self.config.quiet);
                    self.idle_from(
                        settled.map_or(quiet, |settled| settled.max(quiet)),
                        instance.pending.is_some(),
                    )
                }
            }
            InstanceState::Quiesced {
                plan: Some(_),
                patient: true,
                ..
            } => {
                if !instance.busy() && instance.doubtful_since.is_none() {
                    Tenure::Idle
                } else {
                    Tenure::Finishing
                }
            }
            InstanceState::Quiesced {
                plan: Some(_),
                confirmed,
                ..
            } => {
                if *confirmed && self.in_use(instance) {
                    busy
                } else {
                    Tenure::Idle
                }
            }
            InstanceState::Quiesced { plan: None, .. }
            | InstanceState::Loading {
                unwanted_since: None, ..
            }
            | InstanceState::Resuming
            | InstanceState::Opaque => busy,
            InstanceState::Cancelling { .. } | InstanceState::Evicting { .. } | InstanceState::Leaving(_) => {
                Tenure::Going
            }
            InstanceState::Lost(_) => Tenure::Ghost,
        }
    }

    fn idle_from(&self, from: Moment, command_outstanding: bool) -> Tenure {
        if from > self.now {
            Tenure::Busy { until: Some(from) }
        } else if command_outstanding {
            Tenure::Busy { until: None }
        } else {
            Tenure::Idle
        }
    }

    /// Work runs, queues, is held, or is on its way there.
    fn in_use(&self, instance: &Instance) -> bool {
        instance.busy() || instance.doubtful_since.is_some() || self.awaited(instance)
    }

    /// Somebody waits for the model and is to get this instance. One on a worker that shuts down takes nobody.
    fn awaited(&self, instance: &Instance) -> bool {
        let Some(model) = self.models.get(&instance.spec.model) else {
            return false;
        };
        let open = !self.draining(&instance.worker);
        model
            .waiters
            .iter()
            .filter_map(|hold| self.waiters.get(hold))
            .any(|waiter| match &waiter.place {
                Place::Waiting => open,
                Place::Placing(id) | Place::Held(id) => *id == instance.id,
            })
    }

    fn pinned(&self, instance: &Instance) -> bool {
        self.spec_of(&instance.spec.model).is_some_and(|spec| spec.pinned)
    }
}
