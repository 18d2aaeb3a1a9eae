//! Directories that nobody else can look into, change, or put in the place of ours: for sockets, records of processes, and state.
//!
//! Every component of a path is opened by itself and looked at ([`walk`]), so that nothing can be swapped between look and use; from then on
//! names are taken relative to the open directory, and symbolic links are not followed.
//!
//! ```text
//!   /            tmp            muster-1000          w0                 4f2a…
//!   passage ───► passage ─────► passage (a base) ──► ours, 0700 ──────► ours, 0700, made anew
//!   root's or ours, writable by nobody else or sticky; links only root's or ours
//! ```

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read as _, Write as _},
    os::{
        fd::OwnedFd,
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, RawMode, Stat, fchmod, flock, fstat,
        mkdirat, openat, readlinkat, renameat, unlinkat,
    },
    io::Errno,
    process::{getegid, geteuid},
};

/// Symbolic links on the way; more are a loop.
const MOST_LINKS: usize = 32;
/// Directories below each other that are removed; nothing of ours is that deep.
const DEEPEST: usize = 64;
const PRIVATE: Mode = Mode::RWXU;
const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Why a directory is not used. Each says what to do about it, as far as it does not go without saying.
#[derive(Debug, thiserror::Error)]
pub enum NotPrivate {
    /// Somebody else could put another thing in its place.
    #[error("{} belongs to uid {owner}, who could change what is used in it: name another place, or chown it", path.display())]
    Foreign {
        /// The component of the path.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
    },
    /// Others may write.
    #[error("{} can be written by others (mode {mode:o}): name another place, or chmod go-w it", path.display())]
    Writable {
        /// The component of the path.
        path: PathBuf,
        /// Its permissions.
        mode: RawMode,
    },
    /// It was not made for this.
    #[error(
        "{} can be read by others (mode {mode:o}) and holds things that are not ours: name another place, or chmod 700 it",
        path.display()
    )]
    Used {
        /// The directory.
        path: PathBuf,
        /// Its permissions.
        mode: RawMode,
    },
    /// The operating system refuses.
    #[error("cannot use {}: {why}", path.display())]
    Io {
        /// The component of the path.
        path: PathBuf,
        /// What the operating system said.
        why: io::Error,
    },
}

impl From<NotPrivate> for io::Error {
    fn from(error: NotPrivate) -> Self {
        match error {
            NotPrivate::Io { ref why, .. } => Self::new(why.kind(), error.to_string()),
            NotPrivate::Foreign { .. } | NotPrivate::Writable { .. } | NotPrivate::Used { .. } => {
                Self::new(io::ErrorKind::PermissionDenied, error.to_string())
            }
        }
    }
}

fn failed(path: &Path) -> impl FnOnce(Errno) -> NotPrivate + use<> {
    let path = path.to_owned();
    move |errno| NotPrivate::Io {
        path,
        why: errno.into(),
    }
}

/// A directory of ours with mode 0700, open.
#[derive(Debug)]
pub struct PrivateDir {
    fd: OwnedFd,
    path: PathBuf,
}

impl PrivateDir {
    /// Opens `path`, made with all its parents if missing. One that others can read is taken, and closed to them, only if it is empty or
    /// holds `mark`, a file that we keep there.
    ///
    /// # Errors
    /// It is not ours, or others could change it or the way to it.
    pub fn open(path: &Path, mark: &str) -> Result<Self, NotPrivate> {
        let (fd, stat) = walk(path)?;
        let dir = Self::ours(&fd, &stat, path)?;
        let mode = permissions(&stat);
        if mode & 0o077 != 0 {
            let entries = dir.entries().map_err(|why| NotPrivate::Io {
                path: path.to_owned(),
                why,
            })?;
            if !entries.is_empty() && !entries.iter().any(|name| name == mark) {
                return Err(NotPrivate::Used {
                    path: path.to_owned(),
                    mode,
                });
            }
            fchmod(&dir.fd, PRIVATE).map_err(failed(path))?;
        }
        Ok(dir)
    }

