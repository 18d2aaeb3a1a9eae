//! What every runtime must do, whatever is behind it. Each check takes a runtime's name and fitting settings.

use std::time::{Duration, Instant};

use muster_proto::v1::{GenerateRequest, ModelSettings, Sampling, event};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::timeout;

use crate::harness::{Bench, PATIENCE, Talk, alive, eventually, prompt};

/// One runtime under test.
#[derive(Clone, Copy)]
pub(crate) struct Subject {
    pub(crate) runtime: &'static str,
    pub(crate) settings: fn() -> ModelSettings,
    /// How soon after a cancel the sequence is free.
    pub(crate) bound: Duration,
}

impl Subject {
    /// # Panics
    /// The runtime is not installed here: `tests/run` builds and installs all of them.
    pub(crate) async fn talk(self, bench: &Bench) -> Talk {
        let installed = bench.runtime(self.runtime).info(&[]).is_some();
        assert!(
            installed,
            "{} is not here: use tests/run, which prepares everything this test needs",
            self.runtime
        );
        match bench.launch(self.runtime, (self.settings)()).await {
            Ok(engine) => Talk::new(engine),
            Err(error) => panic!("{}: {error} {:#?}", self.runtime, error.info.details),
        }
    }
}

/// Greedy, and never at an end before `tokens`.
pub(crate) fn tokens(text: &str, tokens: u32) -> GenerateRequest {
    let sampling = Sampling {
        temperature: Some(0.0),
        ignore_eos: Some(true),
        ..Default::default()
    };
    GenerateRequest {
        max_tokens: Some(tokens),
        sampling: Some(sampling),
        ..prompt(text)
    }
}

pub(crate) async fn every_request_ends_exactly_once(subject: Subject) {
    let bench = Bench::new();
    let mut talk = subject.talk(&bench).await;
    let requests = [
        tokens("one", 5),
        tokens("only read", 0),
        GenerateRequest {
            n: 2,
            ..tokens("two choices", 4)
        },
        GenerateRequest {
            return_progress: true,
            ..tokens("progress", 3)
        },
    ];
    for request in requests {
        let handle = talk.generate(request.clone(), 1000).await;
        let got = talk.finish(handle).await;
        let Some(event::Kind::Finished(finished)) = got.terminals().first() else {
            panic!("{request:?}: {:?}", got.events)
        };
        let usage = finished.usage.unwrap();
        let ends = got
            .events
            .iter()
            .filter(|event| matches!(event.kind, Some(event::Kind::ChoiceFinished(_))))
            .count();
        assert_eq!(u32::try_from(ends).unwrap(), request.n.max(1));
        assert!(usage.prompt_tokens > 0);
        let most = request.max_tokens.unwrap() * request.n.max(1);
        assert!(usage.completion_tokens <= most.max(1), "{usage:?}");
        assert_eq!(got.text().is_empty(), most == 0, "{:?}", got.text());
    }
    talk.unload().await;
}

pub(crate) async fn a_prompt_beyond_the_context_is_an_error(subject: Subject) {
    let bench = Bench::new();
    let mut talk = subject.talk(&bench).await;
    let handle = talk.generate(prompt(&"word ".repeat(20_000)), 10).await;
    assert_eq!(talk.finish(handle).await.code(), Some("context_length_exceeded"));
    let handle = talk.generate(tokens("still alive", 3), 10).await;
    assert_eq!(talk.finish(handle).await.code(), None);
}

pub(crate) async fn a_cancel_frees_the_sequence(subject: Subject) {
    let bench = Bench::new();
    let mut talk = subject.talk(&bench).await;
    for credit in [1_000_000, 2] {
        let handle = talk.generate(tokens("on and on", 3000), credit).await;
        talk.until(handle, |got| got.deltas().count() >= 2).await;
        assert_eq!(talk.busy().await, 1);
        let begin = Instant::now();
        talk.cancel(handle).await;
        assert_eq!(talk.finish(handle).await.code(), Some("cancelled"));
        eventually("a free sequence", async || talk.busy().await == 0).await;
        assert!(
            begin.elapsed() < subject.bound,
            "freed after {:?}",
            begin.elapsed()
        );
        // Once more, and for nobody: nothing happens.
        talk.cancel(handle).await;
        talk.cancel(777).await;
    }
    let handle = talk.generate(tokens("next", 3), 10).await;
    assert_eq!(talk.finish(handle).await.code(), None);
}

pub(crate) async fn a_dropped_link_cancels_everything(subject: Subject) {
    let bench = Bench::new();
    let mut talk = subject.talk(&bench).await;
    let handle = talk.generate(tokens("on and on", 3000), 1_000_000).await;
    talk.until(handle, |got| got.deltas().count() >= 2).await;
    let Talk { engine, .. } = talk;
    let calls = engine.calls.clone();
    drop(engine.link);
    eventually("a free sequence", async || {
        let idle = i32::from(muster_proto::v1::SequencePhase::Idle);
        calls
            .describe()
            .await
            .is_ok_and(|now| now.sequences.iter().all(|sequence| sequence.phase == idle))
    })
    .await;
}

