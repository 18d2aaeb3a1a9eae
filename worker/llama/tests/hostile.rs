//! Input that would abort llama.cpp's process or exhaust it (ENGINE.md): each item is thrown at a real engine, which must refuse it or end that one request, and go on.
mod support;

use muster_core::Code;
use muster_proto::v1::{
    EmbedRequest, GenerateRequest, LogitBias, ModelSettings, ModelType, Sampling, Words,
    generate_request::Constraint, generate_request::Input, logit_bias::Target, start::Work,
};
use support::{Engine, chat, completion, greedy, message, model, settings, token_prompt};

fn sampled(sampling: Sampling) -> GenerateRequest {
    GenerateRequest {
        sampling: Some(sampling),
        ..completion("x", 8)
    }
}

fn words(number: usize) -> Words {
    Words {
        words: vec!["x".into(); number],
    }
}

fn bias(token: i32, never: bool) -> LogitBias {
    LogitBias {
        target: Some(Target::Token(token)),
        bias: 0.0,
        never,
    }
}

fn constrained(grammar: &str, sampling: Sampling) -> GenerateRequest {
    GenerateRequest {
        constraint: Some(Constraint::Grammar(grammar.into())),
        sampling: Some(sampling),
        ..completion("x", 64)
    }
}

/// Requests with values that mean nothing or would hurt, for a vocabulary of that size.
fn out_of_range(vocabulary: i32) -> Vec<GenerateRequest> {
    vec![
        sampled(Sampling {
            mirostat: Some(3),
            ..greedy()
        }),
        sampled(Sampling {
            mirostat: Some(-1),
            ..greedy()
        }),
        sampled(Sampling {
            temperature: Some(f32::NAN),
            ..greedy()
        }),
        sampled(Sampling {
            top_p: Some(f32::INFINITY),
            ..greedy()
        }),
        sampled(Sampling {
            repeat_penalty: Some(0.0),
            ..greedy()
        }),
        sampled(Sampling {
            logit_bias: vec![bias(vocabulary, false)],
            ..greedy()
        }),
        sampled(Sampling {
            logit_bias: vec![bias(-1, true)],
            ..greedy()
        }),
        sampled(Sampling {
            samplers: vec!["no_such".into()],
            ..greedy()
        }),
        sampled(Sampling {
            samplers: vec!["infill".into()],
            ..greedy()
        }),
        sampled(Sampling {
            dry_multiplier: Some(1.0),
            dry_sequence_breakers: Some(words(1000)),
            ..greedy()
        }),
        GenerateRequest {
            input: Some(Input::Prompt(token_prompt(vec![vocabulary]))),
            ..completion("", 4)
        },
        GenerateRequest {
            input: Some(Input::Prompt(token_prompt(vec![-7]))),
            ..completion("", 4)
        },
        GenerateRequest {
            n: 100_000,
            ..completion("x", 4)
        },
        GenerateRequest {
            logprobs: true,
            top_logprobs: 1001,
            ..completion("x", 4)
        },
        GenerateRequest {
            stop: vec!["s".into(); 10_000],
            ..completion("x", 4)
        },
        GenerateRequest {
            input: None,
            ..completion("x", 4)
        },
        GenerateRequest {
            extra_json: r#"{"lora":[{"id":0,"scale":1}]}"#.into(),
            ..completion("x", 4)
        },
        GenerateRequest {
            extra_json: r#"{"min_tokens":5}"#.into(),
            ..completion("x", 4)
        },
        GenerateRequest {
            extra_json: r#"{"preserved_tokens":["</s>"]}"#.into(),
            ..completion("x", 4)
        },
        GenerateRequest {
            extra_json: r#"{"reasoning_budget_start_tag":"<a>"}"#.into(),
            ..completion("x", 4)
        },
        GenerateRequest {
            extra_json: r#"{"guided_regex":"a+"}"#.into(),
            ..completion("x", 4)
        },
        GenerateRequest {
            extra_json: "{".into(),
            ..completion("x", 4)
        },
        GenerateRequest {
            reasoning_format: "odd".into(),
            ..chat("x", 4)
        },
        GenerateRequest {
            input: Some(Input::Infill(Default::default())),
            ..completion("x", 4)
        },
    ]
}

