//! How a model's file comes into memory: llama.cpp's `--mmap`, `--no-mmap` and `--mlock`, and `--load-mode`, which today's has in their place.

use super::words;

/// How weights come into memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoadMode {
    /// The file is mapped, or read; none = as llama.cpp finds best.
    pub map: Option<bool>,
    /// Pages stay in memory. Where the system forbids that, llama.cpp warns and goes on.
    pub lock: bool,
}

const MAP: &str = "--mmap";
const READ: &str = "--no-mmap";
const LOCK: &str = "--mlock";
/// The flag that says both.
pub(super) const NAMES: [&str; 2] = ["-lm", "--load-mode"];
/// The modes by their names in llama.cpp; it has one more, without the system's cache (`dio`), for which Muster has no use.
const MODES: [(&str, LoadMode); 5] = [
    ("auto", LoadMode::new(None, false)),
    ("none", LoadMode::new(Some(false), false)),
    ("mmap", LoadMode::new(Some(true), false)),
    ("mlock", LoadMode::new(Some(false), true)),
    ("mmap+mlock", LoadMode::new(Some(true), true)),
];
/// The names.
pub(super) const WORDS: [&str; 5] = [MODES[0].0, MODES[1].0, MODES[2].0, MODES[3].0, MODES[4].0];

impl LoadMode {
    /// All flags about it.
    pub const FLAGS: [&str; 5] = [MAP, READ, LOCK, NAMES[0], NAMES[1]];

    const fn new(map: Option<bool>, lock: bool) -> Self {
        Self { map, lock }
    }

    /// What arguments say; as in llama.cpp the last word on it counts. None if they say nothing, or name a mode that is not known here.
    #[must_use]
    pub fn of(args: &[String]) -> Option<Self> {
        let mut said = None;
        for word in words(args) {
            let mode: &mut Self = match word.name {
                MAP | READ | LOCK => said.get_or_insert_default(),
                name if NAMES.contains(&name) => {
                    let known = MODES.iter().find(|(name, _)| Some(*name) == word.value);
                    said = known.map(|(_, mode)| *mode);
                    continue;
                }
                _ => continue,
            };
            match word.name {
                LOCK => mode.lock = true,
                name => mode.map = Some(name == MAP),
            }
        }
        said
    }

    /// Its name in llama.cpp. It maps unless told otherwise, so a lock alone is on a mapped file.
    #[must_use]
    pub fn name(self) -> &'static str {
        let mode = match self {
            Self {
                map: None,
                lock: true,
            } => Self::new(Some(true), true),
            given => given,
        };
        let found = MODES.iter().find(|(_, known)| *known == mode);
        found.map_or(WORDS[0], |(name, _)| name)
    }

    /// The words of a command line of today's llama.cpp.
    #[must_use]
    pub fn words(self) -> Vec<String> {
        vec![NAMES[1].to_owned(), self.name().to_owned()]
    }

    /// The words of a command line of a llama.cpp that has no `--load-mode` yet.
    #[must_use]
    pub fn former(self) -> Vec<String> {
        let map = self.map.map(|map| if map { MAP } else { READ });
        let lock = self.lock.then_some(LOCK);
        map.into_iter().chain(lock).map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn former_flags_and_the_new_one_say_the_same() {
        let of = |text: &str| {
            let args: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
            LoadMode::of(&args).map(LoadMode::name)
        };
        for (args, mode) in [
            ("-t 2", None),
            ("--no-mmap", Some("none")),
            ("--mmap", Some("mmap")),
            ("--mlock", Some("mmap+mlock")),
            ("--no-mmap --mlock", Some("mlock")),
            ("--no-mmap --mlock --mmap", Some("mmap+mlock")),
            ("--mmap --load-mode none", Some("none")),
            ("-lm=mlock --mmap", Some("mmap+mlock")),
            ("--load-mode dio", None),
        ] {
            assert_eq!(of(args), mode, "{args}");
        }
        for (name, mode) in MODES {
            assert_eq!((mode.name(), LoadMode::of(&mode.words())), (name, Some(mode)));
            assert_eq!(LoadMode::of(&mode.former()).unwrap_or_default(), mode);
        }
    }
}
