//! `tests/bench`: what Muster costs, as ratios against baselines in the same run, on this machine.
//!
//! Rows: real llama.cpp server directly, through Muster with `llama_server`, Muster with `llama_cpp`; prompts of several lengths, alone and beside streams;
//! four engines at once; model swaps; tokens guessed ahead; `stub` against a direct HTTP mock; the controller alone with thousands of scripted workers; large catalogues.

mod ahead;
mod catalogue;
mod client;
mod mock;
mod prompts;
mod scale;
mod several;
mod stack;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::Parser;
use muster_proto::{
    net,
    trust::Credentials,
    v1::{GetModelRequest, control_client::ControlClient},
};
use serde_json::json;

use crate::{
    client::{Connection, Run},
    stack::Stack,
};

/// Measures Muster on this machine.
#[derive(Debug, Parser)]
struct Arguments {
    /// A llama-server binary of real llama.cpp; `scale` needs none of these files.
    #[arg(long, env = "MUSTER_BENCH_LLAMA_SERVER", default_value = "none")]
    llama_server: PathBuf,
    /// Model for tokens per second.
    #[arg(long, env = "MUSTER_BENCH_MODEL", default_value = "none")]
    model: PathBuf,
    /// Two models that are swapped.
    #[arg(long, num_args = 2, env = "MUSTER_BENCH_SWAP", value_delimiter = ' ')]
    swap: Vec<PathBuf>,
    /// Tokens per answer of real engines.
    #[arg(long, default_value_t = 128)]
    tokens: usize,
    /// Rounds per row; the best round counts, so that a busy machine harms all rows alike.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Lengths of the prompts whose reading is timed.
    #[arg(long, value_delimiter = ',', default_value = "512,4096,16384")]
    prompt_tokens: Vec<usize>,
    /// Prompts of each length.
    #[arg(long, default_value_t = 10)]
    repeats: usize,
    /// Numbers of scripted workers of `scale`.
    #[arg(long, value_delimiter = ',', default_value = "1000,10000")]
    workers: Vec<usize>,
    /// Sizes of catalogues of `catalogue`.
    #[arg(long, value_delimiter = ',', default_value = "1000,10000")]
    models: Vec<usize>,
    /// How long `scale` measures what lasts.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Only these parts: engines, prompts, several, swap, ahead, stub, scale, catalogue.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "engines,prompts,several,swap,ahead,stub,scale,catalogue"
    )]
    only: Vec<String>,
}

const STREAMS: [usize; 3] = [1, 4, 16];
const STUB_STREAMS: [usize; 3] = [1, 16, 64];
const STUB_TOKENS: usize = 2000;
const SWAPS: usize = 20;

#[allow(clippy::print_stdout, reason = "the table is the product")]
fn say(line: &str) {
    println!("{line}");
}

fn main() -> anyhow::Result<()> {
    let mut words = std::env::args().skip(1);
    if words.next().as_deref() == Some("mock") {
        return mock::serve(words.next().context("mock ADDRESS")?.parse()?);
    }
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(measure(&arguments))
}

async fn measure(arguments: &Arguments) -> anyhow::Result<()> {
    let wants = |part: &str| arguments.only.iter().any(|only| only == part);
    if wants("engines") {
        engines(arguments).await?;
    }
    if wants("prompts") {
        prompts::measure(arguments).await?;
    }
    if wants("several") {
        several::measure(arguments).await?;
    }
    if wants("swap") {
        swaps(arguments).await?;
    }
    if wants("ahead") {
        ahead::measure(arguments).await?;
    }
    if wants("stub") {
        stub(arguments).await?;
    }
    if wants("scale") {
        scale::measure(arguments).await?;
    }
    if wants("catalogue") {
        catalogue::measure(arguments).await?;
    }
    Ok(())
}

/// A prompt that shares no prefix with the one before, so that no server gains from its cache.
fn prompt(number: usize, salt: usize) -> String {
    let word = ["alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf"][number % 7];
    format!("{salt}-{number} {word}: tell me about {word} number {number} please")
}

