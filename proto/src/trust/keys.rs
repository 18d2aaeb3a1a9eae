//! API keys of users and administrators, for HTTP and gRPC.
//!
//! A single key is enough for everything unless there is an admin key (gateway/README.md, Lemonade); the admin key opens everything. Keys
//! are stored as digests, and every comparison takes the same time.

use std::{
    ffi::{OsStr, OsString},
    fmt, fs, io,
    path::{Path, PathBuf},
};

use clap::{ArgMatches, parser::ValueSource};
use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use muster_core::{Code, Error};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq as _};

const USER_KEY: &str = "MUSTER_API_KEY";
const USER_KEY_FILE: &str = "MUSTER_API_KEY_FILE";
const ADMIN_KEY: &str = "MUSTER_ADMIN_API_KEY";
const ADMIN_KEY_FILE: &str = "MUSTER_ADMIN_API_KEY_FILE";

/// The digest of a key.
pub(super) type Fingerprint = [u8; 32];

/// What a caller wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Inference and questions about models.
    User,
    /// Changes of what is loaded, stored or configured.
    Admin,
}

/// Whose key a caller has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// A user's key.
    pub user: bool,
    /// An administrator's key.
    pub admin: bool,
}

/// The accepted keys.
#[derive(Clone, Default)]
pub struct Keys {
    user: Vec<Fingerprint>,
    admin: Vec<Fingerprint>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (user, admin) = (self.user.len(), self.admin.len());
        write!(f, "Keys({user} of users, {admin} of administrators)")
    }
}

impl Keys {
    /// Makes the keys of users and administrators; empty ones are left out.
    pub fn new<U, A>(user: U, admin: A) -> Self
    where
        U: IntoIterator<Item: AsRef<str>>,
        A: IntoIterator<Item: AsRef<str>>,
    {
        Self {
            user: fingerprints(user),
            admin: fingerprints(admin),
        }
    }

    /// Whether inference requires a key.
    #[must_use]
    pub fn guard_users(&self) -> bool {
        !self.user.is_empty()
    }

    /// Whether changes require a key.
    #[must_use]
    pub fn guard_changes(&self) -> bool {
        !self.user.is_empty() || !self.admin.is_empty()
    }

    /// Whether changes require an administrator's key.
    #[must_use]
    pub fn guard_admins(&self) -> bool {
        !self.admin.is_empty()
    }

    /// Whether there are callers who do not trust each other: several keys, or an admin key while users need none.
    #[must_use]
    pub fn are_several(&self) -> bool {
        let mut known: Vec<&Fingerprint> = self.user.iter().chain(&self.admin).collect();
        known.sort();
        known.dedup();
        known.len() + usize::from(self.user.is_empty()) > 1
    }

    /// Decides on a caller with this key, or without one.
    ///
    /// # Errors
    /// `unauthenticated`; `forbidden` if an administrator's key is required and the caller has a user's.
    pub fn check(&self, need: Need, key: Option<&[u8]>) -> Result<(), Error> {
        let guarded = match need {
            Need::User => self.guard_users(),
            Need::Admin => self.guard_changes(),
        };
        if !guarded {
            return Ok(());
        }
        if key.is_none() {
            return Err(Code::Unauthenticated.error("an API key is needed: Authorization: Bearer KEY"));
        }
        let holder = self.holder(key);
        match need {
            Need::User | Need::Admin if holder.admin => Ok(()),
            Need::User if holder.user => Ok(()),
            Need::Admin if holder.user && self.admin.is_empty() => Ok(()),
            Need::Admin if holder.user => Err(Code::Forbidden.error("this needs the admin key")),
            Need::User | Need::Admin => Err(Code::Unauthenticated.error("the API key is wrong")),
        }
    }

    /// Whose key this is.
    #[must_use]
    pub fn holder(&self, key: Option<&[u8]>) -> Holder {
        let sent = key.map(fingerprint);
        let is = |keys: &[Fingerprint]| sent.is_some_and(|sent| is_one_of(&sent, keys));
        Holder {
            user: is(&self.user),
            admin: is(&self.admin),
        }
    }
}

