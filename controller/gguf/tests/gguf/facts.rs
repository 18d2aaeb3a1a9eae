//! What a catalogue shows of a file.

use muster_gguf::{Facts, Gguf, Kind};

use super::{
    gguf,
    support::{shapes, writer::*},
};

fn facts(writer: &Writer) -> Facts {
    Facts::read(&gguf(writer)).unwrap()
}

#[test]
fn a_chat_model() {
    let mut writer = shapes::llama(2, 100);
    writer
        .text("general.name", "Small")
        .text(
            "tokenizer.chat_template",
            "{% for tool in tools %}{% endfor %}{{ messages }}",
        )
        .number("tokenizer.ggml.fim_pre_token_id", 7);
    let facts = facts(&writer);
    assert_eq!(facts.kind, Kind::Text);
    assert_eq!(
        (facts.name.as_str(), facts.architecture.as_str()),
        ("Small", "llama")
    );
    assert_eq!((facts.context, facts.vocabulary, facts.vector), (131_072, 100, 0));
    assert!(facts.chat && facts.tools && facts.infill && !facts.thinking);
    let tensors: u64 = gguf(&writer)
        .tensors()
        .map(|tensor| tensor.shape.iter().product::<u64>())
        .sum();
    assert_eq!(facts.parameters, tensors);
}

#[test]
fn what_is_shown_of_a_file_is_short() {
    let mut writer = shapes::llama(1, 10);
    writer
        .number("general.file_type", 15)
        .text("general.license", "mit")
        .text("general.description", &"long ".repeat(1000))
        .text("tokenizer.chat_template", "{{ messages }}")
        .text("tokenizer.chat_template.tool_use", "{{ tools }}");
    let facts = facts(&writer);
    assert_eq!(
        (facts.quantization, facts.template.as_str()),
        ("Q4_K_M", "{{ messages }}")
    );
    assert_eq!(facts.metadata["general.license"], "mit");
    assert_eq!(facts.metadata["llama.embedding_length"], facts.width.to_string());
    let long = [
        "general.description",
        "tokenizer.chat_template",
        "tokenizer.chat_template.tool_use",
        "tokenizer.ggml.tokens",
    ];
    assert!(long.iter().all(|key| !facts.metadata.contains_key(*key)));
    let mut writer = shapes::llama(1, 10);
    writer.number("general.file_type", 1024);
    assert_eq!(self::facts(&writer).quantization, "", "guessed by a converter");
}

#[test]
fn thinking_is_what_the_template_lets_a_request_switch() {
    let thinking = |template: &str| {
        let mut writer = shapes::llama(1, 10);
        writer.text("tokenizer.chat_template", template);
        facts(&writer).thinking
    };
    assert!(thinking(
        "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"
    ));
    // Templates that always think have no switch.
    assert!(!thinking("{{ messages }}<think>\n"));
}

#[test]
fn embedding_models_and_rerankers_are_told_apart() {
    let embedding = facts(&shapes::bert(1, 10));
    assert_eq!(
        (embedding.kind, embedding.vector),
        (Kind::Embedding, shapes::WIDTH)
    );
    let mut writer = shapes::bert(1, 10);
    writer.tensor("cls.weight", F32, &[shapes::WIDTH, 1]);
    assert_eq!(facts(&writer).kind, Kind::Reranking);
    let mut writer = Writer::new("qwen3");
    writer.number("pooling_type", 4);
    assert_eq!(facts(&writer).kind, Kind::Reranking);
    let mut writer = Writer::new("qwen3");
    writer.number("pooling_type", 3).number("embedding_length", 64);
    assert_eq!(
        (facts(&writer).kind, facts(&writer).vector),
        (Kind::Embedding, 64)
    );
    let mut writer = Writer::new("dream");
    writer.flag("attention.causal", false);
    assert_eq!(facts(&writer).kind, Kind::Text);
}

#[test]
fn projectors_and_adapters_are_no_models() {
    assert_eq!(facts(&Writer::new("clip")).kind, Kind::Part);
    let mut writer = Writer::new("llama");
    writer.text("general.type", "adapter");
    assert_eq!(facts(&writer).kind, Kind::Part);
}

#[test]
fn the_generated_test_models_say_what_they_are() {
    let Some(models) = std::env::var_os("MUSTER_TEST_MODELS").map(std::path::PathBuf::from) else {
        return;
    };
    for (name, kind, thinking) in [
        ("tiny-chat.gguf", Kind::Text, true),
        ("tiny-swa.gguf", Kind::Text, true),
        ("tiny-mamba.gguf", Kind::Text, true),
        ("tiny-embed.gguf", Kind::Embedding, false),
        ("tiny-rerank.gguf", Kind::Reranking, false),
    ] {
        let facts = Facts::read(&Gguf::open(&models.join(name)).unwrap()).unwrap();
        assert_eq!(
            (facts.kind, facts.thinking, facts.tools),
            (kind, thinking, thinking),
            "{name}"
        );
    }
}
