//! What happens: boxes, models and requests, made from a seed and the same for every policy.

use std::f64::consts::TAU;
use std::time::Duration;

use muster_core::ModelType;

/// Microseconds since the start of a run.
pub(crate) type Micros = u64;

pub(crate) const SECOND: Micros = 1_000_000;
pub(crate) const GIB: u64 = 1 << 30;

/// A model.
#[derive(Debug, Clone)]
pub(crate) struct ModelDef {
    pub(crate) name: String,
    pub(crate) kind: ModelType,
    pub(crate) bytes: u64,
    /// It runs on an NPU, else on a GPU.
    pub(crate) npu: bool,
    /// How long a load takes.
    pub(crate) load: Micros,
}

impl ModelDef {
    /// How long a request runs on average, in seconds.
    pub(crate) fn typical(&self) -> f64 {
        match self.kind {
            ModelType::Llm => 6.0,
            ModelType::Image => 12.0,
            ModelType::Audio => 3.0,
            ModelType::Embedding | ModelType::Reranking => 0.2,
        }
    }
}

/// A request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) at: Micros,
    pub(crate) model: usize,
    /// How long it runs.
    pub(crate) takes: Micros,
}

/// All of it.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) hosts: usize,
    /// Memory of each GPU of a host.
    pub(crate) gpus: Vec<u64>,
    pub(crate) npu: bool,
    pub(crate) models: Vec<ModelDef>,
    /// By time.
    pub(crate) requests: Vec<Request>,
    /// Hosts that fall over, and when; each is back after [`Scenario::OUTAGE`], empty.
    pub(crate) crashes: Vec<(Micros, usize)>,
    /// Every so many-th load fails once in its engine; 0 = none.
    pub(crate) failing_load: u64,
    /// Invariants are checked after every so many-th step.
    pub(crate) check_every: u64,
    /// Most loads that `cost_aware` may need, in percent of the offline bound. What we want is 140; where it needs more, what it needs today.
    pub(crate) most_percent: u64,
}

impl Scenario {
    /// How long a host that fell over is away.
    pub(crate) const OUTAGE: Micros = 20 * SECOND;

    /// GPU memory of one host.
    pub(crate) fn pool(&self) -> u64 {
        self.gpus.iter().sum()
    }
}

/// `SplitMix64`: small, and the same everywhere.
#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// From 0 to 1, never 0.
    pub(crate) fn unit(&mut self) -> f64 {
        let bits = u32::try_from(self.next() >> 32).unwrap();
        (f64::from(bits) + 1.0) / (f64::from(u32::MAX) + 1.0)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(n).unwrap()).unwrap()
    }

    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -self.unit().ln() * mean
    }

    pub(crate) fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (TAU * self.unit()).cos()
    }
}

pub(crate) fn micros(seconds: f64) -> Micros {
    u64::try_from(Duration::from_secs_f64(seconds.max(0.0)).as_micros()).unwrap()
}

/// Popularity falls with rank to the power of `skew`.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(n: usize, skew: f64) -> Self {
        let mut sum = 0.0;
        let weights = (1..=n).map(|rank| {
            sum += f64::from(u32::try_from(rank).unwrap()).powf(-skew);
            sum
        });
        Self(weights.collect())
    }

    fn draw(&self, dice: &mut Dice) -> usize {
        let at = dice.unit() * self.0.last().unwrap();
        self.0.partition_point(|sum| *sum < at).min(self.0.len() - 1)
    }
}

/// How a scenario is drawn.
struct Traffic {
    hours: f64,
    /// Sessions per hour: somebody works with one model for a while.
    sessions: f64,
    /// Requests per session, and the pause between them in seconds; on average.
    turns: f64,
    pause: f64,
    skew: f64,
    /// After so many hours other models are popular; 0 = never.
    drift: f64,
}

/// Chat models with bytes around `typical` (lognormal), at most `largest`.
fn chat_models(dice: &mut Dice, n: usize, typical: f64, largest: u64) -> Vec<ModelDef> {
    let size = |dice: &mut Dice| {
        let gib = typical * (dice.normal() * 0.7).exp();
        let bytes = micros(gib * 1024.0 / 1e6) << 20;
        bytes.clamp(GIB / 2, largest)
    };
    (0..n)
        .map(|n| model(format!("chat-{n:04}"), ModelType::Llm, size(dice), false))
        .collect()
}

/// A load reads 2 GiB per second and takes 1.5 s besides.
fn model(name: String, kind: ModelType, bytes: u64, npu: bool) -> ModelDef {
    let load = 3 * SECOND / 2 + bytes / (2 * GIB / SECOND);
    ModelDef {
        name,
        kind,
        bytes,
        npu,
        load,
    }
}

fn sessions(dice: &mut Dice, models: &[ModelDef], traffic: &Traffic) -> Vec<Request> {
    let zipf = Zipf::new(models.len(), traffic.skew);
    let end = traffic.hours * 3600.0;
    let mut ranks: Vec<usize> = (0..models.len()).collect();
    shuffle(dice, &mut ranks);
    let mut drifts = if traffic.drift > 0.0 {
        traffic.drift * 3600.0
    } else {
        f64::INFINITY
    };
    let mut requests = Vec::new();
    let mut at = 0.0;
    loop {
        at += dice.exponential(3600.0 / traffic.sessions);
        if at >= end {
            break;
        }
        if at >= drifts {
            drifts += traffic.drift * 3600.0;
            shuffle(dice, &mut ranks);
        }
        let chosen = ranks[zipf.draw(dice)];
        let mut when = at;
        loop {
            let typical = models[chosen].typical();
            requests.push(Request {
                at: micros(when),
                model: chosen,
                takes: micros(dice.exponential(typical) + 0.05),
            });
            when += dice.exponential(traffic.pause);
            if dice.unit() < 1.0 / traffic.turns || when >= end {
                break;
            }
        }
    }
    requests.sort_by_key(|request| (request.at, request.model));
    requests
}

