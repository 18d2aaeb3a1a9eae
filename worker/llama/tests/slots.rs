//! Saving, restoring and erasing what a sequence has cached (seed 004, `POST /slots/{id_slot}`).
//!
//! As in `kinds.rs` the measure is what an engine answers that has seen nothing but the prompt.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, and may give up what it began"
)]

mod support;

use std::{fs, path::Path};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use muster_core::{Code, Error};
use muster_proto::{
    StatusExt as _,
    v1::{
        GenerateRequest, ModelSettings, ModelType, Prompt, PromptPiece, SlotActionCall, SlotActionResult,
        SlotErase, generate_request::Input, prompt_piece, slot_action_call::Action, start,
    },
};
use support::{Engine, Session, completion, model, settings, token_prompt};
use tonic::Status;

/// Plain attention, windows, recurrent states, and both.
const KINDS: [&str; 6] = [
    "tiny-chat.gguf",
    "tiny-swa.gguf",
    "tiny-gpt-oss.gguf",
    "tiny-mamba.gguf",
    "tiny-lfm2.gguf",
    "tiny-granite.gguf",
];
const TOKENS: u32 = 8;

fn of(file: &str, folder: &Path) -> ModelSettings {
    ModelSettings {
        flash_attention: "off".into(),
        cache_type_k: "f32".into(),
        cache_type_v: "f32".into(),
        args: vec!["--slot-save-path".to_owned(), folder.display().to_string()],
        ..settings(file)
    }
}

fn tokens(first: i32, count: i32) -> Vec<i32> {
    (0..count).map(|at| 20 + (first + at * at) % 200).collect()
}

fn asks(prompt: Vec<i32>, most: u32) -> GenerateRequest {
    GenerateRequest {
        input: Some(Input::Prompt(token_prompt(prompt))),
        ..completion("", most)
    }
}

fn on(slot: u32, request: GenerateRequest) -> GenerateRequest {
    GenerateRequest {
        id_slot: Some(slot),
        ..request
    }
}

fn call(slot: u32, action: Action) -> SlotActionCall {
    SlotActionCall {
        id_slot: slot,
        action: Some(action),
        ..SlotActionCall::default()
    }
}

async fn act(engine: &mut Engine, call: SlotActionCall) -> Result<SlotActionResult, Error> {
    let done = engine.client.slot_action(call).await;
    done.map(tonic::Response::into_inner)
        .map_err(|status: Status| Error::from_status(&status))
}

fn save(name: &str) -> Action {
    Action::Save(name.to_owned())
}

fn restore(name: &str) -> Action {
    Action::Restore(name.to_owned())
}

const ERASE: Action = Action::Erase(SlotErase {});

/// What an engine answers that knows nothing else.
async fn fresh(settings: ModelSettings, prompt: Vec<i32>) -> String {
    let mut engine = Engine::with(settings).await;
    let mut session = engine.session().await;
    session.run(asks(prompt, TOKENS)).await.text().to_owned()
}

#[tokio::test]
async fn what_is_restored_goes_on_as_if_it_had_just_been_read() {
    for file in KINDS {
        let folder = tempfile::tempdir().unwrap();
        let one = ModelSettings {
            sequences: 1,
            ..of(file, folder.path())
        };
        let begin = tokens(3, 200);
        let more = [begin.clone(), tokens(5, 7)].concat();
        let expected = fresh(one.clone(), more.clone()).await;
        let mut engine = Engine::with(one.clone()).await;
        let mut session = engine.session().await;
        session.run(asks(begin, 1)).await;
        let saved = act(&mut engine, call(0, save("a.bin"))).await.unwrap();
        assert!(saved.tokens >= 200, "{file}: {saved:?}");
        let len = fs::metadata(folder.path().join("a.bin")).unwrap().len();
        assert_eq!(saved.bytes, len, "{file}");

        session.run(asks(tokens(90, 120), TOKENS)).await;
        let restored = act(&mut engine, call(0, restore("a.bin"))).await.unwrap();
        assert_eq!((restored.tokens, restored.bytes), (saved.tokens, len), "{file}");
        let answer = session.run(asks(more.clone(), TOKENS)).await;
        assert_eq!(answer.text(), expected, "{file}");
        assert_eq!(u64::from(answer.usage().cached_tokens), saved.tokens, "{file}");

        // Another process of the same model takes it too; what it has once forgotten is gone.
        drop(session);
        drop(engine);
        let mut engine = Engine::with(one).await;
        let mut session = engine.session().await;
        act(&mut engine, call(0, restore("a.bin"))).await.unwrap();
        let answer = session.run(asks(more.clone(), TOKENS)).await;
        assert_eq!(answer.text(), expected, "{file}");
        assert_eq!(u64::from(answer.usage().cached_tokens), saved.tokens, "{file}");
        let erased = act(&mut engine, call(0, ERASE)).await.unwrap();
        assert!(erased.tokens > saved.tokens, "{file}: {erased:?}");
        let answer = session.run(asks(more, TOKENS)).await;
        assert_eq!(
            (answer.text(), answer.usage().cached_tokens),
            (&*expected, 0),
            "{file}"
        );
    }
}

