//! How many tokens of an answer were reasoning (OpenAI's `reasoning_tokens`).
//!
//! The parser says what of the text is reasoning, not where it stands; the loop says how long the text was after each token. Reasoning is found
//! again as a whole, once something else follows it: pieces of it may stand anywhere. Markers around it do not count.
//!
//! Invariant: what cannot be found is not guessed; the count is then unknown.

/// How long a text was when so many tokens had been generated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    pub(crate) bytes: usize,
    pub(crate) generated: u32,
}

impl Mark {
    /// The same moment, counted from `before` bytes earlier.
    pub(crate) const fn after(self, before: usize) -> Self {
        Self {
            bytes: self.bytes + before,
            ..self
        }
    }
}

/// The count of one choice.
#[derive(Debug)]
pub(crate) struct Thought {
    /// In order; bytes and tokens only grow.
    marks: Vec<Mark>,
    /// Reasoning that was not looked for yet.
    open: String,
    /// Where to look for it.
    from: usize,
    /// Tokens so far; none = unknown.
    tokens: Option<u32>,
}

impl Default for Thought {
    fn default() -> Self {
        Self {
            marks: Vec::new(),
            open: String::new(),
            from: 0,
            tokens: Some(0),
        }
    }
}

impl Thought {
    /// One more token.
    pub(crate) fn mark(&mut self, mark: Mark) {
        self.marks.push(mark);
    }

    /// More reasoning, right after what came before.
    pub(crate) fn add(&mut self, reasoning: &str) {
        self.open.push_str(reasoning);
    }

    /// Something else follows, or nothing; `text` is the whole of what was generated so far.
    pub(crate) fn close(&mut self, text: &str) {
        let open = std::mem::take(&mut self.open);
        let open = open.trim();
        if open.is_empty() {
            return;
        }
        let Some(at) = text.get(self.from..).and_then(|rest| rest.find(open)) else {
            self.tokens = None;
            return;
        };
        let start = self.from + at;
        let end = start + open.len();
        self.from = end;
        let before = self.marks.partition_point(|mark| mark.bytes <= start);
        let before = before.checked_sub(1).and_then(|index| self.marks.get(index));
        let last = self.marks.partition_point(|mark| mark.bytes < end);
        let count = |mark: Option<&Mark>| mark.map_or(0, |mark| mark.generated);
        let more = count(self.marks.get(last).or(self.marks.last())).saturating_sub(count(before));
        self.tokens = self.tokens.map(|tokens| tokens + more);
    }

    /// Tokens of all reasoning that was closed; none = some of it was not found.
    pub(crate) const fn tokens(&self) -> Option<u32> {
        self.tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tokens of `text`, each up to a `|`.
    fn thought(text: &str) -> (Thought, String) {
        let mut thought = Thought::default();
        let mut whole = String::new();
        for (index, piece) in (1..).zip(text.split('|')) {
            whole.push_str(piece);
            let mark = Mark {
                bytes: 0,
                generated: index,
            };
            thought.mark(mark.after(whole.len()));
        }
        (thought, whole)
    }

    #[test]
    fn markers_and_text_are_not_counted() {
        let (mut thought, text) = thought("<think>|\nI |won|der\n|</think>|\n\n|I |won.");
        thought.add("I ");
        thought.add("wonder");
        thought.close(&text);
        assert_eq!(thought.tokens(), Some(3));
        thought.close(&text);
        assert_eq!(thought.tokens(), Some(3));
    }

    #[test]
    fn reasoning_may_be_taken_up_again_and_be_cut() {
        let (mut thought, text) = thought("a| b|</think>|a|<think>|a|</think>|c|<think>|d| e");
        thought.add("a b");
        thought.close(&text);
        thought.add("a");
        thought.close(&text);
        assert_eq!(thought.tokens(), Some(3));
        thought.add("d e");
        thought.close(&text);
        assert_eq!(thought.tokens(), Some(5));
    }

    /// Bytes that wait for the rest of their character make no text: their tokens count with it.
    #[test]
    fn tokens_without_text_belong_to_the_next() {
        let (mut thought, text) = thought("<think>||a||b|</think>");
        thought.add("ab");
        thought.close(&text);
        assert_eq!(thought.tokens(), Some(3));
    }

    #[test]
    fn what_is_not_in_the_text_is_unknown() {
        let (mut thought, text) = thought("a|b");
        thought.add("ac");
        thought.close(&text);
        thought.add("a");
        thought.close(&text);
        assert_eq!(thought.tokens(), None);
    }
}
