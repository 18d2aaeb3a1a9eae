//! What the kernel says about memory and processes: `/proc`, whose files `procfs-core` parses, and the cgroup (version 2) of this process, of which
//! three numbers are parsed here: crates for cgroups are made to manage them.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use muster_core::Bytes;
use muster_proto::v1::ProcessId;
use procfs_core::{
    FromRead, Meminfo,
    process::{Io, SmapsRollup, Stat},
};

/// The host's memory, as `/proc/meminfo` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    /// All of it.
    pub(crate) capacity: Bytes,
    /// What could be used now without swapping.
    pub(crate) free: Bytes,
}

/// Memory that some processes of the host share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pool {
    /// How much, and how much of it is free; no more than the pools around it have free.
    pub(crate) memory: Memory,
    /// The cgroup whose limit it is, by its number in this kernel, which is the same in all namespaces; none = the host's memory.
    pub(crate) cgroup: Option<u64>,
}

/// Memory this process may use: the host's, or its cgroup's where that is less.
pub(crate) fn memory() -> io::Result<Pool> {
    let told = Meminfo::from_file("/proc/meminfo").map_err(io::Error::other)?;
    let free = told.mem_available;
    let host = Memory {
        capacity: Bytes::new(told.mem_total),
        free: Bytes::new(free.ok_or_else(|| io::Error::other("no MemAvailable in /proc/meminfo"))?),
    };
    Ok(within(host, &cgroups()))
}

/// The tightest of the host's memory and the limits of these cgroups, a process's own first.
fn within(host: Memory, cgroups: &[PathBuf]) -> Pool {
    let mut pool = Pool {
        memory: host,
        cgroup: None,
    };
    // Outermost first: a limit that is no lower than the one around it does not count.
    for path in cgroups.iter().rev() {
        let Some((limit, about)) = limit(path).zip(fs::metadata(path).ok()) else {
            continue;
        };
        if limit.capacity < pool.memory.capacity {
            pool.memory.capacity = limit.capacity;
            pool.cgroup = Some(about.ino());
        }
        pool.memory.free = pool.memory.free.min(limit.free);
    }
    pool
}

/// Directories of the cgroup (version 2) and its ancestors.
fn cgroups() -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let own = fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| {
        text.lines()
            .find_map(|line| line.strip_prefix("0::/").map(PathBuf::from))
    });
    own.map(|own| own.ancestors().map(|path| root.join(path)).collect())
        .unwrap_or_default()
}

fn limit(cgroup: &Path) -> Option<Memory> {
    let read = |name| fs::read_to_string(cgroup.join(name)).ok();
    let capacity: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    // File pages that nobody used lately are given back before anything else suffers.
    let cache = read("memory.stat")
        .and_then(|text| {
            text.lines()
                .find_map(|line| line.strip_prefix("inactive_file ")?.trim().parse().ok())
        })
        .unwrap_or(0);
    Some(Memory {
        capacity: Bytes::new(capacity),
        free: Bytes::new(capacity).saturating_sub(Bytes::new(used).saturating_sub(Bytes::new(cache))),
    })
}

/// Proportional set size of a process tree: shared pages are split among those who share them. What has gone counts nothing.
pub(crate) fn pss(tree: &[ProcessId]) -> Bytes {
    tree.iter()
        .filter_map(|process| read::<SmapsRollup>(process.pid, "smaps_rollup"))
        .flat_map(|rollup| rollup.memory_map_rollup)
        .filter_map(|map| map.extension.map.get("Pss").copied())
        .map(Bytes::new)
        .sum()
}

/// A file about a process; `None` if there is none, or it is not for this user to read.
fn read<T: FromRead>(pid: u32, name: &str) -> Option<T> {
    T::from_file(format!("/proc/{pid}/{name}")).ok()
}

/// What a process tree has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Activity {
    /// Processor time.
    pub(crate) cpu: Duration,
    /// Bytes read and written, by system calls and by page faults.
    pub(crate) bytes: Bytes,
}

/// What a process tree has done so far. What has gone counts nothing.
pub(crate) fn activity(tree: &[ProcessId]) -> Activity {
    let pids = || tree.iter().map(|process| process.pid);
    let stats = pids().filter_map(|pid| read::<Stat>(pid, "stat"));
    let ticks: u64 = stats.map(|stat| stat.utime + stat.stime).sum();
    let moved = pids().filter_map(|pid| read::<Io>(pid, "io"));
    let moved = moved.map(|io| io.rchar + io.wchar + io.read_bytes + io.write_bytes);
    // USER_HZ is 100 on every architecture Linux runs on that we do.
    Activity {
        cpu: Duration::from_millis(ticks.saturating_mul(10)),
        bytes: moved.map(Bytes::new).sum(),
    }
}

