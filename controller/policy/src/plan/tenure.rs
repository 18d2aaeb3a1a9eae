//! How easily an instance can be evicted, as one load sees it. Only this module decides what may be evicted (I1, I6, I9, I10).

use crate::api::Moment;
use crate::fleet::Fleet;
use crate::state::{Claim, Instance, InstanceState, Place};
use muster_core::InstanceId;

/// How easily an instance can be evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tenure {
    /// It is about to go in any case: it is ending, or is the victim of an earlier claim.
    Going,
    /// It may be evicted now.
    Idle,
    /// It takes no new requests and is evicted once it has finished those it has (PROTOCOL 11).
    Finishing,
    /// It may be evicted later: it has requests or holds, was used or loaded too recently (until that moment), or is loading for somebody.
    Busy { until: Option<Moment> },
    /// Policy never evicts it.
    Pinned,
    /// Its worker is lost.
    Ghost,
}

impl Tenure {
    /// Whether it may be evicted, now or later.
    pub(crate) fn movable(self) -> bool {
        match self {
            Self::Idle | Self::Finishing | Self::Busy { .. } => true,
            Self::Going | Self::Pinned | Self::Ghost => false,
        }
    }

    /// The order in which victims are taken: idle ones, those finishing their last requests, those that time alone makes idle, busy ones
    /// (I9).
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

    /// Whether requests run, wait, are promised the instance or are on their way to it.
    fn in_use(&self, instance: &Instance) -> bool {
        instance.busy() || instance.doubtful_since.is_some() || self.awaited(instance)
    }

    /// Whether somebody waits for the model and will get this instance. An instance on a worker that shuts down is given to nobody.
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
