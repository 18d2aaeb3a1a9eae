//! The best plan over all hosts, and what a waiting load remembers of its last search.
//!
//! A waiting load remembers where the best plan was and what else decides about it ([`Found`]): a few names. A later pass examines only
//! hosts that have changed since, by the ledger's stamps. It examines all hosts only if one of the remembered ones has become worse.
//! Victims are worked out only where the answer may be the best plan.

use std::collections::{BTreeMap, BTreeSet};

use super::Pass;
use super::candidates::Nowhere;
use super::choose::{HostReport, Plan, PlanKey, Question, Stop};
use crate::fleet::Fleet;
use crate::ledger::Host;
use crate::state::{Claim, Load, LoadId};
use muster_core::{HostId, ModelId, WorkerId};

/// What each queued load remembers, and what each had claimed in the last pass.
#[derive(Debug, Default)]
pub(crate) struct Memos {
    by_load: BTreeMap<LoadId, Memo>,
    claims: BTreeMap<LoadId, Vec<Claim>>,
    retries: BTreeMap<HostId, LoadId>,
    /// The order in which the last pass decided the loads.
    order: Vec<LoadId>,
}

#[derive(Debug)]
struct Memo {
    /// The ledger's stamp at the last search.
    seen: u64,
    avoid: Vec<WorkerId>,
    found: Found,
    answer: Result<Plan, Stop>,
}

/// The minimum of each key over all hosts, with its host. Ties go to the first host by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) best: Option<(PlanKey, HostId)>,
    /// The preferred need that only an earlier claim keeps the load from.
    claimed: Option<(usize, HostId)>,
    /// How firm the obstacle is, and the need that the place would meet.
    stop: Option<((u8, usize), HostId)>,
    /// Some place exists, whatever stands in the way.
    place: Option<((), HostId)>,
}

fn least<K: Ord>(known: &mut Option<(K, HostId)>, other: Option<(K, HostId)>) {
    if other.is_some() && (known.is_none() || other < *known) {
        *known = other;
    }
}

impl Found {
    fn on(host: &Host, look: &HostReport) -> Self {
        let at = || host.id.clone();
        Self {
            best: look.best.as_ref().map(|(key, _)| (*key, at())),
            claimed: look.claimed.as_ref().map(|(need, _)| (*need, at())),
            stop: look
                .stop
                .as_ref()
                .map(|(need, stop)| ((stop.firmness(), *need), at())),
            place: look.place.then(|| ((), at())),
        }
    }

    fn add(&mut self, other: Self) {
        least(&mut self.best, other.best);
        least(&mut self.claimed, other.claimed);
        least(&mut self.stop, other.stop);
        least(&mut self.place, other.place);
    }

    /// Whether the best plan meets the most preferred need: then nothing else matters.
    fn is_preferred(&self) -> bool {
        self.best.as_ref().is_some_and(|(key, _)| key.need == 0)
    }

    /// Whether news of a host makes worse what was found there.
    fn worsens(&self, host: &HostId, news: &Self) -> bool {
        fn worse<K: Ord>(host: &HostId, known: Option<&(K, HostId)>, news: Option<&(K, HostId)>) -> bool {
            known.is_some_and(|known| known.1 == *host && news.is_none_or(|news| news > known))
        }
        let others = worse(host, self.claimed.as_ref(), news.claimed.as_ref())
            || worse(host, self.stop.as_ref(), news.stop.as_ref())
            || worse(host, self.place.as_ref(), news.place.as_ref());
        worse(host, self.best.as_ref(), news.best.as_ref()) || !self.is_preferred() && others
    }

    fn hosts(&self) -> impl Iterator<Item = &HostId> {
        let best = self.best.iter().map(|(_, host)| host);
        let claimed = self.claimed.iter().map(|(_, host)| host);
        let stop = self.stop.iter().map(|(_, host)| host);
        best.chain(claimed)
            .chain(stop)
            .chain(self.place.iter().map(|(_, host)| host))
    }
}

