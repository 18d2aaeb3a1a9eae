//! From token bytes to text that may be sent: whole UTF-8 only, stop strings found across tokens and never leaked, lines cut at a minimum indent.
//!
//! ```text
//!   bytes ──► pending bytes ──► whole UTF-8 ──► unsent text ──► search stops ──► sent
//!             (a cut character)                 (may begin a stop: held)
//! ```
//!
//! Invariant: what was handed out never contains a stop string nor the beginning of one that is later completed.
//! The module does not know tokens, sequences or events.

use std::borrow::Cow;

/// A stop string was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Index into the stop strings.
    Stop(usize),
    /// A line began with less than the minimum indent.
    Indent,
}

/// One choice's text.
#[derive(Debug, Default)]
pub(crate) struct TextStream {
    stops: Vec<String>,
    longest_stop: usize,
    min_indent: usize,
    /// Bytes of a character that is not whole yet.
    pending: Vec<u8>,
    /// Whole text not handed out yet.
    unsent: String,
    /// Columns of white space at the beginning of the current line; `None` once other text came or in the first line.
    indent: Option<usize>,
    /// Where in `unsent` the current line begins, as long as it is all white space.
    line: usize,
    cut: Option<Cut>,
}

impl TextStream {
    /// A stream that ends at any of `stops` (empty ones are ignored) and at a line indented less than `min_indent` (0 = off).
    pub(crate) fn new(stops: Vec<String>, min_indent: usize) -> Self {
        let stops: Vec<String> = stops.into_iter().filter(|stop| !stop.is_empty()).collect();
        let longest_stop = stops.iter().map(String::len).max().unwrap_or(0);
        Self {
            stops,
            longest_stop,
            min_indent,
            ..Self::default()
        }
    }

    /// Adds the bytes of a token and appends what may be sent to `out`. After a cut nothing more is taken.
    pub(crate) fn push(&mut self, bytes: &[u8], out: &mut String) -> Option<Cut> {
        if self.cut.is_some() {
            return self.cut;
        }
        let new = self.take_whole(bytes);
        let searched = self.unsent.len();
        self.unsent.push_str(&new);
        let stop = self.find_stop(searched);
        let indent = self.find_indent(searched);
        match (stop, indent) {
            (Some((at, index)), indent) if indent.is_none_or(|line| at <= line) => {
                self.unsent.truncate(at);
                self.cut = Some(Cut::Stop(index));
            }
            (_, Some(line)) => {
                self.unsent.truncate(line);
                self.cut = Some(Cut::Indent);
            }
            (_, None) => {}
        }
        let keep = if self.cut.is_some() { 0 } else { self.held() };
        let send = self.unsent.len() - keep;
        out.push_str(&self.unsent[..send]);
        self.unsent.drain(..send);
        self.line = self.line.saturating_sub(send);
        self.cut
    }

    /// Appends what was held back; bytes that never became a character are replaced.
    pub(crate) fn finish(&mut self, out: &mut String) {
        out.push_str(&self.unsent);
        self.unsent.clear();
        if self.cut.is_none() && !self.pending.is_empty() {
            out.push_str(&String::from_utf8_lossy(&self.pending));
        }
        self.pending.clear();
    }

    /// The stop string of a cut.
    pub(crate) fn stop(&self, index: usize) -> &str {
        self.stops.get(index).map_or("", String::as_str)
    }

    /// Whether no character is cut.
    pub(crate) const fn is_whole(&self) -> bool {
        self.pending.is_empty()
    }

    /// Bytes held back, the cut character's included.
    pub(crate) fn held_bytes(&self) -> usize {
        self.unsent.len() + self.pending.len()
    }

