//! Who goes first when room is needed (I9): the one order that planning, explaining and the invariant checker follow.

use std::collections::BTreeMap;

use crate::ledger::{ModelTag, Resident};
use crate::strategy::{Eviction, Worth};
use muster_core::{ModelId, ModelType};

/// A place in the order: idle ones first. Ties break by id.
type Rank = (u8, Worth);

/// Where it is bytes that are needed.
fn by_worth(resident: &Resident) -> Rank {
    (resident.tenure.rank(), resident.worth)
}

/// Where it is a slot, which has no bytes.
fn by_loss(resident: &Resident) -> Rank {
    (resident.tenure.rank(), resident.loss)
}

/// Of instances one by one, for memory: those of the same type go before others, if the order says so.
pub(crate) fn by_instance(resident: &Resident, wanted: ModelType, rule: Eviction) -> (u8, bool, Worth) {
    let (rank, worth) = by_worth(resident);
    (rank, rule.own_type_first() && resident.kind != wanted, worth)
}

/// Who is spared first if not all have to go.
pub(crate) fn most_worth_first(resident: &Resident) -> std::cmp::Reverse<Rank> {
    std::cmp::Reverse(by_worth(resident))
}

/// Of models, for a slot: the replicas of one go together, and the busiest one and the one that costs most speak for all. None goes of which one may not,
/// or which is `claimed`.
pub(crate) fn first_model<'a>(
    residents: impl Iterator<Item = &'a Resident>,
    claimed: impl Fn(&ModelId) -> bool,
) -> Option<&'a ModelTag> {
    let mut models: BTreeMap<&ModelTag, Option<Rank>> = BTreeMap::new();
    for resident in residents {
        let own = resident.tenure.movable().then(|| by_loss(resident));
        let all = models.entry(&resident.model).or_insert(own);
        *all = all
            .zip(own)
            .map(|(all, own)| (all.0.max(own.0), all.1.max(own.1)));
    }
    let open = models.into_iter().filter(|(model, _)| !claimed(&model.id));
    let turns = open.filter_map(|(model, turn)| Some((turn?, &model.id, model)));
    turns
        .min_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)))
        .map(|(_, _, model)| model)
}
