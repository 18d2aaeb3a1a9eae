//! Generated text: determinism, stops, choices, constraints, probabilities, limits, all through the real process and real llama.cpp.
mod support;

use muster_core::Code;
use muster_proto::{
    parameters::SAMPLING,
    v1::{FinishReason, GenerateRequest, Sampling, StopKind, Words, generate_request::Constraint},
};
use support::{Engine, chat, completion, greedy, model, settings, text_prompt, token_prompt};

#[tokio::test]
async fn greedy_is_deterministic_and_the_same_in_company() {
    let mut engine = Engine::with(muster_proto::v1::ModelSettings {
        sequences: 16,
        ctx_size: 8192,
        ..settings("tiny-chat.gguf")
    })
    .await;
    let mut session = engine.session().await;
    let prompts: Vec<String> = (0..16)
        .map(|i| format!("Story number {i}: once upon a time there were {} foxes.", i * 7))
        .collect();
    let mut alone = Vec::new();
    for prompt in &prompts {
        let request = GenerateRequest {
            cache_prompt: Some(false),
            ..completion(prompt, 48)
        };
        alone.push(session.run(request.clone()).await.text().to_owned());
    }
    assert!(
        alone.iter().collect::<std::collections::HashSet<_>>().len() > 8,
        "different prompts give different texts"
    );
    let mut streams = Vec::new();
    for prompt in &prompts {
        streams.push(session.generate(completion(prompt, 48)).await);
    }
    for (stream, alone) in streams.into_iter().zip(&alone) {
        let answer = stream.answer().await;
        assert_eq!(answer.text(), alone);
        assert_eq!(answer.usage().completion_tokens, 48);
        assert_eq!(answer.end().reason(), FinishReason::Length);
        assert_eq!(answer.end().stop(), StopKind::Limit);
    }
    assert!(
        session.ticks.lock().unwrap().iter().any(|n| *n >= 8),
        "events of many sequences travel in one tick"
    );
}

#[tokio::test]
async fn a_seed_fixes_the_text_and_temperature_changes_it() {
    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    let mut session = engine.session().await;
    let with_seed = |seed| GenerateRequest {
        sampling: Some(Sampling {
            seed: Some(seed),
            temperature: Some(1.5),
            ignore_eos: Some(true),
            ..Default::default()
        }),
        ..completion("The weather", 32)
    };
    let first = session.run(with_seed(7)).await;
    let again = session.run(with_seed(7)).await;
    let other = session.run(with_seed(8)).await;
    assert_eq!(first.text(), again.text());
    assert_ne!(first.text(), other.text());
}

#[tokio::test]
async fn stop_strings_end_the_text_and_are_never_leaked() {
    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    let mut session = engine.session().await;
    let whole = session
        .run(completion("A list of things", 64))
        .await
        .text()
        .to_owned();
    let chars: Vec<char> = whole.chars().collect();
    // stops that begin and end anywhere, so across tokens too
    for from in [3, 10, 17, 25] {
        for len in [1, 3, 6] {
            let stop: String = chars.iter().skip(from).take(len).collect();
            let request = GenerateRequest {
                stop: vec!["never there".into(), stop.clone()],
                ..completion("A list of things", 64)
            };
            let answer = session.run(request).await;
            let expected = &whole[..whole.find(&stop).unwrap()];
            assert_eq!(
                answer
                    .choices
                    .first()
                    .map_or("", |choice| choice.content.as_str()),
                expected,
                "stop {stop:?}"
            );
            assert_eq!(answer.end().stop(), StopKind::Word);
            assert_eq!(answer.end().reason(), FinishReason::Stop);
            assert_eq!(answer.end().stopping_word, stop);
        }
    }
}

#[tokio::test]
async fn several_choices_read_the_prompt_once() {
    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    let mut session = engine.session().await;
    let prompt = "n choices ".repeat(20);
    let one = session
        .run(GenerateRequest {
            cache_prompt: Some(false),
            ..completion(&prompt, 16)
        })
        .await;
    // more choices than sequences: the rest waits for its turn
    let answer = session
        .run(GenerateRequest {
            n: 6,
            cache_prompt: Some(false),
            ..completion(&prompt, 16)
        })
        .await;
    assert_eq!(answer.choices.len(), 6);
    for choice in &answer.choices {
        assert_eq!(choice.content, one.text());
        assert_eq!(choice.end.as_ref().unwrap().generated, 16);
    }
    assert_eq!(answer.usage().completion_tokens, 96);
    assert_eq!(answer.usage().prompt_tokens, one.usage().prompt_tokens);
    let warm = GenerateRequest {
        n: 2,
        sampling: Some(Sampling {
            seed: Some(1),
            temperature: Some(1.5),
            ..Default::default()
        }),
        ..completion(&prompt, 16)
    };
    let answer = session.run(warm).await;
    assert_ne!(
        answer.choices[0].content, answer.choices[1].content,
        "choices have seeds of their own"
    );
}

