//! What a sequence consists of: tokens, and images between them. Pure.
//!
//! ```text
//!   cells      0 1 2 3 4 5 6 7 8          one per token, several per part of an image
//!   tokens     a b m m m m c d e          m: a number below zero, the same in all cells of the part, and of no other
//!   positions  0 1 2 2 2 2 4 5 6          of a model with M-RoPE: a part may take fewer positions than cells
//! ```
//!
//! Invariants: the parts are in order and do not overlap; a sequence never begins to be read in the middle of one.

use std::sync::Arc;

use crate::{media::Part, model::Token};

/// Tokens with parts of images between them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    /// One per cell.
    pub(crate) tokens: Vec<Token>,
    parts: Vec<Placed>,
}

/// A part of an image in a sequence.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    /// Its first cell.
    pub(crate) at: usize,
    cells: usize,
    positions: usize,
    /// What is read there; none once the sequence will not be read again.
    pub(crate) part: Option<Arc<Part>>,
}

impl Placed {
    /// The cell after its last.
    pub(crate) const fn end(&self) -> usize {
        self.at + self.cells
    }
}

impl From<Vec<Token>> for Content {
    fn from(tokens: Vec<Token>) -> Self {
        Self {
            tokens,
            parts: Vec::new(),
        }
    }
}

impl Content {
    /// Number of cells.
    pub(crate) const fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Tokens of the vocabulary, in order.
    pub(crate) fn words(&self) -> Vec<Token> {
        self.tokens.iter().copied().filter(|token| *token >= 0).collect()
    }

    /// Whether it has images.
    pub(crate) const fn has_parts(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Whether a part of an image is at the end.
    pub(crate) fn ends_with_part(&self) -> bool {
        self.parts.last().is_some_and(|last| last.end() == self.len())
    }

    /// Cells of the largest part that must be decoded at once.
    pub(crate) fn largest_whole_part(&self) -> usize {
        let parts = self.parts.iter().filter_map(|placed| placed.part.as_ref());
        let whole = parts.filter(|part| part.whole).map(|part| part.cells);
        whole.max().unwrap_or(0)
    }

    /// Adds a part of an image, whose cells are `token`.
    pub(crate) fn push_part(&mut self, part: Part) {
        let placed = Placed {
            at: self.len(),
            cells: part.cells,
            positions: part.positions,
            part: None,
        };
        self.tokens.extend(std::iter::repeat_n(part.token, placed.cells));
        self.parts.push(Placed {
            part: Some(Arc::new(part)),
            ..placed
        });
    }

    /// The part that begins at cell `index`.
    pub(crate) fn part_at(&self, index: usize) -> Option<&Placed> {
        let found = self.parts.binary_search_by_key(&index, |placed| placed.at);
        found.ok().map(|found| &self.parts[found])
    }

    /// Cells of the text that begins at `index`: to the next part or to the end.
    pub(crate) fn text_from(&self, index: usize) -> usize {
        let next = self.parts.partition_point(|placed| placed.at < index);
        let end = self.parts.get(next).map_or(self.len(), |placed| placed.at);
        end.saturating_sub(index)
    }

    /// The position of cell `index`, or of the next one after the end; `index` is in no part but may begin one.
    pub(crate) fn position(&self, index: usize) -> usize {
        let before = self.parts.iter().take_while(|placed| placed.end() <= index);
        let saved: usize = before
            .map(|placed| placed.cells.saturating_sub(placed.positions))
            .sum();
        let over: usize = self
            .parts
            .iter()
            .take_while(|placed| placed.end() <= index)
            .map(|placed| placed.positions.saturating_sub(placed.cells))
            .sum();
        index - saved + over
    }

    /// Whether `last` may be the last position of the first `len` cells.
    pub(crate) fn ends_at(&self, len: usize, last: usize) -> bool {
        let next = self.position(len);
        // Of a part the first of a position's numbers counts, and that may be the same for all of its cells.
        let parts = &self.parts[..self.parts.partition_point(|placed| placed.end() <= len)];
        let begins = match parts.last().filter(|placed| placed.end() == len) {
            Some(part) => self.position(part.at),
            None => next.saturating_sub(1),
        };
        (begins..next).contains(&last)
    }

    /// The largest number of cells up to `len` that ends in no part.
    pub(crate) fn whole(&self, len: usize) -> usize {
        let inside = |placed: &&Placed| placed.at < len && len < placed.end();
        self.parts.iter().find(inside).map_or(len, |placed| placed.at)
    }

    /// Keeps the first `len` cells, for comparisons only: the images are let go.
    pub(crate) fn rest_at(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.parts.retain(|placed| placed.end() <= len);
        for placed in &mut self.parts {
            placed.part = None;
        }
    }

    /// Leaves out a part of a text without images.
    pub(crate) fn leave_out(&mut self, cells: std::ops::Range<usize>) {
        debug_assert!(!self.has_parts(), "parts would be at other cells");
        self.tokens.drain(cells);
    }

    /// Forgets all of it.
    pub(crate) fn clear(&mut self) {
        self.tokens.clear();
        self.parts.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content() -> Content {
        let part = |at, cells, positions| Placed {
            at,
            cells,
            positions,
            part: None,
        };
        Content {
            tokens: vec![1, 2, -2, -2, -2, -2, 3, -3, -3, 4],
            parts: vec![part(2, 4, 2), part(7, 2, 2)],
        }
    }

    #[test]
    fn parts_may_take_fewer_positions_than_cells() {
        let content = content();
        let positions: Vec<usize> = [0, 2, 6, 7, 9, 10].map(|index| content.position(index)).into();
        assert_eq!(positions, [0, 2, 4, 5, 7, 8]);
        assert!(content.ends_at(2, 1) && !content.ends_at(2, 2));
        // All cells of the first part may be at its first position, or spread over its two.
        assert!(content.ends_at(6, 2) && content.ends_at(6, 3));
        assert!(!content.ends_at(6, 1) && !content.ends_at(6, 4));
        assert!(content.ends_at(7, 4) && content.ends_at(10, 7));
        assert!(Content::from(vec![1, 2]).ends_at(2, 1));
    }

    #[test]
    fn nothing_is_cut_in_the_middle_of_a_part() {
        let content = content();
        let whole: Vec<usize> = (0..=10).map(|len| content.whole(len)).collect();
        assert_eq!(whole, [0, 1, 2, 2, 2, 2, 6, 7, 7, 9, 10]);
        let text: Vec<usize> = [0, 2, 6, 7, 9].map(|index| content.text_from(index)).into();
        assert_eq!(text, [2, 0, 1, 0, 1]);
        assert!(content.part_at(2).is_some() && content.part_at(3).is_none());
        assert_eq!(content.words(), [1, 2, 3, 4]);
        assert!(!content.ends_with_part());
        let mut rest = content;
        rest.rest_at(9);
        assert!(rest.ends_with_part() && rest.parts.iter().all(|placed| placed.part.is_none()));
        rest.rest_at(8);
        assert_eq!((rest.len(), rest.parts.len()), (8, 1));
    }
}
