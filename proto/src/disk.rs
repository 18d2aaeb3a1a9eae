//! What our processes know about disks: serving needs none of them.

use std::io;

/// The disk, and not what was asked of it, is the reason of a failure: it is full, over its quota, or takes no writes.
#[must_use]
pub fn no_room(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::ReadOnlyFilesystem
    )
}