    /// Takes the whole characters of `pending` + `bytes`; invalid bytes in between are replaced.
    fn take_whole<'b>(&mut self, bytes: &'b [u8]) -> Cow<'b, str> {
        if self.pending.is_empty() {
            // the common case: no copy
            if let Ok(text) = std::str::from_utf8(bytes) {
                return Cow::Borrowed(text);
            }
        }
        self.pending.extend_from_slice(bytes);
        let cut = incomplete_tail(&self.pending);
        let whole = self.pending.len() - cut;
        let text = String::from_utf8_lossy(&self.pending[..whole]).into_owned();
        self.pending.drain(..whole);
        Cow::Owned(text)
    }

    /// The first stop string that ends in the text after `searched`.
    fn find_stop(&self, searched: usize) -> Option<(usize, usize)> {
        if self.stops.is_empty() {
            return None;
        }
        let mut from = searched.saturating_sub(self.longest_stop);
        while !self.unsent.is_char_boundary(from) {
            from -= 1;
        }
        let text = &self.unsent[from..];
        self.stops
            .iter()
            .enumerate()
            .filter_map(|(index, stop)| text.find(stop.as_str()).map(|at| (from + at, index)))
            .min()
    }

    /// Where a line begins whose indent is too small.
    fn find_indent(&mut self, searched: usize) -> Option<usize> {
        if self.min_indent == 0 {
            return None;
        }
        for (at, char) in self.unsent[searched..].char_indices() {
            match (char, self.indent) {
                ('\n', _) => {
                    self.indent = Some(0);
                    self.line = searched + at + 1;
                }
                (' ' | '\t', Some(columns)) => self.indent = Some(columns + 1),
                (_, Some(columns)) => {
                    self.indent = None;
                    if columns < self.min_indent {
                        return Some(self.line);
                    }
                }
                (_, None) => {}
            }
        }
        None
    }

    /// How many bytes at the end of `unsent` may be the beginning of a stop string, or of a line that is cut.
    fn held(&self) -> usize {
        let stop = self.stops.iter().map(|stop| overlap(&self.unsent, stop)).max();
        let line = match self.indent {
            Some(columns) if columns < self.min_indent => self.unsent.len() - self.line,
            Some(_) | None => 0,
        };
        stop.unwrap_or(0).max(line)
    }
}

/// Length of the longest end of `text` that is a proper beginning of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let (text, stop) = (text.as_bytes(), stop.as_bytes());
    (1..stop.len().min(text.len() + 1))
        .rev()
        .find(|len| text.ends_with(&stop[..*len]))
        .unwrap_or(0)
}