/// In a cache for all sequences, and where each has its own.
#[tokio::test]
async fn a_sequence_moves_to_another_beside_running_ones() {
    for flag in [None, Some("--no-kv-unified")] {
        for file in ["tiny-chat.gguf", "tiny-swa.gguf", "tiny-lfm2.gguf"] {
            let folder = tempfile::tempdir().unwrap();
            let mut settings = of(file, folder.path());
            settings.args.extend(flag.map(str::to_owned));
            let (begin, other) = (tokens(3, 150), tokens(90, 100));
            let more = [begin.clone(), tokens(5, 7)].concat();
            let expected = fresh(settings.clone(), more.clone()).await;
            let undisturbed = fresh(settings.clone(), other.clone()).await;
            let mut engine = Engine::with(settings).await;
            let mut session = engine.session().await;
            session.run(on(0, asks(begin, 1))).await;
            act(&mut engine, call(0, save("a"))).await.unwrap();
            act(&mut engine, call(0, ERASE)).await.unwrap();
            // One that waits for its reader keeps its sequence busy.
            let work = start::Work::Generate(on(1, asks(other, TOKENS)));
            let mut running = session.start(work, 1).await;
            running.first_delta().await;
            act(&mut engine, call(2, restore("a"))).await.unwrap();
            let answer = session.run(asks(more, TOKENS)).await;
            assert_eq!(answer.text(), expected, "{file} {flag:?}");
            assert!(answer.usage().cached_tokens >= 150, "{file} {flag:?}");
            session.credit(running.handle, 100).await;
            let ended = running.answer().await;
            assert!(undisturbed.ends_with(ended.text()), "{file} {flag:?}");
        }
    }
}

#[tokio::test]
async fn idle_caches_make_room_and_busy_ones_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let settings = ModelSettings {
        ctx_size: 512,
        ..of("tiny-chat.gguf", folder.path())
    };
    let mut engine = Engine::with(settings).await;
    let mut session = engine.session().await;
    session.run(on(0, asks(tokens(3, 200), 1))).await;
    act(&mut engine, call(0, save("a"))).await.unwrap();
    act(&mut engine, call(0, ERASE)).await.unwrap();
    for slot in 0..4 {
        session
            .run(on(slot, asks(tokens(10 * slot.cast_signed(), 110), 1)))
            .await;
    }
    act(&mut engine, call(3, restore("a"))).await.unwrap();
    let answer = session.run(asks([tokens(3, 200), vec![30]].concat(), 1)).await;
    assert!(answer.usage().cached_tokens >= 200);

    let work = start::Work::Generate(on(0, asks(tokens(50, 350), 100)));
    let mut running = session.start(work, 1).await;
    running.first_delta().await;
    let error = act(&mut engine, call(2, restore("a"))).await.unwrap_err();
    assert_eq!(error.code, Code::NoRoom);
    session.credit(running.handle, 1000).await;
    assert_eq!(running.answer().await.usage().completion_tokens, 100);
}

#[tokio::test]
async fn an_order_waits_for_its_sequence_and_is_taken_back_by_who_leaves() {
    let folder = tempfile::tempdir().unwrap();
    let mut engine = Engine::with(of("tiny-chat.gguf", folder.path())).await;
    let mut session = engine.session().await;
    let work = start::Work::Generate(on(1, asks(tokens(3, 50), 20)));
    let mut running = session.start(work, 1).await;
    running.first_delta().await;
    let order = |action| {
        let mut client = engine.client.clone();
        tokio::spawn(async move { client.slot_action(call(1, action)).await })
    };
    let (left, kept) = (order(ERASE), order(save("a")));
    // Others are not held up by it.
    session.run(on(0, asks(tokens(9, 20), 1))).await;
    assert!(!left.is_finished() && !kept.is_finished());
    left.abort();
    assert!(left.await.unwrap_err().is_cancelled());
    session.credit(running.handle, 100).await;
    running.answer().await;
    let saved = kept.await.unwrap().unwrap().into_inner();
    assert!(
        saved.tokens >= 50,
        "it was erased by an order that was taken back"
    );
    // What comes at once takes its turn.
    let erased = act(&mut engine, call(1, ERASE)).await.unwrap();
    assert_eq!(erased.tokens, saved.tokens);
}

