//! Which instance gets a request: the less busy of two. The first is the winner of a rendezvous hash over all ready replicas. So a
//! conversation returns to the instance that has its beginning in the cache, and all gateways agree on that instance without sharing a
//! table (proto/README.md, Life of a streaming chat). The second is random. It is used only if the first is clearly busier: reading a
//! beginning again costs less than a long queue, but more than one more request in the batch.
//!
//! Architecture invariant: pure; randomness and suspicion are arguments.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

use muster_proto::v1::RouteState;

use crate::fleet::table::Target;

/// How good a target is. Only targets of the best class present are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Ready,
    /// The controller lost its worker, or the worker left a request of this gateway unanswered.
    Suspect,
}

fn class(target: &Target, suspect: &impl Fn(&Target) -> bool) -> Option<Class> {
    match target.route.state {
        RouteState::Ready if suspect(target) => Some(Class::Suspect),
        RouteState::Ready => Some(Class::Ready),
        RouteState::Suspect => Some(Class::Suspect),
        RouteState::Draining | RouteState::Unspecified => None,
    }
}

/// Picks one of `targets`, except those named in `tried`. Without an `affinity` both choices are random. `random(n)` returns a number below
/// `n`.
pub(super) fn pick(
    targets: &[Arc<Target>],
    affinity: Option<u64>,
    tried: impl Fn(&Target) -> bool,
    suspect: impl Fn(&Target) -> bool,
    mut random: impl FnMut(usize) -> usize,
) -> Option<Arc<Target>> {
    let classed = targets
        .iter()
        .filter(|target| !tried(target))
        .filter_map(|target| Some((class(target, &suspect)?, target)));
    let mut candidates: Vec<_> = classed.collect();
    let best = candidates.iter().map(|(class, _)| *class).min()?;
    candidates.retain(|(class, _)| *class == best);
    let first = match affinity {
        Some(affinity) => winner(affinity, &candidates),
        None => random(candidates.len()),
    };
    let (_, one) = candidates.swap_remove(first.min(candidates.len() - 1));
    if candidates.is_empty() {
        return Some(Arc::clone(one));
    }
    let second = random(candidates.len()).min(candidates.len() - 1);
    let (_, two) = candidates.swap_remove(second);
    let leave = match affinity {
        Some(_) => clearly_busier(one, two),
        None => one.gauge.load() > two.gauge.load(),
    };
    Some(Arc::clone(if leave { two } else { one }))
}

/// Whether `one` has no free sequence and exceeds the load of `two` by a quarter of its sequences or more.
fn clearly_busier(one: &Target, two: &Target) -> bool {
    let target = u64::from(one.route.target_inflight.max(1));
    let (load, other) = (one.gauge.load(), two.gauge.load());
    let slack = if load >= target { 0 } else { target.div_ceil(4) };
    load > other + slack
}

/// Index of the target that the key ranks highest.
fn winner(affinity: u64, candidates: &[(Class, &Arc<Target>)]) -> usize {
    let ranked = candidates.iter().enumerate();
    let best = ranked.max_by_key(|(_, (_, target))| weight(affinity, target));
    best.map_or(0, |(index, _)| index)
}

