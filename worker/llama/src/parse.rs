//! The parse thread: reads chats with tools or reasoning back from the text, beside the loop (ENGINE.md 14: every parse reads the whole text again).
//!
//! ```text
//!   loop ── text, finish ──► Lane (one per choice) ── queue ──► parse thread ── deltas ──► outbox
//!                              ▲ coalesced while the thread is busy
//! ```
//!
//! A lane is queued at most once, so the queue never holds more than there are choices. The loop pays a credit for each token it gives to a lane;
//! the thread gives back what did not become an event. Once the parser says that the rest is plain content it is asked only once more, at the end:
//! until then text passes through on the loop's own thread, but for white space that may turn out to be the answer's end, which formats drop.
//!
//! Invariant: events of a choice are sent in order, and the request's terminal event last. Only this thread ends a request that has lanes.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU32, Ordering},
};

use muster_proto::v1::{
    ChoiceFinished, Delta, Event, FinishReason, SequenceEvents, Timings, TokenLogprob, ToolCallDelta, event,
};
use tokio::sync::mpsc;

use crate::{
    busy::Busy,
    chat::{Diff, Parser},
    control::Control,
    outbox::Outbox,
    thought::{Mark, Thought},
    waker::Waker,
};

/// What several lanes of one request share.
#[derive(Debug)]
pub(crate) struct LaneGroup {
    pub(crate) handle: u64,
    pub(crate) control: Arc<Control>,
    pub(crate) outbox: Outbox,
    pub(crate) waker: Waker,
    /// Choices whose end the parse thread has not sent yet.
    pub(crate) open: AtomicU32,
    /// The request's terminal event; set by the loop before the last lane's end.
    pub(crate) terminal: Mutex<Option<event::Kind>>,
    /// Tokens of reasoning in the choices that ended; none = unknown.
    pub(crate) reasoning: Mutex<Option<u32>>,
}

impl LaneGroup {
    /// The terminal event, with what only the readers know.
    fn take_terminal(&self) -> Option<event::Kind> {
        let mut kind = lock(&self.terminal).take();
        if let Some(event::Kind::Finished(finished)) = &mut kind
            && let Some(usage) = &mut finished.usage
        {
            usage.reasoning_tokens = lock(&self.reasoning).unwrap_or_default();
        }
        kind
    }
}

/// One choice's way through the parse thread.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) choice: u32,
    pub(crate) group: Arc<LaneGroup>,
    inbox: Mutex<Inbox>,
    reader: Mutex<Reader>,
}

/// What the loop has put in.
#[derive(Debug, Default)]
struct Inbox {
    text: String,
    /// Length of `text` after so many tokens.
    marks: Vec<Mark>,
    logprobs: Vec<TokenLogprob>,
    tokens: Vec<i32>,
    generated: u32,
    /// Times up to here, if they were asked for.
    timings: Option<Timings>,
    /// Credits paid for what is here.
    paid: u32,
    end: Option<End>,
    queued: bool,
}

/// How a choice ended.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// Normally; a stop may yet turn out to be a tool call.
    Finished(ChoiceFinished),
    /// The request failed or was cancelled: nothing but the terminal event follows.
    Dropped,
}

