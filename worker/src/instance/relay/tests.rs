//! The relay against a model engine: whatever happens, each request is admitted at most once, ends exactly once, and gets its own events.

use std::{
    collections::HashMap,
    task::{Context, Poll, Waker},
};

use muster_proto::v1::{Credit, Delta, Event, Finished, GenerateRequest, PromptProgress};
use proptest::prelude::*;

use super::*;
use crate::{
    instance::Instance,
    session::outbox::{Outbox, Route, Taken},
};

/// A session and what it has received.
struct Session {
    outbox: Arc<Outbox>,
    got: HashMap<u64, Vec<Event>>,
    finished: HashMap<u64, usize>,
}

impl Session {
    fn new() -> Self {
        Self {
            outbox: Arc::default(),
            got: HashMap::new(),
            finished: HashMap::new(),
        }
    }

    fn read(&mut self) {
        while let Poll::Ready(Taken::Events(sequences)) =
            self.outbox.poll_take(&Context::from_waker(Waker::noop()))
        {
            for sequence in sequences {
                self.got
                    .entry(sequence.handle)
                    .or_default()
                    .extend(sequence.events);
                *self.finished.entry(sequence.handle).or_default() += usize::from(sequence.finished);
            }
        }
    }

    fn begin(&self, instance: &Instance, ticket: u64, handle: u64, credit: u32) -> Begin {
        let instance = instance.clone();
        assert!(self.outbox.open(handle, Route { instance, ticket }));
        Begin {
            ticket,
            reply: Reply::new(Arc::clone(&self.outbox), handle),
            start: Start {
                handle,
                credit,
                work: Some(Work::Generate(GenerateRequest::default())),
                ..Start::default()
            },
            claim: None,
            arrived: Instant::now(),
        }
    }

    fn codes(&mut self, handle: u64) -> Vec<String> {
        self.read();
        let events = self.got.get(&handle).into_iter().flatten();
        events
            .filter_map(|event| {
                if let Some(Kind::Failed(error)) = &event.kind {
                    return Some(error.code.clone());
                }
                matches!(event.kind, Some(Kind::Finished(_))).then(|| "finished".to_owned())
            })
            .collect()
    }
}

fn tick(seq: u64, sequences: Vec<SequenceEvents>) -> Tick {
    Tick {
        seq,
        sequences,
        ..Tick::default()
    }
}

fn sequence(handle: u64, kinds: Vec<Kind>, finished: bool) -> SequenceEvents {
    SequenceEvents {
        handle,
        events: kinds.into_iter().map(event).collect(),
        finished,
    }
}

fn delta(text: &str) -> Kind {
    Kind::Delta(Delta {
        content: text.to_owned(),
        ..Delta::default()
    })
}

fn no_room(handle: u64) -> SequenceEvents {
    sequence(
        handle,
        vec![Kind::Failed(Code::NoRoom.error("no room").into())],
        true,
    )
}

fn started(relay: &mut Relay) -> Start {
    let command = relay.next_outgoing().unwrap();
    let Some(Command::Start(start)) = command.kind else {
        panic!("no start: {command:?}")
    };
    start
}

fn rig(target: usize, limit: usize) -> (Relay, Session, Instance) {
    let (instance, _inbox) = Instance::for_test("i");
    (
        Relay::new("i".to_owned(), target, limit),
        Session::new(),
        instance,
    )
}

#[test]
fn a_request_passes_through_with_its_handle_and_credit() {
    let (mut relay, mut session, instance) = rig(1, 1);
    relay.begin(session.begin(&instance, 7, 1, 3));
    let start = started(&mut relay);
    assert_eq!(start.credit, 3);
    relay.credit(7, 5);
    assert!(matches!(
        relay.next_outgoing().unwrap().kind,
        Some(Command::Credit(Credit { handle, events: 5 })) if handle == start.handle
    ));
    let admitted = Kind::Admitted(Admitted::default());
    relay
        .tick(tick(
            1,
            vec![sequence(start.handle, vec![admitted, delta("a")], false)],
        ))
        .unwrap();
    relay
        .tick(tick(
            2,
            vec![sequence(
                start.handle,
                vec![delta("b"), Kind::Finished(Finished::default())],
                true,
            )],
        ))
        .unwrap();
    session.read();
    let kinds: Vec<_> = session.got[&1]
        .iter()
        .map(|event| event.kind.clone().unwrap())
        .collect();
    assert!(
        matches!(&kinds[0], Kind::Admitted(admitted) if admitted.instance_id == "i"),
        "ours, not the engine's"
    );
    assert_eq!(kinds[1..3], [delta("a"), delta("b")]);
    assert!(matches!(&kinds[3], Kind::Finished(finished) if finished.timings.is_some()));
    assert_eq!(kinds.len(), 4);
    assert!(relay.is_idle());
    assert_eq!(relay.take_moved(), Moved { begun: 1, ended: 1 });
}