#[tokio::test]
async fn grammars_and_schemas_bind_the_output() {
    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    let mut session = engine.session().await;
    let constrained = |constraint| GenerateRequest {
        constraint: Some(constraint),
        sampling: Some(greedy()),
        ..completion("Answer:", 200)
    };
    let answer = session
        .run(constrained(Constraint::Grammar(
            r#"root ::= ("yes" | "no") "!""#.into(),
        )))
        .await;
    assert!(matches!(answer.text(), "yes!" | "no!"), "{}", answer.text());
    assert_eq!(answer.end().stop(), StopKind::Eos);
    let schema = r#"{"type":"object","properties":{"zebra":{"enum":["a","b"]},"apple":{"type":"boolean"}},"required":["zebra","apple"],"additionalProperties":false}"#;
    let answer = session
        .run(constrained(Constraint::JsonSchema(schema.into())))
        .await;
    let value: serde_json::Value = serde_json::from_str(answer.text()).unwrap();
    assert!(
        value["zebra"].is_string() && value["apple"].is_boolean(),
        "{value}"
    );
    let mut request = chat("Say something.", 200);
    request.constraint = Some(Constraint::JsonSchema(schema.into()));
    request.sampling = Some(greedy());
    let answer = session.run(request).await;
    let value: serde_json::Value =
        serde_json::from_str(answer.text()).unwrap_or_else(|e| panic!("{e}: {:?}", answer.choices[0]));
    assert!(value["zebra"].is_string(), "{value}");
    let answer = session
        .run(constrained(Constraint::Grammar("root ::= (".into())))
        .await;
    assert_eq!(answer.code(), "invalid_request");
}

#[tokio::test]
async fn logprobs_are_a_softmax_of_the_raw_logits() {
    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    let mut session = engine.session().await;
    let request = GenerateRequest {
        logprobs: true,
        top_logprobs: 5,
        return_tokens: true,
        ..completion("Numbers:", 12)
    };
    let answer = session.run(request.clone()).await;
    let choice = &answer.choices[0];
    assert_eq!(choice.logprobs.len(), 12);
    assert_eq!(choice.tokens.len(), 12);
    for (entry, token) in choice.logprobs.iter().zip(&choice.tokens) {
        assert_eq!(entry.token, *token);
        assert_eq!(entry.top.len(), 5);
        assert_eq!(entry.top[0].token, entry.token, "greedy takes the likeliest");
        assert!(entry.logprob <= 0.0 && entry.top.windows(2).all(|w| w[0].logprob >= w[1].logprob));
        assert!(entry.top.iter().map(|top| top.logprob.exp()).sum::<f32>() <= 1.001);
    }
    let text: Vec<u8> = choice
        .logprobs
        .iter()
        .flat_map(|entry| entry.bytes.clone())
        .collect();
    assert_eq!(String::from_utf8_lossy(&text), choice.content);
    let after = GenerateRequest {
        post_sampling_probs: true,
        sampling: Some(Sampling {
            top_k: Some(3),
            temperature: Some(1.0),
            seed: Some(3),
            ..Default::default()
        }),
        ..request
    };
    let answer = session.run(after).await;
    for entry in &answer.choices[0].logprobs {
        assert!(entry.top.len() <= 3 && entry.logprob > 0.0 && entry.logprob <= 1.0);
    }
}

