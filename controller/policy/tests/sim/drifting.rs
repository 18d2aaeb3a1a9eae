//! A second family of scenarios, to see that what helps on the first was not fitted to it: nothing in policy was chosen by looking at these.
//!
//! Each model's popularity wanders by itself, hour by hour; days are busy and nights quiet; the pauses of a conversation have a long tail;
//! and every night a job goes over all chat models, one after the other, and asks each a long row of questions.

use std::f64::consts::PI;

use muster_core::ModelType;

use crate::scenario::{Dice, GIB, ModelDef, Request, SECOND, Scenario, all_types, micros, shuffle};

const DAYS: u32 = 3;

/// How far the logarithm of a popularity strays, and the hours after which it has mostly forgotten where it was.
const STRAY: f64 = 1.5;
const FORGETS: f64 = 12.0;

/// The batch begins so many hours after midnight, and has so many questions for each model.
const BATCH_AT: f64 = 2.0;
const BATCH: usize = 40;

/// A box with so many chat models around so many GiB, and sessions per hour at noon.
struct Kind {
    names: [&'static str; 2],
    seed: u64,
    gpus: &'static [u64],
    chats: usize,
    typical: f64,
    sessions: f64,
    /// As in [`Scenario`].
    most_percent: [u64; 2],
}

/// The family: three boxes, two seeds each.
pub(crate) fn drifting() -> Vec<Scenario> {
    let kinds = [
        Kind {
            names: ["2 x 24 GiB, drifting, I", "2 x 24 GiB, drifting, II"],
            seed: 41,
            gpus: &[24; 2],
            chats: 20,
            typical: 7.0,
            sessions: 60.0,
            most_percent: [140, 141],
        },
        Kind {
            names: ["4 x 48 GiB, drifting, I", "4 x 48 GiB, drifting, II"],
            seed: 51,
            gpus: &[48; 4],
            chats: 40,
            typical: 12.0,
            sessions: 120.0,
            most_percent: [140, 163],
        },
        Kind {
            names: ["8 x 80 GiB, drifting, I", "8 x 80 GiB, drifting, II"],
            seed: 61,
            gpus: &[80; 8],
            chats: 80,
            typical: 20.0,
            sessions: 220.0,
            most_percent: [169, 164],
        },
    ];
    let pair = |kind: &Kind| [0, 1].map(|nth| drifting_box(kind, nth));
    kinds.iter().flat_map(pair).collect()
}

fn drifting_box(kind: &Kind, nth: usize) -> Scenario {
    let mut dice = Dice::new(kind.seed + [0, 1][nth]);
    let gpus: Vec<u64> = kind.gpus.iter().map(|gib| gib * GIB).collect();
    let models = all_types(&mut dice, kind.chats, kind.typical, &gpus);
    let mut requests = Vec::new();
    let mut tastes: Vec<f64> = models.iter().map(|_| dice.normal() * STRAY).collect();
    for hour in 0..DAYS * 24 {
        let keeps = (-1.0 / FORGETS).exp();
        for taste in &mut tastes {
            *taste = *taste * keeps + dice.normal() * STRAY * (1.0 - keeps * keeps).sqrt();
        }
        let noon = (PI * f64::from(hour % 24) / 24.0).sin().powi(2);
        let pause = 3600.0 / (kind.sessions * (0.05 + 0.95 * noon));
        let mut at = dice.exponential(pause);
        while at < 3600.0 {
            let model = by_taste(&mut dice, &tastes);
            converse(
                &mut dice,
                &models,
                (f64::from(hour) * 3600.0 + at, model),
                &mut requests,
            );
            at += dice.exponential(pause);
        }
    }
    for day in 0..DAYS {
        batch(&mut dice, &models, f64::from(day * 24) + BATCH_AT, &mut requests);
    }
    requests.sort_by_key(|request| (request.at, request.model));
    Scenario {
        name: kind.names[nth],
        hosts: 1,
        gpus,
        npu: true,
        models,
        requests,
        crashes: Vec::new(),
        failing_load: 0,
        check_every: 1,
        most_percent: kind.most_percent[nth],
    }
}

fn by_taste(dice: &mut Dice, tastes: &[f64]) -> usize {
    let weights = tastes.iter().map(|taste| taste.exp());
    let mut left = dice.unit() * weights.clone().sum::<f64>();
    let past = |weight: f64| {
        left -= weight;
        left <= 0.0
    };
    weights.map(past).position(|past| past).unwrap_or(0)
}

/// Somebody works with a model for a while: about eight requests, pauses mostly around 20 s, some far longer.
fn converse(
    dice: &mut Dice,
    models: &[ModelDef],
    (mut at, model): (f64, usize),
    requests: &mut Vec<Request>,
) {
    loop {
        requests.push(Request {
            at: micros(at),
            model,
            takes: micros(dice.exponential(models[model].typical()) + 0.05),
        });
        at += 20.0 * dice.normal().exp();
        if dice.unit() < 0.125 {
            break;
        }
    }
}

/// One question after the other to each chat model of the GPUs in turn, each model's first once the one before has had time for its last.
fn batch(dice: &mut Dice, models: &[ModelDef], hour: f64, requests: &mut Vec<Request>) {
    let chats = models
        .iter()
        .enumerate()
        .filter(|(_, def)| !def.npu && def.kind == ModelType::Llm);
    let mut turns: Vec<usize> = chats.map(|(model, _)| model).collect();
    shuffle(dice, &mut turns);
    let mut at = micros(hour * 3600.0);
    for model in turns {
        at += models[model].load;
        for _ in 0..BATCH {
            requests.push(Request {
                at,
                model,
                takes: 2 * SECOND,
            });
            at += 2 * SECOND + SECOND / 10;
        }
    }
}
