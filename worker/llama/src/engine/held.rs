//! What one sequence's memory holds: our count and llama.cpp's memory, which change together and only here.
//!
//! Memories differ in what they can forget. Plain attention forgets any end of a sequence. A sliding window keeps only the last cells, so
//! it can go back no further. A recurrent state cannot go back at all. If llama.cpp cannot remove a part, it may leave everything
//! unchanged. So each operation here ends by reading llama.cpp's own positions.
//!
//! Invariant: after each call here the memory holds exactly the first [`Held::len`] tokens of the sequence, and [`Held::begun`] cells of the part of an
//! image that follows. A decode that starts anywhere else is refused
//! by llama.cpp (−1), and with it everything else in the batch; or, worse, it is not refused and reads cells of another text.

use crate::{
    content::Content,
    context::{Context, Extent, Seq},
};

/// How far back a memory goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// The memory can go back to any token.
    Any,
    /// The memory holds only the last cells: as many as a token sees, itself included.
    Window(usize),
    /// The memory cannot go back.
    Nowhere,
}

/// One sequence's part of the memory.
#[derive(Debug)]
pub(super) struct Held {
    seq: Seq,
    len: usize,
    begun: usize,
}

impl Held {
    pub(super) const fn new(seq: Seq) -> Self {
        Self {
            seq,
            len: 0,
            begun: 0,
        }
    }

    pub(super) const fn seq(&self) -> Seq {
        self.seq
    }

    /// Whether nothing of the sequence is in memory.
    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0 && self.begun == 0
    }

    /// Number of tokens in memory.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Cells in memory of the part of an image that comes next, which is not all there yet.
    pub(super) const fn begun(&self) -> usize {
        self.begun
    }

    /// Notes that a decode put the tokens up to `len` into memory.
    pub(super) const fn grown_to(&mut self, len: usize) {
        self.len = len;
        self.begun = 0;
    }

    /// Notes that a decode put so many more cells of the next part of an image into memory.
    pub(super) const fn begins(&mut self, cells: usize) {
        self.begun += cells;
    }

    /// Removes the whole sequence from memory.
    pub(super) fn forget(&mut self, context: &mut Context) {
        context.forget(self.seq);
        self.len = 0;
        self.begun = 0;
    }

    /// Cuts the memory down to the first `len` tokens of `content`, which ends in no part of an image. If it cannot hold exactly these, forgets
    /// everything.
    pub(super) fn cut(&mut self, context: &mut Context, content: &Content, len: usize) {
        // always ask, even if nothing lies beyond `len`: of a hybrid's two memories llama.cpp reports the shorter one's end
        let from = content.position(len);
        if len > 0 && context.forget_from(self.seq, from) && self.holds(context, content, len) {
            self.grown_to(len);
        } else {
            self.forget(context);
        }
    }

    /// Whether llama.cpp holds as many tokens as we count. If not, its memory is worthless and is forgotten.
    pub(super) fn agrees(&mut self, context: &mut Context, content: &Content) -> bool {
        if self.holds(context, content, self.len) {
            return true;
        }
        tracing::error!(
            sequence = self.seq,
            tokens = self.len,
            last = context.last_position(self.seq),
            "llama.cpp's memory is not what it should be: the sequence is read again"
        );
        self.forget(context);
        false
    }

    /// Shares the first `len` tokens of another sequence's cells.
    pub(super) fn share(&mut self, context: &mut Context, from: &Self, content: &Content, len: usize) {
        self.forget(context);
        context.share(from.seq, self.seq);
        self.cut(context, content, len);
    }

    /// Restores the state that was saved when `len` tokens were in memory. The cells outside the state must still be there: `len` ≤
    /// [`Self::len`].
    pub(super) fn restore(&mut self, context: &mut Context, content: &Content, len: usize, state: &[u8]) {
        if len <= self.len && context.load_state(self.seq, Extent::Fixed, state) {
            self.cut(context, content, len);
        } else {
            self.forget(context);
        }
    }

    /// Replaces what is held by the whole state that was saved of `content`. False if llama.cpp has no room for it or finds something else in
    /// it; then nothing is held.
    pub(super) fn take_in(&mut self, context: &mut Context, content: &Content, state: &[u8]) -> bool {
        self.forget(context);
        let loaded = context.load_state(self.seq, Extent::Whole, state);
        if loaded && self.holds(context, content, content.len()) {
            self.grown_to(content.len());
            return true;
        }
        self.forget(context);
        false
    }

    /// Whether the memory can be cut down to `len` tokens so that the next token would still see all that it should.
    pub(super) fn reaches_back_to(
        &self,
        context: &mut Context,
        content: &Content,
        len: usize,
        reach: Reach,
    ) -> bool {
        if len == self.len && self.begun == 0 {
            return true;
        }
        self.sees(context, content, len, reach)
    }

    /// Removes what a decode put into memory beyond the [`Self::len`] tokens that are counted. If it cannot hold exactly these, forgets everything.
    pub(super) fn take_back(&mut self, context: &mut Context, content: &Content, reach: Reach) {
        if self.sees(context, content, self.len, reach) {
            self.cut(context, content, self.len);
        } else {
            self.forget(context);
        }
    }

    /// Whether a token after the first `len` would see all that it should.
    fn sees(&self, context: &mut Context, content: &Content, len: usize, reach: Reach) -> bool {
        match reach {
            Reach::Any => true,
            Reach::Window(window) => usize::try_from(context.first_position(self.seq))
                .is_ok_and(|first| first == 0 || first + window <= content.position(len)),
            Reach::Nowhere => false,
        }
    }

    /// Whether llama.cpp says that it holds the first `len` tokens of `content`.
    fn holds(&self, context: &mut Context, content: &Content, len: usize) -> bool {
        match usize::try_from(context.last_position(self.seq)) {
            Ok(last) => content.ends_at(len, last),
            Err(_) => len == 0,
        }
    }
}
