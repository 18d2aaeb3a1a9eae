//! How many bytes of request bodies the process holds at once, over all I/O threads.
//!
//! A limit for each body bounds nothing while anybody may open connections. Bytes are taken as they arrive, not as they are announced, and given
//! back when the handler is through with the body. The first [`FREE`] of each body do not count: while others send images by the hundred, or hold
//! bodies open, chats still get in.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// What a body may have without counting, in bytes: as much as a connection's own buffers take anyway.
const FREE: usize = 64 << 10;

/// The bytes that are left.
#[derive(Debug)]
pub(crate) struct Budget {
    all: usize,
    left: AtomicUsize,
}

impl Budget {
    /// A budget of so many bytes.
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            all: bytes,
            left: AtomicUsize::new(bytes),
        })
    }

    /// What there is in all, in bytes.
    pub(crate) fn all(&self) -> usize {
        self.all
    }

    /// For a body of which nothing has come yet.
    pub(crate) fn begin(self: &Arc<Self>) -> Held {
        Held {
            budget: Arc::clone(self),
            bytes: 0,
        }
    }
}

/// What one body has taken; given back when dropped.
#[derive(Debug)]
pub(crate) struct Held {
    budget: Arc<Budget>,
    /// Of the body, the free ones included.
    bytes: usize,
}

impl Held {
    /// Takes further bytes; false if there are not so many left, and then nothing is taken.
    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        let more = (self.bytes + bytes).saturating_sub(FREE) - self.counted();
        // Nothing else is published with the number: relaxed is enough.
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