#[tokio::test]
async fn what_one_tenant_restored_serves_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let mut engine = Engine::with(of("tiny-chat.gguf", folder.path())).await;
    let mut session = engine.session().await;
    session.run(on(0, asks(tokens(3, 100), 1))).await;
    act(&mut engine, call(0, save("a"))).await.unwrap();
    act(&mut engine, call(0, ERASE)).await.unwrap();
    let mine = SlotActionCall {
        fairness_key: "mine".to_owned(),
        private_prefixes: true,
        ..call(0, restore("a"))
    };
    act(&mut engine, mine).await.unwrap();
    let prompt = [tokens(3, 100), vec![30]].concat();
    for (owner, least) in [("other", 0), ("", 0), ("mine", 100)] {
        owner.clone_into(&mut session.owner);
        let cached = session.run(asks(prompt.clone(), 1)).await.usage().cached_tokens;
        assert_eq!(cached >= 100, least > 0, "{owner}: {cached}");
    }
}

/// Regression: sequences of further answers to one prompt (`n`) stayed whoever's had used them before, or everybody's.
#[tokio::test]
async fn several_answers_to_one_tenant_serve_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let mut engine = Engine::with(of("tiny-chat.gguf", folder.path())).await;
    let mut session = engine.session().await;
    session.owner = "mine".to_owned();
    let several = GenerateRequest {
        n: 3,
        ..asks(tokens(3, 100), 4)
    };
    assert_eq!(session.run(several).await.choices.len(), 3);
    let prompt = [tokens(3, 100), vec![30]].concat();
    for owner in ["other", ""] {
        owner.clone_into(&mut session.owner);
        let answer = session.run(asks(prompt.clone(), 1)).await;
        assert_eq!(answer.usage().cached_tokens, 0, "{owner}");
    }
}

#[tokio::test]
async fn files_that_do_not_fit_are_refused_and_nothing_else_happens() {
    let folder = tempfile::tempdir().unwrap();
    let of = |file: &str| of(file, folder.path());
    let mut engine = Engine::with(of("tiny-chat.gguf")).await;
    let mut session = engine.session().await;
    session.run(on(0, asks(tokens(3, 100), 1))).await;
    act(&mut engine, call(0, save("a"))).await.unwrap();
    let good = fs::read(folder.path().join("a")).unwrap();
    for (at, bad) in [
        (0, 1),
        (12, 1),
        (44, 1),
        (52, 0x80),
        (70, 1),
        (good.len() / 2, 4),
        (good.len() - 1, 8),
    ] {
        let mut bytes = good.clone();
        bytes[at] ^= bad;
        fs::write(folder.path().join("bad"), bytes).unwrap();
        let error = act(&mut engine, call(0, restore("bad"))).await.unwrap_err();
        assert_eq!(
            (error.code, error.param.as_deref()),
            (Code::InvalidRequest, Some("filename")),
            "{at}"
        );
    }
    fs::write(folder.path().join("short"), &good[..good.len() - 40]).unwrap();
    fs::copy(model("tiny-chat.gguf"), folder.path().join("model")).unwrap();
    for name in ["short", "model", "none", "../a", "/etc/passwd", ".", ""] {
        let error = act(&mut engine, call(0, restore(name))).await.unwrap_err();
        assert_eq!(error.code, Code::InvalidRequest, "{name:?}");
    }
    for name in ["../a", "/tmp/a", ".", "", "a/b"] {
        let error = act(&mut engine, call(0, save(name))).await.unwrap_err();
        assert_eq!(error.code, Code::InvalidRequest, "{name:?}");
    }
    for action in [save("b"), restore("a"), ERASE] {
        let error = act(&mut engine, call(4, action)).await.unwrap_err();
        assert_eq!(
            (error.code, &*error.message),
            (Code::InvalidRequest, "Invalid slot ID")
        );
    }
    // What was there is there.
    let answer = session.run(asks([tokens(3, 100), vec![30]].concat(), 1)).await;
    assert!(answer.usage().cached_tokens >= 100);

    let halves = ModelSettings {
        cache_type_k: "f16".into(),
        ..of("tiny-chat.gguf")
    };
    // Flags that change what a state means are the model's too.
    let with = |flag: &str, value: &str| ModelSettings {
        args: [of("tiny-chat.gguf").args, vec![flag.to_owned(), value.to_owned()]].concat(),
        ..of("tiny-chat.gguf")
    };
    let scaled = with("--rope-scale", "2");
    let header = with("--override-kv", "llama.rope.freq_base=float:300");
    for other in [
        of("tiny-chat-b.gguf"),
        of("tiny-mamba.gguf"),
        halves,
        scaled,
        header,
    ] {
        let mut engine = Engine::with(other).await;
        let error = act(&mut engine, call(0, restore("a"))).await.unwrap_err();
        assert!(error.message.contains("another model"), "{error:?}");
    }
    // More threads and another size make no other state, as long as it fits.
    let mut larger = Engine::with(ModelSettings {
        ctx_size: 1024,
        sequences: 2,
        threads: 2,
        ..of("tiny-chat.gguf")
    })
    .await;
    act(&mut larger, call(1, restore("a"))).await.unwrap();
    let mut small = Engine::with(ModelSettings {
        ctx_size: 512,
        args: [of("tiny-chat.gguf").args, vec!["--no-kv-unified".to_owned()]].concat(),
        ..of("tiny-chat.gguf")
    })
    .await;
    let error = act(&mut small, call(0, restore("a"))).await.unwrap_err();
    assert_eq!(error.code, Code::InvalidRequest, "{error:?}");
}

