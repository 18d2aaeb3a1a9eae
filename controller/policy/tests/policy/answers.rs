//! What was not done is not asked for again by its own failure: no command's answer makes the same command due at once (issue 11).

use std::time::Duration;

use muster_core::{Code, ModelType, WorkerId};
use muster_policy::{
    Config, DoneState, Event, FailureClass, IdleTtl, ModelState, Outcome, Refusal, UnloadHow,
};

use crate::sim::{Sim, config, failure, model};

const SECOND: Duration = Duration::from_secs(1);

/// Ten a second: more than pauses of a quarter of a second ask for, and far less than a loop does.
const FEW: usize = 600;

/// What a worker may answer without doing anything.
fn answers() -> Vec<Outcome> {
    let refusals = [
        Refusal::Busy,
        Refusal::Held,
        Refusal::Touched,
        Refusal::NotLoading,
        Refusal::BadEpoch,
        Refusal::Invalid,
    ];
    let refused = |reason| Outcome::Refused { reason, touch_seq: 0 };
    let mut all: Vec<Outcome> = refusals.into_iter().map(refused).collect();
    all.push(Outcome::Unknown);
    all.push(Outcome::Failed(failure(
        FailureClass::BeforeEngine,
        Code::InvalidRequest,
    )));
    all.push(Outcome::Done {
        state: DoneState::Present,
        touch_seq: 0,
    });
    all
}

/// A minute in which a worker does nothing that it is told after `wish`; then it obeys again, and everything comes to an end.
fn a_minute_of(answer: &Outcome, name: &str, prepare: fn(&mut Sim), wish: fn(&mut Sim)) {
    let mut sim = Sim::one_device(
        Config {
            max_eviction_wait: Some(SECOND * 3),
            max_drain: Some(SECOND * 4),
            ..config()
        },
        100,
    );
    for id in ["a", "b"] {
        sim.add_model(model(id, ModelType::Llm, 60));
    }
    prepare(&mut sim);
    let worker: WorkerId = "w".into();
    sim.stubborn.insert(worker.clone(), answer.clone());
    wish(&mut sim);
    sim.advance(SECOND * 60);
    assert!(
        sim.refused <= FEW,
        "{name}: {} commands to a worker that answers {answer:?}\n{}",
        sim.refused,
        sim.tail()
    );
    sim.stubborn.clear();
    sim.lose(&worker);
    sim.run_out();
}

fn loaded(sim: &mut Sim) {
    sim.use_once("a");
}

fn loading(sim: &mut Sim) {
    sim.open("a");
}

fn busy(sim: &mut Sim) {
    sim.use_model("a");
}

#[test]
fn no_answer_makes_the_same_command_due_at_once() {
    type Case = (&'static str, fn(&mut Sim), fn(&mut Sim));
    let cases: [Case; 10] = [
        ("load", |_| {}, |sim| drop(sim.open("a"))),
        ("load for an operator", |_| {}, |sim| drop(sim.load("a"))),
        ("hold", loaded, |sim| drop(sim.open("a"))),
        ("release", loading, |sim| {
            for hold in sim.streams.keys().cloned().collect::<Vec<_>>() {
                sim.close(&hold);
            }
        }),
        ("evict", loaded, |sim| drop(sim.open("b"))),
        ("quiesce", busy, |sim| drop(sim.open("b"))),
        ("cancel", loading, |sim| {
            sim.unload("a", UnloadHow::DrainOrCancel);
        }),
        ("unload", busy, |sim| {
            sim.unload("a", UnloadHow::Drain);
        }),
        ("attributes", loaded, |sim| {
            let spec = sim.catalogue.get_mut("a").unwrap();
            spec.pinned = true;
            spec.idle_ttl = IdleTtl::After(SECOND * 3600);
            sim.publish_catalogue();
        }),
        ("idle time", loaded, |sim| {
            sim.catalogue.get_mut("a").unwrap().idle_ttl = IdleTtl::After(SECOND);
            sim.publish_catalogue();
        }),
    ];
    for (name, prepare, wish) in cases {
        for answer in answers() {
            a_minute_of(&answer, name, prepare, wish);
        }
    }
}

/// A session that takes nothing is ended, and the next one takes nothing either.
#[test]
fn sessions_that_take_nothing_follow_each_other_without_haste() {
    let mut sim = Sim::one_device(config(), 100);
    sim.add_model(model("a", ModelType::Llm, 60));
    sim.stubborn.insert("w".into(), Outcome::Unknown);
    let call = sim.load("a");
    let before = sim.events;
    sim.advance(SECOND * 60);
    assert!(
        sim.events - before < 300,
        "{}\n{}",
        sim.events - before,
        sim.tail()
    );
    sim.stubborn.clear();
    sim.event(Event::Tick);
    sim.run_out();
    assert!(sim.replies.contains_key(&call));
    assert!(sim.states["a"] != ModelState::Loading);
}