    /// Opens the directory `name` in `base`, both made if missing. Others may read `base`, and write to it if it is sticky as `/tmp` is.
    ///
    /// # Errors
    /// `name` is not ours or open to others, or others could change `base` or the way to it.
    pub fn open_in(base: &Path, name: &str) -> Result<Self, NotPrivate> {
        let (fd, stat) = walk(base)?;
        passage(&stat, base)?;
        Self::below(&fd, base, name, Make::IfMissing)
    }

    /// Makes the directory `name` in this one.
    ///
    /// # Errors
    /// There is such a thing already, or the operating system refuses.
    pub fn make(&self, name: &str) -> Result<Self, NotPrivate> {
        Self::below(&self.fd, &self.path, name, Make::Anew)
    }

    /// Opens the directory `name` in this one.
    ///
    /// # Errors
    /// There is none, it is a link, or it is not ours.
    pub fn enter(&self, name: &OsStr) -> Result<Self, NotPrivate> {
        Self::below(&self.fd, &self.path, name, Make::Never)
    }

    fn below(at: &OwnedFd, base: &Path, name: impl AsRef<OsStr>, make: Make) -> Result<Self, NotPrivate> {
        let name = name.as_ref();
        let path = base.join(name);
        if Path::new(name).components().count() != 1 || path.file_name() != Some(name) {
            return Err(failed(&path)(Errno::INVAL));
        }
        let made = match make {
            Make::Never => Ok(()),
            Make::Anew => mkdirat(at, name, PRIVATE),
            Make::IfMissing => match mkdirat(at, name, PRIVATE) {
                Err(Errno::EXIST) => Ok(()),
                other => other,
            },
        };
        made.map_err(failed(&path))?;
        let fd = openat(at, name, WAY, Mode::empty()).map_err(failed(&path))?;
        let stat = fstat(&fd).map_err(failed(&path))?;
        // A link too: its owner is the better reason.
        trusted(&stat, &path)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return Err(failed(&path)(Errno::NOTDIR));
        }
        let dir = Self::ours(&fd, &stat, &path)?;
        if permissions(&stat) & 0o077 != 0 {
            fchmod(&dir.fd, PRIVATE).map_err(failed(&path))?;
        }
        Ok(dir)
    }

    /// Checks that a directory is ours alone to write to.
    fn ours(fd: &OwnedFd, stat: &Stat, path: &Path) -> Result<Self, NotPrivate> {
        if stat.st_uid != geteuid().as_raw() {
            return Err(NotPrivate::Foreign {
                path: path.to_owned(),
                owner: stat.st_uid,
            });
        }
        passage(stat, path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            fd: openat(fd, ".", flags, Mode::empty()).map_err(failed(path))?,
            path: path.to_owned(),
        })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names of what is in it.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn entries(&self) -> io::Result<Vec<OsString>> {
        names(&self.fd)
    }

    /// Opens a file for reading and writing, made with mode 0600 if missing.
    ///
    /// # Errors
    /// It is a link, no plain file, not ours, or the operating system refuses.
    pub fn file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE;
        self.plain(name, flags)
    }

    /// Takes the lock of this name, for as long as the file is open; `None` if somebody else has it.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn lock(&self, name: &str) -> io::Result<Option<File>> {
        let file = self.file(name)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Reads a file of ours.
    ///
    /// # Errors
    /// There is none, it is a link, no plain file, not ours, or no text.
    pub fn read(&self, name: &str) -> io::Result<String> {
        let mut text = String::new();
        self.plain(name, OFlags::RDONLY)?.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Writes a file with mode 0600 as a whole: who reads it sees the old one or the new one.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn write(&self, name: &str, text: &str) -> io::Result<()> {
        let fresh = format!("{name}.new");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        self.plain(&fresh, flags)?.write_all(text.as_bytes())?;
        Ok(renameat(&self.fd, &fresh, &self.fd, name)?)
    }

    fn plain(&self, name: &str, flags: OFlags) -> io::Result<File> {
        // A pipe or a device in its place must not hold us up.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = openat(&self.fd, name, flags, PRIVATE_FILE)?;
        let stat = fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_uid != geteuid().as_raw()
        {
            let message = format!("{} is no plain file of ours", self.path.join(name).display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        Ok(file.into())
    }

    /// Removes whatever has this name, a directory with all that is in it. Links are removed, not followed.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(remove(&self.fd, name, DEEPEST)?)
    }
}

#[derive(Clone, Copy, Debug)]
enum Make {
    Never,
    IfMissing,
    Anew,
}

/// How a component of a path is opened: for what it is, without following it.
const WAY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn permissions(stat: &Stat) -> RawMode {
    stat.st_mode & 0o7777
}

/// Opens a directory, made with its parents if missing. Every directory above it is a passage; it itself is the caller's to judge.
fn walk(path: &Path) -> Result<(OwnedFd, Stat), NotPrivate> {
    let full = std::path::absolute(path).map_err(|why| NotPrivate::Io {
        path: path.to_owned(),
        why,
    })?;
    let root = || openat(CWD, "/", WAY, Mode::empty()).map_err(failed(Path::new("/")));
    let (mut at, mut here, mut links) = (root()?, PathBuf::from("/"), 0);
    let mut stat = fstat(&at).map_err(failed(&here))?;
    let mut todo = steps(&full);
    while let Some(step) = todo.pop() {
        passage(&stat, &here)?;
        let next = here.join(&step);
        let fd = match openat(&at, &step, WAY, Mode::empty()) {
            Err(Errno::NOENT) => {
                // Who else makes it at the same time makes it no worse: it is looked at now.
                match mkdirat(&at, &step, PRIVATE) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(failed(&next)(errno)),
                }
                openat(&at, &step, WAY, Mode::empty()).map_err(failed(&next))?
            }
            other => other.map_err(failed(&next))?,
        };
        stat = fstat(&fd).map_err(failed(&next))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            (at, here) = (fd, next);
        } else if kind == FileType::Symlink {
            trusted(&stat, &next)?;
            links += 1;
            if links > MOST_LINKS {
                return Err(failed(&next)(Errno::LOOP));
            }
            let target = readlinkat(&fd, "", Vec::new()).map_err(failed(&next))?;
            let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
            if target.is_absolute() {
                (at, here) = (root()?, PathBuf::from("/"));
            }
            todo.extend(steps(&target));
            stat = fstat(&at).map_err(failed(&here))?;
        } else {
            return Err(failed(&next)(Errno::NOTDIR));
        }
    }
    Ok((at, stat))
}

