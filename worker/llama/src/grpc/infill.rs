//! Fill-in-the-middle prompts in llama.cpp's repository pattern (seed 004, /infill; ENGINE.md 13).
//!
//! `[repo][file name text]… [file] [PRE] prefix middle [SUF] suffix [MID]` (with `--spm-infill` the suffix first), the prefix at most 3/4 of a batch (its end), the suffix 1/4 (its beginning).

use muster_core::Error;
use muster_proto::v1::Infill;

use super::convert::{check_text, native, prompt, text_bytes, unsupported};
use crate::{
    limits::Limits,
    model::{Model, Token},
};

/// Stands between files where the vocabulary has no file separator.
const SNIPPET: &str = "\n\n--- snippet ---\n\n";

/// The prompt of an infill request.
pub(super) fn tokens(
    model: &Model,
    limits: &Limits,
    infill: &Infill,
    max_tokens: Option<u32>,
) -> Result<Vec<Token>, Error> {
    let info = model.info();
    if info.fim_pre < 0 || info.fim_suf < 0 || info.fim_mid < 0 {
        return Err(unsupported("infill", "the model has no tokens for infill"));
    }
    let text = |text: &str, param: &'static str| model.tokenize(text, false, false).map_err(native(param));
    // of longer texts only the part next to the gap is used: the rest is not read
    let most = limits.context_text;
    let mut prefix = text(end(&infill.prefix, most), "input_prefix")?;
    let mut suffix = text(beginning(&infill.suffix, most), "input_suffix")?;
    let middle = match &infill.middle {
        Some(middle) => {
            check_text(text_bytes(middle), most, limits.context, "prompt")?;
            prompt(model, middle, "prompt", false, true)?
        }
        None => Vec::new(),
    };
    let mut files = Vec::new();
    if info.fim_rep >= 0 {
        files.push(info.fim_rep);
        files.append(&mut text("myproject\n", "input_extra")?);
    }
    for file in &infill.extra {
        if info.fim_sep >= 0 {
            let name = if file.filename.is_empty() {
                "tmp"
            } else {
                &file.filename
            };
            files.push(info.fim_sep);
            files.append(&mut text(&format!("{name}\n"), "input_extra")?);
        } else {
            files.append(&mut text(SNIPPET, "input_extra")?);
        }
        files.append(&mut text(end(&file.text, most), "input_extra")?);
    }
    if info.fim_sep >= 0 {
        files.push(info.fim_sep);
        files.append(&mut text("filename\n", "input_extra")?);
    }
    let quarter = limits.batch / 4;
    prefix.drain(..prefix.len().saturating_sub(3 * quarter));
    suffix.truncate(quarter.saturating_sub(2 + middle.len()));
    let spare = limits
        .context
        .saturating_sub(limits.batch + 2 * max_tokens.unwrap_or(0) as usize);
    files.drain(..files.len().saturating_sub(spare));
    let mut tokens = files;
    if info.add_bos && info.bos >= 0 {
        tokens.push(info.bos);
    }
    prefix.insert(0, info.fim_pre);
    prefix.extend(middle);
    suffix.insert(0, info.fim_suf);
    let (mut first, mut second) = if limits.defaults.suffix_first {
        (suffix, prefix)
    } else {
        (prefix, suffix)
    };
    tokens.append(&mut first);
    tokens.append(&mut second);
    tokens.push(info.fim_mid);
    Ok(tokens)
}

/// The last `most` bytes of a text, or a few less.
fn end(text: &str, most: usize) -> &str {
    let from = text.len().saturating_sub(most);
    &text[text.ceil_char_boundary(from)..]
}

/// The first `most` bytes of a text, or a few less.
fn beginning(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}
