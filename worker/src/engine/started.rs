//! An engine process that is loading: the part of a launch that all runtimes share.
//!
//! ```text
//!   start ──► Started ──work done──► keep: the engine runs on
//!                │ └──failed, cancelled, engine ended──► fail: tree ended, gone, error with the last log lines
//!                └──dropped──► killed
//! ```

use std::{
    ffi::OsString,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use muster_core::{Code, Error};
use muster_proto::v1::{Device, DeviceKind, LoadPhase, LoadProgress};
use tokio::{sync::watch, time::timeout};

use super::{EngineConfig, EngineProcess as _, Launch, LaunchError, gpus::VULKAN};
use crate::keeper::{self, EngineCommand, EngineDir, Kept, StartError};

/// A connection may break a moment before its process is seen to have ended.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Lines of the engine's log in an error.
const LOG_LINES: usize = 20;

/// Why the work of a load did not end well.
#[derive(Debug)]
pub(super) enum LoadFailure {
    /// The engine said why.
    Said(Error),
    /// The connection to it broke.
    Broken(String),
}

/// A running engine that nobody answers for yet.
#[derive(Debug)]
pub(super) struct Started {
    kept: Option<Arc<Kept>>,
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(kept) = &self.kept {
            kept.kill();
        }
    }
}

/// The private directory of an instance.
///
/// # Errors
/// It cannot be made.
pub(super) fn private_dir(config: &EngineConfig, launch: &Launch) -> Result<EngineDir, LaunchError> {
    EngineDir::create(&config.run_dir, launch.instance.as_str()).map_err(|error| LaunchError {
        info: Code::Internal.error(format!(
            "no private directory in {}: {error}",
            config.run_dir.display()
        )),
    })
}

/// Reports the phase a load is in.
pub(super) fn report(progress: &watch::Sender<LoadProgress>, phase: LoadPhase, begin: Instant) {
    let elapsed = begin.elapsed().try_into().ok();
    progress.send_replace(LoadProgress {
        phase: phase.into(),
        fraction: 0.0,
        elapsed,
    });
}

impl Started {
    /// Starts `program` below a keeper and announces its process.
    ///
    /// # Errors
    /// `file_not_found` if there is no such program, `internal` if it cannot be started.
    pub(super) async fn start(
        config: &EngineConfig,
        launch: &Launch,
        dir: EngineDir,
        program: PathBuf,
        args: Vec<OsString>,
        mut environment: Vec<(OsString, OsString)>,
    ) -> Result<Self, LaunchError> {
        environment.extend(visible_devices(&launch.devices));
        environment.extend(
            launch
                .settings
                .environment
                .iter()
                .map(|(key, value)| (key.into(), value.into())),
        );
        let command = EngineCommand {
            keeper: config.worker.clone(),
            dir,
            instance: launch.instance.as_str().to_owned(),
            program,
            args,
            environment,
            grace: config.grace,
        };
        // Known at once, so that whoever drops this launch waits for the keeper; told once there is an engine.
        let known = |kept: &Arc<Kept>| {
            launch.process.send_if_modified(|process| {
                *process = Some(Arc::<Kept>::clone(kept));
                false
            });
        };
        let kept = keeper::start(command, known).await.map_err(|error| LaunchError {
            info: not_started(&error),
        })?;
        launch.process.send_replace(Some(Arc::<Kept>::clone(&kept)));
        Ok(Self { kept: Some(kept) })
    }

    /// The process.
    pub(super) fn kept(&self) -> Option<&Arc<Kept>> {
        self.kept.as_ref()
    }

