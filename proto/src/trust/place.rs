//! Default places of the sockets of this user's processes.

use std::path::PathBuf;

use rustix::process::geteuid;

use crate::net::Address;

/// File name of the controller's socket, here and in the run directory of `muster up`.
pub const CONTROLLER_SOCKET: &str = "controller.sock";

/// A folder for directories with sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    folder: PathBuf,
    /// Whether only this user can create anything in it.
    own: bool,
}

impl Base {
    fn shared(folder: &str) -> Self {
        Self {
            folder: folder.into(),
            own: false,
        }
    }

    /// The path of a directory in it. If other users can create directories there as well, the name includes this user's id.
    #[must_use]
    pub fn join(&self, name: &str) -> PathBuf {
        if self.own {
            self.folder.join(name)
        } else {
            self.folder.join(format!("{name}-{}", geteuid().as_raw()))
        }
    }
}

/// Folders for this user's sockets, the best first: in memory, since serving needs no disk, and where no other user can take a name first.
/// The last one exists on every machine.
pub fn bases() -> impl Iterator<Item = Base> {
    let user = geteuid();
    let own = |folder| Base { folder, own: true };
    let session = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    [
        session.map(|dir| own(dir.into())),
        Some(own(format!("/run/user/{}", user.as_raw()).into())),
        user.is_root().then(|| own("/run".into())),
        Some(Base::shared("/dev/shm")),
    ]
    .into_iter()
    .flatten()
    .filter(|base| base.folder.is_dir())
    .chain([Base::shared("/tmp")])
}

/// This user's directory. [`PrivateDir`](crate::private::PrivateDir) makes or refuses it.
#[must_use]
pub fn runtime_dir() -> PathBuf {
    let base = bases().next().unwrap_or_else(|| Base::shared("/tmp"));
    base.join("muster")
}

/// The controller's default address for Muster's own processes.
#[must_use]
pub fn controller() -> Address {
    Address::Unix(runtime_dir().join(CONTROLLER_SOCKET))
}
