//! What is not shown to people: values of keys, tokens and passwords, wherever settings and command lines are shown.

use serde_json::Value;

/// Shown in place of a secret.
pub const REDACTED: &str = "***";

/// Beginnings of tokens that well-known services give out.
const ISSUED: [&str; 10] = [
    "hf_",
    "sk-",
    "ghp_",
    "gho_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "AKIA",
    "AIza",
    "eyJ",
];
/// Shorter words that begin so are names.
const SHORTEST_ISSUED: usize = 16;
/// A word of this many letters and digits, and nothing else, is taken for a key: 128 random bits in hexadecimal form.
const SHORTEST_RANDOM: usize = 32;

/// Whether a name is that of a key or password. It may be a flag's or a variable's.
#[must_use]
pub fn is_secret(name: &str) -> bool {
    const WORDS: [&str; 7] = [
        "api_key",
        "apikey",
        "token",
        "secret",
        "password",
        "credential",
        "authorization",
    ];
    // Names of settings that count tokens.
    const HARMLESS: [&str; 2] = ["tokens", "tokenizer"];
    let name = name.trim_start_matches('-').replace('-', "_").to_lowercase();
    // llama-server's short flag for the hub's token is no word.
    let ends = name.ends_with("_key") || name == "key" || name == "hft";
    ends || WORDS.iter().any(|word| name.contains(word)) && !HARMLESS.iter().any(|word| name.contains(word))
}

/// A command line without its secrets: the values of flags that name one, and what looks like one.
#[must_use]
pub fn redacted(words: &[String]) -> Vec<String> {
    let mut hide = false;
    let show = |word: &String| {
        let (name, joined) = word
            .split_once('=')
            .map_or((word.as_str(), false), |(name, _)| (name, true));
        let secret = name.starts_with('-') && is_secret(name);
        // Also behind a word that is itself hidden: that may have been the next flag, of a flag that takes no value.
        if std::mem::replace(&mut hide, secret && !joined) {
            return REDACTED.to_owned();
        }
        if secret && joined {
            return format!("{name}={REDACTED}");
        }
        veiled(word)
    };
    words.iter().map(show).collect()
}

/// A word in which everything that looks like a secret is replaced. Behind `NAME=` stands one if the name says so.
fn veiled(word: &str) -> String {
    let mut shown = String::new();
    let mut rest = word;
    while !rest.starts_with(['{', '['])
        && let Some((name, value)) = rest.split_once('=')
    {
        shown += &plain(name);
        shown.push('=');
        if is_secret(name) {
            return shown + REDACTED;
        }
        rest = value;
    }
    shown + &plain(rest)
}

fn plain(word: &str) -> String {
    if word.starts_with(['{', '['])
        && let Ok(mut value) = serde_json::from_str::<Value>(word)
    {
        veil(&mut value);
        return value.to_string();
    }
    let random = word.len() >= SHORTEST_RANDOM
        && word.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && word.bytes().any(|byte| byte.is_ascii_digit())
        && word.bytes().any(|byte| byte.is_ascii_alphabetic());
    let bearer = word
        .get(..7)
        .is_some_and(|start| start.eq_ignore_ascii_case("bearer "));
    if random || bearer {
        return REDACTED.to_owned();
    }
    without_issued(&without_password(word))
}

fn veil(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if is_secret(name) && !value.is_null() {
                    *value = REDACTED.into();
                } else {
                    veil(value);
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(veil),
        Value::String(text) => *text = veiled(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Without the user's part of an address (`https://USER:PASSWORD@HOST`).
fn without_password(word: &str) -> String {
    let Some((scheme, rest)) = word.split_once("://") else {
        return word.to_owned();
    };
    let end = rest.find('/').unwrap_or(rest.len());
    let (host, path) = rest.split_at(end);
    match host.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://{REDACTED}@{host}{path}"),
        None => word.to_owned(),
    }
}

/// Without tokens of well-known services.
fn without_issued(word: &str) -> String {
    let between = |letter: char| !(letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.'));
    let show = |part: &str| {
        let token = part.trim_end_matches(between);
        let issued = token.len() >= SHORTEST_ISSUED
            && ISSUED.iter().any(|start| token.starts_with(start))
            && token.bytes().any(|byte| byte.is_ascii_digit());
        if issued {
            format!("{REDACTED}{}", &part[token.len()..])
        } else {
            part.to_owned()
        }
    };
    word.split_inclusive(between).map(show).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(words: &[&str]) -> Vec<String> {
        redacted(&words.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn secrets_on_a_command_line_are_replaced() {
        for words in [
            &["--api-key", "s3cret"][..],
            &["--api-key=s3cret"],
            &["--hf-token", "s3cret"],
            &["-hft", "s3cret"],
            // Flags that take no value do not let the next one's through.
            &["--add-token", "--api-key", "s3cret"],
            &["OPENAI_API_KEY=s3cret"],
            &["--env", "HF_TOKEN=s3cret"],
            &["--proxy", "https://me:s3cret@host:1/x"],
            &["--header", "Authorization=s3cret"],
            &["--env=HF_TOKEN=s3cret"],
            &["https://host/x?a=1&token=s3cret"],
            &["https://me:s3cret@host/x?a=1"],
            &["--header", "Bearer s3cret"],
            &[
                "--x",
                r#"{"a": [{"api_key": "s3cret"}], "b": "https://s3cret@host"}"#,
            ],
            &["--x", "hf_s3cretAAAAAAAAAAAAAAAAAA"],
            &["--x", "a,sk-s3cretAAAAAAAAAAAAAAAAAA,b"],
            &["--x", "0123456789abcdef0123456789s3cret"],
            &["--x=0123456789abcdef0123456789s3cret"],
        ] {
            let shown = shown(words).join(" ");
            assert!(!shown.contains("s3cret"), "{shown}");
            assert!(shown.contains(REDACTED), "{shown}");
        }
        assert_eq!(
            shown(&["--proxy", "https://me:pass@host:1/x"])[1],
            "https://***@host:1/x"
        );
        assert_eq!(shown(&["--x", "a,sk-1AAAAAAAAAAAAAAAAAAAAA,b"])[1], "a,***,b");
    }

    #[test]
    fn everything_else_is_shown_as_it_is() {
        let words = [
            "/opt/llama-server",
            "-m",
            "/hub/models--o--n/snapshots/0123456789abcdef0123456789abcdef01234567/m.gguf",
            "--max-tokens",
            "5",
            "--tokenizer",
            "o/n",
            "--cache-type-k",
            "q8_0",
            "--override-kv",
            "tokenizer.ggml.add_bos_token=bool:false",
            "--device",
            "GPU-11111111-2222-3333-4444-555555555555",
            "--alias",
            "Llama-3.2-1B-Instruct-Hybrid-Q4_K_M",
            "hf_org-with-a-name",
            "--host",
            "/run/muster/01a1fde8-9a5a-77b2-9458-b198cfc4f48a/engine.sock",
            "https://host:1/x",
            r#"{"rope_scaling":{"factor":2.0}}"#,
        ];
        assert_eq!(shown(&words), words);
    }
}
