//! What one sequence's memory holds: our number and llama.cpp's memory, changed together and only here.
//!
//! Memories differ in what they can forget. Plain attention forgets any end; a sliding window has no more than the last cells to go back to; a recurrent
//! state can't go back at all. And where a part can't be forgotten llama.cpp may leave everything as it was. So no operation here is believed: each ends with
//! llama.cpp's own positions.
//!
//! Invariant: after each call here the memory holds exactly the first [`Held::len`] tokens of the sequence. A decode that starts anywhere else is refused
//! by llama.cpp (−1), and with it everything else in the batch; or, worse, it is not refused and reads cells of another text.

use crate::context::{Context, Seq};

/// How far back a memory goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// To any token.
    Any,
    /// Cells of the last tokens only: what a token sees, itself included.
    Window(usize),
    /// Nowhere.
    Nowhere,
}

/// One sequence's part of the memory.
#[derive(Debug)]
pub(super) struct Held {
    seq: Seq,
    len: usize,
}

impl Held {
    pub(super) const fn new(seq: Seq) -> Self {
        Self { seq, len: 0 }
    }

    pub(super) const fn seq(&self) -> Seq {
        self.seq
    }

    /// Tokens in memory.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// A decode put the tokens up to `len` into memory.
    pub(super) const fn grown_to(&mut self, len: usize) {
        self.len = len;
    }

    /// Forgets everything.
    pub(super) fn forget(&mut self, context: &mut Context) {
        context.forget(self.seq);
        self.len = 0;
    }

    /// Cuts the memory down to the first `len` tokens; if it can't hold exactly these, everything is forgotten.
    pub(super) fn cut(&mut self, context: &mut Context, len: usize) {
        // even where nothing seems to be beyond: of a hybrid's two memories llama.cpp tells the shorter one's end
        if len > 0 && context.forget_from(self.seq, len) && self.there(context) == len {
            self.len = len;
        } else {
            self.forget(context);
        }
    }

    /// Whether llama.cpp agrees; if not, what it holds is worth nothing and is forgotten.
    pub(super) fn agrees(&mut self, context: &mut Context) -> bool {
        let there = self.there(context);
        if there == self.len {
            return true;
        }
        tracing::error!(
            sequence = self.seq,
            tokens = self.len,
            there,
            "llama.cpp's memory is not what it should be: the sequence is read again"
        );
        self.forget(context);
        false
    }

    /// Shares the first `len` tokens of another sequence's cells.
    pub(super) fn share(&mut self, context: &mut Context, from: &Self, len: usize) {
        self.forget(context);
        context.share(from.seq, self.seq);
        self.cut(context, len);
    }

    /// Puts back the state that was saved when `len` tokens were in memory. Cells outside the state must still be there: `len` ≤ [`Self::len`].
    pub(super) fn restore(&mut self, context: &mut Context, len: usize, state: &[u8]) {
        if len <= self.len && context.load_state(self.seq, state) {
            self.cut(context, len);
        } else {
            self.forget(context);
        }
    }

    /// Whether the memory can be cut down to `len` tokens and the next one would see all that it should.
    pub(super) fn reaches_back_to(&self, context: &mut Context, len: usize, reach: Reach) -> bool {
        if len == self.len {
            return true;
        }
        match reach {
            Reach::Any => true,
            Reach::Window(window) => usize::try_from(context.first_position(self.seq))
                .is_ok_and(|first| first == 0 || first + window <= len),
            Reach::Nowhere => false,
        }
    }

    /// Tokens that llama.cpp says it holds.
    fn there(&self, context: &mut Context) -> usize {
        usize::try_from(context.last_position(self.seq) + 1).unwrap_or(0)
    }
}
