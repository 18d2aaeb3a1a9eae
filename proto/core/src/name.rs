//! Spellings of model names by different clients.
//!
//! Ollama's clients add a tag to every name without one. Lemonade's clients put a model's source before its name, or leave it out where it
//! is clear. A look-up tries all spellings.

use std::{borrow::Cow, iter};

/// The tag that Ollama's clients add.
pub const LATEST: &str = ":latest";
/// The prefix of models that users registered.
pub const USER: &str = "user.";
/// Prefixes that Lemonade's clients put before names which have none here.
const SOURCES: [&str; 2] = ["builtin.", "extra."];

/// The names under which a model may stand that somebody calls `name`, best first: `name` itself is one. Each is made when it is asked for.
pub fn spellings(name: &str) -> impl Iterator<Item = Cow<'_, str>> {
    let bare = name.strip_suffix(LATEST).unwrap_or(name);
    let registered = iter::once_with(move || Cow::Owned(format!("{USER}{bare}")));
    let unprefixed = SOURCES.iter().filter_map(move |source| bare.strip_prefix(source));
    [name, bare]
        .into_iter()
        .map(Cow::Borrowed)
        .chain(registered)
        .chain(unprefixed.map(Cow::Borrowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_tried_as_it_is_without_a_tag_with_and_without_a_source() {
        let all = |name| spellings(name).collect::<Vec<_>>();
        assert_eq!(all("m:latest"), ["m:latest", "m", "user.m"]);
        assert_eq!(
            all("builtin.m"),
            ["builtin.m", "builtin.m", "user.builtin.m", "m"]
        );
    }
}
