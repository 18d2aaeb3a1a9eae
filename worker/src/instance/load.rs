//! The first stage: an engine starts and reads its model.
//!
//! ```text
//!   checks ──► entered on the devices ──► launch ──► engine
//!     │ file not found, bad arguments        │ fails ──► failed (the engine is gone by then)
//!     ▼ before any process                   │ CancelLoad, shutdown ──► cancelled ──► gone
//!   failed                                   └ nothing moves ──► killed ──► failed: load_stalled
//! ```
//!
//! A launch that is not wanted any more ends itself. If it does not within [`LAST`], it is dropped, which ends its processes.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use muster_core::{Code, Error, Runtime as Kind};
use muster_proto::{
    hub::{HubName, Revision, RevisionError},
    overrides::Overrides,
    v1::{
        InstanceState, LoadPhase, LoadProgress, ModelSettings, RefusedReason, UnloadMode,
        command::Kind as Order,
    },
};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    Control, Verdict,
    actor::{Core, End, Service},
    beside,
    health::LoadWatch,
};
use crate::{
    board::Urgency,
    convert,
    engine::{EngineProcess, Launch, LaunchError, RunningEngine, Runtime},
    hub::cache::Cache,
    procfs::{self, Activity},
};

/// Time for a launch to end itself once it is not wanted any more.
const LAST: Duration = Duration::from_secs(3);

type Process = Option<Arc<dyn EngineProcess>>;

/// What is wanted of a load in progress.
#[derive(Debug)]
enum Wish {
    Load,
    Cancel,
    /// It stalled and was killed.
    Fail(Error),
}

struct Loading<'a> {
    core: &'a mut Core,
    begun: Instant,
    wish: Wish,
    /// When the launch will be dropped; set once it is not wanted any more.
    last: Option<Instant>,
    watch: LoadWatch,
    progress: watch::Receiver<LoadProgress>,
    process: watch::Receiver<Process>,
    cancel: CancellationToken,
}

/// Loads the instance's model.
///
/// # Errors
/// No engine runs; the value tells how the instance ends.
pub(super) async fn load(core: &mut Core, runtime: &dyn Runtime) -> Result<RunningEngine, End> {
    let begun = Instant::now();
    let over = |error: Error| End {
        process: None,
        force: false,
        failure: Some(Box::new(error)),
    };
    let settings = core.spec.settings.clone().unwrap_or_default();
    let (cache, kind) = (core.ground.files.cache().clone(), runtime.kind());
    let checked = tokio::task::spawn_blocking(move || {
        let settings = located(settings, kind, &cache)?;
        check(&settings).map(|()| settings)
    })
    .await;
    let settings = match checked {
        Ok(Ok(settings)) => settings,
        Ok(Err(error)) => return Err(over(error)),
        Err(panic) => return Err(over(Code::Internal.error(panic.to_string()))),
    };
    if let Err(error) = core
        .ground
        .devices
        .enter(core.handle.id(), &core.spec.reservations)
    {
        let error = Code::Internal.error(format!("the device's ledger could not be written: {error}"));
        return Err(over(error));
    }
    let (progress_sender, progress) = watch::channel(LoadProgress::default());
    let (process_sender, process) = watch::channel(None);
    let cancel = CancellationToken::new();
    let launch = runtime.launch(Launch {
        instance: core.handle.id().clone(),
        model: core.handle.model().clone(),
        settings,
        devices: core.devices.clone(),
        progress: progress_sender,
        process: process_sender,
        cancel: cancel.clone(),
    });
    let watch = LoadWatch::new(core.ground.patience.load_stall, begun);
    let loading = Loading {
        core,
        begun,
        wish: Wish::Load,
        last: None,
        watch,
        progress,
        process,
        cancel,
    };
    loading.run(launch).await
}

/// Settings with file paths in place of names on the hub, since only this host knows its cache. Downloads nothing (PROTOCOL.md 15).
///
/// # Errors
/// `file_not_found`: the cache does not have the files.
fn located(mut settings: ModelSettings, runtime: Kind, cache: &Cache) -> Result<ModelSettings, Error> {
    // Any other name is a path, or a name that the runtime understands.
    let Ok(name) = settings.checkpoint.parse::<HubName>() else {
        return Ok(settings);
    };
    let own = Path::new(&settings.mmproj).is_absolute();
    let mmproj = if own { "" } else { settings.mmproj.as_str() };
    let revision: Revision = std::mem::take(&mut settings.revision)
        .parse()
        .map_err(|error: RevisionError| Code::InvalidRequest.error(error.to_string()))?;
    let found = cache.resolve(&name.checkpoint(&revision, mmproj, runtime.takes_folders()))?;
    settings.checkpoint = found.path;
    if !own {
        settings.mmproj = found.mmproj;
    }
    Ok(settings)
}

