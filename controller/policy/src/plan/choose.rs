//! The best of all places: preferred need first, no eviction before eviction, the cheapest eviction before others.
//!
//! A load looks at every host once. What it found there is kept ([`Memo`]), and a later pass looks again only at hosts that have changed
//! since, by the ledger's stamps: so an event costs a waiting load what one host costs, not what the fleet costs.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::Pass;
use super::candidates::{Candidate, Nowhere, Place};
use super::obstacle::{Obstacle, Shortage, Victim};
use super::room::{Room, Wanted};
use super::tenure::Tenure;
use crate::api::{LoadError, ModelId, Origin, WorkerId};
use crate::config::Placement;
use crate::fleet::Fleet;
use crate::ledger::{Host, ModelTag, RuntimeNumber};
use crate::state::{Claim, Load, LoadId};
use crate::strategy::Worth;

/// Where a load is to go, and who goes for it.
#[derive(Debug, Clone, PartialEq, Eq)]
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Earlier claims; they resolve by themselves.
    Claims(Vec<ModelId>),
    /// Ghosts, which may or may not end.
    Ghosts { models: Vec<ModelId>, error: LoadError },
    /// No use waiting.
    Refused(LoadError),
    /// No worker that could host it is here.
    NobodyHere,
}

/// How soon a plan can come true: its ease, and what else it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Soon {
    /// There is room.
    Room,
    /// Idle instances have to go.
    IdleVictims,
    /// There is room, or there are idle victims, but the host is closed for another load's second attempt, which waits for all who work there:
    /// where another host has idle victims, nobody waits for it (I7, I8).
    SecondAttempt,
    /// Somebody has to end their work. Room that somebody leaves who works there still comes no sooner than that of a busy victim.
    Work,
}

impl Soon {
    fn of(ease: Ease, waits: bool, closed: bool, evicts: bool) -> Self {
        match ease {
            // A preload evicts nobody, so that it waits.
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

/// What makes one plan better than another, most important first. Equal plans go by the names of hosts, workers and
/// devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PlanKey {
    /// A gateway just could not reach this worker.
    avoided: bool,
    need: usize,
    soon: Soon,
    /// Another replica of the model is on one of its devices.
    doubled: bool,
    /// Another load of the host goes first.
    slot_taken: bool,
    /// What the victims' going costs.
    loss: Worth,
    victims: usize,
    /// Room left, so that less is better.
    room: u64,
}

impl PlanKey {
    /// No plan that takes an eviction on this host can be better.
    fn bound(host: &Host) -> Self {
        Self {
            avoided: false,
            need: 0,
            soon: if host.cheapest.is_some() {
                Soon::IdleVictims
            } else {
                Soon::Work
            },
            doubled: false,
            slot_taken: false,
            loss: host.cheapest.unwrap_or(Worth::NONE),
            victims: 1,
            room: 0,
        }
    }

    /// Nothing that takes an eviction can be better.
    fn beats_all_evictions(&self) -> bool {
        !self.avoided && self.need == 0 && self.soon == Soon::Room
    }
}

/// What a load found on one host.
#[derive(Debug, Clone, Copy, Default)]
struct Verdict {
    /// The best plan there; only plans that evict nobody unless `judged`.
    plan: Option<PlanKey>,
    /// The best need that only an earlier claim keeps it from.
    claimed: Option<usize>,
    /// How firm what keeps it from a place is, where it is least firm, and which need that would meet.
    stop: Option<(u8, usize)>,
    /// It was asked who would have to go.
    judged: bool,
    /// There is a place, whatever stands in the way.
    place: bool,
}

/// What a load found on all hosts, by their slots in the ledger.
#[derive(Debug, Default)]
pub(crate) struct Memo {
    /// The ledger's stamp when it looked.
    seen: u64,
    avoid: Vec<WorkerId>,
    verdicts: Vec<Verdict>,
    /// Slots that were not asked who would have to go, since no answer could have been better than `skipped_for`.
    skipped: Vec<usize>,
    skipped_for: Option<PlanKey>,
    /// Where the best plan is; none if it must be looked for.
    best: Option<usize>,
}

/// Memos of all queued loads, and what each of them had claimed in the last pass.
#[derive(Debug, Default)]
pub(crate) struct Memos {
    by_load: BTreeMap<LoadId, Memo>,
    claims: BTreeMap<LoadId, Claim>,
    retries: BTreeMap<crate::api::HostId, LoadId>,
}

/// One host in detail.
#[derive(Debug, Default)]
struct Look {
    best: Option<(PlanKey, Place)>,
    claimed: Option<(usize, Vec<ModelId>)>,
    stop: Option<(usize, Stop)>,
    place: bool,
}

/// How closely to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Depth {
    /// For places that need no eviction only.
    Free,
    /// For all.
    Full,
}

/// What is asked of every host.
struct Question<'a> {
    load: &'a Load,
    wanted: Wanted<'a>,
    runtime: Option<RuntimeNumber>,
    avoid: &'a [WorkerId],
    /// Only this worker will do.
    only: Option<&'a WorkerId>,
    pass: &'a Pass,
}

