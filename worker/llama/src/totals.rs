//! What the loop did since the model was loaded. Written by the loop alone, read by anyone.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use muster_proto::v1::{EngineTotals, Timings};

/// Counters.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    prompt_micros: AtomicU64,
    generated_tokens: AtomicU64,
    generated_micros: AtomicU64,
    decodes: AtomicU64,
    decoded_sequences: AtomicU64,
    longest_tokens: AtomicU64,
}

impl Totals {
    /// A request has ended.
    pub(crate) fn ended(&self, timings: &Timings) {
        let add = |counter: &AtomicU64, value: u64| counter.fetch_add(value, Relaxed);
        add(&self.prompt_tokens, timings.prompt_n.into());
        add(&self.cached_tokens, timings.cache_n.into());
        add(&self.prompt_micros, micros(timings.prompt_ms));
        add(&self.generated_tokens, timings.predicted_n.into());
        add(&self.generated_micros, micros(timings.predicted_ms));
        let all = [timings.prompt_n, timings.cache_n, timings.predicted_n].map(u64::from);
        self.longest_tokens.fetch_max(all.iter().sum(), Relaxed);
    }

    /// A decode took tokens of so many sequences.
    pub(crate) fn decoded(&self, sequences: usize) {
        self.decodes.fetch_add(1, Relaxed);
        self.decoded_sequences.fetch_add(sequences as u64, Relaxed);
    }

    /// The sums so far.
    pub(crate) fn read(&self) -> EngineTotals {
        let seconds = |counter: &AtomicU64| Duration::from_micros(counter.load(Relaxed)).as_secs_f64();
        EngineTotals {
            prompt_tokens: self.prompt_tokens.load(Relaxed),
            cached_tokens: self.cached_tokens.load(Relaxed),
            prompt_seconds: seconds(&self.prompt_micros),
            generated_tokens: self.generated_tokens.load(Relaxed),
            generated_seconds: seconds(&self.generated_micros),
            decodes: self.decodes.load(Relaxed),
            decoded_sequences: self.decoded_sequences.load(Relaxed),
            longest_tokens: self.longest_tokens.load(Relaxed),
        }
    }
}

fn micros(millis: f64) -> u64 {
    let time = Duration::try_from_secs_f64(millis / 1e3).unwrap_or_default();
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_decodes_add_up() {
        let totals = Totals::default();
        let timings = Timings {
            prompt_n: 10,
            prompt_ms: 1500.0,
            cache_n: 5,
            predicted_n: 3,
            predicted_ms: 250.0,
            queue_ms: 0.0,
        };
        totals.ended(&timings);
        totals.ended(&Timings {
            predicted_n: 1,
            ..timings
        });
        totals.decoded(2);
        totals.decoded(1);
        let read = totals.read();
        assert_eq!(
            (
                read.prompt_tokens,
                read.cached_tokens,
                read.generated_tokens,
                read.longest_tokens
            ),
            (20, 10, 4, 18)
        );
        assert_eq!((read.decodes, read.decoded_sequences), (2, 3));
        assert!((read.prompt_seconds - 3.0).abs() < 1e-9 && (read.generated_seconds - 0.5).abs() < 1e-9);
    }
}
