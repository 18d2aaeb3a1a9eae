//! `--model PATH`: generates a configuration that adds the files to the catalogue under their names.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use atomic_write_file::{AtomicWriteFile, unix::OpenOptionsExt as _};
use serde::Serialize;

use super::{UpError, directories::at};

const FILE: &str = "models.generated.toml";
const HEAD: &str =
    "# Written by `muster up` from its --model flags; changes here are lost at the next start.\n\n";
const MAGIC: [u8; 4] = *b"GGUF";

#[derive(Serialize)]
struct Generated {
    catalogue: Catalogue,
    models: BTreeMap<String, Entry>,
}

#[derive(Serialize)]
struct Catalogue {
    /// With a single file any model name means it, as with llama.cpp's server.
    any_name: bool,
}

#[derive(Serialize)]
struct Entry {
    checkpoint: PathBuf,
    recipe: &'static str,
    /// Loaded at the start, as llama.cpp's server does with its only model.
    enabled: bool,
}

/// Writes the configuration for `models` into the run directory, which is in memory; `None` if there are no models.
pub(crate) fn generate(run: &Path, models: &[PathBuf]) -> Result<Option<PathBuf>, UpError> {
    if models.is_empty() {
        return Ok(None);
    }
    let path = run.join(FILE);
    let text = format!("{HEAD}{}", toml::to_string(&generated(models)?)?);
    let write = || {
        let mut options = AtomicWriteFile::options();
        options.preserve_mode(false).mode(0o600);
        let mut file = options.open(&path)?;
        file.write_all(text.as_bytes())?;
        file.commit()
    };
    write().map_err(at(&path))?;
    Ok(Some(path))
}

fn generated(paths: &[PathBuf]) -> Result<Generated, UpError> {
    let mut models = BTreeMap::new();
    for path in paths {
        let wrong = |why: String| UpError::NoFile {
            flag: "--model",
            path: path.clone(),
            why,
        };
        check_magic(path).map_err(wrong)?;
        let checkpoint = path.canonicalize().map_err(|error| wrong(error.to_string()))?;
        // The name as given: that of a link, not of its target.
        let name = path
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let id = name.strip_suffix(".gguf").unwrap_or(&name).to_owned();
        let entry = Entry {
            checkpoint,
            recipe: "llamacpp",
            enabled: paths.len() == 1,
        };
        if models.insert(id.clone(), entry).is_some() {
            return Err(UpError::SameName(id));
        }
    }
    let catalogue = Catalogue {
        any_name: models.len() == 1,
    };
    Ok(Generated { catalogue, models })
}

fn check_magic(path: &Path) -> Result<(), String> {
    let mut magic = [0; 4];
    File::open(path)
        .and_then(|mut file| file.read_exact(&mut magic))
        .map_err(|error| error.to_string())?;
    if magic == MAGIC {
        Ok(())
    } else {
        Err("not a GGUF file".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_become_entries_under_their_names() {
        let base = tempfile::tempdir().unwrap();
        let model = base.path().join("a.b-Q4.gguf");
        std::fs::write(&model, b"GGUF....").unwrap();
        let path = generate(base.path(), std::slice::from_ref(&model))
            .unwrap()
            .unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        let table: toml::Table = text.parse().unwrap();
        let entry = &table["models"]["a.b-Q4"];
        assert_eq!(
            entry["checkpoint"].as_str().unwrap(),
            model.canonicalize().unwrap().to_str().unwrap()
        );
        assert_eq!(entry["recipe"].as_str().unwrap(), "llamacpp");
        assert_eq!(table["catalogue"]["any_name"].as_bool(), Some(true));
        assert_eq!(generate(base.path(), &[]).unwrap(), None);
    }

    #[test]
    fn wrong_files_are_refused() {
        let base = tempfile::tempdir().unwrap();
        let text = base.path().join("x.gguf");
        std::fs::write(&text, b"hello").unwrap();
        let error = generate(base.path(), &[text]).unwrap_err().to_string();
        assert!(error.contains("x.gguf: not a GGUF file"), "{error}");
        let error = generate(base.path(), &[base.path().join("none.gguf")])
            .unwrap_err()
            .to_string();
        assert!(error.contains("none.gguf"), "{error}");
    }

    #[test]
    fn two_files_of_one_name_are_refused() {
        let base = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|name| {
            let dir = base.path().join(name);
            std::fs::create_dir(&dir).unwrap();
            let path = dir.join("m.gguf");
            std::fs::write(&path, b"GGUF").unwrap();
            path
        });
        assert!(matches!(generate(base.path(), &paths), Err(UpError::SameName(name)) if name == "m"));
    }
}
