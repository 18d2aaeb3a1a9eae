//! Chats: templates, reasoning split from content, tool calls in pieces, continued answers. Random weights write no tool calls by themselves,
//! so grammars make them.
mod support;

use muster_proto::v1::{
    ApplyTemplateCall, Chat, FinishReason, GenerateRequest, Sampling, Tool, ToolChoice, ToolChoiceMode,
    generate_request::{Constraint, Input},
    tool_choice,
};
use support::{Answer, Engine, chat, greedy, message, settings};

fn with_chat(change: impl FnOnce(&mut Chat)) -> GenerateRequest {
    let mut request = chat("What is the weather in Oslo?", 120);
    if let Some(Input::Chat(chat)) = &mut request.input {
        change(chat);
    }
    request
}

fn weather() -> Tool {
    Tool {
        name: "get_weather".into(),
        description: "Weather of a place".into(),
        parameters_json: r#"{"type":"object","properties":{"zone":{"enum":["n","s"]},"city":{"enum":["Oslo","Rome"]}},"required":["zone","city"]}"#.into(),
        strict: None,
    }
}

fn required() -> Option<ToolChoice> {
    Some(ToolChoice {
        kind: Some(tool_choice::Kind::Mode(ToolChoiceMode::Required.into())),
    })
}

#[tokio::test]
async fn the_template_renders_messages_tools_and_arguments_in_their_order() {
    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    let mut render = async |chat: Chat| {
        let call = ApplyTemplateCall {
            chat: Some(chat),
            ..Default::default()
        };
        engine
            .client
            .apply_template(call)
            .await
            .unwrap()
            .into_inner()
            .prompt
    };
    let plain = Chat {
        messages: vec![message("system", "Be brief."), message("user", "Hi")],
        ..Default::default()
    };
    let prompt = render(plain.clone()).await;
    assert!(
        prompt.contains("<|im_start|>system\nBe brief.<|im_end|>")
            && prompt.ends_with("<|im_start|>assistant\n"),
        "{prompt}"
    );
    let off = render(Chat {
        enable_thinking: Some(false),
        ..plain.clone()
    })
    .await;
    assert!(off.ends_with("<think>\n\n</think>\n\n"), "{off}");
    let open = render(Chat {
        template_kwargs_json: r#"{"open_thinking":true}"#.into(),
        ..plain.clone()
    })
    .await;
    assert!(open.ends_with("<think>\n"), "{open}");
    let tools = render(Chat {
        tools: vec![weather()],
        ..plain
    })
    .await;
    let zone = tools.find("zone").unwrap();
    assert!(
        zone < tools.find("city").unwrap(),
        "schema keys keep their order: {tools}"
    );
}

#[tokio::test]
async fn plain_chats_stream_text() {
    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    let mut session = engine.session().await;
    let answer = session.run(chat("Tell me something.", 40)).await;
    let choice = &answer.choices[0];
    assert!(!choice.content.is_empty());
    assert_eq!(answer.usage().completion_tokens, 40);
    assert_eq!(answer.end().reason(), FinishReason::Length);
    assert!(answer.deltas > 1, "it streams: {}", answer.deltas);
    // the same text as the rendered prompt continued
    let call = ApplyTemplateCall {
        chat: Some(Chat {
            messages: vec![message("user", "Tell me something.")],
            ..Default::default()
        }),
        ..Default::default()
    };
    let prompt = engine
        .client
        .apply_template(call)
        .await
        .unwrap()
        .into_inner()
        .prompt;
    let completed = session.run(support::completion(&prompt, 40)).await;
    assert_eq!(completed.text().trim(), choice.content.trim());
}

