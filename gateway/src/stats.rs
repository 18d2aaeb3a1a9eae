//! Figures about the last request of this gateway (seed 000, `GET /api/v1/stats`).

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use muster_proto::v1::{Delta, Event, Finished, Usage, event::Kind};
use serde::Serialize;
use utoipa::ToSchema;

use crate::metrics;

/// Largest number of token times that are kept per request.
const MOST_TIMES: usize = 16_384;

/// Figures about the last request; zeros before the first one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
#[schema(as = LemonadeStats)]
pub(crate) struct Last {
    /// Seconds from the request to its first token.
    pub(crate) time_to_first_token: f64,
    /// Tokens generated per second.
    pub(crate) tokens_per_second: f64,
    /// Prompt tokens that were evaluated.
    pub(crate) input_tokens: u32,
    /// Tokens that were generated.
    pub(crate) output_tokens: u32,
    /// Seconds for each generated token; at most the first 16384.
    pub(crate) decode_token_times: Vec<f64>,
    /// Prompt tokens, those from the cache included.
    pub(crate) prompt_tokens: u32,
    /// Prompt tokens that came from the cache.
    pub(crate) cache_tokens: u32,
}

/// Figures since this gateway started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = LemonadeTotals)]
pub(crate) struct Totals {
    /// Answers that ended well, those that generated nothing included.
    pub(crate) request_count_total: u64,
    /// Prompt tokens that were evaluated.
    pub(crate) input_tokens_total: u64,
    /// Tokens that were generated.
    pub(crate) output_tokens_total: u64,
    /// Prompt tokens, those from the cache included.
    pub(crate) prompt_tokens_total: u64,
    /// Prompt tokens that came from the cache.
    pub(crate) cache_tokens_total: u64,
}

impl Totals {
    fn add(&mut self, usage: &Usage) {
        self.request_count_total += 1;
        self.input_tokens_total += u64::from(usage.prompt_tokens.saturating_sub(usage.cached_tokens));
        self.output_tokens_total += u64::from(usage.completion_tokens);
        self.prompt_tokens_total += u64::from(usage.prompt_tokens);
        self.cache_tokens_total += u64::from(usage.cached_tokens);
    }
}

/// Figures of requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
#[schema(as = LemonadeFigures)]
pub(crate) struct Figures {
    /// Of the last one that generated.
    #[serde(flatten)]
    pub(crate) last: Last,
    /// Of all.
    #[serde(flatten)]
    pub(crate) totals: Totals,
}

/// The figures, shared by all threads and written once per request.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    /// Held only for a copy, never across an await: a std mutex is enough. So is the next one.
    seen: Mutex<Seen>,
    /// Number of answers of each model that are being streamed to clients; models without any are absent.
    streams: Mutex<HashMap<String, usize>>,
}

/// The figures of requests.
#[derive(Debug, Default)]
struct Seen {
    /// With any key.
    overall: Figures,
    /// With each key; the last request is none if none generated. The empty key stands for requests without a key.
    by_key: HashMap<String, (Option<Last>, Totals)>,
    /// To each model.
    by_model: BTreeMap<String, Figures>,
}

impl Stats {
    /// The figures of all requests, or of those with a caller's key. If that key had no last one, it is the last one without a key.
    pub(crate) fn figures(&self, of_key: Option<&str>) -> Figures {
        let seen = self.lock();
        let Some(key) = of_key else {
            return seen.overall.clone();
        };
        let last = |key: &str| seen.by_key.get(key).and_then(|(last, _)| last.clone());
        Figures {
            last: last(key).or_else(|| last("")).unwrap_or_default(),
            totals: seen
                .by_key
                .get(key)
                .map(|(_, totals)| *totals)
                .unwrap_or_default(),
        }
    }

    /// The figures of the requests to each model.
    pub(crate) fn of_models(&self) -> BTreeMap<String, Figures> {
        self.lock().by_model.clone()
    }

