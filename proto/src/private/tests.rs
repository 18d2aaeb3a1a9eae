use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, chown, symlink},
};

use super::*;

/// A directory of this test.
struct Base(PathBuf);

impl Base {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("muster-private-{}-{name}", std::process::id()));
        fs::create_dir(&path).unwrap();
        chmod(&path, 0o700);
        Self(path)
    }

    fn dir(&self, name: &str, mode: u32) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir(&path).unwrap();
        chmod(&path, mode);
        path
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

const NOBODY: u32 = 65534;

/// Gives a path to another user; `false` if only root could, and this is not root.
fn give_away(path: &Path) -> bool {
    geteuid().is_root() && {
        std::os::unix::fs::lchown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        true
    }
}

#[test]
fn what_is_missing_is_made_private_and_what_is_there_is_closed_to_others() {
    let base = Base::new("made");
    let deep = base.0.join("a/b/c");
    let dir = PrivateDir::open(&deep, "mark").unwrap();
    assert_eq!(
        (dir.path(), mode(&deep), mode(&base.0.join("a"))),
        (&*deep, 0o700, 0o700)
    );
    let empty = base.dir("empty", 0o755);
    PrivateDir::open(&empty, "mark").unwrap();
    assert_eq!(mode(&empty), 0o700);
    let marked = base.dir("marked", 0o755);
    fs::write(marked.join("mark"), "").unwrap();
    PrivateDir::open(&marked, "mark").unwrap();
    assert_eq!(mode(&marked), 0o700);
    // Somebody's home, for example.
    let used = base.dir("used", 0o755);
    fs::write(used.join("letter"), "").unwrap();
    let refused = PrivateDir::open(&used, "mark").unwrap_err();
    assert!(matches!(refused, NotPrivate::Used { .. }), "{refused}");
    assert_eq!(mode(&used), 0o755);
}

#[test]
fn a_way_that_others_can_change_is_refused_and_a_sticky_one_is_not() {
    let base = Base::new("way");
    let open = base.dir("open", 0o777);
    let refused = PrivateDir::open(&open.join("x/y"), "").unwrap_err();
    assert!(
        matches!(&refused, NotPrivate::Writable { path, .. } if *path == open),
        "{refused}"
    );
    assert!(PrivateDir::open(&open, "").is_err());
    assert!(PrivateDir::open_in(&open, "x").is_err());
    let sticky = base.dir("sticky", 0o1777);
    PrivateDir::open_in(&sticky, "x").unwrap();
    PrivateDir::open(&sticky.join("y/z"), "").unwrap();
    assert_eq!(mode(&sticky), 0o1777);
    assert!(
        base.0.join("open/x").symlink_metadata().is_err(),
        "nothing was made there"
    );
}

#[test]
fn a_directory_or_link_that_another_user_put_there_is_refused() {
    let base = Base::new("foreign");
    let sticky = base.dir("tmp", 0o1777);
    let theirs = sticky.join("muster-0");
    fs::create_dir(&theirs).unwrap();
    let victim = base.dir("victim", 0o700);
    fs::write(victim.join("file"), "").unwrap();
    let link = sticky.join("link");
    symlink(&victim, &link).unwrap();
    if !give_away(&theirs) || !give_away(&link) {
        return;
    }
    for path in [
        theirs.clone(),
        theirs.join("deeper"),
        link.clone(),
        link.join("deeper"),
    ] {
        let refused = PrivateDir::open(&path, "").unwrap_err();
        assert!(
            matches!(refused, NotPrivate::Foreign { owner: NOBODY, .. }),
            "{refused}"
        );
    }
    for name in ["muster-0", "link"] {
        assert!(PrivateDir::open_in(&sticky, name).is_err(), "{name}");
    }
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 1);
    // Inside, whoever put it there.
    let dir = PrivateDir::open(&victim, "").unwrap();
    chown(victim.join("file"), Some(NOBODY), None).unwrap();
    assert_eq!(
        dir.read("file").unwrap_err().kind(),
        io::ErrorKind::PermissionDenied
    );
}

#[test]
fn our_own_links_lead_on_and_loops_end() {
    let base = Base::new("links");
    let real = base.dir("real", 0o700);
    symlink("real", base.0.join("relative")).unwrap();
    symlink(&real, base.0.join("absolute")).unwrap();
    symlink("loop", base.0.join("loop")).unwrap();
    for way in ["relative/x", "absolute/x", "real/../relative/x"] {
        PrivateDir::open(&base.0.join(way), "").unwrap();
    }
    assert_eq!(mode(&real.join("x")), 0o700);
    assert!(PrivateDir::open(&base.0.join("loop"), "").is_err());
}

#[test]
fn names_stay_inside_and_links_are_not_followed() {
    let base = Base::new("inside");
    let outside = base.dir("outside", 0o700);
    fs::write(outside.join("file"), "theirs").unwrap();
    let dir = PrivateDir::open(&base.0.join("dir"), "").unwrap();
    for name in ["..", ".", "", "a/b", "/tmp"] {
        assert!(dir.make(name).is_err(), "{name}");
        assert!(dir.enter(OsStr::new(name)).is_err(), "{name}");
    }
    symlink(&outside, dir.path().join("link")).unwrap();
    symlink(outside.join("file"), dir.path().join("file")).unwrap();
    assert!(dir.enter(OsStr::new("link")).is_err());
    assert!(dir.read("file").is_err());
    assert!(dir.file("file").is_err());
    dir.write("file", "ours").unwrap();
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "theirs");
    assert_eq!(dir.read("file").unwrap(), "ours");
    assert_eq!(mode(&dir.path().join("file")), 0o600);
    let below = dir.make("below").unwrap();
    assert!(dir.make("below").is_err());
    symlink(&outside, below.path().join("out")).unwrap();
    below.make("deeper").unwrap().write("x", "").unwrap();
    for name in ["link", "below", "file"] {
        dir.remove(OsStr::new(name)).unwrap();
    }
    assert_eq!(dir.entries().unwrap(), Vec::<OsString>::new());
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    // A pipe does not hold a reader up.
    rustix::fs::mknodat(&dir.fd, "pipe", FileType::Fifo, PRIVATE_FILE, 0).unwrap();
    assert!(dir.read("pipe").is_err());
}

#[test]
fn a_lock_has_one_holder() {
    let base = Base::new("lock");
    let dir = PrivateDir::open(&base.0, "").unwrap();
    let first = dir.lock("lock").unwrap();
    assert!(first.is_some());
    assert!(dir.lock("lock").unwrap().is_none());
    drop(first);
    assert!(dir.lock("lock").unwrap().is_some());
}
