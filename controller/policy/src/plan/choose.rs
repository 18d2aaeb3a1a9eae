//! The best place on a host. The preferred need comes first; then a place without eviction; then the cheapest eviction.

use smallvec::SmallVec;

use super::Pass;
use super::candidates::{Candidate, Place};
use super::obstacle::{Obstacle, Shortage, Victim};
use super::room::{Room, WantedLoad};
use super::tenure::Tenure;
use crate::api::{LoadError, Origin};
use crate::config::{Config, Placement};
use crate::fleet::Fleet;
use crate::ledger::{Host, ModelTag, Space};
use crate::state::Load;
use crate::strategy::Worth;
use muster_core::{ModelId, WorkerId};

/// Where a load goes and which instances are evicted for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) candidate: Candidate,
    pub(crate) victims: Vec<Victim>,
    pub(crate) ease: Ease,
}

/// What a plan waits for; the lesser, the better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ease {
    /// Nothing: there is room.
    Free,
    /// Idle instances have to be evicted.
    Evict,
    /// Busy instances have to become idle first.
    Wait,
}

/// Why no place will do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Earlier loads of these models have claimed the room; it may become free again.
    Claims(Vec<ModelId>),
    /// Instances of lost workers hold the room; they may never end.
    Ghosts { models: Vec<ModelId>, error: LoadError },
    /// Waiting would not help.
    Refused(LoadError),
    /// No connected worker can host the model.
    NobodyHere,
}

impl Stop {
    /// Rank of the reason: a lower one is reported rather than a higher one. Waiting for a ghost is better than a refusal.
    pub(super) fn firmness(&self) -> u8 {
        match self {
            Self::Claims(_) => 0,
            Self::Ghosts { .. } => 1,
            Self::NobodyHere | Self::Refused(_) => 2,
        }
    }
}

/// How soon a plan can be carried out: what its own place needs, and what else it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Soon {
    /// At once.
    Room,
    /// After idle instances were evicted.
    IdleVictims,
    /// There is room, or there are idle instances, but the host is reserved for another load's second attempt, which waits until its host
    /// is empty. Another host with idle instances is better (I7, I8).
    SecondAttempt,
    /// After requests have finished: those of a busy victim, or those of an instance that is ending.
    Work,
}

impl Soon {
    fn of(ease: Ease, waits: bool, closed: bool, evicts: bool) -> Self {
        match ease {
            // A preload evicts nothing, so it waits.
            Ease::Free if waits && !evicts => Self::IdleVictims,
            Ease::Evict if !evicts => Self::Work,
            Ease::Free | Ease::Evict if waits => Self::Work,
            Ease::Free | Ease::Evict if closed => Self::SecondAttempt,
            Ease::Free => Self::Room,
            Ease::Evict => Self::IdleVictims,
            Ease::Wait => Self::Work,
        }
    }
}

/// What makes one plan better than another, most important first. Equal plans are ordered by the ids of host, worker and devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PlanKey {
    /// A gateway could not reach this worker a moment ago.
    avoided: bool,
    pub(super) need: usize,
    soon: Soon,
    /// Another replica of the model is on one of its devices.
    doubled: bool,
    /// Another load of the host goes first.
    slot_taken: bool,
    /// Worth of all victims.
    loss: Worth,
    victims: usize,
    /// Rank by the memory left on the devices, less is better: with `spread` the most memory ranks first, with `pack` the least.
    room: u64,
}