impl Memo {
    /// Leaves slots aside until the best plan is worse than it is now.
    fn skip(&mut self, slots: Vec<usize>, best: Option<(usize, PlanKey)>) {
        let best = best.map(|(_, key)| key);
        self.skipped_for = if self.skipped.is_empty() {
            best
        } else {
            self.skipped_for.min(best)
        };
        self.skipped.extend(slots);
        if self.skipped.len() > 2 * self.verdicts.len() {
            self.skipped.sort_unstable();
            self.skipped.dedup();
        }
    }
}

impl Fleet {
    /// What changed outside the hosts since the last pass: claims of loads that are no longer queued, and retries.
    pub(crate) fn begin_choosing(&mut self, pass: &Pass) {
        let queue = &self.queue;
        self.memos.by_load.retain(|load, _| queue.contains_key(load));
        let gone: Vec<LoadId> = self
            .memos
            .claims
            .keys()
            .filter(|load| !queue.contains_key(load))
            .copied()
            .collect();
        for load in gone {
            if let Some(claim) = self.memos.claims.remove(&load) {
                self.ledger.host_changed(&claim.host);
            }
        }
        if self.memos.retries != pass.retries {
            let before = std::mem::replace(&mut self.memos.retries, pass.retries.clone());
            for host in before.keys().chain(pass.retries.keys()) {
                self.ledger.host_changed(host);
            }
        }
    }

    /// Where a load may go has changed: what it found before says nothing any more.
    pub(crate) fn forget_memo(&mut self, load: LoadId) {
        self.memos.by_load.remove(&load);
    }

    /// What the loads before one claimed in the last pass, by host.
    pub(super) fn claims_before(&self, load: LoadId) -> BTreeMap<crate::api::HostId, Vec<Claim>> {
        let mut claims: BTreeMap<crate::api::HostId, Vec<Claim>> = BTreeMap::new();
        let before = self.turns_in_queue().into_iter().take_while(|id| *id != load);
        for claim in before.filter_map(|id| self.memos.claims.get(&id)) {
            claims.entry(claim.host.clone()).or_default().push(claim.clone());
        }
        claims
    }

    /// The best plan, whatever was found before, and without keeping what was found now.
    pub(super) fn best_plan_anew(&mut self, load: &Load, pass: &Pass) -> Result<Plan, Stop> {
        self.refresh_ledger();
        let avoid = self.avoided_workers(load);
        let question = Question {
            load,
            wanted: wanted(load),
            runtime: self.ledger.runtime(&load.spec.runtime),
            avoid: &avoid,
            only: None,
            pass,
        };
        self.consult(&mut Memo::default(), &question)
    }

    /// Notes what a load has claimed in this pass: later loads look again at hosts where that is something else than before.
    pub(crate) fn note_claim(&mut self, load: LoadId, claim: Option<Claim>) {
        let before = self.memos.claims.remove(&load);
        if before != claim {
            for changed in before.iter().chain(&claim) {
                self.ledger.host_changed(&changed.host);
            }
        }
        if let Some(claim) = claim {
            self.memos.claims.insert(load, claim);
        }
    }

    /// The best plan over all hosts, or why there is none. A need of lower preference is used only if none of higher preference can ever
    /// come true now.
    pub(crate) fn best_plan(&mut self, load: &Load, pass: &Pass) -> Result<Plan, Stop> {
        self.refresh_ledger();
        let avoid = self.avoided_workers(load);
        let mut memo = self.memos.by_load.remove(&load.id).unwrap_or_default();
        if memo.avoid != avoid {
            memo = Memo {
                avoid: avoid.clone(),
                ..Memo::default()
            };
        }
        let question = Question {
            load,
            wanted: wanted(load),
            runtime: self.ledger.runtime(&load.spec.runtime),
            avoid: &avoid,
            only: None,
            pass,
        };
        let found = self.consult(&mut memo, &question);
        debug_assert_eq!(
            found,
            self.consult(&mut Memo::default(), &question),
            "a memo is out of date"
        );
        self.memos.by_load.insert(load.id, memo);
        found
    }

