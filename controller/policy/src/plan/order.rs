//! Which instance goes first when room is needed (I9). Planning, explanations and the invariant checker all use this order.

use std::collections::BTreeMap;

use crate::ledger::{ModelTag, Resident};
use crate::strategy::{Eviction, Worth};
use muster_core::{ModelId, ModelType};

/// Sort key: idle instances first, then by worth. Ties break by id.
type Rank = (u8, Worth);

/// The order if bytes are needed: by worth per byte.
fn by_worth(resident: &Resident) -> Rank {
    (resident.tenure.rank(), resident.worth)
}

/// The order if a slot is needed: by worth of the whole instance.
fn by_loss(resident: &Resident) -> Rank {
    (resident.tenure.rank(), resident.loss)
}

/// The order of single instances, for memory. If the strategy says so, those of the wanted type go before others.
pub(crate) fn by_instance(resident: &Resident, wanted: ModelType, rule: Eviction) -> (u8, bool, Worth) {
    let (rank, worth) = by_worth(resident);
    (rank, rule.own_type_first() && resident.kind != wanted, worth)
}

/// The order in which victims are spared if not all have to go.
pub(crate) fn most_worth_first(resident: &Resident) -> std::cmp::Reverse<Rank> {
    std::cmp::Reverse(by_worth(resident))
}

/// The model that goes first for a slot. All replicas of a model go together; the busiest and the most expensive one count for the whole
/// model. A model is skipped if one of its instances may not go or if it is `claimed`.
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
