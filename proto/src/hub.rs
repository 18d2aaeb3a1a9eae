//! Names of checkpoints on a hub: `ORG/NAME` or `ORG/NAME:VARIANT` (seed 000, `checkpoint`), and revisions of their repositories.
//!
//! A revision is no part of a name (Ollama, llama.cpp and Lemonade have none in theirs): it stands beside it, as `revision`, Hugging Face's word.
//!
//! A path is never such a name: it begins with `/`, `.` or `~`, or has more than one `/`, or is a file name that ends in `.gguf`.

use std::{fmt, str::FromStr};

use crate::v1::HubCheckpoint;

/// The name of a checkpoint on a hub.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HubName {
    repo: String,
    variant: String,
}

/// The text is not the name of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no checkpoint of a hub: want ORG/NAME or ORG/NAME:VARIANT")]
pub struct HubNameError(String);

impl HubName {
    /// The repository, `ORG/NAME`.
    #[must_use]
    pub fn repo(&self) -> &str {
        &self.repo
    }

    /// Quantisation or file; empty = the repository's usual one.
    #[must_use]
    pub fn variant(&self) -> &str {
        &self.variant
    }

    /// The name as a message; `folder` = the whole repository.
    #[must_use]
    pub fn checkpoint(&self, revision: &Revision, mmproj: &str, folder: bool) -> HubCheckpoint {
        HubCheckpoint {
            repo: self.repo.clone(),
            variant: self.variant.clone(),
            mmproj: mmproj.to_owned(),
            folder,
            revision: revision.message(),
        }
    }
}

/// The revision of a repository that names none.
const MAIN: &str = "main";

/// A branch, a tag or a commit of a repository.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Revision(String);

/// The text is no such name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no revision: want a branch, a tag or a commit, of letters, digits and `-_.+/`")]
pub struct RevisionError(String);

impl Default for Revision {
    fn default() -> Self {
        Self(MAIN.to_owned())
    }
}

impl Revision {
    /// The revision that a checkpoint is of.
    ///
    /// # Errors
    /// It can be none.
    pub fn of(checkpoint: &HubCheckpoint) -> Result<Self, RevisionError> {
        checkpoint.revision.parse()
    }

    /// Its name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// As a field of a message, of which there is one form: empty = `main`.
    #[must_use]
    pub fn message(&self) -> String {
        if self.is_main() {
            String::new()
        } else {
            self.0.clone()
        }
    }

    /// Whether it is what a repository shows if nobody names a revision.
    #[must_use]
    pub fn is_main(&self) -> bool {
        self.0 == MAIN
    }

    /// Whether it is a commit, which never changes.
    #[must_use]
    pub fn is_commit(&self) -> bool {
        self.0.len() == 40 && self.0.bytes().all(|byte| byte.is_ascii_hexdigit())
    }
}

impl FromStr for Revision {
    type Err = RevisionError;

    /// Reads a name by git's rules (`git check-ref-format`), of which it is also safe as a path; empty = `main`.
    fn from_str(text: &str) -> Result<Self, RevisionError> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let known =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'+' | b'/');
        let part = |part: &str| !part.is_empty() && !part.starts_with(['.', '-']) && !part.ends_with(".lock");
        let fine = text.len() <= 200
            && text.bytes().all(known)
            && !text.contains("..")
            && !text.ends_with('.')
            && text.split('/').all(part);
        let read = Self(text.to_owned());
        match (fine, read.is_commit()) {
            (false, _) => Err(RevisionError(text.to_owned())),
            (true, true) => Ok(Self(text.to_ascii_lowercase())),
            (true, false) => Ok(read),
        }
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a repository's path can be created below a directory safely: it is relative and has no `.` or `..`.
#[must_use]
pub fn is_plain_path(path: &str) -> bool {
    !path.is_empty()
        && !path.contains(['\\', '\0'])
        && path
            .split('/')
            .all(|part| !part.is_empty() && part != "." && part != "..")
}

/// Whether a text is the name of a repository: two parts of letters, digits, `-`, `_` and `.`.
#[must_use]
pub fn is_repo(text: &str) -> bool {
    let plain = |part: &str| {
        let bytes = || part.bytes();
        bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
            && bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
            // Names of the cache's directories have `--` between the parts.
            && !part.contains("--")
            && !part.contains("..")
    };
    text.split_once('/')
        .is_some_and(|(org, name)| plain(org) && plain(name))
}

/// The repository of files that clients uploaded. It is in the caches of hosts only: no hub is asked for it.
pub const UPLOADS: &str = "muster-uploads/blobs";

/// The SHA-256 of an uploaded file, in hexadecimal. It reads `sha256:HEX` (as Ollama's clients write it) and `HEX`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sum(String);

/// The text is no such sum.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no SHA-256: want sha256: and 64 hexadecimal digits")]
pub struct SumError(String);