/// Bytes at the end that begin a character but don't finish it.
fn incomplete_tail(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let byte = bytes[bytes.len() - back];
        let need = match byte {
            0xC2..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF4 => 4,
            0x80..=0xBF => continue,
            _ => return 0,
        };
        return match std::str::from_utf8(&bytes[bytes.len() - back..]) {
            Err(error) if need > back && error.error_len().is_none() => back,
            _ => 0,
        };
    }
    0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(stops: &[&str], pieces: &[&[u8]]) -> (String, Option<Cut>) {
        let mut stream = TextStream::new(stops.iter().map(|s| (*s).to_owned()).collect(), 0);
        let mut out = String::new();
        let mut cut = None;
        for piece in pieces {
            cut = stream.push(piece, &mut out);
            if cut.is_some() {
                break;
            }
        }
        stream.finish(&mut out);
        (out, cut)
    }

    #[test]
    fn a_stop_across_tokens_is_found_and_not_leaked() {
        assert_eq!(
            run(&["STOP"], &[b"abS", b"T", b"OP", b"more"]),
            ("ab".into(), Some(Cut::Stop(0)))
        );
        assert_eq!(run(&["STOP"], &[b"abS", b"T", b"Ox"]), ("abSTOx".into(), None));
    }

    #[test]
    fn the_earliest_stop_wins() {
        assert_eq!(run(&["b", "ab"], &[b"xab"]), ("x".into(), Some(Cut::Stop(1))));
    }

    #[test]
    fn characters_come_whole() {
        let mut stream = TextStream::new(vec![], 0);
        let mut out = String::new();
        let snowman = "☃".as_bytes();
        stream.push(&snowman[..1], &mut out);
        stream.push(&snowman[1..2], &mut out);
        assert_eq!(out, "");
        stream.push(&snowman[2..], &mut out);
        assert_eq!(out, "☃");
    }

    #[test]
    fn broken_bytes_are_replaced_and_never_stall_the_stream() {
        assert_eq!(run(&[], &[&[0xE2], b"a", &[0xFF], b"b"]).0, "\u{FFFD}a\u{FFFD}b");
        assert_eq!(run(&[], &[b"x", &[0xE2, 0x98]]).0, "x\u{FFFD}");
    }

    #[test]
    fn a_line_with_too_little_indent_ends_the_text() {
        let mut stream = TextStream::new(vec![], 4);
        let mut out = String::new();
        assert_eq!(stream.push(b"f(\n    a\n", &mut out), None);
        assert_eq!(stream.push(b"  b", &mut out), Some(Cut::Indent));
        assert_eq!(out, "f(\n    a\n");
    }

    #[test]
    fn white_space_of_a_line_that_is_cut_is_not_leaked_when_it_came_as_its_own_token() {
        let pieces: [&[u8]; 10] = [b"f(", b"\n", b"  ", b"  a", b"\n", b" ", b"\n", b" ", b" ", b"b"];
        let mut stream = TextStream::new(vec![], 4);
        let mut out = String::new();
        let cuts: Vec<Option<Cut>> = pieces.iter().map(|piece| stream.push(piece, &mut out)).collect();
        assert_eq!(cuts.last(), Some(&Some(Cut::Indent)));
        assert_eq!(cuts.iter().filter(|cut| cut.is_some()).count(), 1);
        stream.finish(&mut out);
        assert_eq!(out, "f(\n    a\n \n");
        // at the end of the text it is sent
        let mut stream = TextStream::new(vec![], 4);
        let mut out = String::new();
        stream.push(b"f(\n  ", &mut out);
        assert_eq!(out, "f(\n");
        stream.finish(&mut out);
        assert_eq!(out, "f(\n  ");
    }

    proptest! {
        #[test]
        fn how_a_text_is_cut_into_tokens_does_not_change_where_its_indent_ends_it(
            text in "[ab \n\t]{0,40}", cuts in prop::collection::vec(0_usize..41, 0..12),
        ) {
            let whole = {
                let mut stream = TextStream::new(vec![], 2);
                let mut out = String::new();
                let cut = stream.push(text.as_bytes(), &mut out);
                stream.finish(&mut out);
                (out, cut)
            };
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.push(text.len());
            cuts.sort_unstable();
            let mut stream = TextStream::new(vec![], 2);
            let (mut out, mut cut, mut from) = (String::new(), None, 0);
            for to in cuts {
                cut = stream.push(&text.as_bytes()[from..to], &mut out);
                from = to;
                prop_assert!(whole.0.starts_with(&out), "{:?} of {:?}", out, whole.0);
                if cut.is_some() { break; }
            }
            stream.finish(&mut out);
            prop_assert_eq!((out, cut), whole);
        }

        #[test]
        fn nothing_is_lost_or_leaked(text in "[abc☃é]{0,40}", stops in prop::collection::vec("[abc☃]{1,4}", 0..4), cuts in prop::collection::vec(0_usize..120, 0..12)) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(bytes.len())).collect();
            cuts.sort_unstable();
            cuts.push(bytes.len());
            let mut stream = TextStream::new(stops.clone(), 0);
            let mut out = String::new();
            let mut from = 0;
            let mut cut = None;
            for to in cuts {
                cut = stream.push(&bytes[from..to], &mut out);
                for stop in &stops {
                    prop_assert!(!out.contains(stop.as_str()));
                }
                from = to;
                if cut.is_some() { break; }
            }
            stream.finish(&mut out);
            prop_assert!(text.starts_with(&out));
            match cut {
                Some(Cut::Stop(index)) => prop_assert!(text[out.len()..].starts_with(&stops[index])),
                _ => prop_assert_eq!(&out, &text),
            }
            // sent text never contains a stop that ended the whole text earlier
            let first = stops.iter().filter_map(|s| text.find(s.as_str())).min();
            if let Some(first) = first { prop_assert!(out.len() <= text.len() && (cut.is_some()) && out.len() >= first.min(out.len())); }
        }

        #[test]
        fn any_bytes_give_text(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5), 0..20)) {
            let all: Vec<u8> = pieces.concat();
            let (out, _) = run(&[], &pieces.iter().map(Vec::as_slice).collect::<Vec<_>>());
            prop_assert_eq!(out, String::from_utf8_lossy(&all).into_owned());
        }
    }
}
