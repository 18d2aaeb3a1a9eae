//! Flags of llama.cpp that both its server and our embedded engine take in `ModelSettings.args`.
//!
//! The controller decides by them which of the two can host a model (DECISIONS.md, Settings); `muster-llama` takes these and refuses all others.
//! Controller and worker [check] them before a process is started for them.

use crate::{Code, ErrorExt as _, v1::ErrorInfo};

/// Flags that `muster-llama` honours and that take a value, with `=` or as the next word; all spellings.
pub const WITH_VALUE: [&str; 24] = [
    "-c",
    "--ctx-size",
    "-np",
    "--parallel",
    "-b",
    "--batch-size",
    "-ub",
    "--ubatch-size",
    "-t",
    "--threads",
    "-tb",
    "--threads-batch",
    "-ngl",
    "--gpu-layers",
    "--n-gpu-layers",
    "-ctk",
    "--cache-type-k",
    "-ctv",
    "--cache-type-v",
    "-fa",
    "--flash-attn",
    "--pooling",
    "--chat-template",
    "--chat-template-file",
];

/// Those of them whose value is a whole number, 0 or more.
const COUNTS: [&str; 12] = [
    "-c",
    "--ctx-size",
    "-np",
    "--parallel",
    "-b",
    "--batch-size",
    "-ub",
    "--ubatch-size",
    "-t",
    "--threads",
    "-tb",
    "--threads-batch",
];

/// Those whose value is a number of layers, `all` or `auto`.
const LAYERS: [&str; 3] = ["-ngl", "--gpu-layers", "--n-gpu-layers"];

/// Flags that `muster-llama` honours and that stand alone.
pub const ALONE: [&str; 17] = [
    "--swa-full",
    "--embedding",
    "--embeddings",
    "--rerank",
    "--reranking",
    "--jinja",
    "-kvu",
    "--kv-unified",
    "--no-context-shift",
    "-cb",
    "--cont-batching",
    "--no-warmup",
    "--mmap",
    "--no-mmap",
    "--mlock",
    "--slots",
    "--props",
];

/// The first flag in `args` that our embedded engine cannot honour.
///
/// ```
/// let args = ["-c", "-1", "--grp-attn-n", "--ubatch-size=64"].map(str::to_owned);
/// assert_eq!(muster_proto::llamacpp::beyond_embedded(&args), Some("--grp-attn-n"));
/// assert_eq!(muster_proto::llamacpp::beyond_embedded(&args[..2]), None);
/// ```
#[must_use]
pub fn beyond_embedded(args: &[String]) -> Option<&str> {
    words(args).find_map(|word| match word {
        Word::Unknown(flag) => Some(flag),
        Word::Alone | Word::Valued(..) => None,
    })
}

/// Whether our embedded engine takes `args`, as far as that can be told without the model.
///
/// # Errors
/// `invalid_load_request`, naming the flag: one that it cannot honour, that lacks its value, or whose value is no number where one is wanted.
///
/// ```
/// let check = |text: &str| muster_proto::llamacpp::check(&text.split(' ').map(str::to_owned).collect::<Vec<_>>());
/// assert!(check("--flash-attn on --no-mmap").is_ok());
/// assert!(check("-c many").unwrap_err().message.contains("`-c`"));
/// ```
pub fn check(args: &[String]) -> Result<(), ErrorInfo> {
    let wrong = |message: String| {
        let error = Code::InvalidLoadRequest.error(message);
        Err(error.with_param("llamacpp_args"))
    };
    for word in words(args) {
        match word {
            Word::Alone => {}
            Word::Unknown(flag) => return wrong(format!("`{flag}` is not a flag this engine can honour")),
            Word::Valued(flag, None) => return wrong(format!("`{flag}` needs a value")),
            Word::Valued(flag, Some(value)) => {
                let layers = LAYERS.contains(&flag);
                let number = if layers {
                    matches!(value, "all" | "auto") || value.parse::<i32>().is_ok()
                } else {
                    !COUNTS.contains(&flag) || value.parse::<u32>().is_ok()
                };
                if !number {
                    return wrong(format!("`{flag}` needs a number, not `{value}`"));
                }
            }
        }
    }
    Ok(())
}

/// A flag among arguments, with its value.
enum Word<'a> {
    Alone,
    Valued(&'a str, Option<&'a str>),
    Unknown(&'a str),
}

fn words(args: &[String]) -> impl Iterator<Item = Word<'_>> {
    let mut rest = args.iter().map(String::as_str);
    std::iter::from_fn(move || {
        let word = rest.next()?;
        let (flag, inline) = word
            .split_once('=')
            .map_or((word, None), |(flag, value)| (flag, Some(value)));
        Some(if WITH_VALUE.contains(&flag) {
            Word::Valued(flag, inline.or_else(|| rest.next()))
        } else if ALONE.contains(&flag) {
            Word::Alone
        } else {
            Word::Unknown(flag)
        })
    })
}