#[test]
fn callers_take_turns_by_key_and_then_by_user() {
    let (mut relay, session, instance) = rig(1, 8);
    let from = |ticket: u64, key: &str, user: &str| {
        let mut begin = session.begin(&instance, ticket, ticket, 3);
        begin.start.fairness_key = key.to_owned();
        begin.start.fairness_user = user.to_owned();
        begin.start.request_id = ticket.to_string();
        begin
    };
    let waiting = [
        ("a", "x"),
        ("a", "x"),
        ("a", "y"),
        ("a", "z"),
        ("b", ""),
        ("b", ""),
    ];
    for (ticket, (key, user)) in (1..).zip([("", "")].into_iter().chain(waiting)) {
        relay.begin(from(ticket, key, user));
    }
    let mut order = Vec::new();
    for seq in 1..=7 {
        let start = started(&mut relay);
        order.push(start.request_id);
        let end = vec![Kind::Finished(Finished::default())];
        relay
            .tick(tick(seq, vec![sequence(start.handle, end, true)]))
            .unwrap();
    }
    assert_eq!(order, ["1", "2", "6", "4", "7", "5", "3"]);
}

#[test]
fn no_room_waits_and_retries_under_a_new_handle() {
    let (mut relay, mut session, instance) = rig(2, 4);
    relay.begin(session.begin(&instance, 1, 1, 3));
    relay.begin(session.begin(&instance, 2, 2, 3));
    let (first, second) = (started(&mut relay), started(&mut relay));
    relay.credit(2, 4);
    relay.next_outgoing();
    relay
        .tick(tick(
            1,
            vec![
                no_room(second.handle),
                sequence(first.handle, vec![delta("a")], false),
            ],
        ))
        .unwrap();
    assert_eq!((relay.running(), relay.queued()), (1, 1));
    assert!(!relay.has_outgoing() && !relay.wants_retry());
    relay
        .tick(tick(
            2,
            vec![sequence(
                first.handle,
                vec![Kind::Finished(Finished::default())],
                true,
            )],
        ))
        .unwrap();
    let again = started(&mut relay);
    assert_ne!(again.handle, second.handle);
    assert_eq!(again.credit, 7, "credits given meanwhile are not lost");
    // Nobody else runs: it wants another try, and is told how it ends if cancelled meanwhile.
    relay.tick(tick(3, vec![no_room(again.handle)])).unwrap();
    assert!(relay.wants_retry());
    relay.cancel(2);
    assert_eq!(session.codes(2), ["cancelled"]);
    assert_eq!(session.codes(1), ["finished"]);
    assert!(relay.is_idle());
}

#[test]
fn a_gap_is_an_error_and_a_silent_end_is_made_loud() {
    let (mut relay, mut session, instance) = rig(1, 1);
    relay.begin(session.begin(&instance, 1, 1, 3));
    let start = started(&mut relay);
    relay
        .tick(tick(1, vec![sequence(start.handle, vec![delta("a")], true)]))
        .unwrap();
    assert_eq!(session.codes(1), ["runtime_error"]);
    assert_eq!(relay.tick(tick(3, Vec::new())), Err(Gap { want: 2, got: 3 }));
}

