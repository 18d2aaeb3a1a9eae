//! The first decodes of a load: they touch the weights, and what they take says what is best here: how many threads, how many sequences in one call,
//! how many prompt tokens beside others. Nothing of it is tried again later: requests are no place to experiment.

use std::time::{Duration, Instant};

use super::settings::Wanted;
use crate::{
    context::{Batch, Context, DecodeError},
    group::{self, Grouping, Timed},
    limits::Role,
    model::{Model, Token},
    pace::Pace,
};

/// What takes less than this on one thread gets one: more only wait for each other, and take the cores from everything else.
const QUICK: Duration = Duration::from_millis(4);
/// Tokens of the prompts that are timed.
const PROMPTS: [usize; 2] = [8, 32];
/// Of so many calls the quickest counts: other work may be in the way of some.
const TRIES: usize = 3;
/// Time to spend on finding out how many sequences go into one call.
const GROUPS: Duration = Duration::from_millis(100);

/// What the first decodes showed.
#[derive(Debug)]
pub(super) struct Warmed {
    pub(super) pace: Pace,
    /// By one thread, and by all that are wanted.
    pub(super) grouping: [Grouping; 2],
}

/// Decodes for the first time; `wanted` then says how many threads are used.
///
/// # Errors
/// llama.cpp cannot decode.
pub(super) fn up(model: &Model, context: &mut Context, wanted: &mut Wanted) -> Result<Warmed, DecodeError> {
    let mut trial = Trial::new(model, context, wanted.role);
    // the first one reads the weights from the disk
    trial.prompt(1, wanted.settings.threads)?;
    if wanted.choose_threads && wanted.settings.threads > 1 {
        if trial.quick(1)? {
            wanted.settings.threads = 1;
            if trial.quick(PROMPTS[1])? {
                wanted.settings.threads_batch = 1;
            }
        }
        tracing::info!(
            threads = wanted.settings.threads,
            threads_batch = wanted.settings.threads_batch,
            "chose threads by trying"
        );
    }
    let (threads, threads_batch) = (wanted.settings.threads, wanted.settings.threads_batch);
    let mut pace = Pace::new(trial.context.info().n_ubatch as usize);
    for tokens in PROMPTS {
        let tokens = tokens.min(trial.room);
        pace.read(tokens, micros(trial.prompt(tokens, threads_batch)?));
    }
    let mut grouping = [Grouping::default(), Grouping::default()];
    if wanted.role == Role::Generate {
        pace.generated(1, micros(trial.sequences(1, threads, threads_batch)?));
        let one = trial.grouping(1, 1)?;
        let all = if threads.max(threads_batch) > 1 {
            trial.grouping(threads, threads_batch)?
        } else {
            one.clone()
        };
        grouping = [one, all];
    }
    trial.context.clear();
    trial.set_threads(threads, threads_batch);
    Ok(Warmed { pace, grouping })
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Decodes whose time is taken.
struct Trial<'a> {
    context: &'a mut Context,
    batch: Batch,
    token: Token,
    /// Every token is an output (vectors), not only the last.
    all_outputs: bool,
    /// Most tokens of a prompt.
    room: usize,
}

impl<'a> Trial<'a> {
    fn new(model: &Model, context: &'a mut Context, role: Role) -> Self {
        let token = [model.info().bos, model.info().eos, 0]
            .into_iter()
            .find(|token| *token >= 0)
            .unwrap_or(0);
        let info = context.info();
        let room = (info.n_ubatch as usize).min(info.n_ctx as usize / 2).max(1);
        Self {
            context,
            batch: Batch::default(),
            token,
            all_outputs: role != Role::Generate,
            room,
        }
    }

    fn set_threads(&mut self, threads: u32, threads_batch: u32) {
        let narrow = |threads| i32::try_from(threads).unwrap_or(1);
        self.context.set_threads(narrow(threads), narrow(threads_batch));
    }

    /// A prompt of `tokens` tokens on `threads` threads.
    fn prompt(&mut self, tokens: usize, threads: u32) -> Result<Duration, DecodeError> {
        self.set_threads(threads, threads);
        self.batch.clear();
        for pos in 0..tokens {
            let output = self.all_outputs || pos + 1 == tokens;
            self.batch
                .push(self.token, i32::try_from(pos).unwrap_or(0), 0, output);
        }
        self.decode()
    }

    /// One token for each of so many sequences.
    fn sequences(&mut self, count: usize, threads: u32, threads_batch: u32) -> Result<Duration, DecodeError> {
        self.set_threads(threads, threads_batch);
        self.batch.clear();
        for seq in 0..count {
            self.batch
                .push(self.token, 0, i32::try_from(seq).unwrap_or(0), true);
        }
        self.decode()
    }

    fn decode(&mut self) -> Result<Duration, DecodeError> {
        self.context.clear();
        let begun = Instant::now();
        self.context.decode(&self.batch)?;
        Ok(begun.elapsed())
    }

    /// Whether a prompt of so many tokens is quick on one thread; the better of two tries, since other work may be in the way of one.
    fn quick(&mut self, tokens: usize) -> Result<bool, DecodeError> {
        let tokens = tokens.min(self.room);
        let first = self.prompt(tokens, 1)?;
        Ok(first < QUICK || first < 4 * QUICK && self.prompt(tokens, 1)? < QUICK)
    }

    fn grouping(&mut self, threads: u32, threads_batch: u32) -> Result<Grouping, DecodeError> {
        let begun = Instant::now();
        let mut timed = Vec::new();
        for sequences in group::sizes(self.context.info().n_seq_max as usize) {
            let mut best = Duration::MAX;
            for _ in 0..TRIES {
                best = best.min(self.sequences(sequences, threads, threads_batch)?);
            }
            let micros = best.as_secs_f64() * 1e6;
            timed.push(Timed { sequences, micros });
            if micros > group::SLOW_MICROS || begun.elapsed() > GROUPS {
                break;
            }
        }
        let grouping = Grouping::new(&timed);
        tracing::debug!(?timed, "timed calls for several sequences");
        Ok(grouping)
    }
}
