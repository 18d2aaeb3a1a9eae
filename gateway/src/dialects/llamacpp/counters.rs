//! llama.cpp's counters in Prometheus' text form, of an engine that describes itself.

use std::fmt::Write as _;

use muster_proto::v1::EngineDescription;

use super::props;

/// The counters that llama.cpp's server has; none of an engine that does not count. Rates are over all requests so far.
#[allow(clippy::cast_precision_loss, reason = "figures for people")]
pub(in crate::dialects) fn of_engine(description: &EngineDescription) -> Option<String> {
    let totals = description.totals?;
    let per = |amount: u64, of: f64| if of > 0.0 { amount as f64 / of } else { 0.0 };
    let working = description
        .sequences
        .iter()
        .filter(|one| props::is_busy(one))
        .count();
    let counter = "counter";
    let gauge = "gauge";
    let all = [
        (
            counter,
            "prompt_tokens_total",
            "Prompt tokens that were read, without cached ones.",
            totals.prompt_tokens as f64,
        ),
        (
            counter,
            "prompt_tokens_cached_total",
            "Prompt tokens that were cached.",
            totals.cached_tokens as f64,
        ),
        (
            counter,
            "prompt_seconds_total",
            "Time in which prompts were read.",
            totals.prompt_seconds,
        ),
        (
            counter,
            "tokens_predicted_total",
            "Tokens that were generated.",
            totals.generated_tokens as f64,
        ),
        (
            counter,
            "tokens_predicted_seconds_total",
            "Time in which tokens were generated.",
            totals.generated_seconds,
        ),
        (
            counter,
            "n_decode_total",
            "Decodes of tokens.",
            totals.decodes as f64,
        ),
        (
            counter,
            "n_tokens_max",
            "Tokens of the longest sequence, prompt and answer.",
            totals.longest_tokens as f64,
        ),
        (
            gauge,
            "prompt_tokens_seconds",
            "Prompt tokens per second.",
            per(totals.prompt_tokens, totals.prompt_seconds),
        ),
        (
            gauge,
            "predicted_tokens_seconds",
            "Generated tokens per second.",
            per(totals.generated_tokens, totals.generated_seconds),
        ),
        (gauge, "requests_processing", "Requests that run.", working as f64),
        (
            gauge,
            "requests_deferred",
            "Requests that wait in the engine: none, they wait in its worker.",
            0.0,
        ),
        (
            gauge,
            "n_busy_slots_per_decode",
            "Sequences in a decode, on average.",
            per(totals.decoded_sequences, totals.decodes as f64),
        ),
    ];
    let mut text = String::new();
    for (kind, name, help, value) in all {
        // A text can always be written to.
        let _ = write!(
            text,
            "# HELP llamacpp:{name} {help}\n# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {value}\n"
        );
    }
    Some(text)
}

/// Seed 004's counters of the KV cache.
pub(in crate::dialects) fn of_cache(description: &EngineDescription) -> String {
    let used: u64 = description
        .sequences
        .iter()
        .map(|sequence| u64::from(sequence.cached_tokens))
        .sum();
    let cells = description
        .settings
        .as_ref()
        .map_or(0, |settings| settings.ctx_size);
    #[allow(clippy::cast_precision_loss, reason = "a ratio for people")]
    let ratio = if cells == 0 {
        0.0
    } else {
        used as f64 / f64::from(cells)
    };
    format!(
        "# HELP llamacpp:kv_cache_usage_ratio KV-cache usage. 1 means 100 percent usage.\n\
         # TYPE llamacpp:kv_cache_usage_ratio gauge\n\
         llamacpp:kv_cache_usage_ratio {ratio}\n\
         # HELP llamacpp:kv_cache_tokens KV-cache tokens.\n\
         # TYPE llamacpp:kv_cache_tokens gauge\n\
         llamacpp:kv_cache_tokens {used}\n"
    )
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::{EngineTotals, ModelSettings, SequencePhase, SequenceState};

    use super::*;

    #[test]
    fn seed_004_counters_of_the_cache_are_made_of_the_sequences() {
        let sequence = |cached_tokens| SequenceState {
            cached_tokens,
            ..SequenceState::default()
        };
        let text = of_cache(&EngineDescription {
            sequences: vec![sequence(100), sequence(28)],
            settings: Some(ModelSettings {
                ctx_size: 512,
                ..ModelSettings::default()
            }),
            ..EngineDescription::default()
        });
        assert!(text.contains("llamacpp:kv_cache_tokens 128\n"), "{text}");
        assert!(text.contains("llamacpp:kv_cache_usage_ratio 0.25\n"), "{text}");
    }

    #[test]
    fn an_engine_that_counts_has_llama_cpps_counters() {
        let totals = EngineTotals {
            prompt_tokens: 100,
            prompt_seconds: 0.5,
            generated_tokens: 30,
            decodes: 4,
            decoded_sequences: 6,
            ..EngineTotals::default()
        };
        let busy = SequenceState {
            phase: SequencePhase::Decode.into(),
            ..SequenceState::default()
        };
        let idle = SequenceState {
            phase: SequencePhase::Idle.into(),
            ..SequenceState::default()
        };
        let description = EngineDescription {
            totals: Some(totals),
            sequences: vec![busy, idle],
            ..EngineDescription::default()
        };
        let text = of_engine(&description).unwrap();
        for line in [
            "# TYPE llamacpp:prompt_tokens_total counter",
            "llamacpp:prompt_tokens_total 100",
            "llamacpp:prompt_tokens_seconds 200",
            "llamacpp:predicted_tokens_seconds 0",
            "llamacpp:requests_processing 1",
            "llamacpp:n_busy_slots_per_decode 1.5",
        ] {
            assert!(text.lines().any(|own| own == line), "{line}: {text}");
        }
        assert!(of_engine(&EngineDescription::default()).is_none());
    }
}