/// Whoever adds a row to the table of parameters says in `shim/sampler.cpp` where llama.cpp keeps it, and what llama.cpp does without it.
#[tokio::test]
async fn every_parameter_of_the_table_is_llama_cpps_with_its_default() {
    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    let own = engine.describe().await.sampling.unwrap();
    for parameter in SAMPLING.iter() {
        assert_eq!(
            (parameter.get)(&own),
            Some(parameter.default.into()),
            "{}",
            parameter.name
        );
    }
    let mut session = engine.session().await;
    let asked = Sampling {
        seed: Some(-1),
        top_k: Some(3),
        repeat_last_n: Some(-1),
        dry_sequence_breakers: Some(Words::default()),
        ..greedy()
    };
    let request = GenerateRequest {
        sampling: Some(asked),
        return_sampling: true,
        ..completion("Once", 2)
    };
    let answer = session.run(request).await;
    let shown = answer.end().sampling.clone().unwrap();
    assert_eq!(
        (shown.temperature, shown.top_k, shown.min_p),
        (Some(0.0), Some(3), own.min_p)
    );
    assert_eq!(
        (shown.seed, shown.dry_sequence_breakers),
        (own.seed, Some(Words::default()))
    );
    assert!(
        shown.repeat_last_n > Some(0),
        "the whole context is so many tokens"
    );
    assert_eq!(
        session.run(completion("Once", 2)).await.end().sampling,
        None,
        "nobody asked"
    );
}

#[tokio::test]
async fn samplers_all_run() {
    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    let mut session = engine.session().await;
    let base = Sampling {
        seed: Some(1),
        temperature: Some(0.9),
        ignore_eos: Some(true),
        ..Default::default()
    };
    let variants = vec![
        Sampling {
            dynatemp_range: Some(0.5),
            dynatemp_exponent: Some(1.2),
            ..base.clone()
        },
        Sampling {
            top_k: Some(5),
            top_p: Some(0.8),
            min_p: Some(0.1),
            typical_p: Some(0.9),
            top_n_sigma: Some(1.0),
            ..base.clone()
        },
        Sampling {
            xtc_probability: Some(0.5),
            xtc_threshold: Some(0.1),
            ..base.clone()
        },
        Sampling {
            repeat_penalty: Some(1.3),
            repeat_last_n: Some(-1),
            presence_penalty: Some(0.5),
            frequency_penalty: Some(0.5),
            ..base.clone()
        },
        Sampling {
            dry_multiplier: Some(0.8),
            dry_base: Some(1.75),
            dry_allowed_length: Some(2),
            dry_penalty_last_n: Some(-1),
            ..base.clone()
        },
        Sampling {
            mirostat: Some(1),
            ..base.clone()
        },
        Sampling {
            mirostat: Some(2),
            mirostat_tau: Some(4.0),
            mirostat_eta: Some(0.2),
            ..base.clone()
        },
        Sampling {
            samplers: vec!["top_k".into(), "temperature".into()],
            repeat_penalty: Some(1.2),
            min_keep: Some(2),
            ..base.clone()
        },
        Sampling {
            temperature: Some(-1.0),
            ..base.clone()
        },
    ];
    for sampling in variants {
        let answer = session
            .run(GenerateRequest {
                sampling: Some(sampling.clone()),
                ..completion("Once", 24)
            })
            .await;
        assert_eq!(answer.usage().completion_tokens, 24, "{sampling:?}");
    }
    let plain = session
        .run(GenerateRequest {
            logprobs: true,
            ..completion("Once", 4)
        })
        .await;
    let token = plain.choices[0].logprobs[0].token;
    let never = muster_proto::v1::LogitBias {
        target: Some(muster_proto::v1::logit_bias::Target::Token(token)),
        never: true,
        ..Default::default()
    };
    let request = GenerateRequest {
        logprobs: true,
        sampling: Some(Sampling {
            logit_bias: vec![never],
            ignore_eos: Some(true),
            ..greedy()
        }),
        ..completion("Once", 4)
    };
    let biased = session.run(request).await;
    assert!(
        biased.choices[0]
            .logprobs
            .iter()
            .all(|entry| entry.token != token)
    );
}

#[tokio::test]
async fn limits_end_a_text_with_their_reasons() {
    let mut engine = Engine::with(muster_proto::v1::ModelSettings {
        ctx_size: 256,
        ..settings("tiny-chat.gguf")
    })
    .await;
    let mut session = engine.session().await;
    let context = engine.description.capabilities.as_ref().unwrap().context_length;
    assert_eq!(context, 256);
    let answer = session
        .run(GenerateRequest {
            max_tokens: None,
            ..completion("To the end", 0)
        })
        .await;
    assert!(answer.end().truncated);
    assert_eq!(answer.end().reason(), FinishReason::Length);
    assert!(answer.usage().prompt_tokens + answer.usage().completion_tokens <= context);
    let answer = session.run(completion(&"too long ".repeat(400), 4)).await;
    assert_eq!(answer.code(), "context_length_exceeded");
    assert_eq!(answer.failed.unwrap().details["context_length"], "256");
    let answer = session.run(completion("Only read this", 0)).await;
    assert_eq!(answer.usage().completion_tokens, 0);
    let mixed = GenerateRequest {
        input: Some(muster_proto::v1::generate_request::Input::Prompt(
            muster_proto::v1::Prompt {
                pieces: [text_prompt("ab").pieces, token_prompt(vec![40, 41]).pieces].concat(),
                add_special: None,
            },
        )),
        ..completion("", 4)
    };
    assert_eq!(session.run(mixed).await.usage().completion_tokens, 4);
}