fn chat(model: &str, number: usize, salt: usize, tokens: usize) -> String {
    json!({
        "model": model,
        "messages": [{"role": "user", "content": prompt(number, salt)}],
        "stream": true, "stream_options": {"include_usage": true},
        "max_tokens": tokens, "temperature": 0, "ignore_eos": true,
        // Random weights soon repeat themselves; what guessing that brings is another row's.
        "speculative.n_max": 0,
    })
    .to_string()
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// llama-server's flags, equal to the settings of our engine.
fn engines_flags(context: usize) -> Vec<String> {
    let flags = "-np 16 -t 2 -tb 2 -b 2048 -ub 512 -kvu --fit off --cache-ram 0 -ctxcp 0 --jinja --no-webui --log-disable";
    let context = ["-c".to_owned(), context.to_string()];
    context
        .into_iter()
        .chain(flags.split(' ').map(str::to_owned))
        .collect()
}

async fn engines(arguments: &Arguments) -> anyhow::Result<()> {
    let config = |runtime: &str| {
        format!(
            "[models.bench]\ncheckpoint = {:?}\nruntime = {runtime:?}\nctx_size = 8192\nparallel = 16\nthreads = 2\nbatch_size = 2048\nubatch_size = 512\n",
            arguments.model
        )
    };
    let binaries = stack::binaries()?;
    let direct = Stack::llama_server(&arguments.llama_server, &arguments.model, &engines_flags(8192)).await?;
    let through = Stack::muster(&binaries, &arguments.llama_server, &config("llama_server")).await?;
    let own = Stack::muster(&binaries, &arguments.llama_server, &config("llama_cpp")).await?;
    let rows = [
        ("llama-server directly", &direct),
        ("Muster, `llama_server`", &through),
        ("Muster, `llama_cpp`", &own),
    ];
    for (_, stack) in rows {
        client::load(&stack.http, 1, 2, |number| chat("bench", number, 999, 8)).await?;
    }
    say("| streams | path | TTFT p50 ms | TTFT p99 ms | tokens/s | × direct |");
    say("|---|---|---|---|---|---|");
    for streams in STREAMS {
        let mut best: [Option<Run>; 3] = [None, None, None];
        for round in 0..arguments.rounds {
            for (slot, (_, stack)) in rows.iter().enumerate() {
                let (tokens, salt) = (arguments.tokens, round * 10 + streams);
                let requests = streams.max(4) * 2;
                let run = client::load(&stack.http, streams, requests, move |number| {
                    chat("bench", number, salt, tokens)
                })
                .await?;
                keep_best(&mut best[slot], run, Run::tokens_per_second);
            }
        }
        let base = best[0].as_ref().map_or(0.0, Run::tokens_per_second);
        for ((name, _), run) in rows.iter().zip(best.iter().flatten()) {
            say(&format!(
                "| {streams} | {name} | {:.2} | {:.2} | {:.0} | {:.2} |",
                millis(run.first(0.5)),
                millis(run.first(0.99)),
                run.tokens_per_second(),
                run.tokens_per_second() / base
            ));
        }
    }
    first_token(arguments, &rows).await
}

/// Time to the first token alone: one stream, one token, many times, paths taken in turn.
async fn first_token(arguments: &Arguments, rows: &[(&str, &Stack); 3]) -> anyhow::Result<()> {
    let mut times: [Vec<Duration>; 3] = Default::default();
    for round in 0..arguments.rounds * 10 {
        for (slot, (_, stack)) in rows.iter().enumerate() {
            let run = client::load(&stack.http, 1, 10, move |number| {
                chat("bench", number, 5000 + round, 1)
            })
            .await?;
            times[slot].extend(run.samples.iter().map(|sample| sample.first));
        }
    }
    say("\n| path | TTFT p50 ms (one stream, one token) | added ms |\n|---|---|---|");
    let mut base = None;
    for ((name, _), times) in rows.iter().zip(&mut times) {
        times.sort_unstable();
        let middle = client::quantile(times, 0.5);
        let added = millis(middle) - millis(*base.get_or_insert(middle));
        say(&format!("| {name} | {:.3} | {added:+.3} |", millis(middle)));
    }
    Ok(())
}

fn keep_best(best: &mut Option<Run>, run: Run, score: impl Fn(&Run) -> f64) {
    if best.as_ref().is_none_or(|old| score(&run) > score(old)) {
        *best = Some(run);
    }
}

async fn swaps(arguments: &Arguments) -> anyhow::Result<()> {
    let [first, second] = arguments.swap.as_slice() else {
        anyhow::bail!("--swap wants two models")
    };
    say(
        "\n| swap of two models, one slot | p50 ms | p99 ms | of that the engine's own load, p50 ms | over it, p50 ms |",
    );
    say("|---|---|---|---|---|");
    for runtime in ["llama_cpp", "llama_server"] {
        let config = format!(
            "[policy]\nmax_loaded_models = 1\n[models.a]\ncheckpoint = {first:?}\nruntime = {runtime:?}\nctx_size = 2048\nparallel = 1\n[models.b]\ncheckpoint = {second:?}\nruntime = {runtime:?}\nctx_size = 2048\nparallel = 1\n"
        );
        let stack = Stack::muster(&stack::binaries()?, &arguments.llama_server, &config).await?;
        let mut control = ControlClient::new(net::channel(&stack.grpc.parse()?, &Credentials::none()).await?);
        let mut connection = Connection::open(&stack.http).await?;
        let (mut whole, mut loads, mut over) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..SWAPS {
            let model = if number % 2 == 0 { "a" } else { "b" };
            let begun = Instant::now();
            connection.chat(&chat(model, number, 0, 1)).await?;
            let swap = begun.elapsed();
            let warm = connection.chat(&chat(model, number, 1, 1)).await?.whole;
            let load = load_time(&mut control, model).await?;
            // The first swap finds an empty slot: nothing is unloaded.
            if number > 0 {
                whole.push(swap);
                loads.push(load);
                over.push(swap.saturating_sub(load + warm));
            }
        }
        for times in [&mut whole, &mut loads, &mut over] {
            times.sort_unstable();
        }
        say(&format!(
            "| `{runtime}` | {:.1} | {:.1} | {:.1} | {:.1} |",
            millis(client::quantile(&whole, 0.5)),
            millis(client::quantile(&whole, 0.99)),
            millis(client::quantile(&loads, 0.5)),
            millis(client::quantile(&over, 0.5)),
        ));
    }
    Ok(())
}

async fn load_time(control: &mut ControlClient<net::Channel>, model: &str) -> anyhow::Result<Duration> {
    let answer = control
        .get_model(GetModelRequest {
            model: model.to_owned(),
        })
        .await?
        .into_inner();
    let time = answer
        .model
        .and_then(|model| model.instances.into_iter().next())
        .and_then(|instance| instance.status)
        .and_then(|status| status.load_time)
        .context("the instance does not say how long it loaded")?;
    Ok(time.try_into()?)
}

async fn stub(arguments: &Arguments) -> anyhow::Result<()> {
    let config = format!(
        "[models.stub]\nruntime = \"stub\"\nparallel = 64\ntarget_inflight = 64\n[models.stub.stub]\nload_time_ms = 0\ntokens = {STUB_TOKENS}\nmemory_mib = 1\n"
    );
    let direct = Stack::mock().await?;
    let muster = Stack::muster(&stack::binaries()?, &arguments.llama_server, &config).await?;
    say(&format!(
        "\n`muster up` answered {:.0} ms after its start.",
        millis(muster.ready_after)
    ));
    client::load(&muster.http, 1, 2, |number| chat("stub", number, 0, 8)).await?;
    say("\n| streams | path | events/s | requests/s (1 token) | TTFT p50 µs |\n|---|---|---|---|---|");
    for streams in STUB_STREAMS {
        for (name, stack) in [("direct HTTP mock", &direct), ("Muster, `stub`", &muster)] {
            let (mut events, mut requests) = (None, None);
            for _ in 0..arguments.rounds {
                let run = client::load(&stack.http, streams, streams * 4, |number| {
                    chat("stub", number, 1, STUB_TOKENS)
                })
                .await?;
                keep_best(&mut events, run, Run::frames_per_second);
                let run =
                    client::load(&stack.http, streams, 2000, |number| chat("stub", number, 2, 1)).await?;
                keep_best(&mut requests, run, Run::requests_per_second);
            }
            let requests = requests.context("at least one round")?;
            say(&format!(
                "| {streams} | {name} | {:.0} | {:.0} | {:.0} |",
                events.map_or(0.0, |run| run.frames_per_second()),
                requests.requests_per_second(),
                micros(requests.first(0.5)),
            ));
        }
    }
    Ok(())
}