    /// The best plan on one worker.
    pub(crate) fn best_plan_at(&mut self, load: &Load, worker: &WorkerId, pass: &Pass) -> Result<Plan, Stop> {
        self.refresh_ledger();
        let question = Question {
            load,
            wanted: wanted(load),
            runtime: self.ledger.runtime(&load.spec.runtime),
            avoid: &[],
            only: Some(worker),
            pass,
        };
        let host = self.workers.get(worker).map(|worker| &worker.facts.host);
        let Some(host) = host.and_then(|host| self.ledger.named(host)) else {
            return Err(Stop::NobodyHere);
        };
        let look = self.look(host, &question, Depth::Full);
        match (&look.best, look.claimed) {
            (Some((key, place)), claimed) if claimed.as_ref().is_none_or(|(need, _)| *need >= key.need) => {
                self.plan_of(host, place, &question).ok_or(Stop::NobodyHere)
            }
            (_, Some((_, models))) => Err(Stop::Claims(models)),
            (_, None) => Err(look.stop.map_or(Stop::NobodyHere, |(_, stop)| stop)),
        }
    }

    fn consult(&self, memo: &mut Memo, question: &Question<'_>) -> Result<Plan, Stop> {
        memo.verdicts.resize(self.ledger.len(), Verdict::default());
        let mut open = Vec::new();
        for slot in self.ledger.changed_after(memo.seen) {
            let verdict = self.judge(slot, question, Depth::Free);
            self.put(memo, slot, verdict);
            open.push(slot);
        }
        memo.seen = self.ledger.stamp();
        let best = self.best_of(memo);
        let best = if best.is_some_and(|(_, key)| key.beats_all_evictions()) {
            memo.skip(open, best);
            best
        } else {
            self.judge_open(memo, open, question);
            self.best_of(memo)
        };
        match best {
            Some((slot, key)) => {
                // A better need that only an earlier claim keeps it from is worth waiting for.
                let better = self.first_claimed(memo, question, key.need);
                better.map_or_else(
                    || self.plan_at(slot, question),
                    |models| Err(Stop::Claims(models)),
                )
            }
            None => Err(self.stop(memo, question)),
        }
    }

    /// Asks who would have to go, of all hosts where the answer may be the best plan.
    fn judge_open(&self, memo: &mut Memo, mut open: Vec<usize>, question: &Question<'_>) {
        let best = self.best_of(memo).map(|(_, key)| key);
        let still_skipped = best.is_some() && best <= memo.skipped_for;
        if !still_skipped {
            open.append(&mut memo.skipped);
        }
        // The most promising host first, so that most of the others need not be asked.
        let bound = |slot: &usize| self.ledger.host(*slot).map(PlanKey::bound);
        let promising = open.iter().copied().filter(|slot| bound(slot).is_some());
        if let Some(first) = promising.min_by_key(|slot| bound(slot)) {
            let verdict = self.judge(first, question, Depth::Full);
            self.put(memo, first, verdict);
        }
        let mut skipped = Vec::new();
        for slot in open {
            if memo.verdicts.get(slot).is_some_and(|verdict| verdict.judged) {
                continue;
            }
            let best = self.best_of(memo).map(|(_, key)| key);
            // Only a plan of the first need leaves no question about better ones open.
            if best.is_some_and(|best| best.need == 0) && best < bound(&slot) {
                skipped.push(slot);
            } else {
                let verdict = self.judge(slot, question, Depth::Full);
                self.put(memo, slot, verdict);
            }
        }
        let best = self.best_of(memo);
        memo.skip(skipped, best);
    }

    fn plan_at(&self, slot: usize, question: &Question<'_>) -> Result<Plan, Stop> {
        let nothing = || Stop::Claims(Vec::new());
        let host = self.ledger.host(slot).ok_or_else(nothing)?;
        let look = self.look(host, question, Depth::Full);
        let (_, place) = look.best.ok_or_else(nothing)?;
        self.plan_of(host, &place, question).ok_or_else(nothing)
    }

    fn plan_of(&self, host: &Host, place: &Place, question: &Question<'_>) -> Option<Plan> {
        let claims = question.pass.claims_on(&host.id);
        let mut room = Room::new(&self.config, host, &question.wanted, place, claims);
        room.make().ok()?;
        Some(Plan {
            candidate: host.candidate(place)?,
            victims: room.victims(),
            ease: ease_of(&room),
        })
    }

    /// Models whose claims keep the load from a need better than `than`.
    fn first_claimed(&self, memo: &Memo, question: &Question<'_>, than: usize) -> Option<Vec<ModelId>> {
        if than == 0 {
            return None;
        }
        let claimed = memo.verdicts.iter().enumerate();
        let (need, slot) = claimed
            .filter_map(|(slot, verdict)| Some((verdict.claimed?, slot)))
            .min()?;
        let host = self.ledger.host(slot).filter(|_| need < than)?;
        self.look(host, question, Depth::Full)
            .claimed
            .map(|(_, models)| models)
    }

