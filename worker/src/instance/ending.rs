//! The last stage: ends the engine's processes and waits for their end.

use std::sync::Arc;

use muster_proto::v1::{InstanceState, RefusedReason, UnloadMode, command::Kind as Order};

use super::{
    Control,
    actor::{Core, End},
};
use crate::engine::EngineProcess;

/// Ends what is left of an engine. Returns when none of its processes is left.
pub(super) async fn end(core: &mut Core, end: &End) {
    core.handle.set_engine(None);
    let Some(process) = &end.process else { return };
    core.enter(InstanceState::Unloading, |status| {
        status.failure = end.failure.as_deref().cloned().map(Into::into)
    });
    if end.force {
        process.kill();
    } else {
        process.stop();
    }
    let mut gone = process.gone();
    loop {
        tokio::select! {
            () = &mut gone => return,
            Some(control) = core.inbox.control.recv() => obey(core, control, process),
            Some(request) = core.inbox.requests.recv() => Core::turn_away(request, "the instance is ending"),
        }
    }
}

fn obey(core: &Core, control: Control, process: &Arc<dyn EngineProcess>) {
    let Control { order, verdict } = control;
    let answer = match order {
        Order::Unload(unload) => {
            if unload.mode() == UnloadMode::Force {
                process.kill();
            }
            core.done()
        }
        // The instance is ending already.
        Order::Load(_) | Order::ReleaseHoldId(_) | Order::Set(_) | Order::Ack(_) => core.done(),
        Order::Cancel(_) => core.refuse(RefusedReason::NotLoading, "the load has ended"),
        Order::Quiesce(_) | Order::Resume(_) | Order::PlaceHold(_) | Order::LookAt(_) => {
            core.refuse(RefusedReason::Busy, "the instance is ending")
        }
    };
    drop(verdict.send(answer));
}