impl PlanKey {
    /// The best key that a plan on this host could have.
    pub(super) fn bound(host: &Host, question: &Question<'_>, config: &Config) -> Self {
        let left = host.spaces.iter().map(|space| space.uncommitted().get());
        let room = match config.placement {
            Placement::Spread => u64::MAX - left.max().unwrap_or(0),
            Placement::Pack => left.min().unwrap_or(0),
        };
        let claimed = !question.pass.claims_on(&host.id).is_empty();
        let most = question.load.spec.needs.first().map(|need| &need.parts);
        let most = most.into_iter().flatten().map(|part| part.bytes).max();
        let fits =
            |space: &Space| config.overcommit || most.is_none_or(|most| most <= space.room(config.margin));
        let (soon, loss, victims) = match host.cheapest {
            _ if claimed || host.spaces.iter().any(fits) => (Soon::Room, Worth::NONE, 0),
            Some(loss) => (Soon::IdleVictims, loss, 1),
            None => (Soon::Work, Worth::NONE, 0),
        };
        Self {
            avoided: false,
            need: 0,
            soon,
            doubled: false,
            slot_taken: false,
            loss,
            victims,
            room,
        }
    }
}

/// The best plan on one host and what stands in the way there.
#[derive(Debug, Default)]
pub(super) struct HostReport {
    pub(super) best: Option<(PlanKey, Place)>,
    pub(super) claimed: Option<(usize, Vec<ModelId>)>,
    pub(super) stop: Option<(usize, Stop)>,
    pub(super) place: bool,
}

/// The load and what is the same for every host.
pub(super) struct Question<'a> {
    pub(super) load: &'a Load,
    wanted: WantedLoad<'a>,
    avoid: &'a [WorkerId],
    /// Only this worker is acceptable; none = any.
    only: Option<&'a WorkerId>,
    pub(super) pass: &'a Pass,
}

