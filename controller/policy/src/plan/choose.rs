//! The best of all places: preferred need first, no eviction before eviction, the cheapest eviction before others.

use std::cmp::Reverse;

use super::Pass;
use super::candidates::Candidate;
use super::obstacle::{Obstacle, Shortage, Victim};
use super::room::Room;
use super::tenure::Tenure;
use crate::api::{Bytes, LoadError, ModelId, Moment};
use crate::config::Placement;
use crate::fleet::Fleet;
use crate::state::Load;

/// Where a load is to go, and who goes for it.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) candidate: Candidate,
    pub(crate) victims: Vec<Victim>,
    pub(crate) ease: Ease,
}

/// How easily a plan comes true; the easier, the better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ease {
    /// There is room.
    Free,
    /// Idle instances have to go.
    Evict,
    /// Busy ones have to become idle first.
    Wait,
}

/// Why no place will do.
#[derive(Debug, Clone)]
pub(crate) enum Stop {
    /// Earlier claims; they resolve by themselves.
    Claims(Vec<ModelId>),
    /// Ghosts, which may or may not end.
    Ghosts { models: Vec<ModelId>, error: LoadError },
    /// No use waiting.
    Refused(LoadError),
}

impl Fleet {
    /// The best plan over all candidates, or why there is none. A need of lower preference is used only if none of higher preference
    /// can ever come true now.
    pub(crate) fn best_plan(
        &self,
        load: &Load,
        candidates: Vec<Candidate>,
        pass: &Pass,
    ) -> Result<Plan, Stop> {
        let mut best: Option<(PlanKey, Plan)> = None;
        let mut stop: Option<(usize, Stop)> = None;
        let mut claimed: Option<(usize, Vec<ModelId>)> = None;
        for candidate in candidates {
            let claims = pass.claims_on(&candidate.host);
            let need = candidate.need;
            match Room::new(self, load, &candidate, claims).make() {
                Ok(victims) => {
                    let plan = Plan {
                        ease: ease_of(&victims),
                        candidate,
                        victims,
                    };
                    let key = self.key_of(load, &plan, pass);
                    if best.as_ref().is_none_or(|(least, _)| key < *least) {
                        best = Some((key, plan));
                    }
                }
                Err(Obstacle::Claims(models)) => {
                    if claimed.as_ref().is_none_or(|(rank, _)| need < *rank) {
                        claimed = Some((need, models));
                    }
                }
                Err(obstacle) => {
                    let found = self.stop_of(load, obstacle);
                    if stop
                        .as_ref()
                        .is_none_or(|(rank, known)| (need, firmness(&found)) < (*rank, firmness(known)))
                    {
                        stop = Some((need, found));
                    }
                }
            }
        }
        match (best, claimed) {
            // A better need that only an earlier claim keeps it from is worth waiting for.
            (Some((_, plan)), Some((rank, models))) if rank < plan.candidate.need => {
                Err(Stop::Claims(models))
            }
            (Some((_, plan)), _) => Ok(plan),
            (None, Some((_, models))) => Err(Stop::Claims(models)),
            (None, None) => Err(stop.map_or_else(|| Stop::Claims(Vec::new()), |(_, stop)| stop)),
        }
    }

    fn stop_of(&self, load: &Load, obstacle: Obstacle) -> Stop {
        let model = load.model.clone();
        let short = |shortage: Shortage| LoadError::InsufficientMemory {
            model: model.clone(),
            wanted: shortage.wanted,
            possible: shortage.possible,
            device: Some(shortage.device),
        };
        match obstacle {
            Obstacle::Claims(models) => Stop::Claims(models),
            Obstacle::Ghosts {
                models,
                short: shortage,
            } => {
                let error = shortage.map_or_else(
                    || LoadError::NoWorker {
                        model: model.clone(),
                        waited: self.config.worker_wait,
                    },
                    short,
                );
                Stop::Ghosts { models, error }
            }
            Obstacle::Pinned(pinned) => Stop::Refused(LoadError::SlotsPinned { model, pinned }),
            Obstacle::Foreign(shortage) => Stop::Refused(short(shortage)),
        }
    }

    fn key_of(&self, load: &Load, plan: &Plan, pass: &Pass) -> PlanKey {
        let host = &plan.candidate.host;
        let keys = plan
            .candidate
            .reservations
            .iter()
            .map(|reservation| Self::key(host, &reservation.device));
        let room = keys
            .map(|key| self.uncommitted(&key))
            .min()
            .unwrap_or(Bytes::ZERO);
        let (spread, pack) = match self.config.placement {
            Placement::Spread => (Reverse(room), Bytes::ZERO),
            Placement::Pack => (Reverse(Bytes::ZERO), room),
        };
        PlanKey {
            avoided: plan.candidate.avoided,
            need: plan.candidate.need,
            ease: plan.ease,
            slot_taken: !self.slot_taken_by(load, host, &plan.victims, pass).is_empty(),
            last_used: plan
                .victims
                .iter()
                .map(|victim| victim.last_used)
                .max()
                .unwrap_or(Moment::ZERO),
            victims: plan.victims.len(),
            room: (spread, pack),
            place: (
                plan.candidate.worker.clone(),
                plan.candidate
                    .reservations
                    .iter()
                    .map(|reservation| reservation.device.clone())
                    .collect(),
            ),
        }
    }
}

/// What makes one plan better than another, most important first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PlanKey {
    avoided: bool,
    need: usize,
    ease: Ease,
    /// Another load of the host goes first.
    slot_taken: bool,
    last_used: Moment,
    victims: usize,
    room: (Reverse<Bytes>, Bytes),
    place: (crate::api::WorkerId, Vec<crate::api::DeviceId>),
}

/// Waiting for a ghost is better than a refusal.
fn firmness(stop: &Stop) -> u8 {
    match stop {
        Stop::Claims(_) => 0,
        Stop::Ghosts { .. } => 1,
        Stop::Refused(_) => 2,
    }
}

fn ease_of(victims: &[Victim]) -> Ease {
    if victims.is_empty() {
        Ease::Free
    } else if victims.iter().all(|victim| victim.tenure == Tenure::Idle) {
        Ease::Evict
    } else {
        Ease::Wait
    }
}
