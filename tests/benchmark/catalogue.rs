//! A large catalogue: how long the controller takes to start with it, and how long its list takes over HTTP.
//!
//! The baseline is a catalogue of ten models in the same run.

use std::{fmt::Write as _, time::Instant};

use anyhow::Context as _;
use muster_tests::{Role, Stack};

use crate::{Arguments, client::quantile, millis, say};

/// The catalogue that the others are measured against.
const FEW: usize = 10;
/// Lists that are asked for.
const LISTS: usize = 50;

/// Measures the rows and prints them.
pub(crate) async fn measure(arguments: &Arguments) -> anyhow::Result<()> {
    say(
        "\n| models | controller starts ms | list p50 ms | list p99 ms | bytes of the list | p50 × of ten models' |",
    );
    say("|---|---|---|---|---|---|");
    let few = row(FEW, None).await?;
    for &models in &arguments.models {
        row(models, Some(few)).await?;
    }
    Ok(())
}

/// The median of the list's time in milliseconds.
async fn row(models: usize, few: Option<f64>) -> anyhow::Result<f64> {
    let mut config = String::new();
    for number in 0..models {
        writeln!(
            config,
            "[models.model-{number:05}]\nruntime = \"stub\"\nlabels = [\"bench\"]"
        )?;
    }
    let builder = Stack::with(config).devices(&[]).log_level("warning");
    let mut stack = builder.start().await;
    stack.kill(Role::Controller);
    let begun = Instant::now();
    stack.start_process(Role::Controller).await;
    let started = begun.elapsed();
    let http = stack.http();
    let mut times = Vec::with_capacity(LISTS);
    let mut text = String::new();
    for _ in 0..LISTS {
        let begun = Instant::now();
        text = http.get("/v1/models?show_all=true").await.text;
        times.push(begun.elapsed());
    }
    let bytes = text.len();
    let listed: serde_json::Value = serde_json::from_str(&text)?;
    let count = listed["data"].as_array().context("a list")?.len();
    anyhow::ensure!(count >= models, "{count} of {models} models are listed");
    times.sort_unstable();
    let p50 = millis(quantile(&times, 0.5));
    let ratio = few.map_or(1.0, |few| p50 / few);
    say(&format!(
        "| {models} | {:.0} | {p50:.2} | {:.2} | {bytes} | {ratio:.1} |",
        millis(started),
        millis(quantile(&times, 0.99)),
    ));
    Ok(p50)
}