impl Fleet {
    pub(super) fn question<'a>(&self, load: &'a Load, avoid: &'a [WorkerId], pass: &'a Pass) -> Question<'a> {
        Question {
            load,
            wanted: wanted(load),
            avoid,
            only: None,
            pass,
        }
    }

    /// The best plan on one worker.
    pub(crate) fn best_plan_at(&mut self, load: &Load, worker: &WorkerId, pass: &Pass) -> Result<Plan, Stop> {
        self.refresh_ledger();
        let question = Question {
            only: Some(worker),
            ..self.question(load, &[], pass)
        };
        let host = self.workers.get(worker).map(|worker| &worker.facts.host);
        let Some(host) = host.and_then(|host| self.ledger.named(host)) else {
            return Err(Stop::NobodyHere);
        };
        let look = self.examine(host, &question);
        match (&look.best, look.claimed) {
            (Some((key, place)), claimed) if claimed.as_ref().is_none_or(|(need, _)| *need >= key.need) => {
                self.plan_of(host, place, &question).ok_or(Stop::NobodyHere)
            }
            (_, Some((_, models))) => Err(Stop::Claims(models)),
            (_, None) => Err(look.stop.map_or(Stop::NobodyHere, |(_, stop)| stop)),
        }
    }

    pub(super) fn plan_of(&self, host: &Host, place: &Place, question: &Question<'_>) -> Option<Plan> {
        let claims = question.pass.claims_on(&host.id);
        let mut room = Room::new(&self.config, host, &question.wanted, place, claims);
        room.make().ok()?;
        Some(Plan {
            candidate: host.candidate(place)?,
            victims: room.victims(),
            ease: ease_of(&room),
        })
    }

    pub(super) fn examine(&self, host: &Host, question: &Question<'_>) -> HostReport {
        let mut found = HostReport::default();
        let claims = question.pass.claims_on(&host.id);
        host.places(&question.load.spec, &self.config, |place| {
            let worker = host.seats.get(place.seat).map(|seat| &seat.worker);
            if question.only.is_some_and(|only| worker != Some(only)) {
                return;
            }
            found.place = true;
            let mut room = Room::new(&self.config, host, &question.wanted, place, claims);
            match room.make() {
                Ok(()) => {
                    let avoided = worker.is_some_and(|worker| question.avoid.contains(worker));
                    let key = self.key_of(host, &room, place, avoided, question);
                    let order = |place: &Place| {
                        let spaces = place.parts.iter().map(|(space, _)| *space);
                        (place.seat, spaces.collect::<SmallVec<[usize; 2]>>())
                    };
                    let better = found.best.as_ref().is_none_or(|(best, known)| {
                        key < *best || key == *best && order(place) < order(known)
                    });
                    if better {
                        found.best = Some((key, place.clone()));
                    }
                }
                Err(Obstacle::Claims(models)) => {
                    if found.claimed.as_ref().is_none_or(|(rank, _)| place.need < *rank) {
                        found.claimed = Some((place.need, models));
                    }
                }
                Err(obstacle) => {
                    let stop = self.stop_of(question.load, obstacle);
                    let softer = found.stop.as_ref().is_none_or(|(rank, known)| {
                        (stop.firmness(), place.need) < (known.firmness(), *rank)
                    });
                    if softer {
                        found.stop = Some((place.need, stop));
                    }
                }
            }
        });
        found
    }

    fn key_of(
        &self,
        host: &Host,
        room: &Room<'_>,
        place: &Place,
        avoided: bool,
        question: &Question<'_>,
    ) -> PlanKey {
        let spaces = place
            .parts
            .iter()
            .filter_map(|(space, _)| host.spaces.get(*space));
        let left = spaces.map(|space| space.uncommitted().get()).min().unwrap_or(0);
        let retry = question.pass.retries.get(&host.id);
        let closed = retry.is_some_and(|retry| *retry != question.load.id);
        let calm = !host.loading && question.pass.claims_on(&host.id).is_empty() && retry.is_none();
        let slot_taken = || {
            let taken = self.slot_taken_by(question.load, &host.id, &room.victims(), question.pass);
            !taken.is_empty()
        };
        let ease = ease_of(room);
        let waits = room.waits || room.drains();
        PlanKey {
            avoided,
            need: place.need,
            soon: Soon::of(ease, waits, closed, question.wanted.evicts),
            doubled: room.doubles(),
            slot_taken: !calm && slot_taken(),
            loss: Worth::together(
                self.config.eviction,
                room.chosen().map(|(resident, _)| resident.loss),
            ),
            victims: room.chosen().count(),
            room: match self.config.placement {
                Placement::Spread => u64::MAX - left,
                Placement::Pack => left,
            },
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
                let error = shortage.map_or_else(|| self.no_worker(&load.spec), short);
                Stop::Ghosts { models, error }
            }
            Obstacle::Pinned(pinned) => Stop::Refused(LoadError::SlotsPinned { model, pinned }),
            Obstacle::Foreign(shortage) => Stop::Refused(short(shortage)),
        }
    }

    /// Whether the load fits at its place at this moment.
    pub(crate) fn fits_now(&self, load: &Load, candidate: &Candidate) -> bool {
        let Some(host) = self.ledger.named(&candidate.host) else {
            return false;
        };
        let place = host.place_of(candidate);
        place.is_some_and(|place| Room::fits_now(&self.config, host, &wanted(load), &place))
    }

    pub(super) fn avoided_workers(&self, load: &Load) -> Vec<WorkerId> {
        let Some(model) = self.models.get(&load.model) else {
            return Vec::new();
        };
        let waiting = model.waiters.iter().filter_map(|hold| self.waiters.get(hold));
        waiting
            .filter(|waiter| waiter.place == crate::state::Place::Waiting)
            .flat_map(|waiter| &waiter.avoid_workers)
            .cloned()
            .collect()
    }
}

fn wanted(load: &Load) -> WantedLoad<'_> {
    WantedLoad {
        model: ModelTag::new(&load.model),
        spec: &load.spec,
        evicts: load.origin != Origin::Preload,
    }
}

fn ease_of(room: &Room<'_>) -> Ease {
    let mut ease = Ease::Free;
    for (resident, _) in room.chosen() {
        ease = ease.max(if resident.tenure == Tenure::Idle {
            Ease::Evict
        } else {
            Ease::Wait
        });
    }
    // No victim is evicted before that is of use.
    if room.waits && ease == Ease::Evict {
        Ease::Wait
    } else {
        ease
    }
}