pub(crate) async fn a_crash_ends_the_link_and_leaves_nothing(subject: Subject) {
    let bench = Bench::new();
    let mut talk = subject.talk(&bench).await;
    let handle = talk.generate(tokens("on and on", 3000), 1_000_000).await;
    talk.until(handle, |got| got.deltas().count() >= 2).await;
    let tree = talk.engine.process.tree();
    let pid = Pid::from_raw(tree[0].pid.try_into().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    while talk.step().await {}
    let got = &talk.got[&handle];
    assert!(
        got.finished == 0 || got.code() == Some("runtime_crashed"),
        "{:?}",
        got.terminals()
    );
    timeout(PATIENCE, talk.engine.process.gone()).await.unwrap();
    assert!(!tree.iter().any(|process| alive(process.pid)));
    assert_eq!(std::fs::read_dir(&bench.config.run_dir).unwrap().count(), 0);
}

pub(crate) async fn no_event_without_a_credit(subject: Subject) {
    let bench = Bench::new();
    let mut talk = subject.talk(&bench).await;
    let poor = talk.generate(tokens("poor", 12), 3).await;
    talk.until(poor, |got| got.deltas().count() == 3).await;
    // Others run on meanwhile, long enough for one too many to show.
    for _ in 0..3 {
        let rich = talk.generate(tokens("rich", 40), 100).await;
        talk.finish(rich).await;
    }
    assert_eq!(talk.got[&poor].deltas().count(), 3);
    talk.credit(poor, 2).await;
    talk.until(poor, |got| got.deltas().count() == 5).await;
    talk.credit(poor, 100).await;
    let got = talk.finish(poor).await;
    assert_eq!(got.code(), None);
    let whole = got.text();
    let again = talk.generate(tokens("poor", 12), 100).await;
    assert_eq!(talk.finish(again).await.text(), whole);
}

/// `constrain` makes a request whose answer can only be its own; `own` says whether it is.
pub(crate) async fn streams_stay_separate(
    subject: Subject,
    constrain: fn(u32) -> GenerateRequest,
    own: impl Fn(u32, &str) -> bool,
) {
    let bench = Bench::new();
    let mut talk = subject.talk(&bench).await;
    let mut handles = Vec::new();
    for i in 0..65 {
        handles.push(talk.generate(constrain(i), 1000).await);
    }
    let mut refused = 0;
    for (i, handle) in (0..).zip(handles) {
        let got = talk.finish(handle).await;
        match got.code() {
            None => assert!(own(i, &got.text()), "{i}: {:?}", got.text()),
            // One is too many, and any may be the one: an engine may prepare requests side by side.
            Some("no_room") => refused += 1,
            Some(code) => panic!("{i}: {code}"),
        }
    }
    assert!(refused <= 1, "{refused} of 65 were refused with 64 sequences");
}

/// Prompts that share beginnings of any length, longer than the windows of the generated models, in an order that goes back and forth.
fn histories() -> Vec<String> {
    let words =
        "the house of the people was near the water and every day the children went there to hear a story ";
    let story = |n: usize| -> String { words.split_inclusive(' ').cycle().take(n).collect() };
    let lengths = [300, 150, 299, 20, 301, 0, 220, 300];
    let prompts = (0..2).flat_map(|round| lengths.map(|n| format!("{}then number {n} of {round}", story(n))));
    prompts
        .chain([format!("{}then number 300 of 0", story(300))])
        .collect()
}

/// Whatever an engine did before and does beside, an answer is what an engine says that has seen nothing else.
pub(crate) async fn what_came_before_does_not_show(subject: Subject) {
    let bench = Bench::new();
    let fresh = |prompt: &str| GenerateRequest {
        cache_prompt: Some(false),
        ..tokens(prompt, 12)
    };
    let mut alone = subject.talk(&bench).await;
    let mut expected = Vec::new();
    for prompt in histories() {
        let handle = alone.generate(fresh(&prompt), 100).await;
        let got = alone.finish(handle).await;
        assert_eq!(got.code(), None, "{:?}", got.terminals());
        expected.push(got.text());
    }
    drop(alone);
    let mut talk = subject.talk(&bench).await;
    for company in [1, 4] {
        let mut other = 0;
        for (prompts, expected) in histories().chunks(company).zip(expected.chunks(company)) {
            let mut handles = Vec::new();
            for prompt in prompts {
                handles.push(talk.generate(tokens(prompt, 12), 100).await);
            }
            for (handle, expected) in handles.into_iter().zip(expected) {
                let got = talk.finish(handle).await;
                assert_eq!(got.code(), None, "{:?}", got.terminals());
                other += usize::from(got.text() != *expected);
            }
        }
        // Who is in a batch with whom changes roundings, and so, rarely, a word.
        assert!(
            other * 8 <= expected.len(),
            "{other} answers are others in a company of {company}"
        );
    }
}

macro_rules! conforms {
    ($subject:expr) => {
        #[tokio::test]
        async fn every_request_ends_exactly_once() {
            $crate::kit::every_request_ends_exactly_once($subject).await;
        }
        #[tokio::test]
        async fn a_prompt_beyond_the_context_is_an_error() {
            $crate::kit::a_prompt_beyond_the_context_is_an_error($subject).await;
        }
        #[tokio::test]
        async fn a_cancel_frees_the_sequence() {
            $crate::kit::a_cancel_frees_the_sequence($subject).await;
        }
        #[tokio::test]
        async fn a_dropped_link_cancels_everything() {
            $crate::kit::a_dropped_link_cancels_everything($subject).await;
        }
        #[tokio::test]
        async fn a_crash_ends_the_link_and_leaves_nothing() {
            $crate::kit::a_crash_ends_the_link_and_leaves_nothing($subject).await;
        }
        #[tokio::test]
        async fn no_event_without_a_credit() {
            $crate::kit::no_event_without_a_credit($subject).await;
        }
    };
}
pub(crate) use conforms;
