//! What requests to a model get where they say nothing themselves (`RequestDefaults`).

use muster_proto::v1::{ModelSummary, start::Work};

/// The work with the model's defaults filled in; none if it has none.
pub(crate) fn filled(summary: &ModelSummary, work: &Work) -> Option<Work> {
    let (Some(defaults), Work::Generate(work)) = (&summary.defaults, work) else {
        return None;
    };
    let mut work = work.clone();
    defaults.fill(&mut work);
    Some(Work::Generate(work))
}
