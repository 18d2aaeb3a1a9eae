//! What guessing tokens ahead brings (prompt lookup), and what it costs where nothing repeats: the same requests with and without, in turns.

use std::path::Path;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::{
    Arguments,
    client::{self, Run},
    say,
    stack::{self, Stack},
};

/// The model that ships: it says whole sentences.
const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/models/muster-demo.gguf");
const QUESTIONS: [&str; 4] = [
    "What is Muster?",
    "How do I load a model?",
    "What is a worker?",
    "What does the gateway do?",
];
/// Streams at once.
const STREAMS: [usize; 2] = [1, 4];
/// Tokens of a text that is copied.
const COPIED: usize = 300;

/// What is asked for.
#[derive(Clone, Copy)]
enum Asked {
    /// To say a text of the prompt once more, word for word; at a temperature, with words of its own here and there, after which the text goes on.
    Copy { temperature: f64 },
    /// Something new.
    New,
    /// Whole sentences.
    Answer,
}

const KINDS: [(&str, Asked); 4] = [
    (
        "a text of the prompt, word for word",
        Asked::Copy { temperature: 0.0 },
    ),
    (
        "a text of the prompt, parted from here and there",
        Asked::Copy { temperature: 0.2 },
    ),
    ("a text that repeats nothing", Asked::New),
    ("answers of the model that ships", Asked::Answer),
];

/// Measures the rows and prints them.
pub(crate) async fn measure(arguments: &Arguments) -> anyhow::Result<()> {
    let copying = arguments.model.with_file_name("bench-copy.gguf");
    let model = |name: &str, file: &Path, context: usize| {
        format!("[models.{name}]\ncheckpoint = {file:?}\nruntime = \"llama_cpp\"\nctx_size = {context}\n")
    };
    let config = format!(
        "[policy]\nmax_loaded_models = 3\n{}{}{}",
        model("bench", &arguments.model, 8192),
        model("copy", &copying, 8192),
        model("demo", Path::new(DEMO), 2048)
    );
    let stack = Stack::muster(&stack::binaries()?, &arguments.llama_server, &config).await?;
    let text = text(&stack.http).await?;
    say("\n| text | streams | tokens/s without | with guesses | × without |");
    say("|---|---|---|---|---|");
    for (name, asked) in KINDS {
        for streams in STREAMS {
            let tokens = arguments.tokens;
            let run = |guess: bool| {
                let text = text.clone();
                client::load(&stack.http, streams, 4 * streams, move |number| {
                    body(asked, &text, tokens, number, guess)
                })
            };
            run(true).await?;
            let mut runs = [Vec::new(), Vec::new()];
            for _ in 0..arguments.rounds {
                runs[0].push(run(false).await?);
                runs[1].push(run(true).await?);
            }
            let [without, with] = runs.map(|runs| median(&runs));
            say(&format!(
                "| {name} | {streams} | {without:.0} | {with:.0} | {:.2} |",
                with / without
            ));
        }
    }
    Ok(())
}

/// What the copying model always answers, whatever is asked: each of its words depends on the one before alone.
async fn text(address: &str) -> anyhow::Result<String> {
    let body = json!({
        "model": "copy", "messages": user("hello"), "max_tokens": COPIED, "temperature": 0, "ignore_eos": true,
    });
    let url = format!("http://{address}/v1/chat/completions");
    let answer = muster_tests::http::client()
        .post(url)
        .body(body.to_string())
        .send()
        .await?;
    let answer: Value = serde_json::from_slice(&answer.bytes().await?)?;
    let text = answer
        .pointer("/choices/0/message/content")
        .and_then(Value::as_str);
    text.map(str::to_owned)
        .with_context(|| format!("no text: {answer}"))
}

fn user(content: &str) -> Value {
    json!([{"role": "user", "content": content}])
}

fn body(asked: Asked, text: &str, tokens: usize, number: usize, guess: bool) -> String {
    let asked = match asked {
        Asked::Copy { temperature } => json!({
            "model": "copy", "ignore_eos": true, "temperature": temperature, "seed": number,
            "messages": user(&format!("{number}\n{text}")), "max_tokens": COPIED,
        }),
        Asked::New => json!({
            "model": "bench", "ignore_eos": true, "temperature": 0, "messages": user(&format!("tell me about {number}")),
        }),
        Asked::Answer => json!({
            "model": "demo", "temperature": 0, "messages": user(QUESTIONS[number % QUESTIONS.len()]),
        }),
    };
    let mut body = json!({"max_tokens": tokens, "stream": true, "stream_options": {"include_usage": true}});
    for more in [
        asked,
        if guess {
            json!({})
        } else {
            json!({"speculative.n_max": 0})
        },
    ] {
        if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
            body.extend(more);
        }
    }
    body.to_string()
}

fn median(runs: &[Run]) -> f64 {
    let mut rates: Vec<f64> = runs.iter().map(Run::tokens_per_second).collect();
    rates.sort_unstable_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or_default()
}
