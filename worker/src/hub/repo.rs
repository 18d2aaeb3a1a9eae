//! One repository of the cache: its content, its commits, and which revision has which.
//!
//! ```text
//! models--ORG--NAME/blobs/ETAG                       content; ETAG.muster-part while it comes (partial.rs)
//!                  /snapshots/COMMIT/PATH            symbolic links into blobs
//!                  /refs/REVISION                    its newest COMMIT here; a commit has none
//!                  /.muster-revisions/REVISION       all its COMMITs, one a line, the newest last: other programs do not look there
//! ```
//!
//! The second list is why a file of an older commit still counts once another file of the repository came with a newer one, and why what one
//! entry pinned is never taken for another's `main`. Commits that nobody names (of other programs, or of uploads) belong to `main`.

use std::{
    collections::HashSet,
    fs::{self, File},
    io,
    os::unix::fs::symlink,
    path::{Component, Path, PathBuf},
    time::Duration,
};

use muster_proto::{
    hub::{self, Revision},
    v1::HubCheckpoint,
};

use super::{
    partial::{self, Partial},
    select::is_of,
};

/// Commits.
const SNAPSHOTS: &str = "snapshots";
/// Revisions whose newest commit is known.
const REFS: &str = "refs";
/// Revisions with all their commits.
const REVISIONS: &str = ".muster-revisions";
/// What is locked while these two are written.
const LOCKED: &str = "muster-revisions";

/// One repository.
#[derive(Clone, Debug)]
pub(super) struct Repo {
    path: PathBuf,
    locks: PathBuf,
}

impl Repo {
    /// `name` is checked (`hub::is_repo`).
    pub(super) fn new(cache: &Path, name: &str) -> Self {
        let folder = format!("models--{}", name.replace('/', "--"));
        Self {
            locks: cache.join(".locks").join(&folder),
            path: cache.join(folder),
        }
    }

    /// Its directory.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn blobs(&self) -> PathBuf {
        self.path.join("blobs")
    }

    /// Where the content with this etag is, or will be; the etag is checked ([`is_etag`]).
    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.blobs().join(etag)
    }

    /// Where the files of a commit have their names.
    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.path.join(SNAPSHOTS).join(commit)
    }

    /// Where content with this etag is while it comes.
    pub(super) fn part(&self, etag: &str) -> PathBuf {
        self.blobs().join(format!("{etag}{}", partial::SUFFIX))
    }

    /// The lock on content with this etag, where all hf-hub clients of the host look for it.
    ///
    /// # Errors
    /// The disk refuses.
    pub(super) fn lock_file(&self, etag: &str) -> io::Result<File> {
        fs::create_dir_all(&self.locks)?;
        File::create(self.locks.join(format!("{etag}.lock")))
    }

    /// What began to come of a checkpoint and was not written to for so long: etags, and paths in the repository.
    pub(super) fn coming(&self, checkpoint: &HubCheckpoint, untouched: Duration) -> Vec<(String, String)> {
        let entries = fs::read_dir(self.blobs()).into_iter().flatten().flatten();
        let of = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().ok()?;
            let etag = name.strip_suffix(partial::SUFFIX)?;
            if !untouched.is_zero() {
                let written = entry.metadata().ok()?.modified().ok()?;
                written.elapsed().ok().filter(|since| *since >= untouched)?;
            }
            let head = Partial::head(&entry.path())?;
            is_of(&head.path, checkpoint).then(|| (etag.to_owned(), head.path))
        };
        entries.filter_map(of).collect()
    }

    /// Names a blob in a snapshot.
    ///
    /// # Errors
    /// The disk refuses, or the path leaves the snapshot.
    pub(super) fn link(&self, commit: &str, path: &str, etag: &str) -> io::Result<()> {
        if !hub::is_plain_path(path) || !is_etag(commit) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("`{path}` is no file name"),
            ));
        }
        let link = self.snapshot(commit).join(path);
        if let Some(parent) = link.parent() {
            fs::create_dir_all(parent)?;
        }
        // Out of the file's directories, the commit's and `snapshots`.
        let depth = Path::new(path)
            .components()
            .filter(|part| matches!(part, Component::Normal(_)))
            .count();
        let target: PathBuf = std::iter::repeat_n("..", depth + 1).collect();
        let target = target.join("blobs").join(etag);
        if fs::read_link(&link).is_ok_and(|found| found == target) {
            return Ok(());
        }
        match fs::remove_file(&link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        symlink(target, link)
    }

    /// Notes that a commit is one of a revision's, before files of it get their names.
    ///
    /// # Errors
    /// The disk refuses.
    pub(super) fn claim(&self, revision: &Revision, commit: &str) -> io::Result<()> {
        let lock = self.lock_file(LOCKED)?;
        lock.lock()?;
        self.note(revision, commit)
    }

    /// Notes the newest commit of a revision.
    ///
    /// # Errors
    /// The disk refuses.
    pub(super) fn set_newest(&self, revision: &Revision, commit: &str) -> io::Result<()> {
        let lock = self.lock_file(LOCKED)?;
        lock.lock()?;
        // What another program wrote there is one of its commits, too.
        if let Some(old) = self.newest(revision) {
            self.note(revision, &old)?;
        }
        self.note(revision, commit)?;
        if revision.is_commit() {
            return Ok(());
        }
        self.replace(&self.path.join(REFS).join(revision.as_str()), commit)
    }

    fn note(&self, revision: &Revision, commit: &str) -> io::Result<()> {
        let mut commits = self.commits(revision);
        if commits.last().is_some_and(|last| last == commit) {
            return Ok(());
        }
        commits.retain(|known| known != commit);
        commits.push(commit.to_owned());
        let place = self.path.join(REVISIONS).join(revision.as_str());
        self.replace(&place, &commits.join("\n"))
    }

    fn replace(&self, place: &Path, text: &str) -> io::Result<()> {
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent)?;
        }
        // Not among the refs, where it would be one; no revision begins with a dot.
        let fresh = self.path.join(REVISIONS).join(".new");
        fs::create_dir_all(self.path.join(REVISIONS))?;
        fs::write(&fresh, text)?;
        fs::rename(fresh, place)
    }

    fn newest(&self, revision: &Revision) -> Option<String> {
        let text = fs::read_to_string(self.path.join(REFS).join(revision.as_str())).ok()?;
        Some(text.trim().to_owned()).filter(|commit| is_etag(commit))
    }

    /// Commits that a revision had, the newest last.
    fn commits(&self, revision: &Revision) -> Vec<String> {
        commits_in(&self.path.join(REVISIONS).join(revision.as_str()))
    }

    /// Snapshots of a revision, the newest one first.
    pub(super) fn snapshots(&self, revision: &Revision) -> Vec<PathBuf> {
        let root = self.path.join(SNAPSHOTS);
        if revision.is_commit() {
            return [root.join(revision.as_str())]
                .into_iter()
                .filter(|path| path.is_dir())
                .collect();
        }
        let earlier = self.commits(revision).into_iter().rev();
        let mut found: Vec<PathBuf> = Vec::new();
        for commit in self.newest(revision).into_iter().chain(earlier) {
            let snapshot = root.join(commit);
            if snapshot.is_dir() && !found.contains(&snapshot) {
                found.push(snapshot);
            }
        }
        if revision.is_main() {
            let named = self.named();
            let mut others: Vec<_> = self
                .all_snapshots()
                .into_iter()
                .filter(|path| {
                    !found.contains(path)
                        && !path
                            .file_name()
                            .is_some_and(|name| named.contains(&*name.to_string_lossy()))
                })
                .map(|path| (path.metadata().and_then(|meta| meta.modified()).ok(), path))
                .collect();
            others.sort_by(|a, b| b.cmp(a));
            found.extend(others.into_iter().map(|(_, path)| path));
        }
        found
    }

    /// Snapshots of all revisions.
    pub(super) fn all_snapshots(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path.join(SNAPSHOTS))
            .into_iter()
            .flatten()
            .flatten();
        entries
            .map(|entry| entry.path())
            .filter(|path| path.is_dir())
            .collect()
    }

    /// Commits that some revision has.
    fn named(&self) -> HashSet<String> {
        let mut open = [REFS, REVISIONS].map(|folder| self.path.join(folder)).to_vec();
        let mut named = HashSet::new();
        while let Some(folder) = open.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    open.push(entry.path());
                } else {
                    named.extend(commits_in(&entry.path()));
                }
            }
        }
        named
    }
}

