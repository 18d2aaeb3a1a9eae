//! Where the last tokens of a text stood before (prompt lookup, llama.cpp's `ngram-simple`). Pure.
//!
//! All pairs of tokens are kept in chains by their hash, newest first, as in LZ77. So a token costs a constant time to add, and eight bytes.

use crate::model::Token;

/// Tokens that must agree.
const PAIR: usize = 2;
/// Earlier places that are compared.
const PLACES: usize = 8;
/// Agreement beyond this says nothing more.
const ENOUGH: usize = 32;
/// The end of a chain.
const NOWHERE: u32 = u32::MAX;

/// The pairs of a text that only grows.
#[derive(Debug, Default)]
pub(crate) struct Lookup {
    /// By hash, the place of the newest pair's second token; a power of two.
    newest: Vec<u32>,
    /// By place, the place of the pair before it in its chain.
    before: Vec<u32>,
}

/// A place where the last tokens stood before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The place of the token that followed.
    next: usize,
    /// Tokens that agree, at most [`ENOUGH`].
    pub(crate) agrees: usize,
}

impl Found {
    /// The tokens that followed, and so on in a circle if the text ends before: a text that repeats itself goes on doing so. Ends before an image.
    pub(crate) fn continuation(self, text: &[Token]) -> impl Iterator<Item = Token> {
        let period = text.get(self.next..).unwrap_or_default();
        period.iter().copied().cycle().take_while(|token| *token >= 0)
    }
}

impl Lookup {
    /// Adds the pairs of `text` that are not in yet, but the last: it is what will be looked up.
    pub(crate) fn read(&mut self, text: &[Token]) {
        let end = text.len().saturating_sub(1);
        if end > self.newest.len() {
            self.grow(text, end);
        }
        for place in self.before.len()..end {
            self.add(text, place);
        }
    }

    /// The place where most of the last tokens stood before, of several the newest.
    pub(crate) fn find(&self, text: &[Token]) -> Option<Found> {
        let last = text.len().checked_sub(PAIR)? + 1;
        let bucket = self.bucket(pair(text, last)?)?;
        let mut place = self.newest[bucket];
        let mut best: Option<Found> = None;
        for _ in 0..PLACES {
            let Some(at) = usize::try_from(place).ok().filter(|at| *at < last) else {
                break;
            };
            let agrees = agreement(&text[..=at], text);
            if agrees >= PAIR && best.is_none_or(|best| agrees > best.agrees) {
                best = Some(Found { next: at + 1, agrees });
            }
            place = self.before[at];
        }
        best
    }

    fn add(&mut self, text: &[Token], place: usize) {
        let bucket = pair(text, place).and_then(|pair| self.bucket(pair));
        let before = match (bucket, u32::try_from(place)) {
            (Some(bucket), Ok(place)) => std::mem::replace(&mut self.newest[bucket], place),
            _ => NOWHERE,
        };
        self.before.push(before);
    }

    fn grow(&mut self, text: &[Token], to: usize) {
        let known = self.before.len();
        self.newest = vec![NOWHERE; to.next_power_of_two().max(256)];
        self.before.clear();
        for place in 0..known {
            self.add(text, place);
        }
    }

    fn bucket(&self, pair: [Token; PAIR]) -> Option<usize> {
        let [a, b] = pair.map(|token| u64::from(token.unsigned_abs()));
        // Fibonacci hashing: the product's upper bits depend on all bits of both.
        let hash = (a << 32 | b).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let mask = self.newest.len().checked_sub(1)?;
        usize::try_from(hash).ok().map(|hash| hash & mask)
    }
}

/// The pair that ends at `place`; none at the beginning and in images.
fn pair(text: &[Token], place: usize) -> Option<[Token; PAIR]> {
    let pair: [Token; PAIR] = text.get(place.checked_sub(1)?..=place)?.try_into().ok()?;
    pair.iter().all(|token| *token >= 0).then_some(pair)
}

/// Tokens that two texts have in common at their ends.
fn agreement(a: &[Token], b: &[Token]) -> usize {
    let same = a.iter().rev().zip(b.iter().rev()).take(ENOUGH);
    same.take_while(|(a, b)| a == b && **a >= 0).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a search of the whole text finds.
    fn searched(text: &[Token]) -> usize {
        (0..text.len().saturating_sub(1))
            .map(|at| agreement(&text[..=at], text))
            .max()
            .filter(|agrees| *agrees >= PAIR)
            .unwrap_or(0)
    }

    fn found(text: &[Token]) -> Option<Found> {
        let mut lookup = Lookup::default();
        lookup.read(text);
        lookup.find(text)
    }

    #[test]
    fn the_longest_agreement_wins_and_of_several_the_newest() {
        let text = [1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3];
        assert_eq!(found(&text), Some(Found { next: 3, agrees: 3 }));
        let text = [2, 3, 7, 2, 3, 8, 2, 3];
        assert_eq!(found(&text), Some(Found { next: 5, agrees: 2 }));
        let first: Vec<Token> = found(&text).unwrap().continuation(&text).take(3).collect();
        assert_eq!(first, [8, 2, 3]);
        assert_eq!(found(&[1, 2, 3]), None);
        assert_eq!(found(&[1]), None);
        assert_eq!(found(&[]), None);
    }

    #[test]
    fn a_text_that_repeats_itself_goes_on_so() {
        let text = [5, 6, 7, 5, 6, 7, 5, 6];
        let next: Vec<Token> = found(&text).unwrap().continuation(&text).take(7).collect();
        assert_eq!(next, [7, 5, 6, 7, 5, 6, 7]);
    }

    #[test]
    fn images_are_neither_looked_up_nor_guessed() {
        let text = [-1, -1, 4, -1, -1];
        assert_eq!(found(&text), None);
        let text = [1, 2, 3, -1, 1, 2];
        let next: Vec<Token> = found(&text).unwrap().continuation(&text).take(9).collect();
        assert_eq!(next, [3]);
    }

    proptest! {
        #[test]
        fn what_is_found_is_there(text in prop::collection::vec(-1_i32..4, 0..400), step in 1_usize..50) {
            let mut lookup = Lookup::default();
            let mut end = 0;
            while end < text.len() {
                end = (end + step).min(text.len());
                let text = &text[..end];
                lookup.read(text);
                if let Some(found) = lookup.find(text) {
                    prop_assert!(found.next < text.len() && found.agrees >= PAIR);
                    prop_assert_eq!(&text[found.next - found.agrees..found.next], &text[text.len() - found.agrees..]);
                }
            }
        }

        /// With few places for each pair, nothing better is missed.
        #[test]
        fn nothing_longer_is_missed(text in prop::collection::vec(0_i32..40, 0..120)) {
            let agrees = found(&text).map_or(0, |found| found.agrees);
            let places = |text: &[Token]| {
                let last = &text[text.len().saturating_sub(PAIR)..];
                text.windows(PAIR).filter(|pair| *pair == last).count()
            };
            if places(&text) <= 4 {
                prop_assert_eq!(agrees, searched(&text));
            }
        }
    }
}