    /// Waits for the work of a load, which ends early if the engine does or if nobody wants it any more.
    ///
    /// # Errors
    /// As [`Launch`] reports them; the engine is gone.
    pub(super) async fn finish<T>(
        mut self,
        launch: &Launch,
        work: impl Future<Output = Result<T, LoadFailure>> + Send,
    ) -> Result<(T, Arc<Kept>), LaunchError> {
        let Some(kept) = self.kept.clone() else {
            return Err(LaunchError {
                info: Code::Internal.error("the engine was given away"),
            });
        };
        let info = tokio::select! {
            biased;
            () = launch.cancel.cancelled() => Code::LoadCancelled.error("the load was cancelled"),
            _ = kept.exited() => ended(&kept).await,
            result = work => match result {
                Ok(result) => {
                    self.kept = None;
                    return Ok((result, kept));
                }
                Err(LoadFailure::Said(info)) => info,
                Err(LoadFailure::Broken(error)) => match timeout(LAST_WORDS, kept.exited()).await {
                    Ok(_) => ended(&kept).await,
                    Err(_) => Code::ModelLoadFailed.error(format!("the engine cannot be understood: {error}")),
                },
            },
        };
        kept.kill();
        kept.gone().await;
        let log = kept.log();
        let tail = log[log.len().saturating_sub(LOG_LINES)..].join("\n");
        tracing::info!(model = %launch.model, instance = %launch.instance, %info, "load failed");
        Err(LaunchError {
            info: if tail.is_empty() {
                info
            } else {
                info.with_detail("log", tail)
            },
        })
    }
}

async fn ended(kept: &Kept) -> Error {
    let how = kept
        .exited()
        .await
        .map_or_else(|| "an unknown end".to_owned(), |exit| exit.to_string());
    let words = last_words(&kept.log()).map_or_else(String::new, |words| format!(": {words}"));
    Code::ModelLoadFailed
        .error(format!("the engine ended while loading: {how}{words}"))
        .with_detail("exit", how)
}

/// The last line of a log that says what went wrong, else its last one.
fn last_words(log: &[String]) -> Option<&str> {
    const SIGNS: [&str; 5] = ["GGML_ASSERT", "terminate called", "panicked", "error", "Error"];
    let lines = || log.iter().map(|line| line.trim()).filter(|line| !line.is_empty());
    let tells = |line: &&str| SIGNS.iter().any(|sign| line.contains(sign));
    lines().rfind(tells).or_else(|| lines().next_back())
}

fn not_started(error: &StartError) -> Error {
    let code = match error {
        StartError::Engine {
            kind: ErrorKind::NotFound,
            ..
        } => Code::FileNotFound,
        StartError::Engine { .. } | StartError::Keeper { .. } | StartError::Silent(_) => Code::Internal,
    };
    // The source is part of the message here: it travels no further as an error.
    let cause = std::error::Error::source(error)
        .map(|source| format!(": {source}"))
        .unwrap_or_default();
    code.error(format!("{error}{cause}"))
}

/// Shows the engine NVIDIA's GPUs that it was given, by UUID, and no others: whoever sees one takes memory of it. An engine on Vulkan is told its
/// devices by name.
fn visible_devices(devices: &[Device]) -> Vec<(OsString, OsString)> {
    let gpus: Vec<&str> = devices
        .iter()
        .filter(|device| device.kind() == DeviceKind::Gpu && device.api != VULKAN)
        .map(|device| device.device_id.as_str())
        .collect();
    vec![
        ("CUDA_DEVICE_ORDER".into(), "PCI_BUS_ID".into()),
        ("CUDA_VISIBLE_DEVICES".into(), gpus.join(",").into()),
    ]
}

/// A file's path as an argument.
pub(super) fn unix_address(path: &Path) -> OsString {
    let mut address = OsString::from("unix:");
    address.push(path);
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_that_tells_is_found_among_the_last_ones() {
        let log = |lines: &[&str]| lines.iter().map(ToString::to_string).collect::<Vec<_>>();
        let aborted = log(&[
            "loading",
            "llama.cpp:7: GGML_ASSERT(n > 0) failed",
            "[0x1234]",
            "",
        ]);
        assert_eq!(
            last_words(&aborted),
            Some("llama.cpp:7: GGML_ASSERT(n > 0) failed")
        );
        assert_eq!(last_words(&log(&["one", "two ", ""])), Some("two"));
        assert_eq!(last_words(&[]), None);
    }
}
