//! The runtimes that scenarios run through, and what each needs from `tests/run`.

use std::path::{Path, PathBuf};

/// A runtime under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Deterministic, without a model.
    Stub,
    /// Our engine.
    LlamaCpp,
    /// llama.cpp's own server.
    LlamaServer,
}

impl Engine {
    /// A catalogue entry `[models.ID]` with `sequences` sequences that answers chats; `more` are further keys of the entry.
    #[must_use]
    pub fn model(self, id: &str, sequences: u32, more: &str) -> String {
        if self == Self::Stub {
            return format!("[models.{id}]\nparallel = {sequences}\n{more}\nruntime = \"stub\"\n");
        }
        self.serving(&test_model("tiny-chat"), id, sequences, more)
    }

    /// A catalogue entry `[models.ID]` for a model file; the stub takes none and ignores it.
    #[must_use]
    pub fn serving(self, checkpoint: &Path, id: &str, sequences: u32, more: &str) -> String {
        let runtime = match self {
            Self::Stub => "stub",
            Self::LlamaCpp => "llama_cpp",
            Self::LlamaServer => "llama_server",
        };
        // llama.cpp's threads spin while they wait for each other; on a busy machine a second one makes such small models slower.
        format!(
            "[models.{id}]\nparallel = {sequences}\n{more}\nruntime = \"{runtime}\"\ncheckpoint = {checkpoint:?}\nthreads = 1\n"
        )
    }
}

/// A file of the repository.
#[must_use]
pub fn committed(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// A generated model file.
///
/// # Panics
/// `MUSTER_TEST_MODELS` is not set, or the file is not there.
#[must_use]
pub fn test_model(name: &str) -> PathBuf {
    let path = PathBuf::from(required("MUSTER_TEST_MODELS")).join(format!("{name}.gguf"));
    assert!(
        path.is_file(),
        "{} is missing: use tests/run, which makes it",
        path.display()
    );
    path
}

/// An environment variable that `tests/run` sets.
///
/// # Panics
/// It is not set.
#[must_use]
pub fn required(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: use tests/run, which prepares everything this test needs")
    })
}