fn commits_in(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines()
        .map(|line| line.trim().to_owned())
        .filter(|commit| is_etag(commit))
        .collect()
}

/// Whether a text may name a blob or a commit.
pub(super) fn is_etag(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 128
        && !text.starts_with('.')
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PINNED: &str = "1111111111111111111111111111111111111111";

    fn repo(dir: &Path) -> Repo {
        Repo::new(dir, "org/name")
    }

    fn add(repo: &Repo, revision: &str, commit: &str) {
        let revision = revision.parse().unwrap();
        repo.claim(&revision, commit).unwrap();
        repo.link(commit, "m.gguf", "e").unwrap();
        repo.set_newest(&revision, commit).unwrap();
    }

    fn commits(repo: &Repo, revision: &str) -> Vec<String> {
        let snapshots = repo.snapshots(&revision.parse().unwrap()).into_iter();
        snapshots
            .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn each_revision_has_its_own_commits_and_main_those_of_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let repo = repo(dir.path());
        // Somebody else's, without a ref.
        repo.link("other", "m.gguf", "e").unwrap();
        add(&repo, "refs/pr/1", "c1");
        add(&repo, "refs/pr/1", "c2");
        add(&repo, PINNED, PINNED);
        assert_eq!(commits(&repo, ""), ["other"]);
        assert_eq!(commits(&repo, "refs/pr/1"), ["c2", "c1"]);
        assert_eq!(commits(&repo, PINNED), [PINNED]);
        assert!(commits(&repo, "v1").is_empty());
        let refs = dir.path().join("models--org--name/refs");
        assert_eq!(fs::read_to_string(refs.join("refs/pr/1")).unwrap(), "c2");
        assert!(!refs.join(PINNED).exists(), "a commit needs no ref");
    }

    #[test]
    fn a_commit_that_main_had_stays_mains_when_others_name_it() {
        let dir = tempfile::tempdir().unwrap();
        let repo = repo(dir.path());
        // As another program leaves it.
        repo.link("c1", "m.gguf", "e").unwrap();
        let refs = dir.path().join("models--org--name/refs");
        fs::create_dir_all(&refs).unwrap();
        fs::write(refs.join("main"), "c1\n").unwrap();
        add(&repo, "v1", "c1");
        add(&repo, "main", "c2");
        assert_eq!(commits(&repo, "main"), ["c2", "c1"]);
        assert_eq!(commits(&repo, "v1"), ["c1"]);
        // Only what is a ref is among the refs.
        let left: Vec<_> = fs::read_dir(refs)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(left.len(), 2, "{left:?}");
    }
}