    /// No plan anywhere: what stands in the way where it is least firm.
    fn stop(&self, memo: &Memo, question: &Question<'_>) -> Stop {
        if let Some(models) = self.first_claimed(memo, question, usize::MAX) {
            return Stop::Claims(models);
        }
        let stops = memo.verdicts.iter().enumerate();
        let softest = stops
            .filter_map(|(slot, verdict)| Some((verdict.stop?, slot)))
            .min();
        let host = softest.and_then(|(_, slot)| self.ledger.host(slot));
        if let Some((_, stop)) = host.and_then(|host| self.look(host, question, Depth::Full).stop) {
            return stop;
        }
        if memo.verdicts.iter().any(|verdict| verdict.place) {
            return Stop::Claims(Vec::new());
        }
        match self.nowhere(question.load) {
            Nowhere::TooSmall(error) => Stop::Refused(error),
            Nowhere::NobodyHere => Stop::NobodyHere,
        }
    }

    fn put(&self, memo: &mut Memo, slot: usize, verdict: Verdict) {
        let Some(known) = memo.verdicts.get_mut(slot) else {
            return;
        };
        let before = std::mem::replace(known, verdict);
        let Some(best) = memo.best else { return };
        if best == slot {
            let worse = match (before.plan, verdict.plan) {
                (Some(before), Some(now)) => now > before,
                (Some(_) | None, None) => true,
                (None, Some(_)) => false,
            };
            if worse {
                memo.best = None;
            }
        } else if self.better(memo, slot, best) {
            memo.best = Some(slot);
        }
    }

    fn best_of(&self, memo: &mut Memo) -> Option<(usize, PlanKey)> {
        if memo.best.is_none() {
            let mut best: Option<(PlanKey, usize)> = None;
            for slot in self.ledger.slots() {
                let key = memo.verdicts.get(slot).and_then(|verdict| verdict.plan);
                // By name, so that the first of equals is the right one.
                if key.is_some() && best.is_none_or(|(least, _)| key < Some(least)) {
                    best = key.map(|key| (key, slot));
                }
            }
            memo.best = best.map(|(_, slot)| slot);
        }
        let slot = memo.best?;
        let key = memo.verdicts.get(slot)?.plan?;
        Some((slot, key))
    }

    /// Whether the plan at one slot is better than that at another.
    fn better(&self, memo: &Memo, one: usize, other: usize) -> bool {
        let plan = |slot: usize| memo.verdicts.get(slot).and_then(|verdict| verdict.plan);
        match (plan(one), plan(other)) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(key), Some(best)) => {
                let name = |slot: usize| self.ledger.host(slot).map(|host| &host.id);
                key < best || key == best && name(one) < name(other)
            }
        }
    }

    fn judge(&self, slot: usize, question: &Question<'_>, depth: Depth) -> Verdict {
        let judged = depth == Depth::Full;
        let Some(host) = self.ledger.host(slot) else {
            return Verdict {
                judged,
                ..Verdict::default()
            };
        };
        let look = self.look(host, question, depth);
        Verdict {
            plan: look.best.map(|(key, _)| key),
            claimed: look.claimed.map(|(need, _)| need),
            stop: look.stop.map(|(need, stop)| (firmness(&stop), need)),
            judged,
            place: look.place,
        }
    }

    fn look(&self, host: &Host, question: &Question<'_>, depth: Depth) -> Look {
        let mut found = Look::default();
        let claims = question.pass.claims_on(&host.id);
        host.places(&question.load.spec, question.runtime, &self.config, |place| {
            let worker = host.seats.get(place.seat).map(|seat| &seat.worker);
            if question.only.is_some_and(|only| worker != Some(only)) {
                return;
            }
            found.place = true;
            let mut room = Room::new(&self.config, host, &question.wanted, place, claims);
            let made = match depth {
                Depth::Free if room.is_free() => Ok(()),
                Depth::Free => return,
                Depth::Full => room.make(),
            };
            match made {
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
                    let softer = found
                        .stop
                        .as_ref()
                        .is_none_or(|(rank, known)| (firmness(&stop), place.need) < (firmness(known), *rank));
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

    /// Whether the load fits at its place as things are now.
    pub(crate) fn fits_now(&self, load: &Load, candidate: &Candidate) -> bool {
        let Some(host) = self.ledger.named(&candidate.host) else {
            return false;
        };
        let place = host.place_of(candidate);
        place.is_some_and(|place| Room::fits_now(&self.config, host, &wanted(load), &place))
    }

    fn avoided_workers(&self, load: &Load) -> Vec<WorkerId> {
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

fn wanted(load: &Load) -> Wanted<'_> {
    Wanted {
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
    // Nobody goes before that can be of use.
    if room.waits && ease == Ease::Evict {
        Ease::Wait
    } else {
        ease
    }
}

/// Waiting for a ghost is better than a refusal.
fn firmness(stop: &Stop) -> u8 {
    match stop {
        Stop::Claims(_) => 0,
        Stop::Ghosts { .. } => 1,
        Stop::NobodyHere | Stop::Refused(_) => 2,
    }
}
