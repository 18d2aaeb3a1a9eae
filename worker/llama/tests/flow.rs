//! The session's flow: credits, cancellation, admission, prefix reuse, preemption, long prompts beside running answers.
mod support;

use std::time::{Duration, Instant};

use muster_proto::v1::{GenerateRequest, ModelSettings, SequencePhase, event, start::Work};
use support::{Engine, all_idle, completion, settings, until};

/// On a machine that does other work as well; the 200 ms of a quiet one are measured end to end (`tests/e2e/disconnect.rs`).
const SOON: Duration = Duration::from_secs(3);

#[tokio::test]
async fn cancelling_frees_the_sequence_in_prefill_and_in_decode() {
    let mut engine = Engine::with(ModelSettings {
        ctx_size: 32768,
        ..settings("tiny-chat.gguf")
    })
    .await;
    let mut session = engine.session().await;
    // in decode
    let mut stream = session.generate(completion("Forever", 30_000)).await;
    stream.first_delta().await;
    let begun = Instant::now();
    session.cancel(stream.handle).await;
    let answer = stream.answer().await;
    assert_eq!(answer.code(), "cancelled");
    until(&mut engine, "idle after a cancel in decode", all_idle).await;
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    // in prefill: a prompt that takes many ticks
    let stream = session
        .generate(completion(&"long prompt ".repeat(1200), 10))
        .await;
    until(&mut engine, "prefill", |d| {
        d.sequences
            .iter()
            .any(|s| s.phase == SequencePhase::Prefill as i32 && s.cached_tokens > 0)
    })
    .await;
    let begun = Instant::now();
    session.cancel(stream.handle).await;
    let answer = stream.answer().await;
    assert_eq!(answer.code(), "cancelled");
    assert_eq!(answer.choices.len(), 0, "it was cancelled before any output");
    until(&mut engine, "idle after a cancel in prefill", all_idle).await;
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

/// A call reads whole physical batches, which takes seconds where a model is slow: a cancel must not wait for the end of one.
#[tokio::test]
async fn a_cancel_in_the_middle_of_a_call_gives_the_call_up() {
    let mut engine = Engine::with(ModelSettings {
        ctx_size: 8192,
        batch_size: 4096,
        ubatch_size: 4096,
        ..settings("bench-chat.gguf")
    })
    .await;
    let mut session = engine.session().await;
    let stream = session
        .generate(completion(&"long prompt ".repeat(1000), 10))
        .await;
    until(&mut engine, "the first call", |d| d.iterations > 0).await;
    session.cancel(stream.handle).await;
    let answer = stream.answer().await;
    assert_eq!(answer.code(), "cancelled");
    until(&mut engine, "idle after a cancel", all_idle).await;
    let cached: u32 = engine
        .describe()
        .await
        .sequences
        .iter()
        .map(|s| s.cached_tokens)
        .sum();
    assert_eq!(cached, 0, "the call was read to its end");
    // and what follows is as it would have been
    let answer = session.run(completion("Afterwards", 5)).await;
    assert_eq!(answer.usage().completion_tokens, 5);
}

#[tokio::test]
async fn nothing_is_decoded_at_zero_credit() {
    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    let mut session = engine.session().await;
    let whole = session.run(completion("Credits", 20)).await;
    let mut stream = session.start(Work::Generate(completion("Credits", 20)), 3).await;
    let mut text = String::new();
    let mut deltas = 0;
    while deltas < 3 {
        if let Some(event::Kind::Delta(delta)) = stream.next().await.0.kind {
            text.push_str(&delta.content);
            deltas += 1;
        }
    }
    assert!(
        stream.quiet_for(Duration::from_millis(300)).await,
        "a fourth event without a credit"
    );
    let blocked = |d: &muster_proto::v1::EngineDescription| {
        d.sequences
            .iter()
            .any(|s| s.phase == SequencePhase::Blocked as i32)
    };
    until(&mut engine, "blocked", blocked).await;
    // others are not held up
    assert_eq!(
        session
            .run(completion("Someone else", 20))
            .await
            .usage()
            .completion_tokens,
        20
    );
    session.credit(stream.handle, 1000).await;
    let answer = stream.answer().await;
    text.push_str(answer.text());
    assert_eq!(text, whole.text());
    // no credit at all: admitted, then nothing
    let mut stream = session.start(Work::Generate(completion("None", 5)), 0).await;
    assert!(matches!(
        stream.next().await.0.kind,
        Some(event::Kind::Admitted(_))
    ));
    assert!(stream.quiet_for(Duration::from_millis(200)).await);
    session.cancel(stream.handle).await;
    assert_eq!(stream.answer().await.code(), "cancelled");
}

#[tokio::test]
async fn a_prefix_is_read_once() {
    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    let mut session = engine.session().await;
    let system = "You are a very helpful assistant who knows everything. ".repeat(8);
    let cold = session.run(completion(&format!("{system}First?"), 8)).await;
    assert_eq!(cold.usage().cached_tokens, 0);
    let warm = session.run(completion(&format!("{system}Second?"), 8)).await;
    assert!(warm.usage().cached_tokens > 100, "{:?}", warm.usage());
    let timings = warm.finished.as_ref().unwrap().timings.as_ref().unwrap();
    assert_eq!(timings.cache_n + timings.prompt_n, warm.usage().prompt_tokens);
    let off = session
        .run(GenerateRequest {
            cache_prompt: Some(false),
            ..completion(&format!("{system}Second?"), 8)
        })
        .await;
    assert_eq!(off.usage().cached_tokens, 0);
    assert_eq!(off.text(), warm.text(), "a reused prefix changes nothing");
    // while one runs, another shares its beginning
    let mut running = session
        .generate(completion(&format!("{system}Third?"), 1500))
        .await;
    running.first_delta().await;
    let beside = session.run(completion(&format!("{system}Fourth?"), 8)).await;
    assert!(beside.usage().cached_tokens > 100, "{:?}", beside.usage());
    session.cancel(running.handle).await;
    assert_eq!(running.answer().await.code(), "cancelled");
}

#[tokio::test]
async fn windows_and_recurrent_states_reuse_prefixes_correctly() {
    for file in ["tiny-swa.gguf", "tiny-mamba.gguf"] {
        let mut engine = Engine::with(settings(file)).await;
        let mut session = engine.session().await;
        let system = "A long beginning that several requests share, word by word. ".repeat(6);
        let first = session.run(completion(&system, 24)).await;
        let again = session.run(completion(&system, 24)).await;
        let fresh = session
            .run(GenerateRequest {
                cache_prompt: Some(false),
                ..completion(&system, 24)
            })
            .await;
        assert_eq!(first.text(), again.text(), "{file}");
        assert_eq!(first.text(), fresh.text(), "{file}");
        assert!(again.usage().cached_tokens > 50, "{file}: {:?}", again.usage());
        let two = session
            .run(GenerateRequest {
                n: 2,
                ..completion(&system, 24)
            })
            .await;
        assert!(
            two.choices.iter().all(|choice| choice.content == first.text()),
            "{file}"
        );
    }
}

#[tokio::test]
async fn sequences_that_do_not_fit_together_are_preempted_and_finish_all_the_same() {
    // four answers of 300 tokens want 1,200 cells of 512
    let mut engine = Engine::with(ModelSettings {
        ctx_size: 512,
        ..settings("tiny-chat.gguf")
    })
    .await;
    let mut session = engine.session().await;
    let prompts: Vec<String> = (0..4).map(|i| format!("Preempt me, number {i}.")).collect();
    let request = |prompt: &str| GenerateRequest {
        cache_prompt: Some(false),
        ..completion(prompt, 300)
    };
    let mut alone = Vec::new();
    for prompt in &prompts {
        alone.push(session.run(request(prompt)).await.text().to_owned());
    }
    let mut done = vec![None; prompts.len()];
    let mut refused = 0;
    while done.iter().any(Option::is_none) {
        let mut streams = Vec::new();
        for (index, prompt) in prompts
            .iter()
            .enumerate()
            .filter(|(index, _)| done[*index].is_none())
        {
            // promised little, so that all are admitted
            let stream = session
                .generate(GenerateRequest {
                    max_tokens: None,
                    stop: vec![],
                    ..request(prompt)
                })
                .await;
            streams.push((index, stream));
        }
        for (index, stream) in streams {
            let answer = stream.answer().await;
            match answer.code() {
                "" => done[index] = Some(answer),
                "no_room" => refused += 1,
                other => panic!("{other}"),
            }
        }
    }
    assert!(refused > 0, "admission counts cells");
    for (answer, alone) in done.into_iter().flatten().zip(&alone) {
        assert!(answer.text().starts_with(alone.as_str()) || alone.starts_with(answer.text()));
    }
    // n choices are admitted together and outgrow the cells
    let answer = session
        .run(GenerateRequest {
            n: 4,
            ..request(&prompts[0])
        })
        .await;
    assert_eq!(answer.code(), "");
    for choice in &answer.choices {
        assert_eq!(choice.content, alone[0]);
    }
}

#[tokio::test]
async fn a_long_prompt_does_not_stall_a_running_answer() {
    let mut engine = Engine::with(ModelSettings {
        ctx_size: 32768,
        ..settings("tiny-chat.gguf")
    })
    .await;
    let mut session = engine.session().await;
    let mut running = session.generate(completion("Keep talking", 20_000)).await;
    running.first_delta().await;
    let long = session
        .generate(GenerateRequest {
            return_progress: true,
            ..completion(&"a very long prompt ".repeat(300), 4)
        })
        .await;
    let reader = tokio::spawn(long.answer());
    let mut longest = Duration::ZERO;
    let mut last = Instant::now();
    let mut meanwhile = 0;
    while !reader.is_finished() {
        running.first_delta().await;
        meanwhile += 1;
        longest = longest.max(last.elapsed());
        last = Instant::now();
    }
    let answer = reader.await.unwrap();
    assert_eq!(answer.usage().completion_tokens, 4);
    let slices = answer.progress.len();
    assert!(slices > 2, "{:?}", answer.progress);
    assert!(
        meanwhile + 2 >= slices,
        "{meanwhile} tokens while {slices} slices of a prompt were read"
    );
    assert!(longest < SOON, "the running answer stood still for {longest:?}");
    session.cancel(running.handle).await;
    running.answer().await;
}

/// A 3,001-token prompt took 1.3 s the first time and 12 s from then on: slices shrank until each call was nearly all fixed cost.
#[tokio::test]
async fn the_tenth_prompt_is_read_in_as_few_calls_as_the_first() {
    const PHYSICAL: u32 = 256;
    let mut engine = Engine::with(ModelSettings {
        ctx_size: 16_384,
        batch_size: 1024,
        ubatch_size: PHYSICAL,
        ..settings("tiny-chat.gguf")
    })
    .await;
    let mut session = engine.session().await;
    for round in 0..10 {
        // first beside one who generates: that is what taught it small slices
        let mut running = session
            .generate(completion(&format!("{round} runs"), 10_000))
            .await;
        running.first_delta().await;
        let text = format!("{round} beside ").repeat(20);
        session.run(completion(&text, 1)).await;
        session.cancel(running.handle).await;
        running.answer().await;
        until(&mut engine, "idle", all_idle).await;
        let before = engine.describe().await.iterations;
        let text = format!("{round} alone ").repeat(400);
        let tokens = session.run(completion(&text, 1)).await.usage().prompt_tokens;
        let calls = engine.describe().await.iterations - before;
        assert!(tokens > 4 * PHYSICAL, "{tokens} tokens");
        let fewest = u64::from(tokens.div_ceil(PHYSICAL));
        assert!(
            calls <= fewest + 1,
            "{calls} calls for {tokens} tokens, round {round}"
        );
    }
}

#[tokio::test]
async fn more_requests_than_sequences_are_refused_not_queued() {
    let mut engine = Engine::with(ModelSettings {
        sequences: 2,
        ..settings("tiny-chat.gguf")
    })
    .await;
    let mut session = engine.session().await;
    let mut running = Vec::new();
    for i in 0..2 {
        let mut stream = session.generate(completion(&format!("{i}"), 700)).await;
        stream.first_delta().await;
        running.push(stream);
    }
    assert_eq!(session.run(completion("third", 4)).await.code(), "no_room");
    for stream in running {
        session.cancel(stream.handle).await;
        stream.answer().await;
    }
    assert_eq!(session.run(completion("third", 4)).await.code(), "");
}

#[tokio::test]
async fn asked_to_end_the_process_ends_with_its_session() {
    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    let mut session = engine.session().await;
    let mut stream = session.generate(completion("Until the end", 1500)).await;
    stream.first_delta().await;
    let begun = Instant::now();
    engine.terminate();
    while engine.is_running() {
        assert!(begun.elapsed() < Duration::from_secs(10), "still there");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn many_requests_that_come_and_go_leave_nothing_behind() {
    let mut engine = Engine::with(ModelSettings {
        sequences: 8,
        ctx_size: 1024,
        ..settings("tiny-chat.gguf")
    })
    .await;
    let mut session = engine.session().await;
    let whole = session.run(completion("Come and go", 40)).await;
    for round in 0..40_usize {
        let mut streams = Vec::new();
        for i in 0..12 {
            let n = if i % 5 == 0 { 2 } else { 1 };
            streams.push(
                session
                    .generate(GenerateRequest {
                        n,
                        ..completion("Come and go", 40)
                    })
                    .await,
            );
        }
        for (i, stream) in streams.iter().enumerate() {
            if (i + round).is_multiple_of(3) {
                session.cancel(stream.handle).await;
            }
        }
        for stream in streams {
            let answer = stream.answer().await;
            match answer.code() {
                "" => answer
                    .choices
                    .iter()
                    .for_each(|choice| assert_eq!(choice.content, whole.text())),
                "cancelled" | "no_room" => {}
                other => panic!("{other}"),
            }
        }
    }
    until(&mut engine, "idle at the end", all_idle).await;
    assert_eq!(
        session.run(completion("Come and go", 40)).await.text(),
        whole.text()
    );
}

#[tokio::test]
async fn the_end_of_a_session_cancels_what_runs_and_another_may_come() {
    let mut engine = Engine::with(ModelSettings {
        ctx_size: 32768,
        ..settings("tiny-chat.gguf")
    })
    .await;
    let mut session = engine.session().await;
    let mut stream = session.generate(completion("Endless", 30_000)).await;
    stream.first_delta().await;
    assert!(
        engine.client.run(tokio_stream::empty()).await.is_err(),
        "one session at a time"
    );
    drop(session);
    until(&mut engine, "idle after the session ended", all_idle).await;
    let mut session = engine.session().await;
    assert_eq!(
        session
            .run(completion("Again", 4))
            .await
            .usage()
            .completion_tokens,
        4
    );
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert!(*session.alives.lock().unwrap() >= 2, "signs of life");
}

/// They were read in order, and a start that the preparing threads had no place for held up everything behind it.
#[tokio::test]
async fn cancels_are_seen_behind_more_starts_than_can_be_prepared() {
    let mut engine = Engine::with(ModelSettings {
        ctx_size: 4096,
        ..settings("tiny-chat.gguf")
    })
    .await;
    let mut session = engine.session().await;
    let mut running = session
        .start(Work::Generate(completion("On and on", 3000)), 2)
        .await;
    running.first_delta().await;
    // each takes a while to read, and is found too long then
    let long = "a little too long ".repeat(3000);
    let mut starts = Vec::new();
    for _ in 0..600 {
        starts.push(session.generate(completion(&long, 1)).await);
    }
    session.cancel(running.handle).await;
    assert_eq!(running.answer().await.code(), "cancelled");
    let by_now = starts.iter_mut().filter_map(support::Stream::failed_by_now);
    let codes: Vec<String> = by_now.collect();
    let read = codes
        .iter()
        .filter(|code| *code == "context_length_exceeded")
        .count();
    let refused = codes.iter().filter(|code| *code == "no_room").count();
    assert_eq!(read + refused, codes.len(), "{codes:?}");
    assert!(
        read < 150,
        "{read} were read before the cancel, {refused} were refused"
    );
    // once those are read there is a place again
    let begun = Instant::now();
    let code = loop {
        let answer = session.run(completion("Still here", 1)).await;
        if answer.code() != "no_room" || begun.elapsed() > support::SOON {
            break answer.code().to_owned();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(code, "");
}
