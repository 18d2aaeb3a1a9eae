//! The private directory of one engine: its sockets, and the keeper's record.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

/// Longest path of a unix socket on Linux, in bytes.
const SOCKET_PATH_BYTES: usize = 107;
/// Room for the longest file name used in here.
const NAME_BYTES: usize = 12;

/// A directory with mode 0700; removed with everything in it when the value is dropped.
#[derive(Debug)]
pub(crate) struct PrivateDir {
    path: PathBuf,
}

impl PrivateDir {
    /// Makes the directory of an instance. Its name is the random end of the instance's id: paths of unix sockets are short.
    ///
    /// # Errors
    /// It exists, cannot be made, or is so deep that sockets in it could not be bound.
    pub(crate) fn create(run_dir: &Path, instance: &str) -> io::Result<Self> {
        let name = instance.rsplit('-').next().unwrap_or(instance);
        let path = run_dir.join(name);
        if path.as_os_str().len() + NAME_BYTES > SOCKET_PATH_BYTES {
            let reason = format!("{} is too deep for a unix socket", run_dir.display());
            return Err(io::Error::new(io::ErrorKind::InvalidFilename, reason));
        }
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "an engine's directory could not be removed");
        }
    }
}