/// Finds errors before the engine starts (controller/policy/README.md, Decisions): the files must exist, and a request may only have set
/// what requests may set.
fn check(settings: &ModelSettings) -> Result<(), Error> {
    Overrides::check_again(&settings.load_override_json)?;
    let lora = settings.lora.iter().map(|adapter| adapter.path.as_str());
    let files = [&settings.checkpoint, &settings.mmproj, &settings.draft].map(String::as_str);
    for file in files.into_iter().chain(lora) {
        let path = Path::new(file);
        // A relative name is not a path: the runtime knows what it means.
        if path.is_absolute()
            && let Err(error) = path.metadata()
        {
            return Err(Code::FileNotFound
                .error(format!("{file}: {error}"))
                .with_detail("path", file));
        }
    }
    Ok(())
}

impl Loading<'_> {
    async fn run(
        mut self,
        mut launch: BoxFuture<'static, Result<RunningEngine, LaunchError>>,
    ) -> Result<RunningEngine, End> {
        let look_every = (self.core.ground.patience.load_stall / 8)
            .clamp(Duration::from_millis(5), Duration::from_secs(1));
        let mut looks = interval(look_every);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let last = self.last;
            tokio::select! {
                ended = &mut launch => return self.ended(ended),
                () = sleep_until(last.unwrap_or_else(Instant::now).into()), if last.is_some() => {
                    drop(launch);
                    return Err(self.abandoned());
                }
                Some(control) = self.core.inbox.control.recv() => self.control(control),
                Some(request) = self.core.inbox.requests.recv() => Core::turn_away(request, "the model is still being loaded"),
                Ok(()) = self.progress.changed() => self.progressed(),
                Ok(()) = self.process.changed() => self.started().await,
                Ok(()) = self.core.around.changed() => self.look_around(),
                _ = looks.tick() => self.check_progress().await,
            }
        }
    }

    fn control(&mut self, control: Control) {
        let Control { order, verdict } = control;
        let answer = match self.core.obey(order) {
            Ok(answer) => answer,
            Err(order) => self.order(&order),
        };
        drop(verdict.send(answer));
    }

    fn order(&mut self, order: &Order) -> Verdict {
        match order {
            Order::Cancel(_) => {
                self.cancel();
                self.core.done()
            }
            Order::Unload(unload) => match unload.mode() {
                UnloadMode::Drain | UnloadMode::Force => {
                    self.cancel();
                    self.core.done()
                }
                UnloadMode::IfIdle => self.core.refuse(RefusedReason::Busy, "the model is being loaded"),
                UnloadMode::Unspecified => self.core.refuse(RefusedReason::Invalid, "the unload has no mode"),
            },
            Order::Load(_)
            | Order::Quiesce(_)
            | Order::Resume(_)
            | Order::PlaceHold(_)
            | Order::ReleaseHoldId(_)
            | Order::Set(_)
            | Order::Ack(_)
            | Order::LookAt(_) => self.core.refuse(RefusedReason::Busy, "the model is being loaded"),
        }
    }

    fn cancel(&mut self) {
        if matches!(self.wish, Wish::Load) {
            self.wish = Wish::Cancel;
            self.call_off();
        }
    }

    /// Tells the launch that it is not wanted any more.
    fn call_off(&mut self) {
        self.cancel.cancel();
        self.last = Some(Instant::now() + LAST);
        self.core
            .enter(InstanceState::Unloading, |status| status.progress = None);
    }

    fn look_around(&mut self) {
        self.core.look_around(Instant::now());
        if self.core.service() == Service::Leaving {
            self.cancel();
        }
    }

    fn progressed(&mut self) {
        let now = Instant::now();
        self.watch.progressed(now);
        let mut progress = *self.progress.borrow_and_update();
        if matches!(self.wish, Wish::Load) && progress.phase() != LoadPhase::Unspecified {
            progress.elapsed = Some(convert::span(now.saturating_duration_since(self.begun)));
            self.core
                .publish(Urgency::Soon, |status| status.progress = Some(progress));
        }
    }

    async fn started(&mut self) {
        self.watch.progressed(Instant::now());
        let process = self.process.borrow_and_update().clone();
        if let Some(process) = process {
            let command = process.command();
            let tree = beside(move || process.tree()).await;
            let reservations = &self.core.spec.reservations;
            let samples = self.core.ground.devices.started(reservations).await;
            let board = &self.core.ground.board;
            board.update_with(self.core.handle.id(), Urgency::Now, samples, |status| {
                status.engine = tree;
                status.launch_command = command;
            });
        }
    }

    async fn check_progress(&mut self) {
        let process = self.process.borrow().clone();
        let activity = match process.clone() {
            Some(process) => beside(move || procfs::activity(&process.tree())).await,
            None => Activity::default(),
        };
        let now = Instant::now();
        self.core.expire_holds(now);
        if let (Wish::Load, Err(error)) = (&self.wish, self.watch.check(now, activity)) {
            let log = process.as_ref().map(|process| process.log().join("\n"));
            self.wish = Wish::Fail(error.with_detail("log", log.unwrap_or_default()));
            if let Some(process) = process {
                process.kill();
            }
            self.call_off();
        }
    }

    /// The launch did not end itself in time.
    fn abandoned(self) -> End {
        tracing::warn!(instance = %self.core.handle.id(), "a launch that would not end was dropped");
        End {
            process: self.process.borrow().clone(),
            force: true,
            failure: match self.wish {
                Wish::Fail(error) => Some(Box::new(error)),
                Wish::Load | Wish::Cancel => None,
            },
        }
    }

    fn ended(self, ended: Result<RunningEngine, LaunchError>) -> Result<RunningEngine, End> {
        let (force, failure) = match self.wish {
            Wish::Load => {
                let failed = |LaunchError { info }| End {
                    process: None,
                    force: true,
                    failure: Some(Box::new(info)),
                };
                if ended.is_ok() {
                    let took = convert::span(self.begun.elapsed());
                    self.core
                        .publish(Urgency::None, |status| status.load_time = Some(took));
                }
                return ended.map_err(failed);
            }
            // It was cancelled too late, or the kill was slower than the load: the engine is ended nevertheless.
            Wish::Cancel => (false, None),
            Wish::Fail(error) => (true, Some(Box::new(error))),
        };
        let process = ended.ok().map(|engine| engine.process);
        Err(End {
            process,
            force,
            failure,
        })
    }
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::LoraAdapter;

    use super::*;

    #[test]
    fn missing_files_are_known_before_any_process_starts() {
        let here = std::env::current_exe().unwrap().display().to_string();
        let mut settings = ModelSettings {
            checkpoint: here.clone(),
            mmproj: here,
            draft: "a/name".to_owned(),
            ..ModelSettings::default()
        };
        check(&settings).unwrap();
        settings.lora.push(LoraAdapter {
            path: "/nowhere/x.gguf".to_owned(),
            scale: 1.0,
        });
        let error = check(&settings).unwrap_err();
        assert_eq!(error.code, Code::FileNotFound);
        assert_eq!(error.details["path"], "/nowhere/x.gguf");
    }

    #[test]
    fn what_a_request_may_not_say_starts_nothing_whoever_let_it_through() {
        let settings = |json: &str| ModelSettings {
            load_override_json: json.to_owned(),
            ..ModelSettings::default()
        };
        check(&settings(r#"{"gguf_n_ctx":512,"llamacpp_args":"-t 2"}"#)).unwrap();
        let error = check(&settings(r#"{"llamacpp_args":"--log-file /tmp/x"}"#)).unwrap_err();
        assert_eq!(error.code, Code::InvalidLoadRequest);
    }

    #[test]
    fn names_of_the_hub_become_files_of_the_cache() {
        let dir = tempfile::tempdir().unwrap();
        let snapshot = dir.path().join("models--o--n/snapshots/c1");
        std::fs::create_dir_all(&snapshot).unwrap();
        for file in ["m-Q8_0.gguf", "mmproj-F16.gguf"] {
            std::fs::write(snapshot.join(file), "x").unwrap();
        }
        let cache = Cache::new(dir.path().to_owned());
        let text = |file: &str| snapshot.join(file).display().to_string();
        let settings = |checkpoint: &str, mmproj: &str| ModelSettings {
            checkpoint: checkpoint.to_owned(),
            mmproj: mmproj.to_owned(),
            ..ModelSettings::default()
        };
        let found = located(settings("o/n:Q8_0", "mmproj-F16.gguf"), Kind::LlamaCpp, &cache).unwrap();
        assert_eq!(found, settings(&text("m-Q8_0.gguf"), &text("mmproj-F16.gguf")));
        let own = located(settings("o/n:Q8_0", "/p.gguf"), Kind::LlamaCpp, &cache).unwrap();
        assert_eq!(own.mmproj, "/p.gguf");
        let missing = located(settings("o/n:Q4_0", ""), Kind::LlamaCpp, &cache).unwrap_err();
        assert_eq!(missing.code, Code::FileNotFound);
        // Paths, and names that no hub has, stay as they are.
        for name in ["/m.gguf", "tag:8b", ""] {
            let as_is = settings(name, "");
            assert_eq!(located(as_is.clone(), Kind::Flm, &cache).unwrap(), as_is);
        }
    }
}
