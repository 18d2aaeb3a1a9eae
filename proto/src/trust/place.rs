//! Where the sockets of this user's processes lie when nobody says where.

use std::path::PathBuf;

use rustix::process::geteuid;

use crate::net::Address;

/// The file name of the controller's socket, here and in the run directory of `muster up`.
pub const CONTROLLER_SOCKET: &str = "controller.sock";

/// A folder for directories with sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    folder: PathBuf,
    /// Only this user makes anything in it.
    own: bool,
}

impl Base {
    fn shared(folder: &str) -> Self {
        Self {
            folder: folder.into(),
            own: false,
        }
    }

    /// A directory in it that is named after what it is for; where others make theirs, after this user too.
    #[must_use]
    pub fn join(&self, name: &str) -> PathBuf {
        if self.own {
            self.folder.join(name)
        } else {
            self.folder.join(format!("{name}-{}", geteuid().as_raw()))
        }
    }
}

/// Where sockets of this user may lie, best first: in memory, since serving needs no disk, and where nobody else can take a name before us.
/// The last one is there on every machine.
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

/// Where a controller listens for our own processes, and where they look for it.
#[must_use]
pub fn controller() -> Address {
    Address::Unix(runtime_dir().join(CONTROLLER_SOCKET))
}
