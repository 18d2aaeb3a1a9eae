//! Where the sockets of this user's processes lie when nobody says where.

use std::path::PathBuf;

use rustix::process::geteuid;

use crate::net::Address;

/// The file name of the controller's socket, here and in the run directory of `muster up`.
pub const CONTROLLER_SOCKET: &str = "controller.sock";

/// This user's directory: `muster` in $XDG_RUNTIME_DIR, root's in /run, else one in /tmp that [`PrivateDir`](crate::private::PrivateDir) makes or refuses.
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
