//! A cgroup for each engine, if the worker's own cgroup is delegated to it: `cgroup.kill` ends all processes in it at once, whatever they
//! do to hide. Without one, the keeper walks the process tree.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

/// The cgroup of an engine; removed at the end.
#[derive(Debug)]
pub(super) struct Cgroup {
    dir: PathBuf,
}

impl Cgroup {
    /// Makes a cgroup below the caller's own; `None` if that is not delegated.
    pub(super) fn create(name: &str) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
        Self::below(&Path::new("/sys/fs/cgroup").join(path), name)
    }

    fn below(parent: &Path, name: &str) -> Option<Self> {
        // Every cgroup but the root has `cgroup.kill` since Linux 5.14; a v1 hierarchy has none.
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

    /// Kills every process in it.
    pub(super) fn kill(&self) {
        // If this fails, the walk through the tree, which is done in any case, does the work.
        drop(fs::write(self.dir.join("cgroup.kill"), "1"));
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        drop(fs::remove_dir(&self.dir));
    }
}
