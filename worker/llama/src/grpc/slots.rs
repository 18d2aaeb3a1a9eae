//! Saving, restoring and erasing what a sequence has cached: files are read and written here, beside the loop.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use muster_core::{Code, Error};
use muster_proto::v1::{SlotActionCall, SlotActionResult, slot_action_call::Action};
use tokio::{
    sync::{Semaphore, oneshot},
    time::timeout,
};

use super::load::Loaded;
use crate::{
    limits::Role,
    request::{Command, Reply, SlotAction, SlotJob, Timed},
    slot_files::SlotFiles,
};

/// How long an order waits for its sequence to be idle. llama.cpp's own server waits for ever.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is needed to act on sequences.
#[derive(Debug)]
pub(super) struct Slots {
    files: Option<Arc<SlotFiles>>,
    generates: bool,
    /// One state at a time is held outside of the model's memory.
    one: Semaphore,
}

impl Slots {
    pub(super) fn new(files: Option<SlotFiles>, role: Role) -> Self {
        Self {
            files: files.map(Arc::new),
            generates: role == Role::Generate,
            one: Semaphore::new(1),
        }
    }

    fn files(&self) -> Result<Arc<SlotFiles>, Error> {
        self.files.clone().ok_or_else(|| {
            Code::UnsupportedByRuntime
                .error("This server does not support slots action. Start it with `--slot-save-path`")
        })
    }
}

/// Does what is asked; nothing is done any more once the future is dropped.
pub(super) async fn act(loaded: &Arc<Loaded>, call: SlotActionCall) -> Result<SlotActionResult, Error> {
    if !loaded.slots.generates {
        return Err(Code::UnsupportedByRuntime.error("this model keeps no sequences"));
    }
    let slot = call.id_slot as usize;
    let tenant = call.private_prefixes.then(|| Arc::from(call.fairness_key));
    match call.action {
        Some(Action::Save(name)) => save(loaded, slot, name).await,
        Some(Action::Restore(name)) => restore(loaded, slot, name, tenant).await,
        Some(Action::Erase(_)) => {
            let erased = order(loaded, slot, SlotAction::Erase).await?;
            Ok(done(erased.value, 0, erased.took))
        }
        None => Err(Code::InvalidRequest
            .error("no action is named")
            .with_param("action")),
    }
}

async fn save(loaded: &Arc<Loaded>, slot: usize, name: String) -> Result<SlotActionResult, Error> {
    let files = loaded.slots.files()?;
    files.check(&name)?;
    let _one = waited(loaded.slots.one.acquire()).await?;
    let saved = order(loaded, slot, SlotAction::Save).await?;
    let started = Instant::now();
    let (tokens, bytes) = (saved.value.tokens.len(), saved.value.file_len());
    beside(move || files.save(&name, &saved.value)).await?;
    Ok(done(tokens, bytes, saved.took + started.elapsed()))
}

async fn restore(
    loaded: &Arc<Loaded>,
    slot: usize,
    name: String,
    tenant: Option<Arc<str>>,
) -> Result<SlotActionResult, Error> {
    let files = loaded.slots.files()?;
    let _one = waited(loaded.slots.one.acquire()).await?;
    let started = Instant::now();
    let (saved, bytes) = beside(move || files.read(&name)).await?;
    let (tokens, read) = (saved.tokens.len(), started.elapsed());
    let action = |answer| SlotAction::Restore {
        saved,
        tenant,
        answer,
    };
    let restored = order(loaded, slot, action).await?;
    Ok(done(tokens, bytes, read + restored.took))
}

fn done(tokens: usize, bytes: u64, took: Duration) -> SlotActionResult {
    SlotActionResult {
        tokens: tokens as u64,
        bytes,
        elapsed_ms: took.as_secs_f64() * 1e3,
    }
}

/// Has the loop do something once the sequence is idle.
async fn order<T>(
    loaded: &Loaded,
    slot: usize,
    action: impl FnOnce(Reply<T>) -> SlotAction,
) -> Result<Timed<T>, Error> {
    let ending = || Code::ShuttingDown.error("the engine is ending");
    let (answer, reply) = oneshot::channel();
    let job = SlotJob {
        slot,
        action: action(answer),
    };
    let sent = loaded.commands.send(Command::Slot(job)).await;
    sent.map_err(|_| ending())?;
    waited(reply).await?.map_err(|_| ending())?
}

async fn waited<T>(what: impl Future<Output = T>) -> Result<T, Error> {
    let busy = || Code::InstanceBusy.error(format!("the slot was busy for {} s", PATIENCE.as_secs()));
    timeout(PATIENCE, what).await.map_err(|_| busy())
}

/// Reads or writes a file on a thread where that may take its time.
async fn beside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|panic| Err(Code::Internal.error(panic.to_string())))
}
