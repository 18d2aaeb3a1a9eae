//! Guessing ahead: tokens that probably come next are decoded together with the last one, and those that the sampler would not have chosen are
//! taken back. What comes out is the same; it only comes sooner where a decode of several tokens costs less than as many decodes.
//!
//! ```text
//!   text so far    … a b c d … a b            `a b` was there before: `c d …` may follow (lookup)
//!   one decode         b | c  d  e            b, and three guesses
//!   sampled            c   d  x               c and d were right, e was not: three tokens by one decode
//! ```
//!
//! How many are guessed is reckoned (odds, price): each must be expected to save more time than it takes.
//! It does not know sequences, memory or llama.cpp. Pure.

mod lookup;
mod odds;
mod price;

use lookup::Lookup;
pub(crate) use odds::Odds;
pub(crate) use price::Price;

use crate::model::Token;

/// How a request wants its tokens guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guessing {
    /// Not at all.
    Off,
    /// As many as pay.
    Paying,
    /// Whenever there is a guess, whatever it costs: from `least` to `most` tokens (llama.cpp's `speculative.n_min` and `speculative.n_max`).
    Always { least: usize, most: usize },
}

/// What a running choice knows about its text.
#[derive(Debug)]
pub(crate) struct Guesses {
    how: Guessing,
    lookup: Lookup,
    odds: Odds,
    /// Guesses of the decode that is being built.
    tokens: Vec<Token>,
    /// How many tokens before them agreed with the place that they are from.
    agrees: usize,
    /// Tokens guessed, and those of them that were right.
    pub(crate) drafted: u32,
    pub(crate) accepted: u32,
}

impl Guesses {
    pub(crate) fn new(how: Guessing, odds: Odds) -> Self {
        Self {
            how,
            lookup: Lookup::default(),
            odds,
            tokens: Vec::new(),
            agrees: 0,
            drafted: 0,
            accepted: 0,
        }
    }

    /// Guesses what follows `text`: at most `room` tokens, and only as many as are worth their `price` (see [`Price::of`]). Returns their number.
    pub(crate) fn guess(&mut self, text: &[Token], room: usize, price: impl Fn(usize) -> f64) -> usize {
        self.tokens.clear();
        if self.how == Guessing::Off || room == 0 {
            return 0;
        }
        self.lookup.read(text);
        let Some(found) = self.lookup.find(text) else {
            return 0;
        };
        let (least, count) = match self.how {
            Guessing::Off => return 0,
            Guessing::Paying => (1, self.odds.worth(found.agrees, room, price)),
            Guessing::Always { least, most } => (least, most.min(room)),
        };
        self.agrees = found.agrees;
        self.tokens.extend(found.continuation(text).take(count));
        if self.tokens.len() < least {
            self.tokens.clear();
        }
        self.tokens.len()
    }

    /// The guesses of the decode that is being built.
    pub(crate) fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Takes the guesses back, because there is no room for them. False if there were none.
    pub(crate) fn withdraw(&mut self) -> bool {
        let any = !self.tokens.is_empty();
        self.tokens.clear();
        any
    }

    /// Forgets the text, since it is another now.
    pub(crate) fn forget(&mut self) {
        self.tokens.clear();
        self.lookup = Lookup::default();
    }

    /// Moves the guesses, which were decoded, to `into` and counts them. Returns how many tokens before them agreed with an earlier place.
    pub(crate) fn made(&mut self, into: &mut Vec<Token>) -> usize {
        into.clear();
        into.append(&mut self.tokens);
        self.drafted += u32::try_from(into.len()).unwrap_or(0);
        self.agrees
    }

    /// Counts a guess that was right.
    pub(crate) const fn was_right(&mut self) {
        self.accepted += 1;
    }

    /// Learns that of `tried` guesses after so many agreeing tokens `right` were right.
    pub(crate) fn learn(&mut self, agrees: usize, right: usize, tried: usize) {
        self.odds.learn(agrees, right, tried);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guesses(how: Guessing) -> Guesses {
        Guesses::new(how, Odds::default())
    }

    #[test]
    fn what_was_there_before_is_guessed_and_counted() {
        let text = [1, 2, 3, 4, 5, 9, 1, 2, 3];
        let mut paying = guesses(Guessing::Paying);
        let count = paying.guess(&text, 8, |_| 0.0);
        assert!(count >= 2);
        assert_eq!(paying.tokens()[..2], [4, 5]);
        let mut made = Vec::new();
        assert_eq!(paying.made(&mut made), 3);
        assert_eq!(
            (made.len(), paying.drafted as usize, paying.tokens().len()),
            (count, count, 0)
        );
        paying.was_right();
        assert_eq!(paying.accepted, 1);
        assert_eq!(paying.guess(&text, 0, |_| 0.0), 0, "no room");
        assert_eq!(paying.guess(&text[..6], 8, |_| 0.0), 0, "nothing repeats");
        assert_eq!(paying.guess(&text, 8, |_| 2.0), 0, "too dear");
        assert_eq!(guesses(Guessing::Off).guess(&text, 8, |_| 0.0), 0);
    }

    #[test]
    fn a_wish_is_followed_whatever_it_costs() {
        let text = [1, 2, 3, 4, 5, 9, 1, 2];
        let mut wished = guesses(Guessing::Always { least: 3, most: 4 });
        assert_eq!(wished.guess(&text, 16, |_| 9.0), 4);
        assert_eq!(wished.tokens(), [3, 4, 5, 9]);
        assert!(wished.withdraw() && !wished.withdraw());
        assert_eq!(
            wished.guess(&text, 2, |_| 9.0),
            0,
            "fewer than wished are not worth it"
        );
        wished.made(&mut Vec::new());
        assert_eq!(wished.drafted, 0);
    }
}
