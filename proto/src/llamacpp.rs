//! Flags of llama.cpp that both its server and our embedded engine take in `ModelSettings.args`.
//!
//! The controller decides by them which of the two can host a model (DECISIONS.md, Settings); `muster-llama` takes these and refuses all others.

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

/// Flags that `muster-llama` honours and that stand alone.
pub const ALONE: [&str; 14] = [
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
    "--slots",
    "--props",
];

/// The first flag in `args` that our embedded engine cannot honour.
///
/// ```
/// let args = ["-c", "-1", "--mlock", "--ubatch-size=64"].map(str::to_owned);
/// assert_eq!(muster_proto::llamacpp::beyond_embedded(&args), Some("--mlock"));
/// assert_eq!(muster_proto::llamacpp::beyond_embedded(&args[..2]), None);
/// ```
#[must_use]
pub fn beyond_embedded(args: &[String]) -> Option<&str> {
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let (flag, inline) = word
            .split_once('=')
            .map_or((word.as_str(), false), |(flag, _)| (flag, true));
        if WITH_VALUE.contains(&flag) {
            if !inline {
                words.next();
            }
        } else if !ALONE.contains(&flag) {
            return Some(flag);
        }
    }
    None
}
