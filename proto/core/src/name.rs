//! How clients spell the names of models.
//!
//! Ollama adds a tag to every name that has none. Lemonade says where a model comes from by a prefix, and leaves it out where that is clear. Whoever
//! looks a name up tries all of it.

/// The tag that Ollama's clients add.
pub const LATEST: &str = ":latest";
/// What begins the names of models that users registered.
pub const USER: &str = "user.";
/// What Lemonade's clients put before names that stand without it here.
const SOURCES: [&str; 2] = ["builtin.", "extra."];

/// The names under which a model may stand that somebody calls `name`, best first: `name` itself is one.
pub fn spellings(name: &str) -> impl Iterator<Item = String> {
    let bare = name.strip_suffix(LATEST).unwrap_or(name);
    let unprefixed = SOURCES.iter().filter_map(move |source| bare.strip_prefix(source));
    let first = [name.to_owned(), bare.to_owned(), format!("{USER}{bare}")];
    first.into_iter().chain(unprefixed.map(str::to_owned))
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
