//! Watches the files of the configuration and of users while the controller runs, and has changes taken over (`driver::reload`).
//!
//! Files are looked at every few seconds, on another thread: a network mount tells no watcher, and may hang. What was written is read once its
//! time and size stand still, so that an editor's half a file is not.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use muster_core::{Code, Error};
use muster_proto::{StatusExt as _, v1};
use serde_json::{Map, Value};
use tokio::{sync::Mutex, time::sleep};

use crate::{
    aside::aside,
    config::{Config, ConfigError, Sources},
    driver::{
        handle::Handle,
        inbox::{Models, Query},
    },
    replace,
    state::{StateDir, StateError},
};

/// How often the files are looked at, and models that could be loaded anew.
const EVERY: Duration = Duration::from_secs(2);

/// The version of a file; none if it is not there.
type Stamp = Option<(SystemTime, u64)>;

/// Reads the configuration again and has it taken over.
///
/// # Errors
/// `invalid_configuration`, naming every problem; then nothing changes. Or the controller ends.
pub(crate) async fn reload(handle: &Handle, sources: Sources) -> Result<v1::ReloadResponse, Error> {
    let read = aside(move || sources.load()).await;
    let read = read.map_err(|error| Code::Internal.error(error.to_string()))?;
    match read {
        Ok(config) => {
            handle
                .models(|reply| Models::Reload(Box::new(config), reply))
                .await
        }
        Err(error) => {
            tracing::warn!(%error, "the configuration is wrong and stays as it was");
            let error = Code::InvalidConfiguration.error(error.to_string());
            handle.tell("reload_failed", &error.message);
            Err(error)
        }
    }
}

/// Changes settings over the configuration, keeps them, and has them taken over; without changes only shows those in force.
///
/// # Errors
/// `invalid_request`: a key that is none. `invalid_configuration`: a value that is wrong. Then nothing changes. Or the disk refuses.
pub(crate) async fn adjust(
    handle: &Handle,
    state: Arc<StateDir>,
    changes: Map<String, Value>,
) -> Result<Map<String, Value>, Error> {
    /// One after the other: each changes what the one before has left.
    static TURN: Mutex<()> = Mutex::const_new(());
    let _turn = TURN.lock().await;
    let sources = handle.sources();
    let changed = !changes.is_empty();
    let read: Result<Result<Config, Error>, _> = aside(move || {
        let wrong = |error: ConfigError| Code::InvalidConfiguration.error(error.to_string());
        let adjusted = sources.adjusted().map_err(wrong)?.changed(&changes)?;
        let config = sources.load_with(&adjusted).map_err(wrong)?;
        if changed {
            let unwritten = |error: StateError| Code::Internal.error(error.to_string());
            state.save_adjustments(&adjusted).map_err(unwritten)?;
        }
        Ok(config)
    })
    .await;
    let config = read.map_err(|error| Code::Internal.error(error.to_string()))??;
    let shown = config.adjustable();
    if changed {
        let taken = handle.models(|reply| Models::Reload(Box::new(config), reply));
        taken.await?;
    }
    Ok(shown)
}

/// Watches the files until the controller ends.
pub(crate) async fn watch(handle: Handle, sources: Sources, state: Arc<StateDir>) {
    let own = state.own_files();
    let mut config = Watched::new(sources.files().cloned().collect()).await;
    let mut users = Watched::new(own).await;
    let stop = handle.stop();
    while tokio::select! {
        () = stop.cancelled() => false,
        () = sleep(EVERY) => true,
    } {
        if config.changed().await {
            // It was said what is wrong; the next change is another chance.
            drop(reload(&handle, sources.clone()).await);
        }
        if users.changed().await {
            reload_own(&handle, &state).await;
        }
        load_anew(&handle).await;
    }
}

/// Has users' files taken over that somebody else wrote.
async fn reload_own(handle: &Handle, state: &Arc<StateDir>) {
    // While something of ours is being written the files are ours.
    let Ok(Some(turn)) = handle.query(Query::Saved).await else {
        return;
    };
    let disk = Arc::clone(state);
    match aside(move || disk.own()).await {
        Ok(Ok(own)) => {
            let own = Box::new(own);
            // The controller ends, or there was nothing new.
            drop(
                handle
                    .models(|reply| Models::ReloadOwn { turn, own, reply })
                    .await,
            );
        }
        Ok(Err(error)) => {
            let source =
                std::error::Error::source(&error).map_or_else(String::new, |source| format!(": {source}"));
            tracing::warn!(%error, source, "users' models stay as they were");
            handle.tell("reload_failed", &format!("{error}{source}"));
        }
        Err(error) => tracing::error!(%error, "users' files could not be read"),
    }
}

/// Loads idle models anew whose definition has changed. Whoever is still being served is waited for.
async fn load_anew(handle: &Handle) {
    let Ok(stale) = handle.query(Query::Stale).await else {
        return;
    };
    for load in stale {
        let model = load.model.clone();
        let mut events = replace::begin(handle.clone(), load);
        let handle = handle.clone();
        tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                if let Err(status) = event {
                    let error = Error::from_status(&status);
                    tracing::warn!(model, %error, "could not be loaded with its new definition");
                    handle.tell("reload_failed", &format!("{model}: {}", error.message));
                }
            }
        });
    }
}

/// Files whose changes are told once they stand still.
struct Watched {
    files: Vec<PathBuf>,
    /// What was told last.
    told: Vec<Stamp>,
    /// What was seen last.
    seen: Vec<Stamp>,
}

impl Watched {
    async fn new(files: Vec<PathBuf>) -> Self {
        let seen = stamps(&files).await.unwrap_or_default();
        Self {
            files,
            told: seen.clone(),
            seen,
        }
    }

    /// Whether the files have changed since that was told last, and are the same as at the last look.
    async fn changed(&mut self) -> bool {
        let Some(now) = stamps(&self.files).await else {
            return false;
        };
        let still = now == self.seen;
        self.seen = now;
        if still && self.seen != self.told {
            self.told.clone_from(&self.seen);
            return true;
        }
        false
    }
}

async fn stamps(files: &[PathBuf]) -> Option<Vec<Stamp>> {
    let files = files.to_vec();
    let look = move || files.iter().map(|file| stamp(file)).collect();
    aside(look).await.ok()
}

fn stamp(file: &Path) -> Stamp {
    let found = std::fs::metadata(file).ok()?;
    Some((found.modified().ok()?, found.len()))
}
