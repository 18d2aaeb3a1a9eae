//! How the build script finds llama.cpp's sources, on made-up builds.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../sources.rs"]
mod sources;

use std::fs;
use std::path::{Path, PathBuf};

/// A build that says it compiled `sources`; the folder its metadata names.
fn build(root: &Path, sources: &Path) -> PathBuf {
    let out = root.join("target dir/release/build/llama-cpp-sys-2-0123/out");
    fs::create_dir_all(out.join("lib/cmake")).unwrap();
    fs::create_dir_all(out.join("build")).unwrap();
    let cache = format!(
        "# Variables\nCMAKE_BUILD_TYPE:STRING=Release\nCMAKE_HOME_DIRECTORY:INTERNAL={}\nCMAKE_GENERATOR:INTERNAL=Unix Makefiles\n",
        sources.display()
    );
    fs::write(out.join("build/CMakeCache.txt"), cache).unwrap();
    out.join("lib/cmake")
}

#[test]
fn the_sources_are_those_that_were_compiled_wherever_they_lie() {
    let root = tempfile::tempdir().unwrap();
    for place in [
        "registry/src/llama-cpp-sys-2-0.1.161",
        "vendor/llama-cpp-sys-2",
        "a path/with spaces",
    ] {
        let folder = root.path().join(place).join("llama.cpp");
        fs::create_dir_all(folder.join("common")).unwrap();
        assert_eq!(sources::compiled_from(&build(root.path(), &folder)), Ok(folder));
    }
}

#[test]
fn sources_that_are_gone_are_named() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("gone/llama.cpp");
    let error = sources::compiled_from(&build(root.path(), &folder)).unwrap_err();
    assert!(error.contains(folder.to_str().unwrap()), "{error}");
    let error = sources::compiled_from(&root.path().join("nowhere/lib/cmake")).unwrap_err();
    assert!(error.contains("CMakeCache.txt"), "{error}");
}

/// With an empty registry `cargo metadata --offline` fails: it wants packages that no build for this target downloads.
#[test]
fn no_build_script_asks_cargo() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    for script in [
        here.join("build.rs"),
        here.join("sources.rs"),
        here.join("../../proto/build.rs"),
    ] {
        let text = fs::read_to_string(&script).unwrap();
        assert!(
            !text.contains("\"CARGO\"") && !text.contains("Command"),
            "{} starts processes",
            script.display()
        );
    }
}
