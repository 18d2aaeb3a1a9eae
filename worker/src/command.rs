//! Carries out commands of the controller and of operators, for `Fleet.Join` and `Host` (PROTOCOL.md 3).
//!
//! Invariant: a command id is carried out once. A repeated id gets the stored outcome.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use muster_core::InstanceId;
use muster_proto::v1::{
    Command, Done, InstanceState, Outcome, ProcessId, RefusedReason, command::Kind as Order,
    outcome::Kind as Answer,
};

use crate::{
    instance::{Verdict, incomplete, refused, registry::Registry},
    procfs,
};

/// Number of outcomes stored for repeated commands.
const REMEMBERED: usize = 1024;

/// Carries out commands, each once.
#[derive(Debug)]
pub(crate) struct Handler {
    registry: Arc<Registry>,
    answers: HashMap<String, Answer>,
    order: VecDeque<String>,
}

impl Handler {
    pub(crate) fn new(registry: Arc<Registry>) -> Self {
        Self {
            registry,
            answers: HashMap::new(),
            order: VecDeque::new(),
        }
    }

    /// Carries out a command. Returns quickly: reports tell how a started operation goes on.
    pub(crate) async fn obey(&mut self, command: Command) -> Outcome {
        let Command {
            command_id,
            instance_id,
            kind,
        } = command;
        if let Some(answer) = self.answers.get(&command_id) {
            let kind = Some(answer.clone());
            return Outcome { command_id, kind };
        }
        let verdict = match (InstanceId::new(instance_id), kind) {
            (Ok(id), Some(order)) => order_instance(&self.registry, &id, order).await,
            (Err(missing), Some(_)) => Err(incomplete(missing)),
            (_, None) => Err(refused(
                RefusedReason::Invalid,
                0,
                "the command is of no kind known here",
            )),
        };
        let answer = match verdict {
            Ok(done) => Answer::Done(done),
            Err(refused) => Answer::Refused(refused),
        };
        self.remember(command_id.clone(), answer.clone());
        let kind = Some(answer);
        Outcome { command_id, kind }
    }

    fn remember(&mut self, id: String, answer: Answer) {
        if id.is_empty() {
            return;
        }
        if self.order.len() >= REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.answers.remove(&oldest);
        }
        self.order.push_back(id.clone());
        self.answers.insert(id, answer);
    }
}

/// Carries out an order for an instance, or looks at a lost worker's instance. Holds cannot be placed on an unknown or ended instance, and
/// it cannot be cancelled; all other orders for it count as done.
pub(crate) async fn order_instance(registry: &Arc<Registry>, id: &InstanceId, order: Order) -> Verdict {
    match order {
        Order::Load(load) => registry.load(id, load).await,
        Order::Ack(_) => {
            registry.ground().board.acknowledge(id);
            registry.ended(id)
        }
        Order::LookAt(look) => {
            let runs = |process: &ProcessId| procfs::start_time(process.pid) == Some(process.start_time);
            if look.processes.is_empty() || look.processes.iter().any(runs) {
                return Err(refused(
                    RefusedReason::Busy,
                    0,
                    "some of them run, or none is named",
                ));
            }
            Ok(Done {
                state: InstanceState::Gone.into(),
                touch_seq: 0,
            })
        }
        order @ (Order::Cancel(_) | Order::PlaceHold(_)) => {
            let (reason, why) = if matches!(order, Order::Cancel(_)) {
                (RefusedReason::NotLoading, "the load has ended")
            } else {
                (RefusedReason::Invalid, "the instance is not here any more")
            };
            let verdict = to_living(registry, id, order).await;
            verdict.unwrap_or_else(|| Err(refused(reason, 0, why)))
        }
        order @ (Order::Quiesce(_)
        | Order::Resume(_)
        | Order::Unload(_)
        | Order::ReleaseHoldId(_)
        | Order::Set(_)) => {
            let verdict = to_living(registry, id, order).await;
            verdict.unwrap_or_else(|| registry.ended(id))
        }
    }
}

async fn to_living(registry: &Registry, id: &InstanceId, order: Order) -> Option<Verdict> {
    registry.get(id)?.order(order).await
}