#[tokio::test]
async fn values_out_of_range_are_refused() {
    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    let mut session = engine.session().await;
    let vocabulary = i32::try_from(engine.description.capabilities.as_ref().unwrap().vocabulary).unwrap();
    for request in out_of_range(vocabulary) {
        let answer = session.run(request.clone()).await;
        assert!(
            matches!(answer.code(), "invalid_request" | "unsupported_by_runtime"),
            "{:?} for {request:?}",
            answer.failed
        );
    }
    assert_eq!(
        session
            .start(Work::Embed(EmbedRequest::default()), 1)
            .await
            .answer()
            .await
            .code(),
        "unsupported_by_runtime"
    );
    assert_eq!(session.run(completion("still here", 4)).await.code(), "");
    assert!(engine.is_running());
}

#[tokio::test]
async fn absurd_but_legal_values_hurt_nobody() {
    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    let mut session = engine.session().await;
    for sampling in [
        Sampling {
            repeat_last_n: Some(i32::MAX),
            repeat_penalty: Some(1.1),
            ..greedy()
        },
        Sampling {
            dry_penalty_last_n: Some(i32::MAX),
            dry_multiplier: Some(1.0),
            ..greedy()
        },
        Sampling {
            temperature: Some(1e-38),
            ..greedy()
        },
        Sampling {
            temperature: Some(3.0e38),
            ..greedy()
        },
        Sampling {
            top_k: Some(i32::MIN),
            min_keep: Some(u32::MAX),
            ..greedy()
        },
        Sampling {
            mirostat: Some(1),
            mirostat_tau: Some(-5.0),
            mirostat_eta: Some(1e30),
            temperature: Some(1.0),
            ..greedy()
        },
        Sampling {
            mirostat: Some(2),
            mirostat_tau: Some(1e30),
            temperature: Some(1.0),
            ..greedy()
        },
        Sampling {
            top_n_sigma: Some(0.0),
            typical_p: Some(0.0),
            top_p: Some(0.0),
            min_p: Some(1.0),
            temperature: Some(1.0),
            ..greedy()
        },
        Sampling {
            seed: Some(i64::MAX),
            temperature: Some(1.0),
            ..greedy()
        },
    ] {
        let answer = session.run(sampled(sampling.clone())).await;
        assert!(
            answer.finished.is_some() || answer.failed.is_some(),
            "{sampling:?}"
        );
        assert!(engine.is_running(), "{sampling:?}");
    }
    assert_eq!(session.run(completion("still here", 4)).await.code(), "");
}

