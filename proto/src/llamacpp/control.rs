//! Control vectors (`--control-vector`): which files, and how strong.

use muster_core::Error;

use super::{Said, words, wrong};

/// A control vector.
#[derive(Clone, Debug, PartialEq)]
pub struct Vector {
    /// Path of its file.
    pub path: String,
    /// Its strength; 1 is as made.
    pub scale: f64,
}

/// All control vectors that arguments name.
///
/// # Errors
/// `invalid_load_request`: a scale is missing or no number.
///
/// ```
/// let args = ["--control-vector", "a,b", "-t", "2", "--control-vector-scaled", "c:-0.5"].map(str::to_owned);
/// let all = muster_proto::llamacpp::control::named(&args)?;
/// assert_eq!(all.iter().map(|vector| (vector.path.as_str(), vector.scale)).collect::<Vec<_>>(), [("a", 1.0), ("b", 1.0), ("c", -0.5)]);
/// # Ok::<(), muster_core::Error>(())
/// ```
pub fn named(args: &[String]) -> Result<Vec<Vector>, Error> {
    let mut all = Vec::new();
    for said in words(args).filter(|said| said.known_as().starts_with("--control-vector")) {
        all.append(&mut vectors(&said)?);
    }
    Ok(all)
}

/// The control vectors that one flag names; none of a flag that is about their layers.
///
/// # Errors
/// As for [`named`].
pub fn vectors(said: &Said<'_>) -> Result<Vec<Vector>, Error> {
    let scaled = match said.known_as() {
        "--control-vector" => false,
        "--control-vector-scaled" => true,
        _ => return Ok(Vec::new()),
    };
    let read = |item: String| {
        let both = if scaled {
            item.split_once(':')
        } else {
            Some((item.as_str(), "1"))
        };
        let scale = both.and_then(|(path, scale)| Some((path, scale.parse::<f64>().ok()?)));
        match scale.filter(|(_, scale)| scale.is_finite()) {
            Some((path, scale)) => Ok(Vector {
                path: path.to_owned(),
                scale,
            }),
            None => Err(wrong(format_args!("`{}` wants FILE:SCALE", said.name))),
        }
    };
    rows(said.valued()?).into_iter().map(read).collect()
}

/// Items separated by commas; quotes hold one together, and two of them in quotes are one (`parse_csv_row` of llama.cpp).
///
/// ```
/// use muster_proto::llamacpp::control::rows;
/// assert_eq!(rows("a=int:1,\"b,\"\"c\"\"\",d\""), ["a=int:1", "b,\"c\"", "d\""]);
/// ```
#[must_use]
pub fn rows(text: &str) -> Vec<String> {
    let mut items = Vec::new();
    let (mut item, mut quoted) = (String::new(), false);
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '"' if quoted && chars.peek() == Some(&'"') => item.extend(chars.next()),
            '"' if quoted => quoted = false,
            '"' if item.is_empty() => quoted = true,
            ',' if !quoted => items.push(std::mem::take(&mut item)),
            other => item.push(other),
        }
    }
    items.push(item);
    items
}
