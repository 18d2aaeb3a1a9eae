//! Errors about full disks. Serving needs no disk.

use std::io;

/// Whether a failure is due to the disk: it is full, over its quota, or read-only.
#[must_use]
pub fn no_room(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::ReadOnlyFilesystem
    )
}
