//! How far something is, on standard error: a bar with speed and time left, or a turning sign, on a terminal; a line per change elsewhere.

use std::{
    fmt,
    io::{self, Write as _},
    time::Duration,
};

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::output::bytes;

/// How often what turns on a terminal turns on.
const TURN: Duration = Duration::from_millis(120);
/// Steps of a bar that shows a share.
const STEPS: u64 = 1000;

const TURNING: &str = "{spinner} {wide_msg}";
// What is happening comes last: a long name loses its end on a narrow terminal, and the figures stay.
const SHARE: &str = "{bar:24} {percent:>3} %  {left}  {wide_msg}";
const BYTES: &str =
    "{bar:24} {binary_bytes} of {binary_total_bytes}  {binary_bytes_per_sec}  {left}  {wide_msg}";

/// What is shown of one thing that takes time; gone from a terminal when it is dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    template: &'static str,
    last: String,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self::on(ProgressDrawTarget::stderr())
    }

    fn on(terminal: ProgressDrawTarget) -> Self {
        Self {
            bar: ProgressBar::with_draw_target(None, terminal),
            template: "",
            last: String::new(),
        }
    }

    /// Shows what is happening, where nothing says how much of it is done.
    pub(crate) fn show(&mut self, what: impl fmt::Display) {
        let what = what.to_string();
        self.draw(TURNING, &what, 0, None);
        self.line(what);
    }

    /// Shows which share of something is done.
    pub(crate) fn share(&mut self, what: &str, share: f32) {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a share of a bar"
        )]
        let steps = (share.clamp(0.0, 1.0) * STEPS as f32) as u64;
        self.draw(SHARE, what, steps, Some(STEPS));
        self.line(format!("{what} {:.0} %", share * 100.0));
    }

    /// Shows how many bytes of something are there.
    pub(crate) fn bytes(&mut self, what: &str, done: u64, total: u64) {
        self.draw(BYTES, what, done, Some(total));
        self.line(format!(
            "{:3} %  {} of {}  {what}",
            percent(done, total),
            bytes(done),
            bytes(total)
        ));
    }

    fn draw(&mut self, template: &'static str, what: &str, done: u64, total: Option<u64>) {
        // What was there before the first figure, or is done of another thing, says nothing about the speed.
        let begins = self.template != template || done < self.bar.position();
        if !self.bar.is_hidden() {
            self.bar.enable_steady_tick(TURN);
        }
        // Each of these may be drawn: figures of something else, or the old words beside them, never are.
        if let Some(total) = total {
            self.bar.set_length(total);
        }
        self.bar.set_position(done);
        self.bar.set_message(what.to_owned());
        if self.template != template
            && let Ok(style) = ProgressStyle::with_template(template)
        {
            self.bar.set_style(style.with_key("left", left));
            self.template = template;
        }
        if begins {
            self.bar.reset_elapsed();
        }
    }

    /// Writes a line if it is another one and no terminal shows the bar.
    fn line(&mut self, text: String) {
        if self.bar.is_hidden() && text != self.last {
            note(&text);
            self.last = text;
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Time left; nothing where no speed says it.
fn left(state: &ProgressState, out: &mut dyn fmt::Write) {
    if !state.eta().is_zero() {
        // A bar without it is a bar.
        let _ = write!(out, "{:#} left", HumanDuration(state.eta()));
    }
}

/// A line on standard error.
pub(crate) fn note(text: impl fmt::Display) {
    // What cannot be said is no reason to fail.
    drop(writeln!(io::stderr().lock(), "{text}"));
}

/// Share of all that is done, in percent.
pub(crate) fn percent(done: u64, total: u64) -> u64 {
    match total {
        0 => 0,
        total => done.saturating_mul(100) / total,
    }
}

#[cfg(test)]
mod tests {
    use indicatif::InMemoryTerm;

    use super::*;

    fn terminal() -> (InMemoryTerm, Progress) {
        let terminal = InMemoryTerm::new(5, 120);
        let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
        (terminal, Progress::on(target))
    }

    /// A terminal showed the percentage only.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "a speed takes time")]
    fn a_terminal_shows_a_bar_with_speed_and_time_left_and_nothing_when_all_is_done() {
        let (terminal, mut progress) = terminal();
        progress.bytes("file 2 of 2: b.gguf", 1 << 20, 4 << 20);
        progress.bar.force_draw();
        assert!(!terminal.contents().contains("left"), "nothing has come yet");
        std::thread::sleep(Duration::from_millis(20));
        progress.bytes("file 2 of 2: b.gguf", 3 << 20, 4 << 20);
        progress.bar.force_draw();
        let shown = terminal.contents();
        for part in ["file 2 of 2: b.gguf", "3.00 MiB of 4.00 MiB", "/s", "left", "█"] {
            assert!(shown.contains(part), "no {part}: {shown}");
        }
        progress.share("reading weights", 0.42);
        progress.bar.force_draw();
        let shown = terminal.contents();
        assert!(
            shown.ends_with("reading weights") && shown.contains(" 42 %"),
            "{shown}"
        );
        progress.show("waiting for room, place 1");
        progress.bar.force_draw();
        let shown = terminal.contents();
        assert!(
            shown.ends_with("waiting for room, place 1") && !shown.contains('%'),
            "{shown}"
        );
        drop(progress);
        assert_eq!(terminal.contents(), "");
    }

    #[test]
    fn a_long_name_leaves_the_figures_on_one_line() {
        let (terminal, mut progress) = terminal();
        progress.bytes(&"long".repeat(100), 3 << 30, 4 << 30);
        progress.bar.force_draw();
        let shown = terminal.contents();
        assert!(
            shown.lines().count() == 1 && shown.contains("3.00 GiB of 4.00 GiB"),
            "{shown}"
        );
    }

    #[test]
    fn what_a_part_came_with_is_not_its_speed() {
        let (_, mut progress) = terminal();
        progress.bytes("a", 60 << 30, 61 << 30);
        assert!(progress.bar.per_sec() < 1.0, "{}", progress.bar.per_sec());
    }

    #[test]
    fn a_share_of_nothing_is_none() {
        assert_eq!((percent(0, 0), percent(3, 4)), (0, 75));
    }
}
