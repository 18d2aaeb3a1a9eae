//! One seed, one history. `RIG_SEED=N` replays one, `RIG_SEEDS=N` runs so many; see the crate's README.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use muster_policy::Config;
use proptest::{
    collection::vec,
    prelude::*,
    strategy::ValueTree,
    test_runner::{RngAlgorithm, TestRng, TestRunner},
};

use super::{
    Figures,
    fleets::{bound_fleet, configs, crowded_fleet, fleet, wide_fleet},
    ops::{Op, crowded_op, op},
    simulate, simulated,
};

/// Histories that every run of the tests goes through.
const SEEDS: u64 = 2000;
/// Lines of a history that are compared with another's.
const LINES: usize = 400;
/// How long shorter ways to the same end are looked for.
const SHRINK_FOR: Duration = Duration::from_secs(40);

/// Everything that a seed decides.
#[derive(Debug, Clone)]
struct History {
    fleet: u8,
    config: Config,
    ops: Vec<Op>,
    /// Requests that run at the end go on until everything else has ended.
    busy_end: bool,
    /// The controller comes back at the end.
    rebuilt: bool,
    /// Time enough passes at the end for replicas to be replaced.
    groups: bool,
    /// Models that are to be loaded when a controller starts.
    preloads: u8,
}

fn history() -> impl Strategy<Value = History> {
    let ops = prop_oneof![
        2 => vec(op(), 1..140),
        1 => vec(crowded_op(), 1..200),
        1 => vec(prop_oneof![op(), crowded_op()], 1..140),
    ];
    let end = (
        any::<bool>(),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.3),
    );
    let start = (0_u8..4, 0_u8..4, configs());
    (start, ops, end).prop_map(
        |((fleet, preloads, config), ops, (busy_end, rebuilt, groups))| History {
            fleet,
            config,
            ops,
            busy_end,
            rebuilt,
            groups,
            preloads,
        },
    )
}

async fn live(history: &History) -> (Figures, String) {
    let mut rig = match history.fleet {
        0 => fleet(history.config.clone()).await,
        1 => crowded_fleet(history.config.clone()).await,
        2 => wide_fleet(history.config.clone()).await,
        _ => bound_fleet(history.config.clone()).await,
    };
    rig.preload_at_starts(history.preloads);
    for op in &history.ops {
        rig.world.note(format!("== {op:?}"));
        rig.apply(op).await;
    }
    if history.busy_end {
        rig.world.note("== time passes".to_owned());
        rig.run_on().await;
    }
    rig.world.note("== what still runs ends".to_owned());
    rig.run_out().await;
    if history.groups {
        rig.check_groups().await;
    }
    let with_limits = |op: &Op| matches!(op, Op::RestartWith(_) | Op::Foreign(_) | Op::RestartController(_));
    if history.rebuilt && history.preloads == 0 && !history.ops.iter().any(with_limits) {
        rig.check_rebuilt().await;
    }
    (rig.figures, rig.world.words(LINES))
}

/// What became of it: figures, or the words that it ended with.
fn outcome(history: &History) -> Result<Figures, String> {
    let lived = catch_unwind(AssertUnwindSafe(|| simulate(async || live(history).await.0)));
    lived.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_default()
    })
}

fn tree(seed: u64) -> impl ValueTree<Value = History> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(ProptestConfig::default(), rng);
    history().new_tree(&mut runner).unwrap()
}

/// The shortest history found that ends as badly.
fn shrunk(seed: u64, mut words: String) -> (History, String) {
    let mut tree = tree(seed);
    let mut worst = tree.current();
    let begun = Instant::now();
    while begun.elapsed() < SHRINK_FOR {
        match outcome(&tree.current()) {
            Err(said) => {
                (worst, words) = (tree.current(), said);
                if !tree.simplify() {
                    break;
                }
            }
            Ok(_) => {
                if !tree.complicate() {
                    break;
                }
            }
        }
    }
    (worst, words)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Names that are minted anew each time, by the order in which they come up.
fn without_names(words: &str) -> String {
    let name_at = |at: usize| {
        let shaped = |(place, byte): (usize, u8)| match place {
            8 | 13 | 18 | 23 => byte == b'-',
            14 => byte == b'7',
            _ => byte.is_ascii_hexdigit(),
        };
        words
            .get(at..at + 36)
            .filter(|name| name.bytes().enumerate().all(shaped))
    };
    let mut known: Vec<&str> = Vec::new();
    let mut plain = String::new();
    let mut end = 0;
    for (at, letter) in words.char_indices() {
        if at < end {
            continue;
        }
        let Some(name) = name_at(at) else {
            plain.push(letter);
            continue;
        };
        let place = known.iter().position(|other| *other == name).unwrap_or_else(|| {
            known.push(name);
            known.len() - 1
        });
        plain.push_str(&format!("#{place}"));
        end = at + name.len();
    }
    plain
}

#[test]
fn the_same_seed_is_the_same_history() {
    for seed in 0..12 {
        let history = tree(seed).current();
        let words = || simulate(async || live(&history).await.1);
        assert_eq!(without_names(&words()), without_names(&words()), "seed {seed}");
    }
}

/// Histories that end badly are told of once, at the end.
fn hush() {
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !simulated() {
            loud(panic);
        }
    }));
}

#[test]
fn every_history_keeps_the_promises_and_comes_to_rest() {
    let (first, count) = match number("RIG_SEED") {
        Some(seed) => (seed, 1),
        None => (
            number("RIG_FROM").unwrap_or(0),
            number("RIG_SEEDS").unwrap_or(SEEDS),
        ),
    };
    hush();
    let begun = Instant::now();
    let next = AtomicU64::new(first);
    let failed = Mutex::new(None);
    let total = Mutex::new(Figures::default());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count || failed.lock().unwrap().is_some() {
                        return;
                    }
                    match outcome(&tree(seed).current()) {
                        Ok(figures) => total.lock().unwrap().add(figures),
                        Err(words) => *failed.lock().unwrap() = Some((seed, words)),
                    }
                }
            });
        }
    });
    let total = total.into_inner().unwrap();
    println!(
        "{count} histories from seed {first} in {:.1?}: {total:?}",
        begun.elapsed()
    );
    if let Some((seed, words)) = failed.into_inner().unwrap() {
        let (history, words) = shrunk(seed, words);
        let History {
            fleet, config, ops, ..
        } = &history;
        panic!(
            "seed {seed} breaks a promise, and so do these {} ops on fleet {fleet}:\n{config:?}\n{}\n{words}\n\n\
             replay: RIG_SEED={seed} cargo test -p muster-controller --lib driver::rig::seeds\n",
            ops.len(),
            ops.iter()
                .map(|op| format!("  {op:?}"))
                .collect::<Vec<_>>()
                .join("\n"),
        );
    }
}

impl Figures {
    fn add(&mut self, other: Self) {
        self.inputs += other.inputs;
        self.steps += other.steps;
        self.most_steps = self.most_steps.max(other.most_steps);
        self.most_effects = self.most_effects.max(other.most_effects);
        self.longest = self.longest.max(other.longest);
    }
}
