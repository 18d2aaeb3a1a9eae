//! The cache on disk, in the layout of hf-hub and `huggingface_hub`, which other programs of the host read and write too.
//!
//! ```text
//! CACHE/models--ORG--NAME/blobs/ETAG                 content; ETAG.muster-part while it comes (partial.rs)
//!                        /snapshots/COMMIT/PATH      symbolic links into blobs
//!                        /refs/main                  the newest COMMIT
//!      /.locks/models--ORG--NAME/ETAG.lock           held by who fetches it
//! ```
//!
//! Everything here blocks while the disk does.

use std::{
    collections::HashSet,
    fs::{self, File},
    io,
    os::unix::fs::symlink,
    path::{Component, Path, PathBuf},
    time::Duration,
};

use muster_core::{Code, Error};
use muster_proto::{
    hub,
    v1::{CachedFiles, HubCheckpoint},
};

use super::{
    partial::{self, Partial},
    select::{RepoFile, Selection, is_named, is_of, select},
};

/// A cache of a hub's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cache {
    root: PathBuf,
}

/// One repository in it.
#[derive(Clone, Debug)]
pub(super) struct Repo {
    path: PathBuf,
    locks: PathBuf,
}

/// Files of one snapshot that make up a checkpoint.
#[derive(Debug)]
struct Found {
    snapshot: PathBuf,
    selection: Selection,
    size: u64,
}

impl Cache {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// The directory of the cache.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// One repository; `name` is checked (`hub::is_repo`).
    pub(super) fn repo(&self, name: &str) -> Repo {
        let folder = format!("models--{}", name.replace('/', "--"));
        Repo {
            locks: self.root.join(".locks").join(&folder),
            path: self.root.join(folder),
        }
    }

    /// What is there of a checkpoint.
    pub(super) fn cached_files(&self, checkpoint: &HubCheckpoint) -> CachedFiles {
        match self.find(checkpoint) {
            Some(found) => found.shown(checkpoint),
            None => CachedFiles::default(),
        }
    }

    /// Where the files of a checkpoint are.
    ///
    /// # Errors
    /// `file_not_found`: not all of them are there.
    pub(crate) fn resolve(&self, checkpoint: &HubCheckpoint) -> Result<CachedFiles, Error> {
        let found = self.cached_files(checkpoint);
        if found.complete {
            return Ok(found);
        }
        let HubCheckpoint { repo, variant, .. } = checkpoint;
        let colon = if variant.is_empty() { "" } else { ":" };
        let message = format!(
            "{repo}{colon}{variant} is not downloaded here: it is not in {}",
            self.root.display()
        );
        Err(Code::FileNotFound.error(message))
    }

    fn find(&self, checkpoint: &HubCheckpoint) -> Option<Found> {
        if !hub::is_repo(&checkpoint.repo) {
            return None;
        }
        let repo = self.repo(&checkpoint.repo);
        repo.snapshots().into_iter().find_map(|snapshot| {
            let files = list(&snapshot);
            let selection = select(&files, checkpoint).ok()?;
            if checkpoint.folder && !is_whole(&snapshot, &files) {
                return None;
            }
            let chosen = |file: &&RepoFile| selection.files().any(|path| *path == file.path);
            let size = files.iter().filter(chosen).map(|file| file.size).sum();
            Some(Found {
                snapshot,
                selection,
                size,
            })
        })
    }

