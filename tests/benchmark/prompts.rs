//! How fast prompts are read: the first and the tenth of a kind, alone and beside answers that stream; and what those suffer from it. Every prompt differs from
//! the others from its first word on, so that nobody's cache helps. What earlier prompts left in the cache makes every later call dearer (llama.cpp looks at
//! all cells up to the last that is used), so speeds beside streams are held against speeds alone just before, with as much in the cache.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use serde_json::json;
use tokio::task::{JoinHandle, LocalSet};

use crate::{
    Arguments,
    client::{self, Connection, Sample},
    engines_flags, millis, say,
    stack::{self, Stack},
};

const BESIDE: [usize; 2] = [1, 8];
/// Prompts beside streams, and as many alone before.
const PROMPTS_BESIDE: usize = 3;
/// Time for which streams are watched while nobody reads.
const WATCH: Duration = Duration::from_secs(2);
const CONTEXT: usize = 32_768;

/// A chat whose prompt has about so many tokens.
fn chat(tokens: usize, number: usize, salt: usize, answer: usize) -> String {
    let words = format!("{salt}-{number} ");
    // a word of this length is two tokens of the tests' vocabularies, the number about one for each digit
    let content = words.clone() + &"alone ".repeat(tokens.saturating_sub(words.len() + 16) / 2);
    json!({
        "model": "bench",
        "messages": [{"role": "user", "content": content}],
        "stream": true, "stream_options": {"include_usage": true},
        "max_tokens": answer, "temperature": 0, "ignore_eos": true, "speculative.n_max": 0,
    })
    .to_string()
}

#[allow(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(sample: &Sample) -> f64 {
    sample.prompt_tokens as f64 / sample.first.as_secs_f64()
}

fn best(samples: &[Sample]) -> f64 {
    samples.iter().map(rate).fold(0.0, f64::max)
}

/// Measures the rows and prints them.
pub(crate) async fn measure(arguments: &Arguments) -> anyhow::Result<()> {
    let config = format!(
        "[models.bench]\ncheckpoint = {:?}\nruntime = \"llama_cpp\"\nctx_size = {CONTEXT}\nparallel = 16\nthreads = 2\nbatch_size = 2048\nubatch_size = 512\n",
        arguments.model
    );
    let direct =
        Stack::llama_server(&arguments.llama_server, &arguments.model, &engines_flags(CONTEXT)).await?;
    let own = Stack::muster(&stack::binaries()?, &arguments.llama_server, &config).await?;
    let rows = [("llama-server directly", &direct), ("Muster, `llama_cpp`", &own)];
    for (_, stack) in rows {
        client::load(&stack.http, 1, 1, |_| chat(20, 0, 1, 4)).await?;
    }
    say("\n| prompt tokens | path | first, ms | tenth, ms | best tokens/s | × direct |");
    say("|---|---|---|---|---|---|");
    for (salt, tokens) in arguments.prompt_tokens.iter().enumerate() {
        let mut samples = [Vec::new(), Vec::new()];
        for number in 0..arguments.repeats {
            for ((_, stack), samples) in rows.iter().zip(&mut samples) {
                let mut connection = Connection::open(&stack.http).await?;
                samples.push(connection.chat(&chat(*tokens, number, 100 + salt, 1)).await?);
            }
        }
        let base = best(&samples[0]);
        for ((name, _), samples) in rows.iter().zip(&samples) {
            let (first, last) = samples
                .first()
                .zip(samples.last())
                .context("at least one prompt")?;
            say(&format!(
                "| {} | {name} | {:.0} | {:.0} | {:.0} | {:.2} |",
                first.prompt_tokens,
                millis(first.first),
                millis(last.first),
                best(samples),
                best(samples) / base
            ));
        }
    }
    say(
        "\n| prompt tokens | streams | path | best tokens/s | × alone | between two tokens of a stream, p99 ms, alone | … beside the prompt |",
    );
    say("|---|---|---|---|---|---|---|");
    for streams in BESIDE {
        for (salt, tokens) in arguments.prompt_tokens.iter().enumerate() {
            for (name, stack) in rows {
                let row = beside(&stack.http, streams, *tokens, 1000 * streams + salt).await?;
                say(&format!(
                    "| {tokens} | {streams} | {name} | {:.0} | {:.2} | {:.1} | {:.1} |",
                    row.rate,
                    row.rate / row.alone,
                    millis(row.without),
                    millis(row.with)
                ));
            }
        }
    }
    Ok(())
}

/// What prompts and streams do to each other.
struct Beside {
    /// Prompt tokens/s with nobody beside.
    alone: f64,
    rate: f64,
    without: Duration,
    with: Duration,
}

/// Answers that stream until they are told to stop, and the times between their tokens.
struct Streams {
    gaps: Rc<RefCell<Vec<Duration>>>,
    started: Rc<Cell<usize>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Streams {
    fn start(address: &str, count: usize, salt: usize) -> Self {
        let gaps: Rc<RefCell<Vec<Duration>>> = Rc::default();
        let started: Rc<Cell<usize>> = Rc::default();
        let tasks = (0..count).map(|number| {
            let (address, gaps, started) = (address.to_owned(), Rc::clone(&gaps), Rc::clone(&started));
            tokio::task::spawn_local(async move {
                for round in 0.. {
                    let mut last: Option<Instant> = None;
                    let body = chat(20, number + 100 * round, salt, 1500);
                    let Ok(mut connection) = Connection::open(&address).await else {
                        return;
                    };
                    let mut seen = |frames| {
                        let now = Instant::now();
                        match last.replace(now) {
                            None => started.set(started.get() + usize::from(round == 0)),
                            Some(last) => {
                                let mut gaps = gaps.borrow_mut();
                                gaps.push(now - last);
                                // what came together waited together
                                gaps.extend((1..frames).map(|_| Duration::ZERO));
                            }
                        }
                    };
                    if connection.watch(&body, &mut seen).await.is_err() {
                        return;
                    }
                }
            })
        });
        Self {
            tasks: tasks.collect(),
            gaps,
            started,
        }
    }

    fn p99(&self) -> Duration {
        let mut gaps = std::mem::take(&mut *self.gaps.borrow_mut());
        gaps.sort_unstable();
        client::quantile(&gaps, 0.99)
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// The speed of the best of some prompts.
async fn prompts(address: &str, tokens: usize, salt: usize) -> anyhow::Result<f64> {
    let mut samples = Vec::new();
    for number in 0..PROMPTS_BESIDE {
        let mut connection = Connection::open(address).await?;
        samples.push(connection.chat(&chat(tokens, number, salt, 1)).await?);
    }
    Ok(best(&samples))
}

async fn beside(address: &str, streams: usize, tokens: usize, salt: usize) -> anyhow::Result<Beside> {
    let alone = prompts(address, tokens, salt + 700).await?;
    let local = LocalSet::new();
    local
        .run_until(async {
            let running = Streams::start(address, streams, salt);
            let begun = Instant::now();
            while running.started.get() < streams {
                anyhow::ensure!(
                    begun.elapsed() < Duration::from_secs(60),
                    "the streams do not start"
                );
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let _of_the_warm_up = running.p99();
            tokio::time::sleep(WATCH).await;
            let without = running.p99();
            let rate = prompts(address, tokens, salt + 500).await?;
            let with = running.p99();
            Ok(Beside {
                alone,
                rate,
                without,
                with,
            })
        })
        .await
}
