//! Directories that other users can neither read, change, nor replace: for sockets, records of processes, and state.
//!
//! Each component of a path is opened and checked by itself ([`walk`]), so that nothing can be replaced between check and use. After that,
//! names are resolved relative to the open directory, and symbolic links are not followed.
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

/// Largest number of symbolic links on the way; more are a loop.
const MOST_LINKS: usize = 32;
/// Deepest nesting of directories that is removed; ours are never deeper.
const DEEPEST: usize = 64;
const PRIVATE: Mode = Mode::RWXU;
const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Why a directory is not used. Each message says what to do about it, if that is not obvious.
#[derive(Debug, thiserror::Error)]
pub enum NotPrivate {
    /// Another user could replace what is in it.
    #[error("{} belongs to uid {owner}, who could change what is used in it: name another place, or chown it", path.display())]
    Foreign {
        path: PathBuf,
        /// User id of the owner.
        owner: u32,
    },
    /// Other users may write to it.
    #[error("{} can be written by others (mode {mode:o}): name another place, or chmod go-w it", path.display())]
    Writable {
        path: PathBuf,
        /// Its permissions.
        mode: RawMode,
    },
    /// It was not made for this purpose.
    #[error(
        "{} can be read by others (mode {mode:o}) and holds things that are not ours: name another place, or chmod 700 it",
        path.display()
    )]
    Used {
        path: PathBuf,
        /// Its permissions.
        mode: RawMode,
    },
    /// The operating system refuses.
    #[error("cannot use {}: {why}", path.display())]
    Io {
        path: PathBuf,
        /// The operating system's error.
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

/// An open directory of ours with mode 0700.
#[derive(Debug)]
pub struct PrivateDir {
    fd: OwnedFd,
    path: PathBuf,
}

impl PrivateDir {
    /// Opens `path`, made with all its parents if missing. A directory that others can read is accepted, and closed to them, only if it is
    /// empty or has `mark`, a file that we keep there.
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

    /// Opens the directory `name` in `base`, both made if missing. Others may read `base`, and write to it if it is sticky like `/tmp`.
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
    /// The name exists already, or the operating system refuses.
    pub fn make(&self, name: &str) -> Result<Self, NotPrivate> {
        Self::below(&self.fd, &self.path, name, Make::Anew)
    }

    /// Opens the directory `name` in this one.
    ///
    /// # Errors
    /// It does not exist, is a link, or is not ours.
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
        // Checked for a link as well: its owner is the better reason.
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

    /// Checks that only we can write to a directory.
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

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names of its entries.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn entries(&self) -> io::Result<Vec<OsString>> {
        names(&self.fd)
    }

    /// Opens a file for reading and writing, made with mode 0600 if missing.
    ///
    /// # Errors
    /// It is a link, not a plain file, or not ours, or the operating system refuses.
    pub fn file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE;
        self.plain(name, flags)
    }

    /// Takes the lock with this name as long as the file is open; `None` if somebody else has it.
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
    /// It does not exist, is a link, not a plain file, not ours, or not text.
    pub fn read(&self, name: &str) -> io::Result<String> {
        let mut text = String::new();
        self.plain(name, OFlags::RDONLY)?.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Writes a file with mode 0600 as a whole: a reader sees the old file or the new one.
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
        // A pipe or a device with that name must not block us.
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

    /// Removes whatever has this name, a directory with its contents. Links are removed, not followed.
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

/// Flags to open a component of a path without following it.
const WAY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn permissions(stat: &Stat) -> RawMode {
    stat.st_mode & 0o7777
}

/// Opens a directory, made with its parents if missing. Every directory above it is checked as a passage; the caller checks the directory
/// itself.
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
                // If another process makes it at the same time, that is fine: it is checked next.
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

/// The components of a path, the last first.
fn steps(path: &Path) -> Vec<OsString> {
    let real = path
        .components()
        .filter(|step| matches!(step, Component::Normal(_) | Component::ParentDir));
    let mut steps: Vec<OsString> = real.map(|step| step.as_os_str().to_owned()).collect();
    steps.reverse();
    steps
}

/// Checks that a directory belongs to us or to root, who can do everything anyway.
fn trusted(stat: &Stat, path: &Path) -> Result<(), NotPrivate> {
    if stat.st_uid == 0 || stat.st_uid == geteuid().as_raw() {
        return Ok(());
    }
    Err(NotPrivate::Foreign {
        path: path.to_owned(),
        owner: stat.st_uid,
    })
}

/// Checks that no other user can replace what is in a directory. Our own group may write, since by custom only we are in it.
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