    /// Removes a checkpoint's files, except what `keep` shares with it; the bytes that freed.
    ///
    /// # Errors
    /// The disk refuses.
    pub(super) fn remove(&self, checkpoint: &HubCheckpoint, keep: &[HubCheckpoint]) -> io::Result<u64> {
        if !hub::is_repo(&checkpoint.repo) {
            return Ok(0);
        }
        let repo = self.repo(&checkpoint.repo);
        let kept: Vec<&HubCheckpoint> = keep
            .iter()
            .filter(|other| other.repo == checkpoint.repo)
            .collect();
        let mut candidates = Vec::new();
        let mut freed = 0;
        for snapshot in repo.snapshots() {
            let files = list(&snapshot);
            // A snapshot may have the one without the other.
            let of = |checkpoint: &HubCheckpoint| {
                let mut model = checkpoint.clone();
                let mmproj = std::mem::take(&mut model.mmproj);
                let mut paths = select(&files, &model).map_or_else(|_| Vec::new(), |found| found.model);
                let named = |file: &&RepoFile| !mmproj.is_empty() && is_named(&file.path, &mmproj);
                paths.extend(files.iter().find(named).map(|file| file.path.clone()));
                paths
            };
            let spared: HashSet<String> = kept.iter().flat_map(|other| of(other)).collect();
            for path in of(checkpoint).into_iter().filter(|path| !spared.contains(path)) {
                let link = snapshot.join(&path);
                match fs::canonicalize(&link) {
                    // Without symbolic links the file is here itself.
                    Ok(blob) if blob == link => freed += size_of(&link),
                    Ok(blob) => candidates.push(blob),
                    Err(_) => {}
                }
                unlink(&link)?;
            }
        }
        let shared = |path: &str| kept.iter().any(|other| is_of(path, other));
        for (etag, _) in repo
            .coming(checkpoint, Duration::ZERO)
            .into_iter()
            .filter(|(_, path)| !shared(path))
        {
            // What somebody fetches now stays theirs.
            let lock = repo.lock_file(&etag)?;
            if lock.try_lock().is_ok() {
                let part = repo.part(&etag);
                freed += partial::taken(&part);
                unlink(&part)?;
            }
        }
        let used: HashSet<PathBuf> = repo
            .snapshots()
            .iter()
            .flat_map(|snapshot| list(snapshot).into_iter().map(|file| snapshot.join(file.path)))
            .filter_map(|link| fs::canonicalize(link).ok())
            .collect();
        if used.is_empty() && kept.is_empty() {
            freed += candidates.iter().map(|blob| size_of(blob)).sum::<u64>();
            return match fs::remove_dir_all(&repo.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                Ok(()) | Err(_) => Ok(freed),
            };
        }
        let blobs = fs::canonicalize(repo.blobs()).unwrap_or_else(|_| repo.blobs());
        candidates.sort();
        candidates.dedup();
        for blob in candidates {
            // A link that somebody else made may lead anywhere.
            if !used.contains(&blob) && blob.starts_with(&blobs) {
                freed += size_of(&blob);
                unlink(&blob)?;
            }
        }
        Ok(freed)
    }
}

/// Removes a file, which somebody else may have done meanwhile: a download that was given up removes what came.
fn unlink(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

impl Found {
    fn shown(self, checkpoint: &HubCheckpoint) -> CachedFiles {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let path = match self.selection.model.first() {
            Some(first) if !checkpoint.folder => text(&self.snapshot.join(first)),
            Some(_) | None => text(&self.snapshot),
        };
        let mmproj = self.selection.mmproj.map(|path| text(&self.snapshot.join(path)));
        CachedFiles {
            complete: true,
            path,
            mmproj: mmproj.unwrap_or_default(),
            size_bytes: self.size,
            freed_bytes: 0,
        }
    }
}

impl Repo {
    pub(super) fn blobs(&self) -> PathBuf {
        self.path.join("blobs")
    }

    /// Where the content with this etag is, or will be; the etag is checked ([`is_etag`]).
    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.blobs().join(etag)
    }

    /// Where the files of a commit have their names.
    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.path.join("snapshots").join(commit)
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

    /// Notes the newest commit.
    ///
    /// # Errors
    /// The disk refuses.
    pub(super) fn set_main(&self, commit: &str) -> io::Result<()> {
        let refs = self.path.join("refs");
        fs::create_dir_all(&refs)?;
        let fresh = refs.join(format!(".main-{}", std::process::id()));
        fs::write(&fresh, commit)?;
        fs::rename(fresh, refs.join("main"))
    }

    /// Snapshots, the newest one first.
    fn snapshots(&self) -> Vec<PathBuf> {
        let root = self.path.join("snapshots");
        let main = fs::read_to_string(self.path.join("refs/main")).unwrap_or_default();
        let main = Some(main.trim())
            .filter(|main| is_etag(main))
            .map(|main| root.join(main));
        let mut others: Vec<_> = fs::read_dir(&root)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.is_dir() && Some(path) != main.as_ref())
            .map(|path| (path.metadata().and_then(|meta| meta.modified()).ok(), path))
            .collect();
        others.sort_by(|a, b| b.cmp(a));
        main.into_iter()
            .filter(|main| main.is_dir())
            .chain(others.into_iter().map(|(_, path)| path))
            .collect()
    }
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

