//! Finds the built binaries: they lie in the target directory that this test was built into.

use std::path::PathBuf;

/// Path of a built binary.
///
/// # Panics
/// It has not been built; `tests/run` builds everything first.
#[must_use]
pub fn find(name: &str) -> PathBuf {
    // target/PROFILE/deps/TEST or target/PROFILE/BINARY
    let own = std::env::current_exe().expect("a test knows its own file");
    let path = own
        .ancestors()
        .skip(1)
        .take(2)
        .map(|directory| directory.join(name))
        .find(|path| path.is_file());
    path.unwrap_or_else(|| {
        panic!(
            "{name} is not built beside {}: run tests/run, or `cargo build --workspace` with the same profile",
            own.display()
        )
    })
}