#[tokio::test]
async fn reasoning_is_split_from_content() {
    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    let mut session = engine.session().await;
    let grammar = r#"root ::= "<think>\nI wonder about this.\n</think>\n\nThe answer is 42.""#;
    let request = GenerateRequest {
        constraint: Some(Constraint::Grammar(grammar.into())),
        sampling: Some(greedy()),
        ..with_chat(|_| ())
    };
    let answer = session.run(request.clone()).await;
    let choice = &answer.choices[0];
    assert_eq!(choice.reasoning.trim(), "I wonder about this.", "{answer:?}");
    assert_eq!(choice.content.trim(), "The answer is 42.");
    assert_eq!(answer.end().reason(), FinishReason::Stop);
    let figures = GenerateRequest {
        logprobs: true,
        n: 2,
        ..request.clone()
    };
    let counted = session.run(figures).await;
    // the tokens' own texts say which of them wrote it
    let mut text = String::new();
    let mut ends = Vec::new();
    for token in &counted.choices[0].logprobs {
        text.push_str(std::str::from_utf8(&token.bytes).unwrap());
        ends.push(text.len());
    }
    let start = text.find("I wonder").unwrap();
    let end = start + "I wonder about this.".len();
    let before = ends.iter().filter(|at| **at <= start).count();
    let reasoning = ends.iter().filter(|at| **at < end).count() + 1 - before;
    assert!(reasoning > 1 && reasoning < ends.len(), "{ends:?}");
    assert!(request.stream, "one event for each token");
    let whole = GenerateRequest {
        stream: false,
        ..request.clone()
    };
    let whole = session.run(whole).await;
    let usage = |answer: &Answer| answer.finished.as_ref().unwrap().usage.unwrap();
    let tokens = u32::try_from(reasoning).unwrap();
    assert_eq!(usage(&answer).reasoning_tokens, tokens);
    assert_eq!(usage(&whole).reasoning_tokens, tokens);
    assert_eq!(usage(&counted).reasoning_tokens, 2 * tokens);
    let raw = session
        .run(GenerateRequest {
            reasoning_format: "none".into(),
            ..request
        })
        .await;
    assert_eq!(raw.choices[0].reasoning, "");
    assert_eq!(usage(&raw).reasoning_tokens, 0);
    assert!(
        raw.text().contains("<think>") && raw.text().contains("42"),
        "{:?}",
        raw.choices
    );
}

#[tokio::test]
async fn a_required_tool_call_comes_in_pieces_and_parses() {
    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    let mut session = engine.session().await;
    let request = GenerateRequest {
        sampling: Some(greedy()),
        ..with_chat(|chat| {
            chat.tools = vec![weather()];
            chat.tool_choice = required();
        })
    };
    let answer = session.run(request.clone()).await;
    let choice = &answer.choices[0];
    assert_eq!(choice.calls.len(), 1, "{answer:?}");
    let (id, name, arguments) = &choice.calls[0];
    assert_eq!(name, "get_weather");
    assert!(!id.is_empty());
    let arguments: serde_json::Value = serde_json::from_str(arguments).unwrap();
    assert!(
        arguments["city"].is_string() && arguments["zone"].is_string(),
        "{arguments}"
    );
    assert_eq!(answer.end().reason(), FinishReason::ToolCalls);
    // cut in the middle: what there is, and the reason is the limit
    let cut = session
        .run(GenerateRequest {
            max_tokens: Some(25),
            ..request.clone()
        })
        .await;
    assert_eq!(cut.end().reason(), FinishReason::Length);
    // two choices have ids of their own
    let two = session.run(GenerateRequest { n: 2, ..request }).await;
    assert_eq!(two.choices.len(), 2);
    assert_ne!(two.choices[0].calls[0].0, two.choices[1].calls[0].0);
    let named = GenerateRequest {
        sampling: Some(greedy()),
        ..with_chat(|chat| {
            chat.tools = vec![
                Tool {
                    name: "other".into(),
                    ..weather()
                },
                weather(),
            ];
            chat.tool_choice = Some(ToolChoice {
                kind: Some(tool_choice::Kind::Function("other".into())),
            });
        })
    };
    assert_eq!(session.run(named).await.choices[0].calls[0].1, "other");
}

#[tokio::test]
async fn tools_with_a_free_choice_stream_text_and_respect_credit() {
    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    let mut session = engine.session().await;
    let request = with_chat(|chat| chat.tools = vec![weather()]);
    let answer = session.run(request.clone()).await;
    assert!(answer.failed.is_none(), "{answer:?}");
    // the tiny model's habit is to call; what matters is that the pieces make the same whole
    let all = |choice: &support::Choice| {
        let calls: String = choice
            .calls
            .iter()
            .map(|call| format!("{}{}", call.1, call.2))
            .collect();
        format!("{}{}{calls}", choice.reasoning, choice.content)
    };
    let whole = all(&answer.choices[0]);
    assert!(!whole.is_empty(), "{answer:?}");
    let mut stream = session
        .start(muster_proto::v1::start::Work::Generate(request), 2)
        .await;
    let mut deltas = 0;
    let mut begun = Answer::default();
    while deltas < 2 {
        let kind = stream.next().await.0.kind.unwrap();
        deltas += usize::from(matches!(kind, muster_proto::v1::event::Kind::Delta(_)));
        begun.add(kind);
    }
    assert!(
        stream.quiet_for(std::time::Duration::from_millis(300)).await,
        "more deltas than credits"
    );
    session.credit(stream.handle, 1000).await;
    let rest = stream.answer_from(begun).await;
    assert_eq!(all(&rest.choices[0]), whole);
    // cancelled while parsed: one terminal event, nothing after
    let long = GenerateRequest {
        max_tokens: Some(1500),
        ..with_chat(|chat| chat.tools = vec![weather()])
    };
    let mut stream = session.generate(long).await;
    stream.first_delta().await;
    session.cancel(stream.handle).await;
    assert_eq!(stream.answer().await.code(), "cancelled");
}

