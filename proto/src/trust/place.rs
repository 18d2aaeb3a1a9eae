//! Where the sockets of this user's processes lie when nobody says where.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use rustix::process::geteuid;

use crate::net::Address;

/// The file name of the controller's socket, here and in the run directory of `muster up`.
pub const CONTROLLER_SOCKET: &str = "controller.sock";

/// This user's directory: `muster` in $XDG_RUNTIME_DIR, root's in /run, else one in /tmp that [`private_dir`] makes or refuses.
#[must_use]
pub fn runtime_dir() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if !dir.is_empty() => PathBuf::from(dir).join("muster"),
        _ if geteuid().is_root() => PathBuf::from("/run/muster"),
        _ => PathBuf::from(format!("/tmp/muster-{}", geteuid().as_raw())),
    }
}

/// Where a controller listens for our own processes, and where they look for it.
#[must_use]
pub fn controller() -> Address {
    Address::Unix(runtime_dir().join(CONTROLLER_SOCKET))
}

/// Makes a directory for this user alone, or sees that an existing one is.
///
/// # Errors
/// It cannot be made, is no directory (a link to one is none), is somebody else's, or others may enter.
pub fn private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let found = fs::symlink_metadata(path)?;
    let wrong = if !found.is_dir() {
        "is no directory"
    } else if found.uid() != geteuid().as_raw() {
        "belongs to somebody else"
    } else if found.mode() & 0o077 != 0 {
        "is open to others; `chmod 700` it"
    } else {
        return Ok(());
    };
    let message = format!("{} {wrong}", path.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_directory_that_others_may_enter_is_refused() {
        let base = std::env::temp_dir().join(format!("muster-place-{}", std::process::id()));
        let path = base.join("run");
        private_dir(&path).unwrap();
        private_dir(&path).unwrap();
        symlink(&path, base.join("link")).unwrap();
        assert!(private_dir(&base.join("link")).is_err());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let error = private_dir(&path).unwrap_err();
        assert!(error.to_string().contains("chmod 700"), "{error}");
        fs::remove_dir_all(&base).unwrap();
    }
}