impl Sum {
    /// 64 lowercase hexadecimal digits.
    #[must_use]
    pub fn hex(&self) -> &str {
        &self.0
    }

    /// The file's name in [`UPLOADS`].
    #[must_use]
    pub fn file(&self) -> String {
        format!("sha256-{}.gguf", self.0)
    }

    /// What a model with this file has as its checkpoint.
    #[must_use]
    pub fn checkpoint(&self) -> HubName {
        HubName {
            repo: UPLOADS.to_owned(),
            variant: self.file(),
        }
    }
}

impl FromStr for Sum {
    type Err = SumError;

    fn from_str(text: &str) -> Result<Self, SumError> {
        let hex = text.strip_prefix("sha256:").unwrap_or(text);
        let digits = || hex.bytes().all(|byte| byte.is_ascii_hexdigit());
        if hex.len() == 64 && digits() {
            Ok(Self(hex.to_ascii_lowercase()))
        } else {
            Err(SumError(text.to_owned()))
        }
    }
}

impl FromStr for HubName {
    type Err = HubNameError;

    fn from_str(text: &str) -> Result<Self, HubNameError> {
        let wrong = || HubNameError(text.to_owned());
        let (repo, variant) = match text.split_once(':') {
            Some((_, variant)) if !is_plain_path(variant) => return Err(wrong()),
            Some(parts) => parts,
            None if text.to_ascii_lowercase().ends_with(".gguf") => return Err(wrong()),
            None => (text, ""),
        };
        if !is_repo(repo) {
            return Err(wrong());
        }
        Ok(Self {
            repo: repo.to_owned(),
            variant: variant.to_owned(),
        })
    }
}

impl fmt::Display for HubName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repo)?;
        if !self.variant.is_empty() {
            write!(f, ":{}", self.variant)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_seed_are_read_and_paths_are_not() {
        let name: HubName = "unsloth/Qwen3-0.6B-GGUF:Q4_0".parse().unwrap();
        assert_eq!((name.repo(), name.variant()), ("unsloth/Qwen3-0.6B-GGUF", "Q4_0"));
        assert_eq!(name.to_string(), "unsloth/Qwen3-0.6B-GGUF:Q4_0");
        let whole: HubName = "amd/Llama-3.2-1B-Instruct-awq-g128-int4-asym-fp16-onnx-hybrid"
            .parse()
            .unwrap();
        assert_eq!(whole.variant(), "");
        let file: HubName = "org/name:Q8_0/model-00001-of-00002.gguf".parse().unwrap();
        assert_eq!(file.variant(), "Q8_0/model-00001-of-00002.gguf");
        for path in [
            "",
            "name",
            "/abs/model.gguf",
            "./rel/model",
            "../x",
            "~/x/y",
            "models/tiny.gguf",
            "a/b/c",
            "a/b:",
            "a/b:../../etc/passwd",
            "a/b:/etc/passwd",
            "a--x/b",
            "a/..",
            "a b/c",
        ] {
            assert!(path.parse::<HubName>().is_err(), "{path}");
        }
    }

    #[test]
    fn a_revision_is_a_name_by_gits_rules_and_main_has_one_form() {
        for (text, message) in [
            ("", ""),
            ("main", ""),
            ("v1.0+cu128", "v1.0+cu128"),
            ("refs/pr/7", "refs/pr/7"),
            (
                "0123456789ABCDEF0123456789abcdef01234567",
                "0123456789abcdef0123456789abcdef01234567",
            ),
        ] {
            let read: Revision = text.parse().unwrap();
            assert_eq!(read.message(), message);
            assert_eq!(read.is_commit(), message.len() == 40, "{text}");
        }
        let long = "a".repeat(201);
        for wrong in [
            "a b", "../x", "a/../b", "/a", "a/", "a//b", ".a", "-a", "a/.b", "a.lock", "a..b", "a.", "a?b",
            "a%2F", "a\n", "ä", &long,
        ] {
            assert_eq!(
                wrong.parse::<Revision>(),
                Err(RevisionError(wrong.to_owned())),
                "{wrong}"
            );
        }
    }

    #[test]
    fn an_uploaded_file_is_named_by_its_sum() {
        let hex = "0A".repeat(32);
        let sum: Sum = format!("sha256:{hex}").parse().unwrap();
        assert_eq!(sum, hex.parse().unwrap());
        assert_eq!(sum.file(), format!("sha256-{}.gguf", "0a".repeat(32)));
        let name = sum.checkpoint();
        assert_eq!(name.to_string().parse(), Ok(name));
        for wrong in [
            "",
            "sha256:",
            "sha256:../x",
            &hex[1..],
            "md5:0a",
            &format!("sha256-{hex}"),
        ] {
            assert!(wrong.parse::<Sum>().is_err(), "{wrong}");
        }
    }
}
