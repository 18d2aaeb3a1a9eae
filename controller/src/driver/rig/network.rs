//! Joining, losing and carrying.

use muster_core::{InstanceId, WorkerId};
use muster_policy::Event;
use muster_proto::v1::{self, controller_message::Kind as Down, worker_message::Kind as Up};

use super::{
    Rig,
    link::{Arrived, Condition, Link},
    wire,
    world::World,
};

/// No process has so high a number, so none is ever taken for an engine of ours.
const NO_PROCESS: u32 = 4_000_000_000;

/// The processes of an engine: of a host's own, so that a worker beside it can look for them.
fn engine(instance: &InstanceId) -> v1::ProcessId {
    let digits = instance.as_str().bytes().rev().take(12);
    let number = digits.fold(0, |number: u64, byte| number * 31 + u64::from(byte));
    v1::ProcessId {
        pid: NO_PROCESS,
        start_time: number,
    }
}

impl Rig {
    /// A worker opens a session, with a full report. One that it had before is not closed: the controller fences it.
    pub(super) async fn connect(&mut self, id: &WorkerId) {
        self.disconnected(id);
        if let Some(mut old) = self.links.remove(id) {
            old.condition = Condition::HalfOpen;
            self.orphans.push(old);
        }
        self.world.now = muster_policy::Moment::after_start(self.started.elapsed());
        let report = self.world.full_report(id);
        let worker = self.world.workers.get_mut(id).unwrap();
        worker.connected = true;
        let hello = wire::hello(&worker.facts, &report, engine);
        let handle = self.handle.as_ref().unwrap();
        let link = Link::open_with(handle, &mut self.sessions, hello);
        self.links.insert(id.clone(), link);
        self.settle().await;
    }

    /// What a worker does whose session is over.
    pub(super) fn disconnected(&mut self, id: &WorkerId) {
        let worker = self.world.workers.get_mut(id).unwrap();
        worker.connected = false;
        worker.down.clear();
        worker.up.clear();
        worker.revert_quiesce();
    }

    /// The session breaks, and both ends know; the worker goes on. Commands and answers in flight are lost.
    pub(super) async fn lose(&mut self, id: &WorkerId) {
        self.links.remove(id);
        self.disconnected(id);
        self.settle().await;
    }

    /// From now on the link is like that.
    pub(super) fn link_becomes(&mut self, id: &WorkerId, condition: Condition) {
        if let Some(link) = self.links.get_mut(id) {
            link.condition = condition;
        }
    }

    /// A worker stops reading, and the places for what the controller has to say to it are taken.
    pub(super) async fn fill_up(&mut self, id: &WorkerId) {
        self.link_becomes(id, Condition::Deaf);
        // What its session takes meanwhile leaves places again.
        for _ in 0..2 {
            if let Some(session) = self.driver().sessions.of(id) {
                let beat = || Down::Heartbeat(v1::Heartbeat::default());
                while session.commands.try_send(Box::new(beat())).is_ok() {}
            }
            self.settle().await;
        }
    }

    /// The worker dies with all its engines and comes back as another boot. `silently`: the controller does not see the old session end.
    pub(super) async fn restart(&mut self, id: &WorkerId, silently: bool) {
        if !silently {
            self.lose(id).await;
        }
        let worker = self.world.workers.get_mut(id).unwrap();
        worker.instances.clear();
        worker.boots += 1;
        worker.facts.boot = format!("{id}-boot-{}", worker.boots).as_str().into();
        self.connect(id).await;
    }

    /// The worker drains, says goodbye and starts again later as another boot.
    pub(super) async fn leave(&mut self, id: &WorkerId) {
        let worker = self.world.workers.get_mut(id).unwrap();
        worker.instances.clear();
        worker.boots += 1;
        worker.facts.boot = format!("{id}-boot-{}", worker.boots).as_str().into();
        if let Some(link) = self.links.get(id) {
            link.say(Up::Goodbye(v1::Goodbye::default()));
        }
        self.settle().await;
        self.lose(id).await;
    }

    /// A worker says the next thing that it has to say; false if there is none.
    pub(super) fn say_next(&mut self, id: &WorkerId) -> bool {
        self.world.now = muster_policy::Moment::after_start(self.started.elapsed());
        let Some(event) = self.world.heard_from(id) else {
            return false;
        };
        let Some(link) = self.links.get(id) else {
            return true;
        };
        match event {
            Event::WorkerReported { report, .. } => link.say(Up::Report(wire::report(&report, engine))),
            Event::WorkerDraining { draining, .. } => {
                let draining = v1::WorkerReport {
                    draining: Some(draining),
                    ..v1::WorkerReport::default()
                };
                link.say(Up::Report(draining));
            }
            Event::Outcome { id, outcome } => link.answer(id, wire::outcome(&outcome)),
            other => panic!("no worker says {other:?}"),
        }
        true
    }

    /// Takes what has come down; whether that is anything to act on.
    pub(super) fn drain_links(&mut self) -> bool {
        let mut acted = false;
        let mut over = Vec::new();
        for (id, link) in &mut self.links {
            loop {
                match link.next() {
                    Arrived::Nothing => break,
                    Arrived::End => {
                        over.push(id.clone());
                        break;
                    }
                    Arrived::Message(message) => acted |= take(&mut self.world, id, link, message.kind),
                }
            }
            if link.ended() && !over.contains(id) {
                over.push(id.clone());
            }
        }
        for id in over {
            self.links.remove(&id);
            self.disconnected(&id);
            acted = true;
        }
        self.orphans.retain_mut(|link| {
            while let Arrived::Message(_) = link.next() {}
            !link.ended()
        });
        acted
    }
}

/// A message to a worker; whether there is anything to do about it.
fn take(world: &mut World, id: &WorkerId, link: &mut Link, kind: Option<Down>) -> bool {
    match kind.unwrap() {
        Down::Welcome(welcome) => link.welcomed(welcome),
        Down::Heartbeat(_) => {
            link.say(Up::Heartbeat(v1::Heartbeat::default()));
            return false;
        }
        Down::Rejected(_) => {}
        Down::Files(order) => panic!("an order about files, which no worker takes: {order:?}"),
        Down::Command(command) => {
            let instance: InstanceId = command.instance_id.as_str().into();
            match wire::command(&command) {
                Some(what) => {
                    let number = link.number(&command);
                    let worker = world.workers.get_mut(id).unwrap();
                    worker.down.push_back((number, instance, what));
                }
                None => link.say(Up::Outcome(looked(world, &instance, command.command_id))),
            }
        }
    }
    true
}

/// A worker sees whether the engine of another one still runs.
fn looked(world: &World, instance: &InstanceId, command_id: String) -> v1::Outcome {
    let mut all = world.workers.values().flat_map(|worker| &worker.instances);
    let runs = all.any(|(id, found)| id == instance && found.exists());
    let kind = if runs {
        v1::outcome::Kind::Refused(v1::Refused {
            reason: v1::RefusedReason::Busy.into(),
            ..v1::Refused::default()
        })
    } else {
        v1::outcome::Kind::Done(v1::Done {
            state: v1::InstanceState::Gone.into(),
            touch_seq: 0,
        })
    };
    v1::Outcome {
        command_id,
        kind: Some(kind),
    }
}