#[tokio::test]
async fn where_nothing_can_be_saved_it_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let error = Engine::bare()
        .await
        .try_load(of("tiny-chat.gguf", &missing))
        .await
        .unwrap_err();
    assert!(error.message.contains("there is no folder"), "{error:?}");

    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    for action in [save("a"), restore("a")] {
        let error = act(&mut engine, call(0, action)).await.unwrap_err();
        assert_eq!(error.code, Code::UnsupportedByRuntime);
        assert!(error.message.ends_with("Start it with `--slot-save-path`"));
    }
    assert_eq!(act(&mut engine, call(0, ERASE)).await.unwrap().tokens, 0);

    let vectors = ModelSettings {
        r#type: ModelType::Embedding.into(),
        ..of("tiny-embed.gguf", folder.path())
    };
    let mut engine = Engine::with(vectors).await;
    let error = act(&mut engine, call(0, save("a"))).await.unwrap_err();
    assert_eq!(error.code, Code::UnsupportedByRuntime);
}

#[tokio::test]
async fn a_sequence_with_an_image_is_not_saved() {
    let folder = tempfile::tempdir().unwrap();
    let mut engine = Engine::with(ModelSettings {
        mmproj: model("tiny-vision.gguf"),
        ..of("tiny-chat.gguf", folder.path())
    })
    .await;
    let mut session: Session = engine.session().await;
    let pieces = [
        prompt_piece::Kind::Text("the house of the people ".to_owned()),
        prompt_piece::Kind::Media(STANDARD.encode(IMAGE)),
        prompt_piece::Kind::Text("near the water".to_owned()),
    ];
    let prompt = Prompt {
        pieces: pieces.map(|kind| PromptPiece { kind: Some(kind) }).into(),
        add_special: None,
    };
    let request = GenerateRequest {
        input: Some(Input::Prompt(prompt)),
        ..completion("", 1)
    };
    session.run(on(0, request)).await.text();
    let error = act(&mut engine, call(0, save("a"))).await.unwrap_err();
    assert_eq!(error.code, Code::UnsupportedByRuntime, "{error:?}");
    assert!(error.message.contains("images"));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    // Once it holds text alone it can be.
    session.run(on(0, asks(tokens(9, 30), 1))).await;
    assert!(act(&mut engine, call(0, save("a"))).await.unwrap().tokens >= 30);
}

/// A bitmap of one pixel.
const IMAGE: [u8; 58] = {
    let mut file = [0; 58];
    let set = [
        (0, b'B'),
        (1, b'M'),
        (2, 58),
        (10, 54),
        (14, 40),
        (18, 1),
        (22, 1),
        (26, 1),
        (28, 24),
        (34, 4),
    ];
    let mut at = 0;
    while at < set.len() {
        file[set[at].0] = set[at].1;
        at += 1;
    }
    file
};
