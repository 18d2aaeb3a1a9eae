//! Images between tokens: what an engine read before, beside what, and in how many pieces, must never show in an answer.
//!
//! As in `kinds.rs` the measure is what an engine answers that has seen nothing but the prompt.
mod support;

use std::{collections::HashMap, fmt::Write as _};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use muster_proto::v1::{
    ApplyTemplateCall, Chat, ChatMessage, ContentPart, GenerateRequest, InputAudio, ModelSettings, Prompt,
    PromptPiece, TokenIds, content_part, generate_request, prompt_piece,
};
use support::{Engine, Session, completion, model, settings};

/// Models with their projectors: images in a row; whose tokens see each other, beside windows; beside recurrent states; with rows and columns (M-RoPE).
const KINDS: [(&str, &str); 4] = [
    ("tiny-chat.gguf", "tiny-vision.gguf"),
    ("tiny-swa.gguf", "tiny-swa-vision.gguf"),
    ("tiny-lfm2.gguf", "tiny-vision.gguf"),
    ("tiny-rows.gguf", "tiny-rows-vision.gguf"),
];
const TOKENS: u32 = 16;

fn of((file, projector): (&str, &str)) -> ModelSettings {
    ModelSettings {
        flash_attention: "off".into(),
        cache_type_k: "f32".into(),
        cache_type_v: "f32".into(),
        mmproj: model(projector),
        ..settings(file)
    }
}

/// A file of an image in one colour (bmp).
fn image(width: u32, height: u32, colour: [u8; 3]) -> Vec<u8> {
    let row = (width * 3).next_multiple_of(4);
    let mut file = b"BM".to_vec();
    for number in [
        54 + row * height,
        0,
        54,
        40,
        width,
        height,
        1 | 24 << 16,
        0,
        row * height,
        0,
        0,
        0,
        0,
    ] {
        file.extend(number.to_le_bytes());
    }
    for _ in 0..height {
        let pixels = (0..width).flat_map(|_| colour);
        file.extend(pixels.chain(std::iter::repeat_n(0, (row - width * 3) as usize)));
    }
    file
}

fn colour(number: usize) -> [u8; 3] {
    [[200, 10, 10], [10, 200, 10], [10, 10, 200], [90, 90, 10]][number % 4]
}

/// Text, with an image of that number at each `#n`.
fn prompt(text: &str) -> GenerateRequest {
    let piece = |kind| PromptPiece { kind: Some(kind) };
    let (first, rest) = text.split_once('#').unwrap_or((text, ""));
    let mut pieces = vec![piece(prompt_piece::Kind::Text(first.into()))];
    for part in rest.split('#').filter(|part| !part.is_empty()) {
        let (number, text) = part.split_at(1);
        let file = image(40, 20, colour(number.parse().unwrap_or_default()));
        pieces.push(piece(prompt_piece::Kind::Media(STANDARD.encode(file))));
        pieces.push(piece(prompt_piece::Kind::Text(text.into())));
    }
    GenerateRequest {
        input: Some(generate_request::Input::Prompt(Prompt {
            pieces,
            add_special: None,
        })),
        ..completion("", TOKENS)
    }
}

/// Answers of an engine that forgets after each.
struct Fresh {
    _engine: Engine,
    session: Session,
    known: HashMap<String, String>,
}

impl Fresh {
    async fn new(kind: (&str, &str)) -> Self {
        let one = ModelSettings {
            sequences: 1,
            ..of(kind)
        };
        let mut engine = Engine::with(one).await;
        let session = engine.session().await;
        Self {
            _engine: engine,
            session,
            known: HashMap::new(),
        }
    }

    async fn answer(&mut self, text: &str) -> String {
        if !self.known.contains_key(text) {
            let request = GenerateRequest {
                cache_prompt: Some(false),
                ..prompt(text)
            };
            let answer = self.session.run(request).await;
            assert_eq!(answer.code(), "", "{:?}", answer.failed);
            self.known.insert(text.to_owned(), answer.text().to_owned());
        }
        self.known[text].clone()
    }
}