/// The parser and what it has read.
#[derive(Debug)]
struct Reader {
    parser: Parser,
    /// The whole text so far.
    text: String,
    /// The rest is content, by the format or because the parser gave up.
    raw: bool,
    /// While raw: bytes at the end of `text` that the parser has not seen, and how many of these were sent.
    unread: usize,
    sent: usize,
    /// The parser gave up: nothing is left to ask it.
    lost: bool,
    /// The format allows nothing but content after content.
    tail_plain: bool,
    tool_calls: usize,
    thought: Thought,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lane {
    pub(crate) fn new(choice: u32, group: Arc<LaneGroup>, parser: Parser, tail_plain: bool) -> Arc<Self> {
        let reader = Reader {
            parser,
            text: String::new(),
            raw: false,
            unread: 0,
            sent: 0,
            lost: false,
            tail_plain,
            tool_calls: 0,
            thought: Thought::default(),
        };
        Arc::new(Self {
            choice,
            group,
            inbox: Mutex::default(),
            reader: Mutex::new(reader),
        })
    }

    /// Adds output that was paid for with one credit. What is known at once is returned; the rest comes from the parse thread.
    pub(crate) fn push(self: &Arc<Self>, output: &mut Output<'_>, queue: &Queue) -> Option<SequenceEvents> {
        let mut inbox = lock(&self.inbox);
        let before = inbox.text.len();
        inbox.text.push_str(output.text);
        let marks = output.marks.drain(..).map(|mark| mark.after(before));
        inbox.marks.extend(marks);
        inbox.logprobs.append(output.logprobs);
        inbox.tokens.append(output.tokens);
        inbox.generated = output.generated;
        inbox.timings = output.timings;
        inbox.paid += 1;
        if inbox.queued {
            return None;
        }
        drop(inbox);
        self.read_here(|| ()).unwrap_or_else(|| {
            self.enqueue(queue);
            None
        })
    }

    /// Ends the choice. `before_queueing` sends what must come before the parse thread's events.
    pub(crate) fn end(
        self: &Arc<Self>,
        end: End,
        queue: &Queue,
        before_queueing: impl FnOnce(),
    ) -> Option<SequenceEvents> {
        let mut inbox = lock(&self.inbox);
        let queued = inbox.queued;
        if queued {
            // nothing of this choice is in the loop's hands that the thread could overtake but this tick's events
            drop(inbox);
            before_queueing();
            let mut inbox = lock(&self.inbox);
            inbox.end = Some(end);
            if !inbox.queued {
                drop(inbox);
                self.enqueue(queue);
            }
            return None;
        }
        inbox.end = Some(end);
        drop(inbox);
        self.read_here(before_queueing).unwrap_or_else(|| {
            self.enqueue(queue);
            None
        })
    }

    /// Short texts are read on the loop's own thread: that takes some ten microseconds, less than waking another. `None` if the parse thread must.
    fn read_here(&self, otherwise: impl FnOnce()) -> Option<Option<SequenceEvents>> {
        if let Ok(mut reader) = self.reader.try_lock()
            && self.is_quick(&reader)
        {
            return Some(work(self, &mut reader));
        }
        otherwise();
        None
    }

    fn is_quick(&self, reader: &Reader) -> bool {
        let inbox = lock(&self.inbox);
        reader.text.len() + inbox.text.len() <= READ_HERE_BYTES || (reader.raw && inbox.end.is_none())
    }

    fn enqueue(self: &Arc<Self>, queue: &Queue) {
        let mut inbox = lock(&self.inbox);
        if !std::mem::replace(&mut inbox.queued, true) {
            drop(inbox);
            queue.push(self);
        }
    }
}

/// Output of a choice on its way to its lane.
#[derive(Debug)]
pub(crate) struct Output<'a> {
    pub(crate) text: &'a str,
    pub(crate) marks: &'a mut Vec<Mark>,
    pub(crate) logprobs: &'a mut Vec<TokenLogprob>,
    pub(crate) tokens: &'a mut Vec<i32>,
    /// Tokens generated so far.
    pub(crate) generated: u32,
    /// Times so far, if they were asked for.
    pub(crate) timings: Option<Timings>,
}

/// Sender side of the parse thread's queue.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    tx: mpsc::Sender<Arc<Lane>>,
}

impl Queue {
    fn push(&self, lane: &Arc<Lane>) {
        // never full in practice: a lane is in it at most once and there are fewer choices than its capacity; if it were, the loop waits
        drop(self.tx.blocking_send(Arc::clone(lane)));
    }
}

/// Longest text that is parsed on the loop's thread, in bytes.
const READ_HERE_BYTES: usize = 512;
/// Choices that can be queued at once.
const CAPACITY: usize = 4096;
/// PEG parsers recurse; the pages are only taken when used.
const STACK_BYTES: usize = 256 << 20;

