//! Which of llama.cpp's flags a request may say, over all those that its own source knows (issue 10, 3.2): a flag that comes with a newer
//! llama.cpp is refused until somebody reads what it does and adds it to the list.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;

use muster_proto::llamacpp::{By, Takes, find, flags, requested};

/// Where llama.cpp's `common` defines its command line.
const SOURCE: &str = concat!(env!("MUSTER_LLAMA_CPP"), "/common/arg.cpp");
/// Words in the help of a flag's value that mean files, addresses and secrets.
const DANGEROUS: [&str; 11] = [
    "FNAME", "FILE", "PATH", "DIR", "URL", "KEY", "TOKEN", "SERVERS", "HOST", "TOOL", "JSON",
];

/// Flags that llama.cpp has given up for `--load-mode`; our engine honours them (seed 000), as older servers do.
const GIVEN_UP: [&str; 3] = ["--mmap", "--no-mmap", "--mlock"];

/// A flag of llama.cpp: whether it takes a value, and what its help calls that.
#[derive(Clone, Debug)]
struct Theirs {
    valued: bool,
    hint: String,
}

/// All names in the source.
fn theirs() -> BTreeMap<String, Theirs> {
    let source = std::fs::read_to_string(SOURCE).unwrap();
    let mut all = BTreeMap::new();
    for definition in source.split("common_arg(").skip(1) {
        let Some((names, rest)) = braces(definition.trim_start()) else {
            continue;
        };
        let rest = rest.trim_start_matches([',', ' ', '\n']);
        let (off, rest) = braces(rest).unwrap_or_default();
        let rest = if off.is_empty() { definition } else { rest };
        // The handler's second parameter is the value; a switch's is a bool.
        let handler = rest.split("](common_params &").nth(1).unwrap_or_default();
        let parameters = handler.split(')').next().unwrap_or_default();
        let valued = parameters.contains("std::string") || parameters.contains("int");
        let hint = definition.split("[](").next().unwrap_or_default();
        let hint = hint.split_once('}').map_or("", |(_, hint)| hint);
        let hint = hint.split('"').nth(1).unwrap_or_default();
        for (names, valued) in [(names, valued), (off, false)] {
            for name in names {
                let hint = hint.to_owned();
                all.insert(name, Theirs { valued, hint });
            }
        }
    }
    all
}

/// The strings between the braces that a text begins with, and what follows.
fn braces(text: &str) -> Option<(Vec<String>, &str)> {
    let (inner, rest) = text.strip_prefix('{')?.split_once('}')?;
    let names = inner.split('"').skip(1).step_by(2).map(str::to_owned);
    Some((names.collect(), rest))
}

fn asked(words: &[&str]) -> Result<(), String> {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    requested(&words).map_err(|error| error.message)
}

#[test]
fn every_flag_of_llama_cpp_is_on_the_list_or_refused_from_a_request() {
    let theirs = theirs();
    assert!(theirs.len() > 300, "{} flags were read", theirs.len());
    for (name, flag) in &theirs {
        let listed = find(name).filter(|known| known.by == By::Request);
        let path = asked(&[name, "/etc/passwd"]);
        assert!(path.is_err(), "{name} takes a path");
        let Some(listed) = listed else {
            for words in [
                &[name.as_str()][..],
                &[name, "1"],
                &[name, "on"],
                &[&format!("{name}=1")],
            ] {
                let refused = asked(words).expect_err(name);
                assert!(refused.contains(&format!("`{name}`")), "{words:?}: {refused}");
            }
            continue;
        };
        // Read with another arity, a value would be a flag.
        assert_eq!(listed.takes != Takes::Nothing, flag.valued, "{name}");
        let dangerous = DANGEROUS.iter().find(|word| flag.hint.contains(**word));
        assert!(dangerous.is_none(), "{name} {}", flag.hint);
    }
    assert!(asked(&["--flag-of-tomorrow", "1"]).is_err());
}

#[test]
fn every_flag_of_the_list_is_one_of_llama_cpp() {
    let theirs = theirs();
    let names = flags().flat_map(|flag| flag.names).copied();
    let unknown: Vec<&str> = names.filter(|name| !theirs.contains_key(*name)).collect();
    assert_eq!(unknown, GIVEN_UP);
}