/// Rendezvous hashing: each key orders the instances in its own way.
fn weight(affinity: u64, target: &Target) -> u64 {
    let mut hasher = DefaultHasher::new();
    affinity.hash(&mut hasher);
    target.instance_id().hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use muster_proto::v1;

    use super::*;
    use crate::fleet::route::wire;

    fn target(id: &str, state: RouteState) -> Arc<Target> {
        let route = v1::Route {
            state: state.into(),
            target_inflight: 4,
            ..wire("m", id)
        };
        Arc::new(Target::new(route.try_into().unwrap(), Arc::default(), 1))
    }

    fn choose(
        targets: &[Arc<Target>],
        affinity: impl Into<Option<u64>>,
        tried: &str,
        suspect: &str,
    ) -> Option<String> {
        let picked = pick(
            targets,
            affinity.into(),
            |target| target.instance_id().as_str() == tried,
            |target| target.instance_id().as_str() == suspect,
            |n| fastrand::usize(..n),
        );
        picked.map(|target| target.instance_id().to_string())
    }

    /// What each of `keys` picks while nothing runs.
    fn homes(targets: &[Arc<Target>], keys: std::ops::Range<u64>) -> Vec<String> {
        keys.map(|key| choose(targets, key, "", "").unwrap()).collect()
    }

    #[test]
    fn suspects_serve_only_if_nothing_else_is_there_and_draining_ones_never() {
        let targets = [
            target("a", RouteState::Suspect),
            target("b", RouteState::Ready),
            target("c", RouteState::Draining),
        ];
        assert_eq!(choose(&targets, 0, "", "").as_deref(), Some("b"));
        assert_eq!(choose(&targets, 0, "b", "").as_deref(), Some("a"));
        assert!(["a", "b"].contains(&choose(&targets, 0, "", "b").unwrap().as_str()));
        assert_eq!(choose(&targets[2..], 0, "", ""), None);
    }

    fn four() -> [Arc<Target>; 4] {
        ["a", "b", "c", "d"].map(|id| target(id, RouteState::Ready))
    }

    #[test]
    fn without_a_conversation_the_less_loaded_of_two_is_taken() {
        let targets = [target("a", RouteState::Ready), target("b", RouteState::Ready)];
        let _guard = targets[0].gauge.enter();
        assert!((0..50).all(|_| choose(&targets, None, "", "").as_deref() == Some("b")));
    }

    #[test]
    fn equal_conversations_return_to_one_of_all_replicas_and_different_ones_spread() {
        let targets = four();
        let first = homes(&targets, 0..400);
        for _ in 0..8 {
            assert_eq!(homes(&targets, 0..400), first);
        }
        for id in ["a", "b", "c", "d"] {
            let share = first.iter().filter(|home| *home == id).count();
            assert!((60..=140).contains(&share), "{share} of 400 at {id}");
        }
    }

    #[test]
    fn gateways_agree_whatever_the_order_of_their_tables() {
        let mut targets = four();
        let first = homes(&targets, 0..100);
        targets.reverse();
        assert_eq!(homes(&targets, 0..100), first);
    }

    #[test]
    fn only_what_was_at_a_lost_replica_moves() {
        let all = four();
        let (before, after) = (homes(&all, 0..400), homes(&all[1..], 0..400));
        let mut moved = std::collections::HashSet::new();
        for (before, after) in before.iter().zip(&after) {
            if before == "a" {
                moved.insert(after);
            } else {
                assert_eq!(before, after);
            }
        }
        assert_eq!(moved.len(), 3, "and it spreads over all others");
    }

    #[test]
    fn a_conversation_leaves_only_a_clearly_busier_replica() {
        let targets = four();
        let home = choose(&targets, 7, "", "").unwrap();
        let at_home = targets
            .iter()
            .find(|target| target.instance_id().as_str() == home)
            .unwrap();
        let stays = || (0..50).all(|_| choose(&targets, 7, "", "").as_deref() == Some(&home));
        let one = at_home.gauge.enter();
        assert!(stays(), "a neighbour in the batch is no reason");
        let two = at_home.gauge.enter();
        let elsewhere: std::collections::HashSet<_> = (0..200).map(|_| choose(&targets, 7, "", "")).collect();
        assert_eq!(
            elsewhere.len(),
            3,
            "two more than the others have are: {elsewhere:?}"
        );
        let busy: Vec<_> = targets.iter().map(|target| target.gauge.enter()).collect();
        drop(two);
        assert!(stays(), "all are equally busy but for one");
        drop((one, busy));
    }

    #[test]
    fn a_full_replica_is_left_for_any_that_has_less_to_do() {
        let targets = [target("a", RouteState::Ready), target("b", RouteState::Ready)];
        let home = choose(&targets, 7, "", "").unwrap();
        let at = |here: bool| {
            targets
                .iter()
                .find(|target| (target.instance_id().as_str() == home) == here)
        };
        let _home: Vec<_> = (0..4).map(|_| at(true).unwrap().gauge.enter()).collect();
        let _other: Vec<_> = (0..3).map(|_| at(false).unwrap().gauge.enter()).collect();
        assert_ne!(choose(&targets, 7, "", "").unwrap(), home);
    }
}
