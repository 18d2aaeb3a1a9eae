//! A limit on the bytes of request bodies that the process holds, over all I/O threads.
//!
//! A limit per body is not enough, since anybody may open connections. Bytes count when they arrive, not when they are announced, and are
//! given back when the handler has finished with the body. The first [`FREE`] bytes of each body do not count: so chats still get in while
//! others send large images or hold bodies open.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Bytes of each body that do not count, about the size of a connection's own buffers.
const FREE: usize = 64 << 10;

/// The number of bytes that may still be taken.
#[derive(Debug)]
pub(crate) struct Budget {
    all: usize,
    left: AtomicUsize,
}

impl Budget {
    /// A budget of this many bytes.
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            all: bytes,
            left: AtomicUsize::new(bytes),
        })
    }

    /// The whole budget in bytes.
    pub(crate) fn all(&self) -> usize {
        self.all
    }

    /// An account for a body of which nothing has arrived yet.
    pub(crate) fn begin(self: &Arc<Self>) -> Held {
        Held {
            budget: Arc::clone(self),
            bytes: 0,
        }
    }
}

/// The bytes that one body has taken. Dropping it gives them back.
#[derive(Debug)]
pub(crate) struct Held {
    budget: Arc<Budget>,
    /// Bytes of the body, the free ones included.
    bytes: usize,
}

impl Held {
    /// Takes more bytes. Returns false, and takes nothing, if not enough are left.
    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        let more = (self.bytes + bytes).saturating_sub(FREE) - self.counted();
        // Nothing else is ordered by this number, so relaxed is enough.
        let order = Ordering::Relaxed;
        let taken = self
            .budget
            .left
            .fetch_update(order, order, |left| left.checked_sub(more));
        if taken.is_ok() {
            self.bytes += bytes;
        }
        taken.is_ok()
    }

    fn counted(&self) -> usize {
        self.bytes.saturating_sub(FREE)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.left.fetch_add(self.counted(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_taken_as_they_come_and_given_back_as_a_whole() {
        let budget = Budget::new(1000);
        let (mut one, mut two) = (budget.begin(), budget.begin());
        assert!(one.take(FREE) && two.take(FREE - 1));
        assert!(one.take(600) && !two.take(402));
        // What was refused was not taken, and a small body always has room.
        assert!(two.take(1) && two.take(400) && !two.take(1));
        assert!(budget.begin().take(FREE));
        drop(one);
        assert!(two.take(600));
        drop(two);
        let mut all = budget.begin();
        assert!(!all.take(FREE + 1001) && all.take(FREE + 1000));
    }
}
