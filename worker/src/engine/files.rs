//! Checks files before an engine is started, so that "file not found" and "not a model" are known without reading an engine's log.

use std::{
    env,
    fs::{self, File},
    io::{ErrorKind, Read as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use muster_core::{Code, Error};
use muster_proto::{llamacpp, v1::ModelSettings};

/// As [`check_now`], on another thread, because a file system may be slow and this thread moves events.
///
/// # Errors
/// As for [`check_now`].
pub(super) async fn check(settings: &ModelSettings) -> Result<(), Error> {
    let settings = settings.clone();
    let checked = tokio::task::spawn_blocking(move || check_now(&settings)).await;
    checked.unwrap_or_else(|panic| Err(Code::Internal.error(panic.to_string())))
}

const GGUF: &[u8; 4] = b"GGUF";

/// Checks every file that the settings name for a llama.cpp engine.
///
/// # Errors
/// `file_not_found` with the setting as `param`, or `invalid_load_request` for a file that cannot be read or is no GGUF file.
fn check_now(settings: &ModelSettings) -> Result<(), Error> {
    gguf("checkpoint", &settings.checkpoint)?;
    for (param, path) in [("mmproj", &settings.mmproj), ("draft", &settings.draft)] {
        if !path.is_empty() {
            gguf(param, path)?;
        }
    }
    for vector in llamacpp::control::named(&settings.args)? {
        gguf("--control-vector", &vector.path)?;
    }
    settings
        .lora
        .iter()
        .try_for_each(|adapter| gguf("lora", &adapter.path))
}

fn gguf(param: &str, path: &str) -> Result<(), Error> {
    let about = |code: Code, what: &str| {
        code.error(format!("{param} `{path}` {what}"))
            .with_param(param)
            .with_detail("path", path)
    };
    let mut magic = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    match read.map_err(|error| error.kind()) {
        Ok(()) if &magic == GGUF => Ok(()),
        Ok(()) | Err(ErrorKind::UnexpectedEof) => Err(about(Code::InvalidLoadRequest, "is no GGUF file")),
        Err(ErrorKind::NotFound) => Err(about(Code::FileNotFound, "does not exist")),
        Err(kind) => Err(about(
            Code::InvalidLoadRequest,
            &format!("cannot be read: {kind}"),
        )),
    }
}

/// Finds a program as `execvp` does; `None` if no executable one exists.
pub(super) fn program(name: &Path) -> Option<PathBuf> {
    let runs = |path: &Path| {
        fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    if name.components().count() > 1 {
        return runs(name).then(|| name.to_owned());
    }
    env::split_paths(&env::var_os("PATH")?)
        .map(|dir| dir.join(name))
        .find(|path| runs(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_apart_before_the_spawn() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str, content: &[u8]| {
            let path = dir.path().join(name);
            fs::write(&path, content).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let model = path("model", b"GGUF....");
        let text = path("text", b"hi");
        let settings = |checkpoint: &str, mmproj: &str| ModelSettings {
            checkpoint: checkpoint.into(),
            mmproj: mmproj.into(),
            ..Default::default()
        };
        assert_eq!(check_now(&settings(&model, "")), Ok(()));
        assert_eq!(
            check_now(&settings("/no/such", "")).unwrap_err().code,
            Code::FileNotFound
        );
        assert_eq!(
            check_now(&settings(&text, "")).unwrap_err().code,
            Code::InvalidLoadRequest
        );
        let error = check_now(&settings(&model, "/no/such")).unwrap_err();
        assert_eq!(
            (error.code, error.param.as_deref().unwrap_or_default()),
            (Code::FileNotFound, "mmproj")
        );
        let vectors = |args: &str| {
            let args = args.split(' ').map(str::to_owned).collect();
            check_now(&ModelSettings {
                args,
                ..settings(&model, "")
            })
        };
        assert_eq!(
            vectors(&format!("-t 2 --control-vector-scaled {model}:2")),
            Ok(())
        );
        let error = vectors(&format!("--control-vector {model},/no/such")).unwrap_err();
        assert_eq!(
            (error.code, error.param.as_deref().unwrap_or_default()),
            (Code::FileNotFound, "--control-vector")
        );
    }

    #[test]
    fn programs_are_found_in_the_path_and_must_be_executable() {
        assert!(program(Path::new("sh")).is_some());
        assert!(program(Path::new("/bin/sh")).is_some());
        assert!(program(Path::new("/etc/passwd")).is_none());
        assert!(program(Path::new("no-such-program")).is_none());
    }
}
