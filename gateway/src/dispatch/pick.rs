//! Which instance gets a request: power of two choices by load, ties by rendezvous hash, so that conversations tend to return to the instance
//! that still has their beginning in its cache, and gateways agree on which that is without a table (DESIGN.md, Life cycle).
//!
//! Architecture invariant: pure; randomness and suspicion are arguments.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

use muster_proto::v1::RouteState;

use crate::fleet::table::Target;

/// How good a target is; only the best class present is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Ready,
    /// The controller lost its worker, or it did not answer here: only if nothing else is there.
    Suspect,
}

fn class(target: &Target, suspect: &impl Fn(&Target) -> bool) -> Option<Class> {
    match RouteState::try_from(target.route.state).ok()? {
        RouteState::Ready if suspect(target) => Some(Class::Suspect),
        RouteState::Ready => Some(Class::Ready),
        RouteState::Suspect => Some(Class::Suspect),
        RouteState::Draining | RouteState::Unspecified => None,
    }
}

/// Picks among `targets`, leaving out those that `tried` names. `random(n)` returns a number below `n`.
pub(super) fn pick(
    targets: &[Arc<Target>],
    affinity: u64,
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
    let first = random(candidates.len()).min(candidates.len() - 1);
    let (_, one) = candidates.swap_remove(first);
    if candidates.is_empty() {
        return Some(Arc::clone(one));
    }
    let second = random(candidates.len()).min(candidates.len() - 1);
    let (_, two) = candidates.swap_remove(second);
    let winner = match one.gauge.load().cmp(&two.gauge.load()) {
        std::cmp::Ordering::Less => one,
        std::cmp::Ordering::Greater => two,
        std::cmp::Ordering::Equal if weight(affinity, one) >= weight(affinity, two) => one,
        std::cmp::Ordering::Equal => two,
    };
    Some(Arc::clone(winner))
}

/// Rendezvous hashing: each key ranks the instances its own way.
fn weight(affinity: u64, target: &Target) -> u64 {
    let mut hasher = DefaultHasher::new();
    affinity.hash(&mut hasher);
    target.instance_id().hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::{InstanceRef, Route};

    use super::*;

    fn target(id: &str, state: RouteState) -> Arc<Target> {
        let instance = InstanceRef {
            instance_id: id.into(),
            ..InstanceRef::default()
        };
        let route = Route {
            instance: Some(instance),
            state: state.into(),
            ..Route::default()
        };
        Arc::new(Target::new(route, Arc::default(), 1))
    }

    fn choose(targets: &[Arc<Target>], affinity: u64, tried: &str, suspect: &str) -> Option<String> {
        let picked = pick(
            targets,
            affinity,
            |target| target.instance_id() == tried,
            |target| target.instance_id() == suspect,
            |n| fastrand::usize(..n),
        );
        picked.map(|target| target.instance_id().to_owned())
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

    #[test]
    fn the_less_loaded_of_two_is_taken_whatever_the_affinity() {
        let targets = [target("a", RouteState::Ready), target("b", RouteState::Ready)];
        let _guard = targets[0].gauge.enter();
        assert!((0..50).all(|affinity| choose(&targets, affinity, "", "").as_deref() == Some("b")));
    }

    #[test]
    fn equal_conversations_return_to_the_same_instance_and_different_ones_spread() {
        let targets = [target("a", RouteState::Ready), target("b", RouteState::Ready)];
        let mut seen = std::collections::HashSet::new();
        for affinity in 0..50 {
            let first = choose(&targets, affinity, "", "");
            assert!((0..8).all(|_| choose(&targets, affinity, "", "") == first));
            seen.insert(first);
        }
        assert_eq!(seen.len(), 2);
    }
}