#[test]
fn only_a_reader_without_credit_is_slow() {
    let (mut relay, mut session, instance) = rig(3, 1);
    for ticket in 1..=2 {
        relay.begin(session.begin(&instance, ticket, ticket, 2));
    }
    let (one, two) = (started(&mut relay), started(&mut relay));
    let events = |handle, count| sequence(handle, vec![delta("x"); count], false);
    relay
        .tick(tick(1, vec![events(one.handle, 2), events(two.handle, 1)]))
        .unwrap();
    let limit = Duration::from_secs(60);
    let stopped = Instant::now();
    let begin = stopped + 10 * limit;
    // The worker itself was stopped for long: nobody is blamed, and time counts anew from there.
    relay.sweep(stopped, limit);
    for eighth in 0..8 {
        relay.sweep(begin + eighth * limit / 8, limit);
        assert!(session.codes(1).is_empty());
    }
    relay.sweep(begin + limit, limit);
    assert_eq!(session.codes(1), ["slow_reader"]);
    assert!(session.codes(2).is_empty());
    assert!(
        matches!(relay.next_outgoing().unwrap().kind, Some(Command::Cancel(cancel)) if cancel.handle == one.handle)
    );
    // The engine's own end of it reaches nobody.
    relay
        .tick(tick(
            2,
            vec![sequence(
                one.handle,
                vec![Kind::Failed(Code::Cancelled.error("x").into())],
                true,
            )],
        ))
        .unwrap();
    assert_eq!(session.codes(1), ["slow_reader"]);
    assert_eq!(session.finished[&1], 1);
}

#[test]
fn credits_merge_when_the_engine_takes_none() {
    let (mut relay, session, instance) = rig(1, 1);
    relay.begin(session.begin(&instance, 1, 1, 1));
    for _ in 0..1000 {
        relay.credit(1, 1);
    }
    let mut sent = 0;
    let mut commands = 0;
    while let Some(command) = relay.next_outgoing() {
        commands += 1;
        sent += match command.kind.unwrap() {
            Command::Credit(credit) => credit.events,
            Command::Start(_) | Command::Cancel(_) => 0,
        };
    }
    assert_eq!(sent, 1000);
    assert!(commands <= 65, "{commands}");
}

/// A model engine: may refuse for lack of room, ends what it is told to, and never sends more than was granted.
#[derive(Default)]
struct Engine {
    seq: u64,
    running: Vec<(u64, u64)>,
}

impl Engine {
    fn take(&mut self, relay: &mut Relay, room: usize) -> Vec<SequenceEvents> {
        let mut out = Vec::new();
        while let Some(command) = relay.next_outgoing() {
            match command.kind.unwrap() {
                Command::Start(start) if self.running.len() >= room => out.push(no_room(start.handle)),
                Command::Start(start) => {
                    self.running.push((start.handle, start.credit.into()));
                    out.push(sequence(
                        start.handle,
                        vec![Kind::Admitted(Admitted::default())],
                        false,
                    ));
                }
                Command::Cancel(cancel) => {
                    let before = self.running.len();
                    self.running.retain(|(handle, _)| *handle != cancel.handle);
                    if self.running.len() < before {
                        out.push(sequence(
                            cancel.handle,
                            vec![Kind::Failed(Code::Cancelled.error("x").into())],
                            true,
                        ));
                    }
                }
                Command::Credit(credit) => {
                    for (_, left) in self
                        .running
                        .iter_mut()
                        .filter(|(handle, _)| *handle == credit.handle)
                    {
                        *left += u64::from(credit.events);
                    }
                }
            }
        }
        out
    }

    fn send(&mut self, relay: &mut Relay, sequences: Vec<SequenceEvents>) {
        self.seq += 1;
        relay.tick(tick(self.seq, sequences)).unwrap();
    }
}

#[derive(Clone, Debug)]
enum Step {
    Begin { session: usize, credit: u32 },
    Cancel(usize),
    Supersede(usize),
    Credit(usize, u32),
    Engine { room: usize },
    Emit(usize),
    Finish(usize),
    Retry,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let any = 0usize..32;
    let step = prop_oneof![
        4 => (0usize..3, 0u32..4).prop_map(|(session, credit)| Step::Begin { session, credit }),
        1 => any.clone().prop_map(Step::Cancel),
        1 => any.clone().prop_map(Step::Supersede),
        3 => (any.clone(), 1u32..4).prop_map(|(which, events)| Step::Credit(which, events)),
        5 => (0usize..4).prop_map(|room| Step::Engine { room }),
        5 => any.clone().prop_map(Step::Emit),
        3 => any.prop_map(Step::Finish),
        2 => Just(Step::Retry),
    ];
    prop::collection::vec(step, 0..150)
}