#[tokio::test]
async fn a_reader_of_no_stream_gets_larger_events() {
    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    let mut session = engine.session().await;
    let streamed = session.run(completion("Grain", 100)).await;
    let whole = session
        .run(GenerateRequest {
            stream: false,
            ..completion("Grain", 100)
        })
        .await;
    assert_eq!(streamed.text(), whole.text());
    assert!(
        streamed.deltas > 50 && whole.deltas < 10,
        "{} {}",
        streamed.deltas,
        whole.deltas
    );
}

#[tokio::test]
async fn tokens_and_text_convert_both_ways() {
    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    let call = muster_proto::v1::TokenizeCall {
        content: Some(text_prompt("Hello wörld ☃")),
        ..Default::default()
    };
    let result = engine.client.tokenize(call).await.unwrap().into_inner();
    assert_eq!(result.pieces.concat(), "Hello wörld ☃".as_bytes());
    let call = muster_proto::v1::DetokenizeCall {
        tokens: result.tokens,
        ..Default::default()
    };
    assert_eq!(
        engine.client.detokenize(call).await.unwrap().into_inner().text,
        "Hello wörld ☃"
    );
    let call = muster_proto::v1::DetokenizeCall {
        tokens: vec![i32::MAX],
        ..Default::default()
    };
    assert_eq!(
        engine.client.detokenize(call).await.unwrap_err().code(),
        tonic::Code::InvalidArgument
    );
}

#[tokio::test]
async fn a_process_loads_once_and_says_why_it_does_not() {
    let mut engine = Engine::bare().await;
    let missing = muster_proto::v1::ModelSettings {
        checkpoint: "/nowhere.gguf".into(),
        ..settings("tiny-chat.gguf")
    };
    assert_eq!(
        engine.try_load(missing).await.unwrap_err().code,
        Code::FileNotFound
    );
    let mut engine = Engine::bare().await;
    let broken = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(broken.path(), b"GGUF but not really").unwrap();
    let settings_broken = muster_proto::v1::ModelSettings {
        checkpoint: broken.path().display().to_string(),
        ..settings("tiny-chat.gguf")
    };
    assert_eq!(
        engine.try_load(settings_broken).await.unwrap_err().code,
        Code::ModelLoadFailed
    );
    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    let request = muster_proto::v1::EngineLoadRequest {
        model_id: "again".into(),
        settings: Some(settings("tiny-chat.gguf")),
    };
    assert!(engine.client.load(request).await.is_err());
    assert!(std::path::Path::new(&model("tiny-chat.gguf")).is_file());
}

#[tokio::test]
async fn layers_that_do_not_fit_are_refused_before_anything_is_taken() {
    let planned = |ctx_size: u32| muster_proto::v1::ModelSettings {
        gpu_layers: Some(1),
        ctx_size,
        cache_type_k: "f32".into(),
        cache_type_v: "f32".into(),
        ..settings("bench-chat.gguf")
    };
    // 8 layers with 2 heads of 64, keys and values: more cells than the machine's memory holds.
    let bytes_per_cell = 8 * 2 * 64 * 2 * 4;
    let info = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total = info.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024;
    let cells = u32::try_from(total / bytes_per_cell + total / bytes_per_cell / 4).unwrap();
    let error = Engine::bare().await.try_load(planned(cells)).await.unwrap_err();
    assert_eq!(error.code, Code::InsufficientMemory, "{error:?}");
    Engine::bare().await.try_load(planned(512)).await.unwrap();
}

