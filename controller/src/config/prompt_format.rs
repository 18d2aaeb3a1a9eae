//! `prompt_format`: chat templates under seed 001's names (`definition.prompt_format`). A named template replaces the model's own
//! (gateway/README.md, Runtime Admin API). These templates render only text; a model's own may also support images and tools.

use muster_core::Runtime;

use super::section::Section;

/// The formats and their templates.
const FORMATS: [(&str, &str); 5] = [
    ("generic", include_str!("prompt_formats/generic.jinja")),
    ("mistral_template", include_str!("prompt_formats/mistral.jinja")),
    ("qwen3_template", include_str!("prompt_formats/qwen3.jinja")),
    ("gemma4_template", include_str!("prompt_formats/gemma4.jinja")),
    (
        "translategemma_template",
        include_str!("prompt_formats/translategemma.jinja"),
    ),
];

/// Reads the name from a model's section and puts its template into `chat_template`. Returns the name; empty = none. A name beside a
/// `chat_template`, or for a runtime without templates, is a problem.
pub(super) fn read(section: &Section<'_>, runtime: Option<Runtime>, chat_template: &mut String) -> String {
    const KEY: &str = "prompt_format";
    let names = FORMATS.map(|(name, _)| name);
    let found = section.word(KEY, &names).and_then(|place| FORMATS.get(place));
    let Some((name, template)) = found else {
        return String::new();
    };
    if !chat_template.is_empty() {
        section.problem(KEY, "says the same as `chat_template`: give one of them");
    }
    if runtime.is_some_and(|runtime| !runtime.facts().templates) {
        section.problem(KEY, "is for llama.cpp's runtimes only");
    }
    (*template).clone_into(chat_template);
    (*name).to_owned()
}
