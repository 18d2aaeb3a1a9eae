//! A text that goes on beyond its context (llama.cpp's `--context-shift`): a part of its beginning is left out, and what is kept is read again.
//!
//! llama.cpp's server moves the keys that it keeps to their new places instead, which is quicker; but these still know of what was left out, and not every memory can be
//! moved. Reading again costs little beside the many tokens that were written meanwhile, and works for all.

use super::Engine;

/// What is left out of a text that has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shift {
    /// Tokens at the beginning that stay.
    pub(crate) keep: usize,
    /// Tokens after them that go; 0 = half of the rest.
    pub(crate) discard: usize,
}

impl Shift {
    /// The tokens of a text of `len` that go: at least one, and never the last.
    pub(super) fn goes(self, len: usize) -> std::ops::Range<usize> {
        let keep = self.keep.min(len.saturating_sub(LEAST));
        let rest = len - keep;
        let count = match self.discard {
            0 => rest / 2,
            discard => discard,
        };
        keep..keep + count.clamp(1, rest.saturating_sub(1).max(1))
    }
}

/// Tokens at the end that always stay, as in llama.cpp.
const LEAST: usize = 4;

impl Engine {
    /// Makes room in the text of slot `index`, whose context is full.
    pub(super) fn shift(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        let Some(run) = slot.run.as_deref_mut() else {
            return;
        };
        let Some(shift) = run.params.shift else { return };
        let goes = shift.goes(slot.content.len());
        run.guesses.forget();
        run.shifted = true;
        let kept = goes.start;
        slot.content.leave_out(goes);
        let prompt = std::mem::take(&mut slot.content);
        self.keep_prefix(index, &prompt, kept);
        let slot = &mut self.slots[index];
        slot.content = prompt;
        self.checkpoints.drop_beyond(slot.held.seq(), slot.held.len());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn half_of_what_is_not_kept_goes() {
        let goes = |keep, discard| Shift { keep, discard }.goes(100);
        assert_eq!(goes(0, 0), 0..50);
        assert_eq!(goes(20, 0), 20..60);
        assert_eq!(goes(20, 10), 20..30);
        assert_eq!(goes(1000, 0), 96..98, "the end stays, whatever is to be kept");
        assert_eq!(goes(20, 1000), 20..99, "and so does the last token");
    }

    proptest! {
        #[test]
        fn something_goes_and_the_last_token_stays(len in 2_usize..200, keep in 0_usize..300, discard in 0_usize..300) {
            let goes = Shift { keep, discard }.goes(len);
            prop_assert!(goes.start < goes.end && goes.end < len);
        }
    }
}
