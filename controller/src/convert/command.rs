//! Policy's commands as messages to workers.

use std::time::Duration;

use muster_core::{GatewayId, HoldId, InstanceId};
use muster_policy::{Command, InstanceSpec, Reservation, UnloadMode};
use muster_proto::v1;
use prost::Message as _;

use super::{estimate_source, origin, span};

/// A command as a message. `gateway` gives the gateway whose stream a hold belongs to.
pub(crate) fn command(
    id: String,
    instance: &InstanceId,
    command: &Command,
    hold_ttl: Duration,
    gateway: impl Fn(&HoldId) -> Option<GatewayId>,
) -> v1::Command {
    use v1::command::Kind;
    let hold = |id: &HoldId| v1::Hold {
        hold_id: id.to_string(),
        ttl: Some(span(hold_ttl)),
        gateway_id: gateway(id).map(String::from).unwrap_or_default(),
    };
    let kind = match command {
        Command::Load { spec, holds } => Kind::Load(v1::Load {
            spec: Some(spec_to_wire(spec)),
            holds: holds.iter().map(hold).collect(),
        }),
        Command::CancelLoad => Kind::Cancel(v1::CancelLoad {}),
        Command::Quiesce => Kind::Quiesce(v1::Quiesce {}),
        Command::Resume => Kind::Resume(v1::Resume {}),
        Command::Unload { mode } => Kind::Unload(unload(*mode)),
        Command::PlaceHold { hold: id } => Kind::PlaceHold(hold(id)),
        Command::ReleaseHold { hold } => Kind::ReleaseHoldId(hold.to_string()),
        Command::SetAttributes { pinned, idle_ttl } => Kind::Set(v1::SetAttributes {
            pinned: Some(*pinned),
            idle_ttl: Some(span(idle_ttl.unwrap_or_default())),
        }),
        Command::AckTombstone => Kind::Ack(v1::AckTombstone {}),
    };
    v1::Command {
        command_id: id,
        instance_id: instance.to_string(),
        kind: Some(kind),
    }
}

fn unload(mode: UnloadMode) -> v1::Unload {
    let (mode, if_touch_seq, drain_for) = match mode {
        UnloadMode::IfIdle { if_touch_seq } => (v1::UnloadMode::IfIdle, if_touch_seq, None),
        UnloadMode::Drain { within } => (v1::UnloadMode::Drain, 0, within.map(span)),
        UnloadMode::Force => (v1::UnloadMode::Force, 0, None),
    };
    v1::Unload {
        mode: mode.into(),
        if_touch_seq,
        drain_for,
    }
}

pub(crate) fn spec_to_wire(spec: &InstanceSpec) -> v1::InstanceSpec {
    // The bytes are our own encoding, or a worker's that was decoded before. The settings of a model are never empty.
    let settings = v1::ModelSettings::decode(spec.settings.0.as_ref()).ok();
    v1::InstanceSpec {
        model_id: spec.model.to_string(),
        r#type: v1::ModelType::from(spec.kind).into(),
        runtime: spec.runtime.to_string(),
        settings,
        spec_hash: spec.spec_hash.to_string(),
        reservations: spec.reservations.iter().map(reservation).collect(),
        source: estimate_source(spec.source).into(),
        origin: origin(spec.origin).into(),
        attempt: spec.attempt,
        group_id: spec
            .group
            .as_ref()
            .map(|group| group.id.to_string())
            .unwrap_or_default(),
        group_size: spec.group.as_ref().map_or(0, |group| group.size),
        pinned: spec.pinned,
        idle_ttl: spec.idle_ttl.map(span),
    }
}

/// A reservation as a message.
pub(crate) fn reservation(reservation: &Reservation) -> v1::Reservation {
    v1::Reservation {
        device_id: reservation.device.to_string(),
        bytes: reservation.bytes.get(),
    }
}