/// Prompts that share beginnings with each other, up to the middle of one's images.
fn texts() -> Vec<String> {
    let mut texts = Vec::new();
    for end in [
        "one",
        "#1two",
        "#1three",
        "#1#1four",
        "#1#2five",
        "#2six",
        "two #1 more",
        "#1two",
    ] {
        texts.push(format!("look at #0 and {end} the people of the house"));
    }
    texts
}

#[tokio::test]
async fn what_was_read_before_and_in_how_many_pieces_never_shows() {
    for kind in KINDS {
        let mut fresh = Fresh::new(kind).await;
        for batch in [0, 4] {
            let mut engine = Engine::with(ModelSettings {
                sequences: 1,
                batch_size: batch,
                ubatch_size: batch,
                ..of(kind)
            })
            .await;
            assert!(engine.description.capabilities.as_ref().unwrap().vision);
            let mut session = engine.session().await;
            let (mut reused, mut different) = (0, std::collections::HashSet::new());
            for text in texts() {
                let answer = session.run(prompt(&text)).await;
                assert_eq!(answer.code(), "", "{kind:?}: {:?}", answer.failed);
                assert_eq!(
                    answer.text(),
                    fresh.answer(&text).await,
                    "{kind:?} {batch}: {text:?}"
                );
                reused += answer.usage().cached_tokens;
                different.insert(answer.text().to_owned());
            }
            // A recurrent state goes back to where it was saved: to a prompt's end.
            assert!(reused > 100 || kind.0 == "tiny-lfm2.gguf", "{kind:?}: {reused}");
            assert!(different.len() > 4, "{kind:?}: {different:?}");
        }
    }
}

#[tokio::test]
async fn images_in_company_disturb_nobody_even_where_there_is_no_room() {
    for kind in KINDS {
        let mut fresh = Fresh::new(kind).await;
        let mut engine = Engine::with(ModelSettings {
            ctx_size: 256,
            ..of(kind)
        })
        .await;
        let mut session = engine.session().await;
        let (mut other, mut all) = (0, 0);
        for round in 0..4 {
            let mut streams = Vec::new();
            for number in 0..4 {
                let text =
                    format!("{round} #{number} and #{round} of the people of the house near the water ");
                let choices = GenerateRequest {
                    n: 2,
                    max_tokens: Some(60),
                    ..prompt(&text)
                };
                streams.push((text, session.generate(choices).await));
            }
            for (text, stream) in streams {
                let answer = stream.answer().await;
                if answer.code() == "no_room" {
                    continue;
                }
                assert_eq!(answer.code(), "", "{kind:?}: {:?}", answer.failed);
                let alone = fresh.answer(&text).await;
                for choice in &answer.choices {
                    all += 1;
                    other += i32::from(!choice.content.starts_with(&alone));
                }
            }
        }
        assert!(
            all > 0 && other * 10 <= all,
            "{kind:?}: {other} of {all} answers are others"
        );
    }
}

#[tokio::test]
async fn an_image_that_nobody_waits_for_any_more_harms_nobody() {
    for kind in KINDS {
        let mut fresh = Fresh::new(kind).await;
        let mut engine = Engine::with(of(kind)).await;
        let mut session = engine.session().await;
        let text = "look at #0 and #1 the people";
        for _ in 0..10 {
            let stream = session.generate(prompt(text)).await;
            session.cancel(stream.handle).await;
            let answer = stream.answer().await;
            assert!(["", "cancelled"].contains(&answer.code()), "{:?}", answer.failed);
        }
        let answer = session.run(prompt(text)).await;
        assert_eq!(answer.text(), fresh.answer(text).await, "{kind:?}");
    }
}

fn chat(parts: Vec<content_part::Kind>) -> GenerateRequest {
    let part = |kind| ContentPart { kind: Some(kind) };
    let message = ChatMessage {
        role: "user".into(),
        parts: parts.into_iter().map(part).collect(),
        ..ChatMessage::default()
    };
    GenerateRequest {
        input: Some(generate_request::Input::Chat(Chat {
            messages: vec![message],
            ..Chat::default()
        })),
        ..completion("", TOKENS)
    }
}

