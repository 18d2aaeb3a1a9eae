//! The cache on disk, in the layout of hf-hub and `huggingface_hub`, which other programs of the host read and write too.
//!
//! ```text
//! CACHE/models--ORG--NAME                    one repository (repo.rs)
//!      /.locks/models--ORG--NAME/ETAG.lock   held by who fetches it
//! ```
//!
//! Everything here blocks while the disk does.

use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use muster_core::{Code, Error};
use muster_proto::{
    hub::{self, Revision},
    v1::{CachedFiles, HubCheckpoint},
};

use super::{
    partial,
    repo::Repo,
    select::{RepoFile, Selection, is_named, is_of, select},
};

/// A cache of a hub's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cache {
    root: PathBuf,
}

/// Files of one snapshot that make up a checkpoint.
#[derive(Debug)]
struct Found {
    snapshot: PathBuf,
    selection: Selection,
    /// They.
    files: Vec<RepoFile>,
}

/// A checkpoint's files, as a commit has them.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) commit: String,
    pub(super) files: Vec<RepoFile>,
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
        Repo::new(&self.root, name)
    }

    /// What is there of a checkpoint.
    pub(super) fn cached_files(&self, checkpoint: &HubCheckpoint) -> CachedFiles {
        match self.find(checkpoint) {
            Some(found) => found.shown(checkpoint),
            None => CachedFiles::default(),
        }
    }

    /// The files of a checkpoint, if all are there.
    pub(super) fn held(&self, checkpoint: &HubCheckpoint) -> Option<Held> {
        let Found { snapshot, files, .. } = self.find(checkpoint)?;
        let commit = snapshot.file_name()?.to_str()?.to_owned();
        Some(Held { commit, files })
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
        let HubCheckpoint {
            repo,
            variant,
            revision,
            ..
        } = checkpoint;
        let colon = if variant.is_empty() { "" } else { ":" };
        let at = if revision.is_empty() { "" } else { " at " };
        let message = format!(
            "{repo}{colon}{variant}{at}{revision} is not downloaded here: it is not in {}",
            self.root.display()
        );
        Err(Code::FileNotFound.error(message))
    }

    fn find(&self, checkpoint: &HubCheckpoint) -> Option<Found> {
        if !hub::is_repo(&checkpoint.repo) {
            return None;
        }
        let revision = Revision::of(checkpoint).ok()?;
        let repo = self.repo(&checkpoint.repo);
        repo.snapshots(&revision).into_iter().find_map(|snapshot| {
            let files = list(&snapshot);
            let selection = select(&files, checkpoint).ok()?;
            if checkpoint.folder && !is_whole(&snapshot, &files) {
                return None;
            }
            let chosen = |file: &RepoFile| selection.files().any(|path| *path == file.path);
            let files = files.into_iter().filter(chosen).collect();
            Some(Found {
                snapshot,
                selection,
                files,
            })
        })
    }

    /// Removes a checkpoint's files, except what `keep` shares with it; the bytes that freed.
    ///
    /// # Errors
    /// The disk refuses.
    pub(super) fn remove(&self, checkpoint: &HubCheckpoint, keep: &[HubCheckpoint]) -> io::Result<u64> {
        let Some(revision) = Revision::of(checkpoint)
            .ok()
            .filter(|_| hub::is_repo(&checkpoint.repo))
        else {
            return Ok(0);
        };
        let repo = self.repo(&checkpoint.repo);
        let kept: Vec<(&HubCheckpoint, Vec<PathBuf>)> = keep
            .iter()
            .filter(|other| other.repo == checkpoint.repo)
            .filter_map(|other| Some((other, repo.snapshots(&Revision::of(other).ok()?))))
            .collect();
        let mut candidates = Vec::new();
        let mut freed = 0;
        for snapshot in repo.snapshots(&revision) {
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
            let theirs = kept.iter().filter(|(_, snapshots)| snapshots.contains(&snapshot));
            let spared: HashSet<String> = theirs.flat_map(|(other, _)| of(other)).collect();
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
        let shared = |path: &str| kept.iter().any(|(other, _)| is_of(path, other));
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
            .all_snapshots()
            .iter()
            .flat_map(|snapshot| list(snapshot).into_iter().map(|file| snapshot.join(file.path)))
            .filter_map(|link| fs::canonicalize(link).ok())
            .collect();
        if used.is_empty() && kept.is_empty() {
            freed += candidates.iter().map(|blob| size_of(blob)).sum::<u64>();
            return match fs::remove_dir_all(repo.path()) {
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
            size_bytes: self.files.iter().map(|file| file.size).sum(),
            freed_bytes: 0,
        }
    }
}

/// The name of the content that a link leads to.
fn etag_of(link: &Path) -> Option<String> {
    let target = fs::read_link(link).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
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
                    etag: etag_of(&entry.path()),
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
        repo.set_newest(&Revision::default(), commit).unwrap();
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