/// Start time of a process in clock ticks since boot, which tells it from a later one with the same pid.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    let stat: Stat = read(pid, "stat")?;
    // A zombie holds no memory any more.
    (stat.state != 'Z').then_some(stat.starttime)
}

/// The pid namespace of this process; empty if it cannot be told.
pub(crate) fn pid_namespace() -> String {
    fs::read_link("/proc/self/ns/pid")
        .map_or_else(|_| String::new(), |name| name.to_string_lossy().into_owned())
}

/// The machine: kernel boot id and node name.
pub(crate) fn host_id() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    format!("{}-{}", boot.trim(), host_name())
}

/// The node name.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_uses_the_processor() {
        let pid = std::process::id();
        let own = ProcessId {
            pid,
            start_time: start_time(pid).unwrap(),
        };
        assert!(pss(&[own]) > Bytes::new(100_000));
        assert!(activity(&[own]).bytes > Bytes::ZERO);
        let gone = ProcessId {
            pid: u32::MAX,
            start_time: 1,
        };
        assert_eq!((pss(&[gone]), start_time(gone.pid)), (Bytes::ZERO, None));
        assert_eq!(activity(&[gone]), Activity::default());
        let memory = memory().unwrap().memory;
        assert!(memory.free <= memory.capacity && memory.free > Bytes::ZERO);
    }

    /// Directories as cgroups have them: name, limit, use.
    fn cgroups(root: &Path, tree: &[(&str, &str, u64)]) {
        for (name, max, current) in tree {
            let path = root.join(name);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("memory.max"), format!("{max}\n")).unwrap();
            fs::write(path.join("memory.current"), format!("{current}\n")).unwrap();
        }
    }

    fn pool(root: &Path, own: &str) -> Pool {
        let host = Memory {
            capacity: Bytes::new(1000),
            free: Bytes::new(700),
        };
        let ancestors = Path::new(own).ancestors().map(|path| root.join(path));
        within(host, &ancestors.collect::<Vec<_>>())
    }

    /// Workers of two units used to share one device, as large as the last of them had said.
    #[test]
    fn units_with_limits_of_their_own_have_memory_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let tree = [
            ("slice", "max", 0),
            ("slice/a", "300", 100),
            ("slice/b", "200", 0),
            ("slice/free", "max", 50),
        ];
        cgroups(dir.path(), &tree);
        let [a, b, free] = ["slice/a", "slice/b", "slice/free"].map(|own| pool(dir.path(), own));
        assert_eq!(
            (a.memory.capacity, a.memory.free),
            (Bytes::new(300), Bytes::new(200))
        );
        assert_eq!(
            (b.memory.capacity, b.memory.free),
            (Bytes::new(200), Bytes::new(200))
        );
        assert!(a.cgroup.is_some() && b.cgroup.is_some() && a.cgroup != b.cgroup);
        assert_eq!(free.cgroup, None, "without a limit it is the host's");
        assert_eq!(
            (free.memory.capacity, free.memory.free),
            (Bytes::new(1000), Bytes::new(700))
        );
    }

    #[test]
    fn units_of_one_limited_slice_share_its_memory() {
        let dir = tempfile::tempdir().unwrap();
        let tree = [
            ("slice", "400", 390),
            ("slice/a", "400", 10),
            ("slice/b", "max", 0),
            ("slice/small", "100", 0),
            ("slice/beyond", "5000", 0),
        ];
        cgroups(dir.path(), &tree);
        let [a, b, beyond] = ["slice/a", "slice/b", "slice/beyond"].map(|own| pool(dir.path(), own));
        assert!(
            a.cgroup.is_some() && a == b && b == beyond,
            "{a:?} {b:?} {beyond:?}"
        );
        let small = pool(dir.path(), "slice/small");
        assert_ne!(small.cgroup, a.cgroup);
        assert_eq!(
            (small.memory.capacity, small.memory.free),
            (Bytes::new(100), Bytes::new(10)),
            "what is around it is nearly full"
        );
    }
}
