use std::time::Duration;

use muster_proto::v1::Timings;

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
    let last = stats.figures(None).last;
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
    let seen = |key: &str, oversees: bool| stats.figures((!oversees).then_some(key)).last.time_to_first_token;
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
    assert_eq!(stats.figures(None).last, Last::default());
    assert_eq!(stats.figures(None).totals.prompt_tokens_total, 9);
}

#[test]
fn totals_are_of_all_requests_of_a_callers_and_of_a_models() {
    let stats = Arc::new(Stats::default());
    for (key, model) in [("a", "m"), ("a", "n"), ("b", "m"), ("", "m")] {
        let mut meter = Meter::new(Arc::clone(&stats), key.into(), model.into(), Instant::now());
        meter.event(&finished(), Instant::now());
    }
    let times = |count: u64| Totals {
        request_count_total: count,
        input_tokens_total: 5 * count,
        output_tokens_total: 5 * count,
        prompt_tokens_total: 9 * count,
        cache_tokens_total: 4 * count,
    };
    let totals = |key| stats.figures(key).totals;
    assert_eq!(totals(None), times(4));
    assert_eq!((totals(Some("a")), totals(Some("b"))), (times(2), times(1)));
    assert_eq!(totals(Some("c")), times(0), "nobody else's are shown");
    let models = stats.of_models();
    assert_eq!((models["m"].totals, models["n"].totals), (times(3), times(1)));
}

#[test]
fn tokens_without_visible_text_count() {
    let stats = Arc::new(Stats::default());
    let began = Instant::now();
    let mut meter = Meter::new(Arc::clone(&stats), String::new(), "m".into(), began);
    meter.event(&finished(), began + Duration::from_millis(1500));
    let last = stats.figures(None).last;
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