pub(crate) fn shuffle(dice: &mut Dice, items: &mut [usize]) {
    for n in (1..items.len()).rev() {
        items.swap(n, dice.below(n + 1));
    }
}

/// Chat models that fit on each of the GPUs, some models of every other type, and three for an NPU.
pub(crate) fn all_types(dice: &mut Dice, chats: usize, typical: f64, gpus: &[u64]) -> Vec<ModelDef> {
    let largest = gpus.iter().min().unwrap() * 9 / 10;
    let mut models = chat_models(dice, chats, typical, largest);
    for (n, (kind, gib)) in [
        (ModelType::Embedding, 1),
        (ModelType::Embedding, 2),
        (ModelType::Reranking, 1),
        (ModelType::Audio, 3),
        (ModelType::Image, 7),
        (ModelType::Image, 12),
    ]
    .into_iter()
    .enumerate()
    {
        models.push(model(format!("{}-{n}", kind.name()), kind, gib * GIB, false));
    }
    for n in 0..3 {
        models.push(model(format!("npu-{n}"), ModelType::Llm, 4 * GIB, true));
    }
    models
}

/// A box of some GPUs with an NPU, and models of every type.
fn workstation(
    name: &'static str,
    seed: u64,
    gpus: &[u64],
    chats: usize,
    typical: f64,
    traffic: &Traffic,
    most_percent: u64,
) -> Scenario {
    let mut dice = Dice::new(seed);
    let gpus: Vec<u64> = gpus.iter().map(|gib| gib * GIB).collect();
    let models = all_types(&mut dice, chats, typical, &gpus);
    let requests = sessions(&mut dice, &models, traffic);
    Scenario {
        name,
        hosts: 1,
        gpus,
        npu: true,
        models,
        requests,
        crashes: Vec::new(),
        failing_load: 0,
        check_every: 1,
        most_percent,
    }
}

/// Seconds of test time: half a day of one box with two GPUs.
pub(crate) fn small() -> Scenario {
    let traffic = Traffic {
        hours: 12.0,
        sessions: 40.0,
        turns: 6.0,
        pause: 25.0,
        skew: 0.9,
        drift: 0.0,
    };
    workstation(
        "2 x 24 GiB + NPU, half a day",
        11,
        &[24, 24],
        20,
        7.0,
        &traffic,
        140,
    )
}

/// Seconds of test time: hosts that fall over while many loads wait, with engines that fail to load.
pub(crate) fn crowded() -> Scenario {
    let mut dice = Dice::new(31);
    let models = chat_models(&mut dice, 120, 7.0, 22 * GIB);
    let traffic = Traffic {
        hours: 0.5,
        sessions: 1_200.0,
        turns: 3.0,
        pause: 25.0,
        skew: 0.5,
        drift: 0.0,
    };
    let requests = sessions(&mut dice, &models, &traffic);
    let crashes = (1..8).map(|n| (n * 200 * SECOND, dice.below(12)));
    Scenario {
        name: "12 x 24 GiB, crashes",
        hosts: 12,
        gpus: vec![24 * GIB],
        npu: false,
        crashes: crashes.collect(),
        models,
        requests,
        failing_load: 20,
        check_every: 1,
        most_percent: u64::MAX,
    }
}

/// The boxes of people and small teams.
pub(crate) fn workstations() -> Vec<Scenario> {
    let day = |sessions: f64, skew: f64, drift: f64| Traffic {
        hours: 48.0,
        sessions,
        turns: 6.0,
        pause: 25.0,
        skew,
        drift,
    };
    vec![
        workstation(
            "2 x 24 GiB + NPU, 20 chat models",
            11,
            &[24, 24],
            20,
            7.0,
            &day(40.0, 0.9, 0.0),
            140,
        ),
        workstation(
            "4 x 48 GiB + NPU, 40 chat models",
            12,
            &[48, 48, 48, 48],
            40,
            12.0,
            &day(80.0, 0.9, 0.0),
            142,
        ),
        workstation(
            "8 x 80 GiB + NPU, 80 chat models",
            13,
            &[80; 8],
            80,
            20.0,
            &day(150.0, 0.8, 0.0),
            158,
        ),
        workstation(
            "4 x 24 GiB + NPU, taste changes",
            14,
            &[24; 4],
            40,
            7.0,
            &day(60.0, 1.1, 6.0),
            141,
        ),
    ]
}

/// A cluster: 1,000 workers, 5,000 models, hosts that fall over, loads that fail.
pub(crate) fn cluster() -> Scenario {
    let mut dice = Dice::new(21);
    let models = chat_models(&mut dice, 5_000, 9.0, 70 * GIB);
    let traffic = Traffic {
        hours: 2.0,
        sessions: 18_000.0,
        turns: 6.0,
        pause: 25.0,
        skew: 0.8,
        drift: 0.0,
    };
    let requests = sessions(&mut dice, &models, &traffic);
    let crashes = (0..40).map(|n| (n * 170 * SECOND + 100 * SECOND, dice.below(1_000)));
    Scenario {
        name: "1,000 x 24 GiB, 5,000 models, crashes",
        hosts: 1_000,
        gpus: vec![24 * GIB],
        npu: false,
        crashes: crashes.collect(),
        models: models
            .into_iter()
            .map(|known| model(known.name, known.kind, known.bytes.min(22 * GIB), false))
            .collect(),
        requests,
        failing_load: 200,
        check_every: 5_000,
        most_percent: 167,
    }
}
