//! Figures about the last request of this gateway (seed 000, `GET /api/v1/stats`).

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use muster_proto::v1::{Delta, Event, Finished, event::Kind};
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

/// The figures, shared by all threads and written once per request.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    /// Held only for a copy, never across an await: a std mutex is enough. So is the next one.
    last: Mutex<Lasts>,
    /// Number of answers of each model that are being streamed to clients; models without any are absent.
    streams: Mutex<HashMap<String, usize>>,
}

/// The figures of the last requests.
#[derive(Debug, Default)]
struct Lasts {
    /// Of the last request with any key.
    overall: Last,
    /// Of the last request with each key. The empty key stands for requests without a key.
    by_key: HashMap<String, Last>,
}

impl Stats {
    /// The figures of the last request: of all, or of a caller's key. If that key had none, those of the last request without a key.
    pub(crate) fn last(&self, of_key: Option<&str>) -> Last {
        let lasts = self.lock();
        let Some(key) = of_key else {
            return lasts.overall.clone();
        };
        let own = lasts.by_key.get(key).or_else(|| lasts.by_key.get(""));
        own.cloned().unwrap_or_default()
    }

    /// Whether an answer of the model is being streamed to a client of this gateway.
    pub(crate) fn streams(&self, model: &str) -> bool {
        self.open_streams().contains_key(model)
    }

    fn lock(&self) -> MutexGuard<'_, Lasts> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
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
                metrics::ended(&self.model, Some(&finished.usage.unwrap_or_default()));
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
        let mut lasts = self.stats.lock();
        lasts.by_key.insert(self.key.clone(), last.clone());
        lasts.overall = last;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use muster_proto::v1::{Timings, Usage};

    use super::*;

    fn event(kind: Kind) -> Event {
        Event {
            kind: Some(kind),
            extra_json: String::new(),
        }
    }

    fn finished() -> Event {
        event(Kind::Finished(Finished {
            usage: Some(Usage {
                prompt_tokens: 9,
                cached_tokens: 4,
                completion_tokens: 5,
                ..Usage::default()
            }),
            timings: Some(Timings {
                predicted_ms: 500.0,
                ..Timings::default()
            }),
            id_slot: None,
        }))
    }

    #[test]
    fn seed_000_figures_of_a_request() {
        let stats = Arc::new(Stats::default());
        let began = Instant::now();
        let mut meter = Meter::new(Arc::clone(&stats), String::new(), "m".into(), began);
        let at = |millis| began + Duration::from_millis(millis);
        for (generated, millis) in [(1, 2000), (3, 2100), (5, 2300)] {
            let delta = Delta {
                generated,
                ..Delta::default()
            };
            meter.event(&event(Kind::Delta(delta)), at(millis));
        }
        meter.event(&finished(), at(2400));
        let last = stats.last(None);
        assert!((last.time_to_first_token - 2.0).abs() < 1e-9);
        assert!((last.tokens_per_second - 10.0).abs() < 1e-9);
        let figures = (
            last.input_tokens,
            last.output_tokens,
            last.prompt_tokens,
            last.cache_tokens,
        );
        assert_eq!(figures, (5, 5, 9, 4));
        let expected = [2.0, 0.05, 0.05, 0.1, 0.1];
        assert_eq!(last.decode_token_times.len(), expected.len());
        for (time, expected) in last.decode_token_times.iter().zip(expected) {
            assert!((time - expected).abs() < 1e-9, "{time} is not {expected}");
        }
    }

    /// Regression (issue 10, 3.13): `/stats` showed each user the timings of others.
    #[test]
    fn a_user_is_shown_his_own_figures_or_nobodys() {
        let stats = Arc::new(Stats::default());
        let began = Instant::now();
        let run = |key: &str, seconds| {
            let mut meter = Meter::new(Arc::clone(&stats), key.into(), "m".into(), began);
            meter.event(&finished(), began + Duration::from_secs(seconds));
        };
        let seen = |key: &str, oversees: bool| stats.last((!oversees).then_some(key)).time_to_first_token;
        run("a", 1);
        assert_eq!(
            (seen("a", false), seen("b", false), seen("z", true)),
            (1.0, 0.0, 1.0)
        );
        run("b", 2);
        run("", 3);
        run("a", 4);
        assert_eq!(
            (seen("a", false), seen("b", false), seen("c", false)),
            (4.0, 2.0, 3.0)
        );
        assert_eq!(seen("c", true), 4.0);
    }

    #[test]
    fn a_model_streams_until_its_last_stream_ends() {
        let stats = Arc::new(Stats::default());
        let meter = Meter::new(Arc::clone(&stats), String::new(), "m".into(), Instant::now());
        assert!(!stats.streams("m"));
        let (one, two) = (meter.streaming(), meter.streaming());
        drop(one);
        assert!(stats.streams("m") && !stats.streams("other"));
        drop(two);
        assert!(!stats.streams("m"));
    }

    #[test]
    fn what_generates_nothing_leaves_the_figures_as_they_are() {
        let stats = Arc::new(Stats::default());
        let mut meter = Meter::new(Arc::clone(&stats), String::new(), "m".into(), Instant::now());
        let embedded = event(Kind::Finished(Finished {
            usage: Some(Usage {
                prompt_tokens: 9,
                ..Usage::default()
            }),
            ..Finished::default()
        }));
        meter.event(&embedded, Instant::now());
        assert_eq!(stats.last(None), Last::default());
    }

    #[test]
    fn tokens_without_visible_text_count() {
        let stats = Arc::new(Stats::default());
        let began = Instant::now();
        let mut meter = Meter::new(Arc::clone(&stats), String::new(), "m".into(), began);
        meter.event(&finished(), began + Duration::from_millis(1500));
        let last = stats.last(None);
        assert_eq!((last.output_tokens, last.prompt_tokens), (5, 9));
        assert!((last.time_to_first_token - 1.5).abs() < 1e-9);
        assert!((last.tokens_per_second - 10.0).abs() < 1e-9);
        assert_eq!(last.decode_token_times.len(), 5);
        assert!((last.decode_token_times[0] - 0.3).abs() < 1e-9);
    }

    #[test]
    fn an_endless_answer_does_not_fill_memory() {
        let stats = Arc::new(Stats::default());
        let began = Instant::now();
        let mut meter = Meter::new(Arc::clone(&stats), String::new(), "m".into(), began);
        let delta = Delta {
            generated: u32::MAX,
            ..Delta::default()
        };
        meter.event(&event(Kind::Delta(delta)), began);
        assert_eq!(meter.times.len(), MOST_TIMES);
    }
}