/// Starts the parse thread; it ends when the last [`Queue`] is dropped.
///
/// # Errors
/// The thread can't be started.
pub(crate) fn start(busy: Busy) -> std::io::Result<Queue> {
    let (tx, mut rx) = mpsc::channel::<Arc<Lane>>(CAPACITY);
    std::thread::Builder::new()
        .name("parse".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(move || {
            while let Some(lane) = rx.blocking_recv() {
                // the reader first: whoever holds it is the only one that sends for this choice
                let mut reader = lock(&lane.reader);
                let job = busy.begin();
                let events = work(&lane, &mut reader);
                drop(job);
                if let Some(events) = events {
                    lane.group.outbox.send(vec![events]);
                }
            }
        })?;
    Ok(Queue { tx })
}

/// Reads what is in a lane's inbox and says what is new.
fn work(lane: &Lane, reader: &mut Reader) -> Option<SequenceEvents> {
    let mut taken = {
        let mut inbox = lock(&lane.inbox);
        inbox.queued = false;
        let kept = Inbox {
            generated: inbox.generated,
            ..Inbox::default()
        };
        std::mem::replace(&mut *inbox, kept)
    };
    let mut events = Vec::new();
    let mut finished = false;
    let dropped = matches!(taken.end, Some(End::Dropped));
    let mut delta = Delta {
        choice: lane.choice,
        logprobs: std::mem::take(&mut taken.logprobs),
        tokens: std::mem::take(&mut taken.tokens),
        generated: taken.generated,
        timings: taken.timings,
        ..Delta::default()
    };
    let cut = match &taken.end {
        Some(End::Finished(end)) => end.reason == FinishReason::Length as i32,
        Some(End::Dropped) | None => true,
    };
    if !reader.raw {
        let before = reader.text.len();
        for mark in &taken.marks {
            reader.thought.mark(mark.after(before));
        }
    }
    if !dropped && (!taken.text.is_empty() || taken.end.is_some()) {
        reader.read(&taken.text, taken.end.is_some(), cut, &mut delta);
    }
    let has_output = !delta.content.is_empty() || !delta.reasoning.is_empty() || !delta.tool_calls.is_empty();
    let due = has_output || !delta.tokens.is_empty() || (taken.end.is_some() && !delta.logprobs.is_empty());
    if !due {
        // figures of tokens whose text is held back travel with that text
        let mut inbox = lock(&lane.inbox);
        let newer = std::mem::replace(&mut inbox.logprobs, std::mem::take(&mut delta.logprobs));
        inbox.logprobs.extend(newer);
    }
    let spent = if !dropped && due {
        events.push(Event {
            kind: Some(event::Kind::Delta(delta)),
            extra_json: String::new(),
        });
        1
    } else {
        0
    };
    if taken.paid > spent {
        lane.group.control.grant(taken.paid - spent);
        lane.group.waker.wake();
    } else {
        lane.group.control.pay(spent - taken.paid);
    }
    if let Some(end) = taken.end {
        if let End::Finished(mut end) = end {
            if reader.tool_calls > 0 && end.reason == FinishReason::Stop as i32 {
                end.reason = FinishReason::ToolCalls as i32;
            }
            events.push(Event {
                kind: Some(event::Kind::ChoiceFinished(end)),
                extra_json: String::new(),
            });
        }
        reader.thought.close(&reader.text);
        let mut all = lock(&lane.group.reasoning);
        *all = all.zip(reader.thought.tokens()).map(|(all, more)| all + more);
        drop(all);
        if lane.group.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            let kind = lane.group.take_terminal();
            events.push(Event {
                kind,
                extra_json: String::new(),
            });
            finished = true;
        }
    }
    (!events.is_empty()).then(|| SequenceEvents {
        handle: lane.group.handle,
        events,
        finished,
    })
}

impl Reader {
    fn read(&mut self, new: &str, ended: bool, cut: bool, delta: &mut Delta) {
        self.text.push_str(new);
        if self.raw {
            self.unread += new.len();
            if ended {
                self.read_end(cut, delta)
            } else {
                self.pass(delta)
            }
            return;
        }
        match self.parser.update(&self.text, cut) {
            Ok(parsed) => {
                self.tool_calls = parsed.tool_calls;
                self.raw = self.tail_plain && parsed.content_len > 0 && parsed.tail_is_content;
                for diff in parsed.diffs {
                    self.thought.add(&diff.reasoning);
                    if !diff.content.is_empty() || diff.index.is_some() {
                        self.thought.close(&self.text);
                    }
                    add(diff, delta);
                }
            }
            Err(error) => {
                // no error of the request: the model wrote something the format does not have
                tracing::debug!(%error, "an answer does not parse, the rest is sent as content");
                self.raw = true;
                self.lost = true;
                delta.content.push_str(new);
            }
        }
    }

    /// Sends what is certainly content: all but white space at the end, unless the parser gave up.
    fn pass(&mut self, delta: &mut Delta) {
        let unsent = &self.text[self.text.len() - self.unread + self.sent..];
        let sure = if self.lost { unsent } else { unsent.trim_end() };
        delta.content.push_str(sure);
        self.sent += sure.len();
    }

    /// The parser decides about the end. What was passed is the beginning of what it says of the unread text; where it is not, all is content.
    fn read_end(&mut self, cut: bool, delta: &mut Delta) {
        let unsent = self.text.len() - self.unread + self.sent;
        if !self.lost
            && let Ok(parsed) = self.parser.update(&self.text, cut)
        {
            let mut last = Delta::default();
            parsed.diffs.into_iter().for_each(|diff| add(diff, &mut last));
            let passed = &self.text[self.text.len() - self.unread..unsent];
            if let Some(rest) = last.content.strip_prefix(passed) {
                delta.content.push_str(rest);
                return;
            }
        }
        delta.content.push_str(&self.text[unsent..]);
    }
}

fn add(diff: Diff, delta: &mut Delta) {
    delta.content.push_str(&diff.content);
    delta.reasoning.push_str(&diff.reasoning);
    if let Some(index) = diff.index {
        delta.tool_calls.push(ToolCallDelta {
            index,
            id: diff.id,
            name: diff.name,
            arguments: diff.arguments,
        });
    }
}
