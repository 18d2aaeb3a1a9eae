//! The explanation of a load as a message for operators.

use muster_core::ModelId;
use muster_policy::{
    Explanation, Moment, Obstruction, PartView, PlaceView, Verdict, VictimStanding, VictimView,
};
use muster_proto::v1;

use super::{command::reservation, model, stage};

/// The whole explanation. `wall` turns moments of the driver's clock into timestamps.
pub(crate) fn explanation(
    answer: &Explanation,
    wall: impl Fn(Moment) -> prost_types::Timestamp,
) -> v1::ExplainLoadResponse {
    let (verdict, models) = verdict(&answer.verdict);
    let refusal = match &answer.verdict {
        Verdict::Refuse(error) => Some(stage::error(error)),
        Verdict::Here(_)
        | Verdict::Load
        | Verdict::Evict(_)
        | Verdict::WaitForBusy(_)
        | Verdict::WaitForLoads(_)
        | Verdict::WaitForClaims(_)
        | Verdict::WaitForLost(_) => None,
    };
    v1::ExplainLoadResponse {
        model: answer.model.to_string(),
        status: model::state(&answer.state).0.into(),
        verdict: verdict.into(),
        reason: answer.verdict.to_string(),
        models: stage::names(models),
        refusal: refusal.map(Into::into),
        queue_position: answer.queue_position.unwrap_or_default(),
        places: answer.places.iter().map(|view| place(view, &wall)).collect(),
        more_places: u32::try_from(answer.more).unwrap_or(u32::MAX),
    }
}

fn verdict(verdict: &Verdict) -> (v1::LoadVerdict, &[ModelId]) {
    use v1::LoadVerdict as Wire;
    match verdict {
        Verdict::Here(_) => (Wire::Here, &[]),
        Verdict::Load => (Wire::Load, &[]),
        Verdict::Evict(models) => (Wire::Evict, models),
        Verdict::WaitForBusy(models) => (Wire::WaitForBusy, models),
        Verdict::WaitForLoads(models) => (Wire::WaitForLoads, models),
        Verdict::WaitForClaims(models) => (Wire::WaitForClaims, models),
        Verdict::WaitForLost(models) => (Wire::WaitForLost, models),
        Verdict::Refuse(_) => (Wire::Refuse, &[]),
    }
}

fn place(view: &PlaceView, wall: &impl Fn(Moment) -> prost_types::Timestamp) -> v1::PlacePlan {
    v1::PlacePlan {
        worker_id: view.worker.to_string(),
        host_id: view.host.to_string(),
        chosen: view.chosen,
        parts: view.parts.iter().map(part).collect(),
        victims: view.victims.iter().map(|found| victim(found, wall)).collect(),
        obstruction: view.obstruction.as_ref().map(in_the_way).unwrap_or_default(),
    }
}

fn part(view: &PartView) -> v1::PartPlan {
    v1::PartPlan {
        device_id: view.device.to_string(),
        kind: v1::DeviceKind::from(view.kind).into(),
        wanted_bytes: view.wanted.get(),
        capacity_bytes: view.capacity.get(),
        committed_bytes: view.committed.get(),
        free_bytes: view.free.map(|free| free.get()),
        possible_bytes: view.possible.get(),
    }
}

fn victim(view: &VictimView, wall: &impl Fn(Moment) -> prost_types::Timestamp) -> v1::VictimPlan {
    let standing = match view.standing {
        VictimStanding::Idle => "idle".to_owned(),
        VictimStanding::Finishing => "finishing what it has".to_owned(),
        VictimStanding::Busy { at_least: None } => "busy".to_owned(),
        VictimStanding::Busy {
            at_least: Some(left), ..
        } => format!("stays for at least {} ms", left.as_millis()),
    };
    v1::VictimPlan {
        instance_id: view.instance.to_string(),
        model: view.model.to_string(),
        rule: view.rule.name().to_owned(),
        idle: view.standing == VictimStanding::Idle,
        standing,
        reservations: view.reservations.iter().map(reservation).collect(),
        last_used: view.last_used.map(wall),
    }
}

fn in_the_way(obstruction: &Obstruction) -> String {
    let list = |models: &[ModelId]| stage::names(models).join(", ");
    match obstruction {
        Obstruction::Claims(models) => {
            format!("earlier loads of {} have claimed the room (I5)", list(models))
        }
        Obstruction::Lost(models) => format!("a lost worker may still run {} (PROTOCOL 1)", list(models)),
        Obstruction::Pinned(models) => format!("{} are pinned (I6)", list(models)),
        Obstruction::OtherPrograms {
            device,
            wanted,
            possible,
        } => format!("{wanted} are wanted on {device} and {possible} can be had (I4)"),
    }
}