impl Fleet {
    /// Finds out what changed outside the hosts since the last pass: claims of loads that have started or ended, retries, the order of
    /// loads.
    pub(crate) fn begin_choosing(&mut self, pass: &Pass, order: Vec<LoadId>) {
        let queue = &self.queue;
        self.memos.by_load.retain(|load, _| queue.contains_key(load));
        let gone = self.memos.claims.keys().filter(|load| !queue.contains_key(load));
        for load in gone.copied().collect::<Vec<_>>() {
            self.note_claims(load, Vec::new());
        }
        let both = |one: &[LoadId], other: &[LoadId]| {
            let other: BTreeSet<&LoadId> = other.iter().collect();
            let common = one.iter().filter(|load| other.contains(load));
            common.copied().collect::<Vec<_>>()
        };
        let before = std::mem::replace(&mut self.memos.order, order);
        if both(&before, &self.memos.order) != both(&self.memos.order, &before) {
            for claim in self.memos.claims.values().flatten() {
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

    /// Forgets what a load found: the places where it may go have changed.
    pub(crate) fn forget_memo(&mut self, load: LoadId) {
        self.memos.by_load.remove(&load);
    }

    /// Records what a load has claimed in this pass. Later loads examine again the hosts where that differs from the last pass.
    pub(crate) fn note_claims(&mut self, load: LoadId, claims: Vec<Claim>) {
        let before = self.memos.claims.remove(&load).unwrap_or_default();
        if before != claims {
            for changed in before.iter().chain(&claims) {
                self.ledger.host_changed(&changed.host);
            }
        }
        if !claims.is_empty() {
            self.memos.claims.insert(load, claims);
        }
    }

    /// What the loads before this one claimed in the last pass, by host.
    pub(super) fn claims_before(&self, load: LoadId) -> BTreeMap<HostId, Vec<Claim>> {
        let mut claims: BTreeMap<HostId, Vec<Claim>> = BTreeMap::new();
        // Groups with a replica that is loading are not in the queue.
        let loading = self.memos.claims.keys().filter(|id| !self.queue.contains_key(id));
        let before = self.turns_in_queue().into_iter().take_while(|id| *id != load);
        for claim in loading
            .copied()
            .chain(before)
            .filter_map(|id| self.memos.claims.get(&id))
            .flatten()
        {
            claims.entry(claim.host.clone()).or_default().push(claim.clone());
        }
        claims
    }

    /// The best plan over all hosts, or why there is none. A less preferred need is used only if no more preferred one can come true.
    pub(crate) fn best_plan(&mut self, load: &Load, pass: &Pass) -> Result<Plan, Stop> {
        self.refresh_ledger();
        let avoid = self.avoided_workers(load);
        let memo = self
            .memos
            .by_load
            .remove(&load.id)
            .filter(|memo| memo.avoid == avoid);
        let question = self.question(load, &avoid, pass);
        let (found, answer) = match memo {
            Some(memo) => self.look_again(memo, &question),
            None => self.look_everywhere(&question),
        };
        debug_assert_eq!(answer, self.look_everywhere(&question).1, "a memo is out of date");
        let memo = Memo {
            seen: self.ledger.stamp(),
            avoid,
            found,
            answer: answer.clone(),
        };
        self.memos.by_load.insert(load.id, memo);
        answer
    }

    /// The best plan, without using or changing what is remembered.
    pub(super) fn best_plan_anew(&mut self, load: &Load, pass: &Pass) -> Result<Plan, Stop> {
        self.refresh_ledger();
        let avoid = self.avoided_workers(load);
        let question = self.question(load, &avoid, pass);
        self.look_everywhere(&question).1
    }

    fn look_again(&self, memo: Memo, question: &Question<'_>) -> (Found, Result<Plan, Stop>) {
        let mut found = memo.found.clone();
        if self.ledger.lost_host_after(memo.seen) {
            return self.look_everywhere(question);
        }
        // If there is no place anywhere, the answer also depends on absent workers.
        let mut as_before = found.place.is_some();
        for slot in self.ledger.changed_after(memo.seen) {
            let Some(host) = self.ledger.host(slot) else {
                continue;
            };
            let news = Found::on(host, &self.examine(host, question));
            if found.worsens(&host.id, &news) {
                return self.look_everywhere(question);
            }
            as_before &= !found.hosts().any(|known| *known == host.id);
            found.add(news);
        }
        if as_before && found == memo.found {
            return (found, memo.answer);
        }
        let answer = self.answer(&found, question);
        (found, answer)
    }

    /// Examines the most promising host first, so that most others need no close look.
    fn look_everywhere(&self, question: &Question<'_>) -> (Found, Result<Plan, Stop>) {
        let mut found = Found::default();
        let hosts = self.ledger.slots().filter_map(|slot| self.ledger.host(slot));
        let bounds: Vec<(PlanKey, &Host)> = hosts
            .map(|host| (PlanKey::bound(host, question, &self.config), host))
            .collect();
        let first = bounds
            .iter()
            .min_by_key(|(bound, _)| bound)
            .map(|(_, host)| *host);
        if let Some(first) = first {
            found.add(Found::on(first, &self.examine(first, question)));
        }
        let others = bounds
            .iter()
            .filter(|(_, host)| first.is_none_or(|first| first.id != host.id));
        for (bound, host) in others {
            let known = found.best.as_ref();
            if known.is_none_or(|(key, at)| (key, at) > (bound, &host.id)) {
                found.add(Found::on(host, &self.examine(host, question)));
            }
        }
        let answer = self.answer(&found, question);
        (found, answer)
    }

    fn answer(&self, found: &Found, question: &Question<'_>) -> Result<Plan, Stop> {
        let look = |host: &HostId| {
            self.ledger
                .named(host)
                .map(|host| (host, self.examine(host, question)))
        };
        let best = found.best.as_ref();
        // A better need that only an earlier claim blocks is worth waiting for.
        let claimed = found.claimed.as_ref();
        let claimed = claimed.filter(|(need, _)| best.is_none_or(|(key, _)| *need < key.need));
        if let Some((_, host)) = claimed {
            let models = look(host).and_then(|(_, look)| look.claimed);
            return Err(Stop::Claims(
                models.map_or_else(Vec::<ModelId>::new, |(_, models)| models),
            ));
        }
        if let Some((_, host)) = best {
            let plan = look(host).and_then(|(host, look)| {
                let (_, place) = look.best?;
                self.plan_of(host, &place, question)
            });
            return plan.ok_or_else(|| Stop::Claims(Vec::new()));
        }
        if let Some((_, stop)) = found.stop.as_ref().and_then(|(_, host)| look(host)?.1.stop) {
            return Err(stop);
        }
        if found.place.is_some() {
            return Err(Stop::Claims(Vec::new()));
        }
        Err(match self.nowhere(question.load) {
            Nowhere::TooSmall(error) => Stop::Refused(error),
            Nowhere::NobodyHere => Stop::NobodyHere,
        })
    }
}
