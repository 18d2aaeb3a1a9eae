//! Token counts in OpenAI's form and timings in llama.cpp's (seed 004, `timings`).

use bytes::BytesMut;
use muster_proto::v1::{Finished, PromptProgress, Timings, Usage};
use serde_json::json;

use super::json::{member, raw, value};

/// Writes the value of `usage`.
pub(crate) fn usage(out: &mut BytesMut, usage: &Usage) {
    let total = u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens);
    let mut object = json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": total,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    });
    if usage.reasoning_tokens > 0 {
        object["completion_tokens_details"] = json!({"reasoning_tokens": usage.reasoning_tokens});
    }
    value(out, &object);
}

/// Writes `,"timings":{…}` if the engine measured the times.
pub(crate) fn timings(out: &mut BytesMut, finished: &Finished) {
    let Some(timings) = &finished.timings else { return };
    raw(out, ",\"timings\":");
    times(out, timings, &finished.usage.unwrap_or_default());
}

/// Writes `,"prompt_progress":{…}`; `timed`: and the `timings` up to then.
pub(crate) fn progress(out: &mut BytesMut, progress: &PromptProgress, timed: bool) {
    if timed {
        let timings = Timings {
            cache_n: progress.cached,
            prompt_n: progress.processed.saturating_sub(progress.cached),
            prompt_ms: progress.elapsed_ms,
            ..Timings::default()
        };
        raw(out, ",\"timings\":");
        times(out, &timings, &Usage::default());
    }
    raw(out, ",\"prompt_progress\":{\"total\":");
    value(out, &progress.total);
    member(out, "cache", &progress.cached);
    member(out, "processed", &progress.processed);
    member(out, "time_ms", &progress.elapsed_ms);
    raw(out, "}");
}

/// Writes `,"timings":{…}` of output that came with them.
pub(crate) fn timed(out: &mut BytesMut, timings: Option<&Timings>) {
    if let Some(timings) = timings {
        raw(out, ",\"timings\":");
        times(out, timings, &Usage::default());
    }
}

/// Writes the value of `timings`.
pub(crate) fn times(out: &mut BytesMut, timings: &Timings, usage: &Usage) {
    raw(out, "{\"cache_n\":");
    value(out, &timings.cache_n);
    phase(
        out,
        "prompt",
        timings.prompt_n,
        timings.prompt_n,
        timings.prompt_ms,
    );
    // The first token comes of reading the prompt: the time is that of the others.
    let timed = timings.predicted_n.saturating_sub(1);
    phase(out, "predicted", timings.predicted_n, timed, timings.predicted_ms);
    draft(out, usage, timings);
    raw(out, "}");
}

/// Writes a phase of `tokens` tokens, and the rates of those of them that took the time.
fn phase(out: &mut BytesMut, name: &str, tokens: u32, timed: u32, ms: f64) {
    let count = f64::from(timed);
    member(out, &format!("{name}_n"), &tokens);
    member(out, &format!("{name}_ms"), &ms);
    member(out, &format!("{name}_per_token_ms"), &ratio(ms, count));
    member(out, &format!("{name}_per_second"), &ratio(count * 1000.0, ms));
}

fn draft(out: &mut BytesMut, usage: &Usage, timings: &Timings) {
    if timings.queue_ms > 0.0 {
        member(out, "queue_ms", &timings.queue_ms);
    }
    if usage.draft_tokens > 0 {
        member(out, "draft_n", &usage.draft_tokens);
        member(out, "draft_n_accepted", &usage.draft_accepted_tokens);
    }
}

/// The quotient; zero instead of infinity, which JSON does not have.
fn ratio(over: f64, under: f64) -> f64 {
    if under > 0.0 { over / under } else { 0.0 }
}
