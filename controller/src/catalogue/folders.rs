//! Folders whose GGUF files are models: a plain one, LM Studio's (`PUBLISHER/REPOSITORY/FILE.gguf`) or Ollama's. They are only read.
//!
//! A model is named as its file is, without `.gguf` and the number of its part. Where a projector (`mmproj…gguf`) lies beside it, it is the model's.
//!
//! ```text
//! OLLAMA/manifests/REGISTRY/NAMESPACE/NAME/TAG    layers of NAME:TAG by digest; NAME alone where TAG is `latest`
//!       /blobs/sha256-DIGEST                      their content
//! ```
//!
//! Everything here blocks while the disk does.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use muster_core::name::LATEST;
use serde::Deserialize;

/// Folders below a configured one that are looked into.
const DEPTH: usize = 3;
/// Files that are looked at in all.
const MOST: usize = 20_000;
/// Longest manifest of Ollama's that is read, in bytes.
const LONGEST: u64 = 1 << 20;

/// A model that lies in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) file: PathBuf,
    pub(crate) projector: Option<PathBuf>,
}

/// The models in folders by name. Of two that have the same name the first counts, in the order of `roots` and then of paths.
pub(crate) fn scan(roots: &[PathBuf]) -> BTreeMap<String, Found> {
    let mut models = BTreeMap::new();
    let mut left = MOST;
    for root in roots {
        let manifests = root.join("manifests");
        if manifests.is_dir() && root.join("blobs").is_dir() {
            manifest_folder(&manifests, &root.join("blobs"), DEPTH, &mut left, &mut models);
        } else {
            folder(root, DEPTH, &mut left, &mut models);
        }
    }
    models
}

/// What Ollama says of a model.
#[derive(Deserialize)]
struct Manifest {
    #[serde(default)]
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    media_type: String,
    digest: String,
}

fn manifest_folder(
    path: &Path,
    blobs: &Path,
    depth: usize,
    left: &mut usize,
    models: &mut BTreeMap<String, Found>,
) {
    for entry in sorted(path, left) {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if let Some(depth) = depth.checked_sub(1) {
                manifest_folder(&path, blobs, depth, left, models);
            }
        } else if let Some((name, found)) = manifest(&path, blobs) {
            models.entry(name).or_insert(found);
        }
    }
}

/// The model of a manifest, if its content is there.
fn manifest(path: &Path, blobs: &Path) -> Option<(String, Found)> {
    let tag = path.file_name()?.to_str()?;
    let name = path.parent()?.file_name()?.to_str()?;
    let tagged = format!("{name}:{tag}");
    fs::metadata(path).ok().filter(|meta| meta.len() <= LONGEST)?;
    let manifest: Manifest = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    let content = |kind: &str| {
        let layer = manifest
            .layers
            .iter()
            .find(|layer| layer.media_type.ends_with(kind))?;
        let sum = layer.digest.strip_prefix("sha256:")?;
        let file = blobs.join(format!("sha256-{sum}"));
        // What is no sum may lead anywhere.
        (sum.bytes().all(|byte| byte.is_ascii_hexdigit()) && file.is_file()).then_some(file)
    };
    let found = Found {
        file: content(".model")?,
        projector: content(".projector"),
    };
    Some((tagged.strip_suffix(LATEST).unwrap_or(&tagged).to_owned(), found))
}

/// What is in a folder, by name.
fn sorted(path: &Path, left: &mut usize) -> Vec<fs::DirEntry> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut entries: Vec<_> = entries.take(*left).collect();
    *left -= entries.len();
    entries.sort_by_key(fs::DirEntry::file_name);
    entries
}

fn folder(path: &Path, depth: usize, left: &mut usize, models: &mut BTreeMap<String, Found>) {
    let (mut files, mut folders, mut projectors) = (Vec::new(), Vec::new(), Vec::new());
    for entry in sorted(path, left) {
        let path = entry.path();
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        // A folder that is a link may lead in circles; a file that is one is a file.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            folders.push(path);
        } else if let Some(stem) = stem(&name).filter(|_| path.is_file()) {
            if name.to_ascii_lowercase().contains("mmproj") {
                projectors.push(path);
            } else if let Some(stem) = whole(stem) {
                files.push((stem.to_owned(), path));
            }
        }
    }
    let projector = match projectors.as_slice() {
        // Of several nobody knows which.
        [only] => Some(only.clone()),
        [] | [..] => None,
    };
    for (name, file) in files {
        models.entry(name).or_insert_with(|| Found {
            file,
            projector: projector.clone(),
        });
    }
    if let Some(depth) = depth.checked_sub(1) {
        for path in folders {
            folder(&path, depth, left, models);
        }
    }
}

/// A GGUF file's name without its ending.
fn stem(name: &str) -> Option<&str> {
    let (stem, ending) = name.rsplit_once('.')?;
    (ending.eq_ignore_ascii_case("gguf") && !stem.is_empty()).then_some(stem)
}

/// The name of a model whose first file this is; none for further ones.
fn whole(stem: &str) -> Option<&str> {
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let split = || {
        let (rest, parts) = stem.rsplit_once("-of-")?;
        let (name, part) = rest.rsplit_once('-')?;
        (digits(part) && digits(parts)).then_some((name, part))
    };
    match split() {
        Some((name, "00001")) => Some(name),
        Some(_) => None,
        None => Some(stem),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_files_of_a_folder_and_of_lm_studios() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        };
        for path in [
            "one.gguf",
            "TWO.GGUF",
            "notes.txt",
            "large-00001-of-00002.gguf",
            "large-00002-of-00002.gguf",
            "publisher/repo/see-Q4_K_M.gguf",
            "publisher/repo/mmproj-see-f16.gguf",
            "publisher/other/one.gguf",
            "a/b/c/d/too-deep.gguf",
        ] {
            put(path);
        }
        let found = scan(&[dir.path().to_owned(), dir.path().join("absent")]);
        let names: Vec<&str> = found.keys().map(String::as_str).collect();
        assert_eq!(names, ["TWO", "large", "one", "see-Q4_K_M"]);
        assert_eq!(found["one"].file, dir.path().join("one.gguf"));
        assert!(found["one"].projector.is_none() && found["see-Q4_K_M"].projector.is_some());
        assert!(found["large"].file.ends_with("large-00001-of-00002.gguf"));
    }

    #[test]
    fn models_of_ollama_are_what_its_manifests_name() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let manifest = |digest: &str| {
            format!(
                r#"{{"schemaVersion":2,"layers":[
                    {{"mediaType":"application/vnd.ollama.image.license","digest":"sha256:11"}},
                    {{"mediaType":"application/vnd.ollama.image.model","digest":"{digest}"}}]}}"#
            )
        };
        let library = "manifests/registry.ollama.ai/library";
        put("blobs/sha256-ab12", "GGUF");
        put(&format!("{library}/llama3/latest"), &manifest("sha256:ab12"));
        put(&format!("{library}/llama3/8b"), &manifest("sha256:ab12"));
        put(&format!("{library}/gone/latest"), &manifest("sha256:cd"));
        put(&format!("{library}/evil/latest"), &manifest("sha256:../../x"));
        put(&format!("{library}/broken/latest"), "{");
        let found = scan(&[dir.path().to_owned()]);
        let names: Vec<&str> = found.keys().map(String::as_str).collect();
        assert_eq!(names, ["llama3", "llama3:8b"]);
        assert!(found["llama3"].file.ends_with("blobs/sha256-ab12"));
    }
}