#[tokio::test]
async fn grammars_cannot_end_the_process() {
    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    let mut session = engine.session().await;
    let vocabulary = i32::try_from(engine.description.capabilities.as_ref().unwrap().vocabulary).unwrap();
    // nothing can follow: every token is forbidden, or only the end is left and it is forbidden too
    let nothing = Sampling {
        logit_bias: (0..vocabulary).map(|token| bias(token, true)).collect(),
        ..greedy()
    };
    let finished = Sampling {
        ignore_eos: Some(true),
        ..greedy()
    };
    for (request, code) in [
        (constrained(r#"root ::= "a""#, nothing.clone()), "invalid_request"),
        (constrained(r#"root ::= "a""#, finished), "invalid_request"),
        (sampled(nothing), "invalid_request"),
        (
            constrained(
                &format!("root ::= {}\"a\"{}", "(".repeat(100_000), ")".repeat(100_000)),
                greedy(),
            ),
            "invalid_request",
        ),
        (constrained("root ::= root", greedy()), "invalid_request"),
        (constrained("root ::= undefined", greedy()), "invalid_request"),
        (
            constrained(r#"root ::= "a"{1000000000}"#, greedy()),
            "invalid_request",
        ),
        (constrained("%llguidance {}", greedy()), "invalid_request"),
        (constrained("\0", greedy()), "invalid_request"),
    ] {
        // a neighbour is not disturbed
        let neighbour = session.generate(completion("neighbour", 32)).await;
        let answer = session.run(request).await;
        assert_eq!(answer.code(), code, "{answer:?}");
        assert_eq!(neighbour.answer().await.usage().completion_tokens, 32);
        assert!(engine.is_running());
    }
}

#[tokio::test]
async fn schemas_templates_and_tools_cannot_end_the_process() {
    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    let mut session = engine.session().await;
    let schema = |text: String| GenerateRequest {
        constraint: Some(Constraint::JsonSchema(text)),
        ..completion("x", 8)
    };
    let deep = format!("{}1{}", r#"{"items":"#.repeat(5000), "}".repeat(5000));
    let with_chat = |change: fn(&mut muster_proto::v1::Chat)| {
        let mut request = chat("x", 8);
        if let Some(Input::Chat(chat)) = &mut request.input {
            change(chat);
        }
        request
    };
    let refused = vec![
        schema(deep),
        schema("[1]".into()),
        schema("not json".into()),
        schema(r#"{"$ref":"https://example.com/x.json"}"#.into()),
        schema(format!(
            r#"{{"type":"string","pattern":"^{}$"}}"#,
            "(".repeat(10_000)
        )),
        with_chat(|chat| chat.template = "{% for i in range(9999999999) %}x{% endfor %}".into()),
        with_chat(|chat| chat.template_kwargs_json = "[".repeat(10_000)),
        with_chat(|chat| chat.template_kwargs_json = "3".into()),
        with_chat(|chat| chat.template_kwargs_json = r#"{"enable_thinking":"yes"}"#.into()),
        with_chat(|chat| chat.messages.clear()),
        with_chat(|chat| {
            chat.messages[0].parts[0].kind =
                Some(muster_proto::v1::content_part::Kind::ImageUrl("data:".into()))
        }),
        with_chat(|chat| {
            chat.tools = vec![muster_proto::v1::Tool {
                name: "f".into(),
                parameters_json: "{".into(),
                ..Default::default()
            }];
        }),
        with_chat(|chat| {
            chat.tool_choice = Some(muster_proto::v1::ToolChoice {
                kind: Some(muster_proto::v1::tool_choice::Kind::Function("g".into())),
            });
        }),
    ];
    for request in refused {
        let answer = session.run(request).await;
        assert!(
            matches!(answer.code(), "invalid_request" | "unsupported_by_runtime"),
            "{:?}",
            answer.failed
        );
        assert!(engine.is_running());
    }
    // loops of references and roles nobody knows: whatever comes, the process stays
    for request in [
        schema(r##"{"$ref":"#"}"##.into()),
        schema(
            r##"{"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"}"##.into(),
        ),
        schema(r#"{"type":"string","maxLength":2000000000}"#.into()),
        schema(r#"{"type":"integer","minimum":-9223372036854775808,"maximum":9223372036854775807}"#.into()),
        with_chat(|chat| chat.messages.push(message("nobody", "x"))),
        with_chat(|chat| chat.messages[0] = message("tool", "\u{0}")),
        with_chat(|chat| chat.messages[0] = message("user", &"<|im_start|>".repeat(50))),
    ] {
        let answer = session.run(request).await;
        assert!(answer.finished.is_some() || answer.failed.is_some());
        assert!(engine.is_running());
    }
    assert_eq!(session.run(completion("still here", 4)).await.code(), "");
}

#[tokio::test]
async fn contradictory_sizes_do_not_load_and_do_not_abort() {
    for settings in [
        ModelSettings {
            sequences: 64,
            batch_size: 16,
            ..settings("tiny-chat.gguf")
        },
        ModelSettings {
            sequences: 100_000,
            ..settings("tiny-chat.gguf")
        },
        ModelSettings {
            ubatch_size: 1024,
            batch_size: 512,
            ctx_size: 1,
            sequences: 4,
            ..settings("tiny-chat.gguf")
        },
        ModelSettings {
            cache_type_k: "f17".into(),
            ..settings("tiny-chat.gguf")
        },
        ModelSettings {
            pooling: "some".into(),
            ..settings("tiny-chat.gguf")
        },
        ModelSettings {
            mmproj: model("tiny-chat.gguf"),
            ..settings("tiny-chat.gguf")
        },
        // another model's
        ModelSettings {
            mmproj: model("tiny-vision.gguf"),
            ..settings("bench-chat.gguf")
        },
        ModelSettings {
            args: vec!["--rpc".into(), "x".into()],
            ..settings("tiny-chat.gguf")
        },
        ModelSettings {
            chat_template: "{% for %}".into(),
            ..settings("tiny-chat.gguf")
        },
        // neither a template nor the name of one: every chat would be this word
        ModelSettings {
            args: vec!["--chat-template".into(), "chatlm".into()],
            ..settings("tiny-chat.gguf")
        },
    ] {
        let mut engine = Engine::bare().await;
        let error = engine.try_load(settings.clone()).await.expect_err("nonsense");
        assert!(
            matches!(
                error.code.as_str(),
                "invalid_load_request" | "unsupported_by_runtime" | "model_load_failed"
            ),
            "{error:?} for {settings:?}"
        );
        assert!(engine.is_running());
    }
}

/// A model under another type than it was made for: llama.cpp would abort over some, and compute something meaningless with others.
#[tokio::test]
async fn a_model_is_refused_as_what_it_is_not() {
    let of = |file: &str, kind: ModelType| ModelSettings {
        r#type: kind.into(),
        ..settings(file)
    };
    let mangled = tempfile::tempdir().unwrap();
    for (settings, why) in [
        (of("tiny-embed.gguf", ModelType::Llm), "gives vectors"),
        (of("tiny-rerank.gguf", ModelType::Llm), "scores documents"),
        (of("tiny-chat.gguf", ModelType::Reranking), "no reranker"),
        (of("tiny-embed.gguf", ModelType::Reranking), "no reranker"),
        (of("tiny-rerank.gguf", ModelType::Embedding), "no vectors"),
        (
            ModelSettings {
                pooling: "mean".into(),
                ..of("tiny-rerank.gguf", ModelType::Reranking)
            },
            "pooling `rank`",
        ),
        // A header that does not say what it is.
        (
            ModelSettings {
                checkpoint: without_keys(mangled.path(), &model("tiny-embed.gguf")),
                ..of("tiny-embed.gguf", ModelType::Llm)
            },
            "cannot write",
        ),
    ] {
        let mut engine = Engine::bare().await;
        let error = engine.try_load(settings.clone()).await.expect_err(why);
        assert_eq!(error.code, Code::InvalidLoadRequest, "{error:?}");
        assert!(error.message.contains(why), "{error:?} for {settings:?}");
        assert!(engine.is_running());
    }
}

/// A copy of an embedding model whose header has the keys that tell it from a model that writes under other names.
#[allow(clippy::unwrap_used, reason = "a test's helper: a panic is the report")]
fn without_keys(directory: &std::path::Path, path: &str) -> String {
    let mut bytes = std::fs::read(path).unwrap();
    for key in [b"attention.causal".as_slice(), b"pooling_type"] {
        let at = bytes.windows(key.len()).position(|window| window == key).unwrap();
        bytes[at] = b'x';
    }
    let copy = directory.join("mangled.gguf");
    std::fs::write(&copy, bytes).unwrap();
    copy.display().to_string()
}

#[tokio::test]
async fn a_prompt_in_one_batch_with_the_most_sequences_fits() {
    let mut engine = Engine::with(ModelSettings {
        sequences: 16,
        batch_size: 16,
        ubatch_size: 16,
        ..settings("tiny-chat.gguf")
    })
    .await;
    let mut session = engine.session().await;
    let mut streams = Vec::new();
    for i in 0..16 {
        streams.push(
            session
                .generate(completion(&format!("sequence {i} {}", "word ".repeat(i)), 12))
                .await,
        );
    }
    for stream in streams {
        assert_eq!(stream.answer().await.usage().completion_tokens, 12);
    }
}

/// Tokenizing takes some hundred times a text's size; what is longer than the whole context could spell is refused before that.
#[tokio::test]
async fn texts_that_cannot_fit_are_refused_unread_and_memory_comes_back() {
    const MIB: u64 = 1 << 20;
    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    let mut session = engine.session().await;
    assert_eq!(session.run(completion("warm", 4)).await.code(), "");
    let huge = "there is no end to it ".repeat(30 << 20 >> 5);
    let before = engine.anonymous();
    for request in [completion(&huge, 4), chat(&huge, 4)] {
        let answer = session.run(request).await;
        assert_eq!(answer.code(), "context_length_exceeded");
        let details = answer.failed.unwrap().details;
        assert!(details.contains_key("prompt_bytes"), "{details:?}");
    }
    let call = |text: &str| muster_proto::v1::TokenizeCall {
        content: Some(support::text_prompt(text)),
        ..Default::default()
    };
    let refused = engine.client.tokenize(call(&huge)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted, "{refused:?}");
    let tokens = vec![300; 2 << 20];
    let refused = engine
        .client
        .detokenize(muster_proto::v1::DetokenizeCall {
            tokens,
            ..Default::default()
        })
        .await
        .unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted, "{refused:?}");
    // what is read, since it might fit: a request, and for its own sake
    let large = &huge[..1_000_000];
    let answer = session.run(completion(large, 4)).await;
    assert_eq!(answer.code(), "context_length_exceeded");
    let result = engine.client.tokenize(call(large)).await.unwrap().into_inner();
    assert!(result.tokens.len() > 100_000);
    drop(result);
    // the session's buffers for messages stay as large as the largest was
    let grown = |engine: &Engine| engine.anonymous().saturating_sub(before) / MIB;
    let begun = std::time::Instant::now();
    while grown(&engine) > 100 {
        assert!(begun.elapsed() < support::SOON, "{} MiB stay", grown(&engine));
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(session.run(completion("still here", 4)).await.code(), "");
}

/// Large texts have a thread of their own: whoever came behind two of them waited for both.
#[tokio::test]
async fn a_short_request_does_not_wait_for_large_ones() {
    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    let mut session = engine.session().await;
    let large = "it is read since it might fit ".repeat(33_000);
    let mut slow = Vec::new();
    for _ in 0..3 {
        slow.push(session.generate(completion(&large, 1)).await);
    }
    let answer = session.run(completion("short", 1)).await;
    assert_eq!(answer.code(), "");
    let done = slow.iter_mut().filter_map(support::Stream::failed_by_now).count();
    assert!(done < 3, "all the large ones came first");
    for stream in slow.into_iter().skip(done) {
        assert_eq!(stream.answer().await.code(), "context_length_exceeded");
    }
}

/// Probabilities of the whole vocabulary, for a caller of no stream, from all sequences at once: one message of a tick had them all.
#[tokio::test]
async fn probabilities_of_many_tokens_come_in_messages_of_bounded_size() {
    let mut engine = Engine::with(ModelSettings {
        sequences: 16,
        ctx_size: 8192,
        ..settings("bench-chat.gguf")
    })
    .await;
    let mut session = engine.session().await;
    let mut streams = Vec::new();
    for i in 0..16 {
        let request = GenerateRequest {
            logprobs: true,
            top_logprobs: 1000,
            stream: false,
            ..completion(&format!("{i} of many"), 40)
        };
        streams.push(session.generate(request).await);
    }
    for stream in streams {
        let answer = stream.answer().await;
        assert_eq!(answer.usage().completion_tokens, 40);
        let logprobs = &answer.choices[0].logprobs;
        assert_eq!(logprobs.len(), 40);
        assert!(logprobs.iter().all(|one| one.top.len() == 1000));
        // a thousand alternatives are an event: 32 tokens of them were one
        assert!(answer.deltas >= 40, "{} events", answer.deltas);
    }
    let largest = *session.largest.lock().unwrap();
    assert!(largest < 8 << 20, "a message of {largest} bytes");
}
