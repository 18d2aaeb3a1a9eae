//! Saved states of sequences, for memories that can't forget a part (windows, recurrent states; ENGINE.md 10).
//!
//! All states together may take as many bytes as are reserved for them (`muster_gguf::memory::set_aside`). So a single long conversation
//! can keep many states, and many conversations keep one or two each. Pure.
//!
//! Invariant: the bytes held never exceed the bound.

use crate::context::Seq;

/// A saved state of a sequence.
#[derive(Debug)]
pub(super) struct Checkpoint {
    pub(super) seq: Seq,
    /// Tokens in memory when the state was saved.
    pub(super) len: usize,
    pub(super) data: Vec<u8>,
    /// Tick at which the state was last saved or restored.
    pub(super) used: u64,
}

/// All saved states.
#[derive(Debug)]
pub(super) struct Checkpoints {
    bound: usize,
    bytes: usize,
    all: Vec<Checkpoint>,
}

impl Checkpoints {
    /// An empty collection that may hold `bound` bytes.
    pub(super) const fn new(bound: usize) -> Self {
        Self {
            bound,
            bytes: 0,
            all: Vec::new(),
        }
    }

    /// Whether states can be kept at all.
    pub(super) const fn wanted(&self) -> bool {
        self.bound > 0
    }

    /// Whether a state at exactly `len` tokens is saved.
    pub(super) fn has(&self, seq: Seq, len: usize) -> bool {
        self.all.iter().any(|one| one.seq == seq && one.len == len)
    }

    /// Keeps a state. To make room, drops the least recently used states of the sequence that holds the most. A state larger than the bound
    /// is not kept.
    pub(super) fn keep(&mut self, new: Checkpoint) {
        if new.data.len() > self.bound {
            return;
        }
        let (seq, size) = (new.seq, new.data.len());
        while self.bytes + size > self.bound {
            let held = |seq: Seq| -> usize {
                let own = self.all.iter().filter(|one| one.seq == seq);
                own.map(|one| one.data.len()).sum()
            };
            let most = self
                .all
                .iter()
                .map(|one| (held(one.seq) + if one.seq == seq { size } else { 0 }, one.seq))
                .max();
            let Some((_, most)) = most else { return };
            let victim = (0..self.all.len())
                .filter(|at| self.all[*at].seq == most)
                .min_by_key(|at| self.all[*at].used);
            let Some(victim) = victim else { return };
            self.bytes -= self.all.swap_remove(victim).data.len();
        }
        self.bytes += size;
        self.all.push(new);
    }

    /// The longest saved state of at most `len` tokens.
    pub(super) fn newest(&mut self, seq: Seq, len: usize, now: u64) -> Option<&Checkpoint> {
        let usable = self.all.iter_mut().filter(|one| one.seq == seq && one.len <= len);
        let newest = usable.max_by_key(|one| one.len)?;
        newest.used = now;
        Some(newest)
    }

    /// Drops a sequence's states of more than `len` tokens.
    pub(super) fn drop_beyond(&mut self, seq: Seq, len: usize) {
        self.all.retain(|one| one.seq != seq || one.len <= len);
        self.bytes = self.all.iter().map(|one| one.data.len()).sum();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn state(seq: Seq, len: usize, size: usize, used: u64) -> Checkpoint {
        Checkpoint {
            seq,
            len,
            data: vec![0; size],
            used,
        }
    }

    #[test]
    fn a_long_conversation_does_not_cost_the_others_their_last_state() {
        let mut kept = Checkpoints::new(60);
        kept.keep(state(0, 10, 10, 1));
        kept.keep(state(1, 10, 10, 2));
        for turn in 0..20 {
            kept.keep(state(2, 10 + turn, 10, 3 + turn as u64));
        }
        assert!(kept.has(0, 10) && kept.has(1, 10));
        assert_eq!(kept.all.iter().filter(|one| one.seq == 2).count(), 4);
        assert_eq!(kept.newest(2, 100, 50).unwrap().len, 29);
        assert_eq!(kept.newest(2, 28, 50).unwrap().len, 28);
        assert!(kept.newest(2, 9, 50).is_none());
        kept.drop_beyond(2, 27);
        assert!(!kept.has(2, 28) && kept.has(2, 27));
    }

    #[test]
    fn what_is_larger_than_the_bound_is_not_kept() {
        let mut kept = Checkpoints::new(5);
        kept.keep(state(0, 1, 5, 1));
        kept.keep(state(1, 1, 6, 2));
        assert!(kept.has(0, 1) && !kept.has(1, 1));
        let mut nothing = Checkpoints::new(0);
        nothing.keep(state(0, 1, 1, 1));
        assert!(!nothing.has(0, 1));
    }

    proptest! {
        #[test]
        fn the_bytes_never_exceed_the_bound(
            bound in 0_usize..100,
            steps in prop::collection::vec((0_i32..4, 1_usize..20, 0_usize..60, any::<bool>()), 0..60),
        ) {
            let mut kept = Checkpoints::new(bound);
            for (now, (seq, len, size, drop)) in (0..).zip(steps) {
                if drop {
                    kept.drop_beyond(seq, len);
                } else {
                    kept.keep(state(seq, len, size, now));
                    prop_assert_eq!(kept.has(seq, len), size <= bound || kept.all.iter().any(|one| one.seq == seq && one.len == len));
                }
                let bytes: usize = kept.all.iter().map(|one| one.data.len()).sum();
                prop_assert_eq!(bytes, kept.bytes);
                prop_assert!(bytes <= bound);
            }
        }
    }
}