#[tokio::test]
async fn what_cannot_be_read_is_the_callers_fault() {
    let mut engine = Engine::with(of(KINDS[0])).await;
    let mut session = engine.session().await;
    let url = |file: &[u8]| {
        let mut url = "data:image/bmp;base64,".to_owned();
        write!(url, "{}", STANDARD.encode(file)).unwrap();
        content_part::Kind::ImageUrl(url)
    };
    let small = image(4, 4, colour(0));
    let text = || content_part::Kind::Text("what is this?".into());
    let sound = content_part::Kind::InputAudio(InputAudio {
        data: "AAAA".into(),
        format: "wav".into(),
    });
    // A header that claims more than is there, and than may be read.
    let claiming = |width: u32, height: u32| {
        let mut claims = small.clone();
        claims[18..22].copy_from_slice(&width.to_le_bytes());
        claims[22..26].copy_from_slice(&height.to_le_bytes());
        claims
    };
    for (parts, code) in [
        (vec![url(&claiming(0xffff, 0xffff))], "invalid_request"),
        (vec![url(&claiming(4, 5))], "invalid_request"),
        (vec![url(b"BM")], "invalid_request"),
        (
            vec![content_part::Kind::ImageUrl("http://127.0.0.1/a.png".into())],
            "invalid_request",
        ),
        (
            vec![content_part::Kind::ImageUrl("file:///etc/passwd".into())],
            "invalid_request",
        ),
        (vec![sound, text()], "unsupported_by_runtime"),
        (vec![url(&small); 65], "invalid_request"),
        (vec![url(&small), url(&claiming(16384, 4096))], "invalid_request"),
        (vec![url(&small), text()], ""),
    ] {
        let answer = session.run(chat(parts)).await;
        assert_eq!(answer.code(), code, "{:?}", answer.failed);
    }
    // Nothing to be answered follows; beside token ids.
    assert_eq!(session.run(prompt("a #0")).await.code(), "invalid_request");
    let mut beside = prompt("a #0 b");
    if let Some(generate_request::Input::Prompt(prompt)) = &mut beside.input {
        let ids = TokenIds { ids: vec![5] };
        prompt.pieces.push(PromptPiece {
            kind: Some(prompt_piece::Kind::Tokens(ids)),
        });
    }
    assert_eq!(session.run(beside).await.code(), "invalid_request");
    // Cells that see each other must be read at once.
    let mut engine = Engine::with(ModelSettings {
        sequences: 1,
        ubatch_size: 3,
        ..of(KINDS[1])
    })
    .await;
    let mut session = engine.session().await;
    let error = session.run(prompt("a #0 b")).await.failed.unwrap();
    assert!(error.message.contains("`ubatch_size` of at least"), "{error:?}");
    // More images than the context holds.
    let long = "#0 ".repeat(60) + "a";
    let mut engine = Engine::with(ModelSettings {
        ctx_size: 256,
        ..of(KINDS[0])
    })
    .await;
    let mut session = engine.session().await;
    assert_eq!(session.run(prompt(&long)).await.code(), "context_length_exceeded");
    assert_eq!(session.run(prompt("a #0 b")).await.code(), "");
}

#[tokio::test]
async fn a_prompt_that_is_shown_has_llama_cpps_mark_for_an_image() {
    let mut engine = Engine::with(of(KINDS[0])).await;
    let url = format!(
        "data:image/bmp;base64,{}",
        STANDARD.encode(image(4, 4, colour(0)))
    );
    let request = chat(vec![
        content_part::Kind::Text("look at".into()),
        content_part::Kind::ImageUrl(url),
    ]);
    let Some(generate_request::Input::Chat(chat)) = request.input else {
        panic!("a chat");
    };
    let call = ApplyTemplateCall {
        chat: Some(chat),
        ..ApplyTemplateCall::default()
    };
    let shown = engine.client.apply_template(call).await.unwrap().into_inner();
    assert_eq!(shown.prompt.matches("<__media__>").count(), 1, "{}", shown.prompt);
}