#[tokio::test]
async fn a_thinking_budget_ends_the_thinking() {
    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    let mut session = engine.session().await;
    let request = GenerateRequest {
        extra_json: r#"{"reasoning_budget_tokens":8}"#.into(),
        ..with_chat(|chat| chat.template_kwargs_json = r#"{"open_thinking":true}"#.into())
    };
    let answer = session.run(request).await;
    let choice = &answer.choices[0];
    assert!(
        !choice.reasoning.is_empty() && !choice.content.is_empty(),
        "{choice:?}"
    );
    assert!(
        !choice.content.contains("<think>") && !choice.content.contains("</think>"),
        "{choice:?}"
    );
}

#[tokio::test]
async fn the_last_message_can_be_continued() {
    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    let mut session = engine.session().await;
    let request = with_chat(|chat| {
        chat.messages.push(message("assistant", "The weather in Oslo is"));
        chat.continue_final_message = true;
    });
    let answer = session
        .run(GenerateRequest {
            sampling: Some(Sampling {
                ignore_eos: Some(true),
                ..greedy()
            }),
            ..request
        })
        .await;
    assert!(!answer.text().is_empty());
    assert!(
        !answer.text().contains("The weather in Oslo is"),
        "the part that was given is not news: {:?}",
        answer.text()
    );
}

#[tokio::test]
async fn answers_are_read_alike_whatever_chats_came_before() {
    let mut engine = Engine::with(settings("tiny-chat.gguf")).await;
    let mut session = engine.session().await;
    // the same options with other messages, and other options with the same messages
    let kinds: [fn(&mut Chat); 4] = [
        |chat| {
            chat.tools = vec![weather()];
            chat.tool_choice = required();
        },
        |_| (),
        |chat| chat.template_kwargs_json = r#"{"open_thinking":true}"#.into(),
        |chat| chat.enable_thinking = Some(false),
    ];
    let request = |kind: fn(&mut Chat), text: &str| GenerateRequest {
        sampling: Some(greedy()),
        ..with_chat(|chat| {
            chat.messages = vec![message("user", text)];
            kind(chat);
        })
    };
    let shape = |answer: &Answer| {
        let choice = &answer.choices[0];
        let calls: Vec<_> = choice
            .calls
            .iter()
            .map(|call| (call.1.clone(), call.2.clone()))
            .collect();
        (choice.reasoning.clone(), choice.content.clone(), calls)
    };
    let mut first = Vec::new();
    for kind in kinds {
        first.push(shape(&session.run(request(kind, "Oslo?")).await));
    }
    assert!(!first[0].2.is_empty(), "a tool call: {first:?}");
    assert_ne!(first[1], first[2], "open thinking begins inside the reasoning");
    for kind in kinds.into_iter().rev() {
        session.run(request(kind, "And in Rome, tomorrow?")).await;
    }
    for (kind, first) in kinds.into_iter().zip(&first) {
        assert_eq!(&shape(&session.run(request(kind, "Oslo?")).await), first);
    }
}

#[tokio::test]
async fn a_template_that_never_ends_shows_in_the_signs_of_life() {
    let loops = "{% for a in range(3000) %}".repeat(4) + &"{% endfor %}".repeat(4);
    let template = format!(
        "{{% if hang %}}{loops}{{% endif %}}{{% for m in messages %}}{{{{ m.role }}}}: {{{{ m.content }}}}\n{{% endfor %}}{{% if add_generation_prompt %}}assistant: {{% endif %}}"
    );
    let mut engine = Engine::with(muster_proto::v1::ModelSettings {
        chat_template: template,
        ..settings("tiny-chat.gguf")
    })
    .await;
    let mut session = engine.session().await;
    let hangs = with_chat(|chat| chat.template_kwargs_json = r#"{"hang":true}"#.into());
    let _hanging = session.generate(hangs).await;
    let begun = std::time::Instant::now();
    while *session.busy.lock().unwrap() < std::time::Duration::from_millis(1500) {
        assert!(begun.elapsed() < support::SOON, "nobody tells");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    // the other thread still prepares, and the loop still answers
    let answer = session.run(chat("Hi", 4)).await;
    assert_eq!(answer.usage().completion_tokens, 4);
}