proptest! {
    #[test]
    fn every_request_ends_exactly_once(steps in steps(), crash: bool) {
        let (mut relay, _, instance) = rig(3, 4);
        let mut sessions: Vec<_> = (0..3).map(|_| Session::new()).collect();
        let mut engine = Engine::default();
        let mut begun: Vec<(usize, u64)> = Vec::new();
        let mut moved = Moved::default();
        for step in steps {
            let pick = |which: usize, len: usize| if len == 0 { None } else { Some(which % len) };
            match step {
                Step::Begin { session, credit } => {
                    let ticket = u64::try_from(begun.len()).unwrap() + 1;
                    relay.begin(sessions[session].begin(&instance, ticket, ticket * 10, credit));
                    begun.push((session, ticket));
                }
                Step::Cancel(which) => if let Some(at) = pick(which, begun.len()) { relay.cancel(begun[at].1); },
                Step::Supersede(which) => if let Some(at) = pick(which, begun.len()) {
                    relay.expel(begun[at].1, Code::Superseded.error("x"));
                },
                Step::Credit(which, events) => if let Some(at) = pick(which, begun.len()) {
                    relay.credit(begun[at].1, events);
                },
                Step::Engine { room } => {
                    let out = engine.take(&mut relay, room);
                    engine.send(&mut relay, out);
                }
                Step::Emit(which) => if let Some(at) = pick(which, engine.running.len()) {
                    let (handle, credit) = &mut engine.running[at];
                    if *credit > 0 {
                        *credit -= 1;
                        let out = vec![sequence(*handle, vec![Kind::Progress(PromptProgress::default())], false)];
                        engine.send(&mut relay, out);
                    }
                },
                Step::Finish(which) => if let Some(at) = pick(which, engine.running.len()) {
                    let (handle, _) = engine.running.remove(at);
                    let out = vec![sequence(handle, vec![Kind::Finished(Finished::default())], true)];
                    engine.send(&mut relay, out);
                },
                Step::Retry => relay.retry(Instant::now()),
            }
            let now = relay.take_moved();
            moved.begun += now.begun;
            moved.ended += now.ended;
            prop_assert!(relay.running() <= 3);
            let live = u64::try_from(relay.running() + relay.queued()).unwrap();
            prop_assert_eq!(moved.begun - moved.ended, live);
        }
        if crash {
            relay.fail_all(&Code::RuntimeCrashed.error("x"));
        } else {
            // Everybody is granted enough, and the engine finishes all there is.
            for _ in 0..begun.len() * 2 + 2 {
                let mut out = engine.take(&mut relay, 8);
                let finish = |(handle, _)| sequence(handle, vec![Kind::Finished(Finished::default())], true);
                out.extend(engine.running.drain(..).map(finish));
                engine.send(&mut relay, out);
                relay.retry(Instant::now());
            }
        }
        prop_assert!(relay.is_idle());
        for session in &mut sessions {
            session.read();
        }
        for (session, ticket) in begun {
            let session = &sessions[session];
            let events = &session.got[&(ticket * 10)];
            prop_assert_eq!(session.finished[&(ticket * 10)], 1);
            let terminal = |event: &Event| matches!(event.kind, Some(Kind::Finished(_) | Kind::Failed(_)));
            prop_assert_eq!(events.iter().filter(|event| terminal(event)).count(), 1);
            prop_assert!(terminal(events.last().unwrap()));
            let no_room = |event: &Event| matches!(&event.kind, Some(Kind::Failed(error)) if error.code == "no_room");
            prop_assert!(!events.iter().any(no_room), "only the worker sees it");
            let admitted = events.iter().filter(|event| matches!(event.kind, Some(Kind::Admitted(_)))).count();
            let refused = matches!(&events[0].kind, Some(Kind::Failed(error)) if error.code == "queue_full");
            prop_assert_eq!(admitted, usize::from(!refused));
        }
    }
}