/// All files below a snapshot whose content is there.
fn list(snapshot: &Path) -> Vec<RepoFile> {
    let mut files = Vec::new();
    let mut open = vec![(snapshot.to_owned(), String::new())];
    while let Some((directory, prefix)) = open.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let path = if prefix.is_empty() {
                name
            } else {
                format!("{prefix}/{name}")
            };
            // A directory that is a link may lead in circles; the layout has none.
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            match fs::metadata(entry.path()) {
                Ok(_) if is_directory => open.push((entry.path(), path)),
                Ok(meta) if meta.is_file() => files.push(RepoFile {
                    path,
                    size: meta.len(),
                }),
                Ok(_) | Err(_) => {}
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

/// Whether a folder has its configuration and all weights that its index names.
fn is_whole(snapshot: &Path, files: &[RepoFile]) -> bool {
    let has = |name: &str| files.iter().any(|file| file.path == name);
    if !has("config.json") && !has("genai_config.json") {
        return false;
    }
    let index = fs::read(snapshot.join("model.safetensors.index.json")).ok();
    let index: Option<serde_json::Value> = index.and_then(|text| serde_json::from_slice(&text).ok());
    match index
        .as_ref()
        .and_then(|index| index.get("weight_map")?.as_object())
    {
        Some(map) => map.values().filter_map(|name| name.as_str()).all(has),
        None => files.iter().any(|file| {
            let path = file.path.as_str();
            [".safetensors", ".bin", ".onnx", ".pth", ".pt"]
                .iter()
                .any(|end| path.ends_with(end))
        }),
    }
}

fn size_of(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |meta| meta.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPO: &str = "org/name";

    fn checkpoint(variant: &str) -> HubCheckpoint {
        HubCheckpoint {
            repo: REPO.to_owned(),
            variant: variant.to_owned(),
            ..HubCheckpoint::default()
        }
    }

    fn add(cache: &Cache, commit: &str, path: &str, etag: &str) {
        let repo = cache.repo(REPO);
        fs::create_dir_all(repo.blobs()).unwrap();
        fs::write(repo.blob(etag), etag).unwrap();
        repo.link(commit, path, etag).unwrap();
        repo.set_main(commit).unwrap();
    }

    #[test]
    fn the_layout_is_that_of_hf_hub() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(dir.path().to_owned());
        add(&cache, "c1", "sub/M-Q8_0.gguf", "e1");
        let repo = dir.path().join("models--org--name");
        let link = repo.join("snapshots/c1/sub/M-Q8_0.gguf");
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("../../../blobs/e1"));
        assert_eq!(fs::read_to_string(repo.join("refs/main")).unwrap(), "c1");
        let found = cache.resolve(&checkpoint("Q8_0")).unwrap();
        assert_eq!((found.path, found.size_bytes), (link.display().to_string(), 2));
        // Twice is once.
        add(&cache, "c1", "sub/M-Q8_0.gguf", "e1");
        let error = cache.resolve(&checkpoint("Q4_0")).unwrap_err();
        assert_eq!(error.code, Code::FileNotFound);
        for path in ["../x", "/x", "a/../../x", ""] {
            assert!(cache.repo(REPO).link("c1", path, "e1").is_err(), "{path}");
        }
    }

    #[test]
    fn a_model_of_an_older_commit_is_still_there() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(dir.path().to_owned());
        add(&cache, "c1", "M-Q8_0.gguf", "e1");
        add(&cache, "c2", "M-Q4_0.gguf", "e2");
        assert!(
            cache
                .cached_files(&checkpoint("Q8_0"))
                .path
                .ends_with("c1/M-Q8_0.gguf")
        );
        assert!(
            cache
                .cached_files(&checkpoint("Q4_0"))
                .path
                .ends_with("c2/M-Q4_0.gguf")
        );
        // A link without content is nothing.
        fs::remove_file(cache.repo(REPO).blob("e2")).unwrap();
        assert!(!cache.cached_files(&checkpoint("Q4_0")).complete);
    }

    #[test]
    fn removing_spares_what_others_share() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(dir.path().to_owned());
        add(&cache, "c1", "M-Q8_0.gguf", "e1");
        add(&cache, "c2", "M-Q8_0.gguf", "e1");
        add(&cache, "c2", "M-Q4_0.gguf", "e2");
        add(&cache, "c2", "mmproj.gguf", "e3");
        let with = |variant: &str| HubCheckpoint {
            mmproj: "mmproj.gguf".to_owned(),
            ..checkpoint(variant)
        };
        let freed = cache.remove(&with("Q8_0"), &[with("Q4_0")]).unwrap();
        assert_eq!(freed, 2);
        let repo = cache.repo(REPO);
        assert!(!repo.blob("e1").exists() && repo.blob("e2").exists() && repo.blob("e3").exists());
        assert!(cache.cached_files(&with("Q4_0")).complete);
        // The last one takes the whole repository with it.
        assert_eq!(cache.remove(&with("Q4_0"), &[]).unwrap(), 4);
        assert!(!dir.path().join("models--org--name").exists());
        assert_eq!(cache.remove(&with("Q4_0"), &[]).unwrap(), 0);
    }

    #[test]
    fn a_folder_counts_once_all_its_weights_are_there() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(dir.path().to_owned());
        let folder = HubCheckpoint {
            folder: true,
            ..checkpoint("")
        };
        add(&cache, "c1", "config.json", "e1");
        assert!(!cache.cached_files(&folder).complete);
        let index = cache.repo(REPO).blob("e2");
        fs::write(
            &index,
            r#"{"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}}"#,
        )
        .unwrap();
        cache
            .repo(REPO)
            .link("c1", "model.safetensors.index.json", "e2")
            .unwrap();
        add(&cache, "c1", "m-1.safetensors", "e3");
        assert!(!cache.cached_files(&folder).complete);
        add(&cache, "c1", "m-2.safetensors", "e4");
        let found = cache.cached_files(&folder);
        assert!(found.complete && found.path.ends_with("snapshots/c1"));
    }
}