/// The flags for API keys.
#[derive(Clone, Default, clap::Args)]
pub struct KeyOptions {
    /// API keys of users, separated by commas. If there is one, every request except health checks needs it. Everybody on this machine can
    /// read command lines, so the file or the variable is safer.
    #[arg(
        long,
        env = USER_KEY,
        hide_env_values = true,
        value_delimiter = ',',
        value_name = "KEY"
    )]
    pub api_key: Vec<String>,

    /// Files with further API keys of users, one per line.
    #[arg(long, env = USER_KEY_FILE, value_delimiter = ',', value_name = "FILE")]
    pub api_key_file: Vec<PathBuf>,

    /// Keys for loading, unloading, pulling, deleting and configuring models [default: the users' keys].
    #[arg(
        long,
        env = ADMIN_KEY,
        hide_env_values = true,
        value_delimiter = ',',
        value_name = "KEY"
    )]
    pub admin_api_key: Vec<String>,

    /// Files with further admin keys, one per line.
    #[arg(
        long,
        env = ADMIN_KEY_FILE,
        value_delimiter = ',',
        value_name = "FILE"
    )]
    pub admin_api_key_file: Vec<PathBuf>,
}

impl fmt::Debug for KeyOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyOptions")
            .field("api_key_file", &self.api_key_file)
            .field("admin_api_key_file", &self.admin_api_key_file)
            .finish_non_exhaustive()
    }
}

impl KeyOptions {
    /// The variables that [`KeyOptions::environment`] sets, to remove them for processes that must not have them.
    pub const VARIABLES: [&'static str; 4] = [USER_KEY, USER_KEY_FILE, ADMIN_KEY, ADMIN_KEY_FILE];

    /// The options as environment variables for a child process. They are not passed as arguments, which everybody on the machine can read.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, OsString); 4] {
        [
            (USER_KEY, self.api_key.join(",").into()),
            (USER_KEY_FILE, joined(&self.api_key_file)),
            (ADMIN_KEY, self.admin_api_key.join(",").into()),
            (ADMIN_KEY_FILE, joined(&self.admin_api_key_file)),
        ]
    }

    /// Reads the keys.
    ///
    /// # Errors
    /// A key file cannot be read or has no key.
    pub fn read(&self) -> io::Result<Keys> {
        let user = all(&self.api_key, &self.api_key_file)?;
        let admin = all(&self.admin_api_key, &self.admin_api_key_file)?;
        Ok(Keys::new(user, admin))
    }

    /// Warns about keys on the command line.
    pub fn warn_of_command_line(matches: &ArgMatches) {
        let flags = [("api_key", "--api-key"), ("admin_api_key", "--admin-api-key")];
        for (id, flag) in flags {
            if matches.value_source(id) == Some(ValueSource::CommandLine) {
                tracing::warn!("everybody on this machine can read the key of {flag}: {flag}-file is safer");
            }
        }
    }
}

fn joined(paths: &[PathBuf]) -> OsString {
    let words: Vec<&OsStr> = paths.iter().map(|path| path.as_os_str()).collect();
    words.join(OsStr::new(","))
}

/// The given keys and those in the files.
fn all(given: &[String], files: &[PathBuf]) -> io::Result<Vec<String>> {
    let mut keys = given.to_vec();
    for file in files {
        keys.extend(lines(file)?);
    }
    Ok(keys)
}

/// The secrets in a file, one per line.
///
/// # Errors
/// It cannot be read or is empty.
pub(super) fn lines(file: &Path) -> io::Result<Vec<String>> {
    let wrong = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.display()));
    let text = fs::read_to_string(file).map_err(wrong)?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines: Vec<String> = lines.map(str::to_owned).collect();
    if lines.is_empty() {
        return Err(wrong(io::Error::other("there is no key in it")));
    }
    Ok(lines)
}

/// The key of a request: `Authorization: Bearer`, or `x-api-key` as used by Anthropic and llama.cpp.
#[must_use]
pub fn sent(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
    let bearer = bearer.and_then(|value| {
        let (scheme, key) = value.split_at_checked(7)?;
        scheme
            .eq_ignore_ascii_case(b"bearer ")
            .then_some(key.trim_ascii())
    });
    bearer.or_else(|| headers.get("x-api-key").map(HeaderValue::as_bytes))
}