    /// Whether an answer of the model is being streamed to a client of this gateway.
    pub(crate) fn streams(&self, model: &str) -> bool {
        self.open_streams().contains_key(model)
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_streams(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An answer that is being streamed; dropped with it.
#[derive(Debug)]
pub(crate) struct Streaming {
    stats: Arc<Stats>,
    model: String,
}

impl Drop for Streaming {
    fn drop(&mut self) {
        let mut streams = self.stats.open_streams();
        if let Some(count) = streams.get_mut(&self.model) {
            *count -= 1;
            if *count == 0 {
                streams.remove(&self.model);
            }
        }
    }
}

/// Measures one request.
#[derive(Debug)]
pub(crate) struct Meter {
    stats: Arc<Stats>,
    key: String,
    model: String,
    began: Instant,
    first: Option<Instant>,
    latest: Instant,
    generated: u32,
    times: Vec<f64>,
}

impl Meter {
    /// Measures a request with this key to `model` that began at `began`.
    pub(crate) fn new(stats: Arc<Stats>, key: String, model: String, began: Instant) -> Self {
        Self {
            stats,
            key,
            model,
            began,
            first: None,
            latest: began,
            generated: 0,
            times: Vec::new(),
        }
    }

    /// Counts the answer as one that is being streamed, until the result is dropped.
    pub(crate) fn streaming(&self) -> Streaming {
        *self.stats.open_streams().entry(self.model.clone()).or_default() += 1;
        Streaming {
            stats: Arc::clone(&self.stats),
            model: self.model.clone(),
        }
    }

    /// Records an event that came at `now`.
    pub(crate) fn event(&mut self, event: &Event, now: Instant) {
        match &event.kind {
            Some(Kind::Delta(delta)) => self.delta(delta, now),
            Some(Kind::Finished(finished)) => {
                let usage = finished.usage.unwrap_or_default();
                metrics::ended(&self.model, Some(&usage));
                self.count(&usage);
                // Only requests that generate have figures. Tokens without visible text count as generated.
                let generated = finished.usage.is_some_and(|usage| usage.completion_tokens > 0);
                if generated || self.first.is_some() {
                    self.finish(finished, now);
                }
            }
            Some(Kind::Failed(_)) => metrics::ended(&self.model, None),
            Some(
                Kind::Admitted(_)
                | Kind::Progress(_)
                | Kind::ChoiceFinished(_)
                | Kind::Embedded(_)
                | Kind::Reranked(_),
            )
            | None => {}
        }
    }

    /// Tokens that come together share the time since the previous ones.
    fn delta(&mut self, delta: &Delta, now: Instant) {
        if self.first.is_none() {
            self.first = Some(now);
            metrics::first_token(&self.model, now.duration_since(self.began));
        }
        let tokens = delta.generated.saturating_sub(self.generated).max(1);
        self.generated = self.generated.max(delta.generated);
        let each = now.duration_since(self.latest).as_secs_f64() / f64::from(tokens);
        self.latest = now;
        let room = MOST_TIMES - self.times.len();
        let tokens = usize::try_from(tokens).unwrap_or(usize::MAX).min(room);
        self.times.extend(std::iter::repeat_n(each, tokens));
    }

    fn finish(&mut self, finished: &Finished, now: Instant) {
        let usage = finished.usage.unwrap_or_default();
        if self.first.is_none() {
            // No token came as an event of its own: all came with the end.
            self.first = Some(now);
            let each = now.duration_since(self.latest).as_secs_f64() / f64::from(usage.completion_tokens);
            self.latest = now;
            let tokens = usize::try_from(usage.completion_tokens).unwrap_or(usize::MAX);
            self.times = vec![each; tokens.min(MOST_TIMES)];
        }
        let first = self.first.unwrap_or(now);
        let seconds = match finished.timings {
            Some(timings) if timings.predicted_ms > 0.0 => timings.predicted_ms / 1000.0,
            Some(_) | None => self.latest.duration_since(first).as_secs_f64(),
        };
        let rate = f64::from(usage.completion_tokens) / seconds;
        let last = Last {
            time_to_first_token: first.duration_since(self.began).as_secs_f64(),
            tokens_per_second: if rate.is_finite() { rate } else { 0.0 },
            input_tokens: usage.prompt_tokens.saturating_sub(usage.cached_tokens),
            output_tokens: usage.completion_tokens,
            decode_token_times: std::mem::take(&mut self.times),
            prompt_tokens: usage.prompt_tokens,
            cache_tokens: usage.cached_tokens,
        };
        let mut seen = self.stats.lock();
        seen.by_key.entry(self.key.clone()).or_default().0 = Some(last.clone());
        seen.by_model.entry(self.model.clone()).or_default().last = last.clone();
        seen.overall.last = last;
    }

    fn count(&self, usage: &Usage) {
        let mut seen = self.stats.lock();
        seen.overall.totals.add(usage);
        seen.by_key.entry(self.key.clone()).or_default().1.add(usage);
        seen.by_model
            .entry(self.model.clone())
            .or_default()
            .totals
            .add(usage);
    }
}

#[cfg(test)]
mod tests;