#[tokio::test]
async fn time_runs_out_only_at_a_new_line() {
    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    let mut session = engine.session().await;
    let mut limited = async |grammar: &str, tokens: u32| {
        let request = GenerateRequest {
            constraint: Some(Constraint::Grammar(grammar.to_owned())),
            max_predict_ms: Some(1),
            ..completion("Once", tokens)
        };
        session.run(request).await
    };
    // a line of ten letters: the time is long over when it ends
    let answer = limited(r#"root ::= ("aaaaaaaaaa" "\n")+"#, 2000).await;
    assert!(answer.text().contains('\n'), "{:?}", answer.text());
    assert!(answer.usage().completion_tokens < 2000, "{:?}", answer.usage());
    assert_eq!(
        (answer.end().reason(), answer.end().stop(), answer.end().truncated),
        (FinishReason::Length, StopKind::Limit, false)
    );
    // without a line's end it does not run out (seed 004, `t_max_predict_ms`)
    let answer = limited(r#"root ::= "a"+"#, 200).await;
    assert_eq!(answer.usage().completion_tokens, 200);
}

#[tokio::test]
async fn a_character_that_is_begun_is_finished() {
    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    let mut session = engine.session().await;
    // three bytes, each of them a token: the vocabulary has no piece for it
    for (limit, text) in [(1, "☃"), (2, "☃"), (3, "☃"), (4, "☃☃"), (6, "☃☃")] {
        let request = GenerateRequest {
            constraint: Some(Constraint::Grammar("root ::= \"☃\"+".to_owned())),
            ..completion("Snow:", limit)
        };
        let answer = session.run(request).await;
        assert_eq!(answer.text(), text, "n_predict {limit}");
        assert_eq!(answer.end().stop(), StopKind::Limit);
        assert_eq!(answer.usage().completion_tokens, limit.next_multiple_of(3));
    }
}

#[tokio::test]
async fn a_line_that_is_cut_for_its_indent_leaves_no_white_space_behind() {
    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    let mut session = engine.session().await;
    let request = GenerateRequest {
        constraint: Some(Constraint::Grammar(
            r#"root ::= "f(" "\n" "    " "a" "\n" "  " "b" "x"+"#.to_owned(),
        )),
        min_indent: 4,
        ..completion("Once", 60)
    };
    let answer = session.run(request).await;
    assert_eq!(answer.text(), "f(\n    a\n");
    assert_eq!(answer.end().stop(), StopKind::Limit);
}

/// llama-server caps it as well: beyond, a model writes nonsense, and some architectures read past the end of a table.
#[tokio::test]
async fn a_context_longer_than_the_model_was_trained_on_is_capped() {
    // of 4096
    for file in ["tiny-swa.gguf", "tiny-mamba.gguf"] {
        let mut engine = Engine::with(muster_proto::v1::ModelSettings {
            ctx_size: 16_384,
            ..settings(file)
        })
        .await;
        let capabilities = engine.description.capabilities.as_ref().unwrap();
        assert_eq!(capabilities.train_context_length, 4096);
        assert_eq!(capabilities.context_length, 4096, "{file}");
        let mut session = engine.session().await;
        let answer = session.run(completion(&"too long ".repeat(3000), 4)).await;
        assert_eq!(answer.code(), "context_length_exceeded");
        assert_eq!(answer.failed.unwrap().details["context_length"], "4096");
    }
}

/// llama.cpp's own names of templates, as its `--chat-template` takes them.
#[tokio::test]
async fn a_chat_template_is_named_or_given() {
    use muster_proto::v1::{ApplyTemplateCall, generate_request::Input};
    for (template, expected) in [
        (
            "chatml",
            "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "llama3",
            "<|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>",
        ),
        (
            "gemma",
            "<start_of_turn>user\nHello<end_of_turn>\n<start_of_turn>model\n",
        ),
        ("{{ messages[0].content }}!", "Hello!"),
    ] {
        let mut engine = Engine::with(muster_proto::v1::ModelSettings {
            args: vec!["--chat-template".into(), template.into()],
            ..settings("tiny-chat.gguf")
        })
        .await;
        let request = chat("Hello", 8);
        let Some(Input::Chat(messages)) = request.input.clone() else {
            panic!("no chat")
        };
        let call = ApplyTemplateCall {
            chat: Some(messages),
            ..Default::default()
        };
        let prompt = engine
            .client
            .apply_template(call)
            .await
            .unwrap()
            .into_inner()
            .prompt;
        assert!(prompt.contains(expected), "{template}: {prompt:?}");
        let mut session = engine.session().await;
        let answer = session.run(request).await;
        assert_eq!(answer.usage().completion_tokens, 8, "{template}");
    }
}
