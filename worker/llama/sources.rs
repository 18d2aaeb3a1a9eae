//! Where `llama-cpp-sys-2` has its copy of llama.cpp. A file of its own, so that a test can ask it too (`tests/sources.rs`).

use std::fs;
use std::path::{Path, PathBuf};

/// The `llama.cpp` folder that was compiled, as the build that the package's `links` metadata tells of (`ggml_cmake_dir`) wrote
/// it down. It is right for packages from a registry, vendored ones and ones by path alike. `cargo metadata` is no way: it wants
/// every package of the lock file, those of other platforms too, which a machine that was empty before this build doesn't have.
pub(crate) fn compiled_from(ggml_cmake_dir: &Path) -> Result<PathBuf, String> {
    // OUT/lib/cmake and OUT/build are neighbours.
    let out = ggml_cmake_dir
        .ancestors()
        .nth(2)
        .ok_or_else(|| format!("{} is no folder below a build's", ggml_cmake_dir.display()))?;
    let cache = out.join("build/CMakeCache.txt");
    let text = fs::read_to_string(&cache).map_err(|error| format!("{}: {error}", cache.display()))?;
    let folder = text
        .lines()
        .find_map(|line| line.strip_prefix("CMAKE_HOME_DIRECTORY:INTERNAL="))
        .map(PathBuf::from)
        .ok_or_else(|| format!("{} names no CMAKE_HOME_DIRECTORY", cache.display()))?;
    // Built elsewhere and carried here, or the package was deleted since.
    if !folder.join("common").is_dir() {
        return Err(format!(
            "llama.cpp was compiled from {}, which isn't there",
            folder.display()
        ));
    }
    Ok(folder)
}
