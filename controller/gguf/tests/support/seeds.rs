//! Files that mutators begin with, for tests and for the fuzz target.

use crate::support::{shapes, writer::Writer};

/// A small file with everything in it that is looked at.
pub(crate) fn small() -> Writer {
    let mut writer = shapes::llama(2, 64);
    writer.text(
        "tokenizer.chat_template",
        "{% if tools %}{{ enable_thinking }}{% endif %}",
    );
    writer
}

/// One of each shape.
pub(crate) fn seeds() -> [Writer; 8] {
    [
        small(),
        shapes::deci(3, 32),
        shapes::gemma3(6, 32, 128),
        shapes::qwen3moe(2, 32),
        shapes::deepseek2(2, 32),
        shapes::mamba(2, 32),
        shapes::lfm2(3, 32),
        shapes::bert(2, 32),
    ]
}