/// The digest of a key.
pub(super) fn fingerprint(key: &[u8]) -> Fingerprint {
    Sha256::digest(key).into()
}

pub(super) fn fingerprints<I: IntoIterator<Item: AsRef<str>>>(keys: I) -> Vec<Fingerprint> {
    keys.into_iter()
        .filter(|key| !key.as_ref().is_empty())
        .map(|key| fingerprint(key.as_ref().as_bytes()))
        .collect()
}

/// Compares with all keys, even after a match.
pub(super) fn is_one_of(sent: &Fingerprint, keys: &[Fingerprint]) -> bool {
    let none = Choice::from(0);
    keys.iter()
        .fold(none, |found, key| found | key.ct_eq(sent))
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [&str; 0] = [];

    fn answer(keys: &Keys, need: Need, key: Option<&str>) -> Option<Code> {
        keys.check(need, key.map(str::as_bytes))
            .err()
            .map(|error| error.code)
    }

    #[test]
    fn without_keys_everybody_may_do_everything() {
        let keys = Keys::new(NONE, [""]);
        for need in [Need::User, Need::Admin] {
            assert_eq!(answer(&keys, need, None), None);
        }
        assert!(!keys.guard_users() && !keys.guard_changes());
    }

    #[test]
    fn one_key_serves_everything_unless_there_is_an_admin_key() {
        let keys = Keys::new(["u", "v"], NONE);
        for need in [Need::User, Need::Admin] {
            assert_eq!(answer(&keys, need, Some("u")), None);
            assert_eq!(answer(&keys, need, Some("v")), None);
            for wrong in [None, Some(""), Some("uu")] {
                assert_eq!(answer(&keys, need, wrong), Some(Code::Unauthenticated));
            }
        }
        let keys = Keys::new(["u"], ["a"]);
        assert_eq!(answer(&keys, Need::User, Some("u")), None);
        assert_eq!(answer(&keys, Need::User, Some("a")), None);
        assert_eq!(answer(&keys, Need::Admin, Some("u")), Some(Code::Forbidden));
        assert_eq!(answer(&keys, Need::Admin, Some("a")), None);
        assert_eq!(answer(&keys, Need::Admin, Some("x")), Some(Code::Unauthenticated));
        let only_admin = Keys::new(NONE, ["a"]);
        assert_eq!(answer(&only_admin, Need::User, None), None);
        assert_eq!(
            answer(&only_admin, Need::Admin, None),
            Some(Code::Unauthenticated)
        );
    }

    #[test]
    fn a_key_is_sent_in_either_header() {
        let key = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            sent(&headers).map(<[u8]>::to_vec)
        };
        for (name, value) in [
            ("authorization", "Bearer k"),
            ("authorization", "bearer k "),
            ("x-api-key", "k"),
        ] {
            assert_eq!(key(name, value).as_deref(), Some(&b"k"[..]), "{name}: {value}");
        }
        for value in ["k", "Bearer", "Basic k"] {
            assert_eq!(key("authorization", value), None, "{value}");
        }
    }

    #[test]
    fn keys_come_from_files_too_and_an_empty_file_is_a_mistake() {
        let file = std::env::temp_dir().join(format!("muster-keys-{}", std::process::id()));
        fs::write(&file, "\n  one \ntwo\n").unwrap();
        let given = all(&["zero".into()], std::slice::from_ref(&file)).unwrap();
        assert_eq!(given, ["zero", "one", "two"]);
        fs::write(&file, " \n").unwrap();
        assert!(all(&[], std::slice::from_ref(&file)).is_err());
        fs::remove_file(&file).unwrap();
        assert!(all(&[], &[file]).is_err());
    }

    #[test]
    fn keys_are_not_printed() {
        let options = KeyOptions {
            api_key: vec!["hidden".to_owned()],
            ..KeyOptions::default()
        };
        let shown = format!("{options:?} {:?}", options.read().unwrap());
        assert!(!shown.contains("hidden"), "{shown}");
    }
}