/// The components of a path, last first.
fn steps(path: &Path) -> Vec<OsString> {
    let real = path
        .components()
        .filter(|step| matches!(step, Component::Normal(_) | Component::ParentDir));
    let mut steps: Vec<OsString> = real.map(|step| step.as_os_str().to_owned()).collect();
    steps.reverse();
    steps
}

/// Root can do everything anyway.
fn trusted(stat: &Stat, path: &Path) -> Result<(), NotPrivate> {
    if stat.st_uid == 0 || stat.st_uid == geteuid().as_raw() {
        return Ok(());
    }
    Err(NotPrivate::Foreign {
        path: path.to_owned(),
        owner: stat.st_uid,
    })
}

/// Checks that nobody else can replace what is in a directory. A group of which only we are members by custom, our own, may write.
fn passage(stat: &Stat, path: &Path) -> Result<(), NotPrivate> {
    trusted(stat, path)?;
    let mode = permissions(stat);
    let group_is_ours = stat.st_gid == 0 || stat.st_gid == getegid().as_raw();
    let writers = if group_is_ours { 0o002 } else { 0o022 };
    let sticky = mode & 0o1000 != 0;
    if mode & writers != 0 && !sticky {
        return Err(NotPrivate::Writable {
            path: path.to_owned(),
            mode,
        });
    }
    Ok(())
}

fn names(fd: &OwnedFd) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(fd)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

fn remove(at: &OwnedFd, name: &OsStr, depth: usize) -> rustix::io::Result<()> {
    match unlinkat(at, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        other => return other,
    }
    let depth = depth.checked_sub(1).ok_or(Errno::LOOP)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = openat(at, name, flags, Mode::empty())?;
    let inside = names(&dir).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    for entry in inside {
        remove(&dir, &entry, depth)?;
    }
    drop(dir);
    unlinkat(at, name, AtFlags::REMOVEDIR)
}

#[cfg(test)]
#[path = "private/tests.rs"]
mod tests;
