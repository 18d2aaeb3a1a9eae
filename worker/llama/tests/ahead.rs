//! Tokens that are guessed ahead never show in an answer: it is the same, token by token, and so are its probabilities, stops and limits.
//!
//! As in tests/kinds.rs without flash attention and half precision in the caches, whose roundings change with the shape of a batch.
mod support;

use muster_proto::v1::{GenerateRequest, ModelSettings, Sampling};
use support::{Answer, Choice, Engine, Session, completion, greedy, settings};

fn of(file: &str) -> ModelSettings {
    ModelSettings {
        flash_attention: "off".into(),
        cache_type_k: "f32".into(),
        cache_type_v: "f32".into(),
        ..settings(file)
    }
}

fn guessing(request: GenerateRequest, most: u32) -> GenerateRequest {
    GenerateRequest {
        extra_json: format!(r#"{{"speculative.n_max": {most}}}"#),
        ..request
    }
}

/// A text that says everything twice, so that there is always something to guess by.
fn twice(words: usize) -> String {
    let all = "the house of the people was near the water and every day the children went there to hear a story of the world ";
    let half: String = all.split_inclusive(' ').cycle().take(words).collect();
    format!("{half}{half}")
}

async fn both(session: &mut Session, request: GenerateRequest) -> (Answer, Answer) {
    let without = session.run(guessing(request.clone(), 0)).await;
    let with = session.run(guessing(request, 16)).await;
    assert_eq!(without.usage().draft_tokens, 0);
    (without, with)
}

fn same(without: &Answer, with: &Answer) {
    assert_eq!(with.text(), without.text());
    let (with, without) = (with.end(), without.end());
    assert_eq!(
        (with.reason, &with.stopping_word, with.generated, with.truncated),
        (
            without.reason,
            &without.stopping_word,
            without.generated,
            without.truncated
        )
    );
}

#[tokio::test]
async fn every_kind_of_memory_gives_the_same_answer_with_and_without_guesses() {
    for (file, takes_back) in [
        ("tiny-chat.gguf", true),
        ("tiny-swa.gguf", true),
        ("tiny-gpt-oss.gguf", true),
        ("tiny-mamba.gguf", false),
        ("tiny-lfm2.gguf", false),
        ("tiny-granite.gguf", false),
    ] {
        let mut engine = Engine::with(of(file)).await;
        let mut session = engine.session().await;
        let (mut drafted, mut accepted) = (0, 0);
        for words in [4, 20, 80, 150] {
            let (without, with) = both(&mut session, completion(&twice(words), 48)).await;
            same(&without, &with);
            drafted += with.usage().draft_tokens;
            accepted += with.usage().draft_accepted_tokens;
        }
        assert_eq!(drafted > 0, takes_back, "{file}");
        assert!(accepted <= drafted, "{file}");
        if takes_back {
            assert!(accepted > 0, "{file}: none of {drafted} guesses was right");
            assert!(accepted < drafted, "{file}: all of {drafted} guesses were right");
        }
    }
}

#[tokio::test]
async fn what_is_drawn_is_the_same_too() {
    let mut engine = Engine::with(of("tiny-chat.gguf")).await;
    let mut session = engine.session().await;
    let mut accepted = 0;
    for seed in 0..8 {
        let request = GenerateRequest {
            sampling: Some(Sampling {
                temperature: Some(0.4),
                seed: Some(seed),
                repeat_penalty: Some(1.05),
                ..Sampling::default()
            }),
            ..completion(&twice(30), 40)
        };
        let (without, with) = both(&mut session, request).await;
        same(&without, &with);
        accepted += with.usage().draft_accepted_tokens;
    }
    assert!(accepted > 0);
}

#[tokio::test]
async fn probabilities_tokens_stops_and_limits_are_the_same() {
    let mut engine = Engine::with(of("tiny-chat.gguf")).await;
    let mut session = engine.session().await;
    let plain = completion(&twice(40), 40);
    let (whole, _) = both(&mut session, plain.clone()).await;
    let text = whole.text().to_owned();
    let word = text.split(' ').filter(|word| word.len() > 2).nth(5).unwrap();
    for request in [
        GenerateRequest {
            logprobs: true,
            top_logprobs: 3,
            return_tokens: true,
            ..plain.clone()
        },
        GenerateRequest {
            stop: vec![word.to_owned()],
            ..plain.clone()
        },
        GenerateRequest {
            max_tokens: Some(7),
            ..plain.clone()
        },
        GenerateRequest {
            max_tokens: None,
            ..plain.clone()
        },
        GenerateRequest {
            constraint: Some(muster_proto::v1::generate_request::Constraint::Grammar(
                r#"root ::= ("the house " | "of the ")+"#.into(),
            )),
            ..plain.clone()
        },
    ] {
        let (without, with) = both(&mut session, request).await;
        same(&without, &with);
        let (with, without) = (&with.choices[0], &without.choices[0]);
        assert_eq!(with.tokens, without.tokens);
        let told = |answer: &Choice| -> Vec<(i32, Vec<i32>)> {
            let others = |one: &muster_proto::v1::TokenLogprob| one.top.iter().map(|top| top.token).collect();
            answer
                .logprobs
                .iter()
                .map(|one| (one.token, others(one)))
                .collect()
        };
        assert_eq!(told(with), told(without));
        let apart = |(a, b): (&muster_proto::v1::TokenLogprob, &muster_proto::v1::TokenLogprob)| {
            (a.logprob - b.logprob).abs()
        };
        let most = with
            .logprobs
            .iter()
            .zip(&without.logprobs)
            .map(apart)
            .fold(0.0, f32::max);
        assert!(most < 1e-3, "{most}");
    }
}

/// Beside each other, with several choices, with little credit, with too little memory for all: each as if it were alone.
#[tokio::test]
async fn sequences_that_guess_do_not_disturb_each_other() {
    for sequences in [3, 6] {
        let mut engine = Engine::with(ModelSettings {
            sequences,
            ctx_size: 512,
            ..of("tiny-chat.gguf")
        })
        .await;
        let mut session = engine.session().await;
        let request = |words: usize| completion(&twice(words), 60);
        let mut alone = Vec::new();
        for words in [5, 9, 17, 30, 41] {
            alone.push(session.run(guessing(request(words), 0)).await.text().to_owned());
        }
        let mut streams = Vec::new();
        for words in [5, 9, 17, 30, 41] {
            let work = muster_proto::v1::start::Work::Generate(guessing(request(words), 16));
            streams.push(session.start(work, 1000).await);
        }
        let mut ran = 0;
        for (stream, alone) in streams.into_iter().zip(&alone) {
            let answer = stream.answer().await;
            // more than there is room for is the worker's to queue
            if answer.code() != "no_room" {
                assert_eq!(answer.text(), alone);
                ran += 1;
            }
        }
        assert!(ran >= 2, "{ran}");
    }
}

#[tokio::test]
async fn a_guess_is_paid_for_like_any_token() {
    let mut engine = Engine::with(of("tiny-chat.gguf")).await;
    let mut session = engine.session().await;
    let work = muster_proto::v1::start::Work::Generate(guessing(completion(&twice(40), 40), 16));
    let mut stream = session.start(work, 3).await;
    let mut deltas = 0;
    while deltas < 3 {
        let (event, _) = stream.next().await;
        deltas += usize::from(matches!(
            event.kind,
            Some(muster_proto::v1::event::Kind::Delta(_))
        ));
    }
    assert!(stream.quiet_for(std::time::Duration::from_millis(300)).await);
    let handle = stream.handle;
    session.credit(handle, 1000).await;
    let answer = stream.answer().await;
    assert_eq!(answer.end().generated, 40);
}

#[tokio::test]
async fn a_model_that_is_told_not_to_guesses_nothing_and_wrong_wishes_are_named() {
    let mut engine = Engine::with(ModelSettings {
        args: vec!["--spec-type".into(), "none".into()],
        ..of("tiny-chat.gguf")
    })
    .await;
    let mut session = engine.session().await;
    let answer = session.run(guessing(completion(&twice(40), 40), 16)).await;
    assert_eq!(answer.usage().draft_tokens, 0);
    assert_eq!(answer.end().generated, 40);
    for extra in [r#"{"speculative.n_max": "x"}"#, r#"{"speculative.n_maxx": 1}"#] {
        let request = GenerateRequest {
            extra_json: extra.into(),
            sampling: Some(greedy()),
            ..completion("the", 4)
        };
        let answer = session.run(request).await;
        assert!(
            ["invalid_request", "unsupported_by_runtime"].contains(&answer.code()),
            "{extra}"
        );
    }
}
