//! The private directory of an engine, with its sockets and the keeper's record.

use std::{ffi::OsStr, io, path::Path};

use muster_proto::private::PrivateDir;

use super::sweep::LOCK;

/// Longest path of a unix socket on Linux, in bytes.
const SOCKET_PATH_BYTES: usize = 107;
/// Longest file name used in the directory, in bytes.
const NAME_BYTES: usize = 12;

/// A directory with mode 0700. Dropping the value removes it and its contents.
#[derive(Debug)]
pub(crate) struct EngineDir {
    run_dir: PrivateDir,
    name: String,
    dir: PrivateDir,
}

impl EngineDir {
    /// Makes the directory of an instance. Its name is the random end of the instance's id, because paths of unix sockets must be short.
    ///
    /// # Errors
    /// It exists, cannot be made, or its path is too long for sockets in it; or other users could change the run directory.
    pub(crate) fn create(run_dir: &Path, instance: &str) -> io::Result<Self> {
        let name = instance.rsplit('-').next().unwrap_or(instance);
        if run_dir.join(name).as_os_str().len() + NAME_BYTES > SOCKET_PATH_BYTES {
            let reason = format!("{} is too deep for a unix socket", run_dir.display());
            return Err(io::Error::new(io::ErrorKind::InvalidFilename, reason));
        }
        let run_dir = PrivateDir::open(run_dir, LOCK)?;
        let dir = run_dir.make(name)?;
        Ok(Self {
            run_dir,
            name: name.to_owned(),
            dir,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The directory, for reading and writing files in it.
    pub(crate) fn private(&self) -> &PrivateDir {
        &self.dir
    }
}

impl Drop for EngineDir {
    fn drop(&mut self) {
        if let Err(error) = self.run_dir.remove(OsStr::new(&self.name)) {
            tracing::warn!(path = %self.path().display(), %error, "an engine's directory could not be removed");
        }
    }
}
