//! A cgroup of its own for each engine, where the worker's own cgroup is delegated to us: `cgroup.kill` ends all in it at once, whatever
//! they do to hide. Elsewhere there is none and the keeper walks the tree.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

/// The cgroup of one engine; removed at the end.
#[derive(Debug)]
pub(super) struct Cgroup {
    dir: PathBuf,
}

impl Cgroup {
    /// Makes one below the caller's own cgroup; `None` where that is not delegated.
    pub(super) fn create(name: &str) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
        Self::below(&Path::new("/sys/fs/cgroup").join(path), name)
    }

    fn below(parent: &Path, name: &str) -> Option<Self> {
        // `cgroup.kill` exists in every cgroup but the root since Linux 5.14; a v1 hierarchy has none.
        if !parent.join("cgroup.procs").exists() {
            return None;
        }
        let dir = parent.join(format!("muster-engine-{name}"));
        fs::create_dir(&dir).ok()?;
        let cgroup = Self { dir };
        cgroup.dir.join("cgroup.kill").exists().then_some(cgroup)
    }

    /// The file that takes whoever writes `0` to it into the cgroup.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub(super) fn entrance(&self) -> io::Result<File> {
        File::options().write(true).open(self.dir.join("cgroup.procs"))
    }

    /// Kills everything in it.
    pub(super) fn kill(&self) {
        // If it fails the tree walk remains, which is done in any case.
        drop(fs::write(self.dir.join("cgroup.kill"), "1"));
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        drop(fs::remove_dir(&self.dir));
    }
}
