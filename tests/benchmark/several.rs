//! Several engines at once on one machine: they share its cores instead of being in each other's way.

use std::time::{Duration, Instant};

use crate::{
    Arguments, chat,
    client::{self},
    millis, say,
    stack::{self, Stack},
};

const ENGINES: [&str; 4] = ["a", "b", "c", "d"];
/// Answers of each engine.
const ANSWERS: usize = 4;

/// Measures the row and prints it.
pub(crate) async fn measure(arguments: &Arguments) -> anyhow::Result<()> {
    let models = ENGINES.map(|name| {
        format!(
            "[models.{name}]\ncheckpoint = {:?}\nruntime = \"llama_cpp\"\nctx_size = 2048\nparallel = 2\n",
            arguments.model
        )
    });
    let config = format!(
        "[policy]\nmax_loaded_models = {}\n{}",
        ENGINES.len(),
        models.concat()
    );
    let stack = Stack::muster(&stack::binaries()?, &arguments.llama_server, &config).await?;
    for model in ENGINES {
        client::load(&stack.http, 1, 1, move |number| chat(model, number, 7, 8)).await?;
    }
    let tokens = arguments.tokens;
    let answers = |model: &'static str, salt: usize| {
        client::load(&stack.http, 1, ANSWERS, move |number| {
            chat(model, number, salt, tokens)
        })
    };
    let mut least = [Duration::MAX; 2];
    for round in 0..arguments.rounds {
        let begun = Instant::now();
        for model in ENGINES {
            answers(model, 8000 + round).await?;
        }
        least[0] = least[0].min(begun.elapsed());
        let begun = Instant::now();
        let [a, b, c, d] = ENGINES.map(|model| answers(model, 9000 + round));
        tokio::try_join!(a, b, c, d)?;
        least[1] = least[1].min(begun.elapsed());
    }
    say("\n| four engines, four answers each | ms | × one after the other |");
    say("|---|---|---|");
    let [one_by_one, at_once] = least;
    say(&format!(
        "| one after the other | {:.0} | 1.00 |",
        millis(one_by_one)
    ));
    say(&format!(
        "| at once | {:.0} | {:.2} |",
        millis(at_once),
        at_once.as_secs_f64() / one_by_one.as_secs_f64()
    ));
    Ok(())
}
