//! What every row of the table promises.

use super::*;

#[test]
fn each_name_means_one_parameter_and_each_default_is_of_its_kind() {
    let mut names = std::collections::HashSet::new();
    for row in SAMPLING.iter() {
        for name in row.aliases.iter().chain([&row.name]) {
            assert!(names.insert(*name), "{name} is there twice");
        }
        let default = Value::from(row.default);
        assert_eq!(row.kind.check(&default), Ok(()), "{}", row.name);
        let json = serde_json::Value::from(default.clone());
        assert_eq!(row.kind.read(&json), Some(default.clone()), "{}", row.name);
        let mut message = v1::Sampling::default();
        assert_eq!((row.get)(&message), None, "{}", row.name);
        (row.set)(&mut message, default.clone());
        assert_eq!((row.get)(&message), Some(default), "{}", row.name);
        assert_eq!(SAMPLING.said(&message).count(), 1, "{}", row.name);
    }
}

#[test]
fn what_is_asked_for_comes_before_what_the_model_has() {
    let mut asked = v1::Sampling {
        top_k: Some(3),
        dry_sequence_breakers: Some(v1::Words::default()),
        ..v1::Sampling::default()
    };
    let model = v1::Sampling {
        top_k: Some(7),
        min_p: Some(0.5),
        dry_sequence_breakers: Some(v1::Words {
            words: vec!["x".into()],
        }),
        ..v1::Sampling::default()
    };
    SAMPLING.fill(&mut asked, &model);
    assert_eq!((asked.top_k, asked.min_p), (Some(3), Some(0.5)));
    assert_eq!(
        asked.dry_sequence_breakers,
        Some(v1::Words::default()),
        "none is something"
    );
}

#[test]
fn the_whole_context_is_a_number_of_tokens() {
    let mut sampling = v1::Sampling {
        repeat_last_n: Some(-1),
        dry_penalty_last_n: Some(i32::MAX),
        top_k: Some(-1),
        ..v1::Sampling::default()
    };
    SAMPLING.within(&mut sampling, 512);
    let looks = (
        sampling.repeat_last_n,
        sampling.dry_penalty_last_n,
        sampling.top_k,
    );
    assert_eq!(looks, (Some(512), Some(512), Some(-1)));
}

#[test]
fn values_that_no_sampler_is_defined_for_are_refused_by_name() {
    let wrong = |sampling: v1::Sampling| SAMPLING.check(&sampling).unwrap_err().1;
    let nan = v1::Sampling {
        dry_base: Some(f32::NAN),
        ..v1::Sampling::default()
    };
    assert_eq!(wrong(nan), "`dry_base` is not a finite number");
    let three = v1::Sampling {
        mirostat: Some(3),
        ..v1::Sampling::default()
    };
    assert_eq!(wrong(three), "`mirostat` must be between 0 and 2, not 3");
    let zero = v1::Sampling {
        repeat_penalty: Some(0.0),
        ..v1::Sampling::default()
    };
    assert_eq!(wrong(zero), "`repeat_penalty` must be greater than 0");
}
