//! `muster load` and `muster unload`.

use muster_core::Code;
use muster_proto::v1::{
    Evicting, LoadModelRequest, LoadPhase, LoadProgress, Model, Queued, QueuedReason, UnloadModelRequest,
    load_model_event::Kind,
};

use crate::{
    client::{CONTROLLER, Controller, answer},
    failure::Failure,
    output::{Output, word},
    progress::Progress,
};

/// Loads a model and shows the progress. `replace`: an instance with other settings is unloaded first.
pub(crate) async fn load(
    controller: &Controller,
    output: Output,
    request: LoadModelRequest,
    replace: bool,
) -> Result<(), Failure> {
    let started = std::time::Instant::now();
    let mut client = controller.connect().await?;
    let begun = if replace {
        client.replace_load(request).await
    } else {
        client.load_model(request).await
    };
    let mut events = answer(begun)?;
    let mut progress = Progress::new();
    let mut loaded: Option<Model> = None;
    while let Some(event) = events
        .message()
        .await
        .map_err(|status| Failure::from_status(CONTROLLER, &status))?
    {
        if output.is_json() {
            output.message("LoadModelEvent", &event)?;
        }
        match event.kind {
            Some(Kind::Loaded(model)) => loaded = Some(model),
            Some(_) if output.is_json() => {}
            Some(Kind::Queued(state)) => progress.show(queued(&state)),
            Some(Kind::Evicting(state)) => progress.show(evicting(&state)),
            Some(Kind::Loading(state)) => loading(&mut progress, state.progress.as_ref()),
            None => {}
        }
    }
    drop(progress);
    let Some(model) = loaded else {
        return Err(Failure::remote(
            Code::Internal.error("the load ended without a result"),
        ));
    };
    if output.is_json() {
        return Ok(());
    }
    output.line(format_args!(
        "{} is loaded ({:.2} s)",
        model.id,
        started.elapsed().as_secs_f64()
    ))
}

/// Unloads a model and waits until it is unloaded.
pub(crate) async fn unload(
    controller: &Controller,
    output: Output,
    model: String,
    force: bool,
) -> Result<(), Failure> {
    let mut client = controller.connect().await?;
    let mut progress = Progress::new();
    if !output.is_json() {
        progress.show(format_args!("unloading {model}: what runs finishes first"));
    }
    let response = answer(
        client
            .unload_model(UnloadModelRequest {
                model,
                force,
                ..UnloadModelRequest::default()
            })
            .await,
    )?;
    drop(progress);
    if output.is_json() {
        return output.message("UnloadModelResponse", &response);
    }
    let model = response.model.unwrap_or_default();
    output.line(format_args!(
        "{} is {}",
        model.id,
        word(model.status().as_str_name(), "MODEL_STATUS_")
    ))
}

/// The reason why a load waits, for people.
pub(crate) fn queued(state: &Queued) -> String {
    let why = match QueuedReason::try_from(state.reason).unwrap_or(QueuedReason::Unspecified) {
        QueuedReason::Unspecified => "waiting",
        QueuedReason::Settling => "waiting for the workers to report",
        QueuedReason::Downloading => "downloading",
        QueuedReason::LoadSlot => "waiting for another load",
        QueuedReason::Claim => "waiting for room",
        QueuedReason::NoWorker => "waiting for a worker that can host it",
    };
    let mut text = format!("{why}, place {}", state.position);
    if !state.blocked_by.is_empty() {
        text.push_str(&format!(", behind {}", state.blocked_by.join(", ")));
    }
    text
}

/// The models that make room, for people.
pub(crate) fn evicting(state: &Evicting) -> String {
    format!("unloading {}: {}", state.models.join(", "), state.reason)
}

/// Shows how far a load is.
pub(crate) fn loading(shown: &mut Progress, progress: Option<&LoadProgress>) {
    let progress = progress.copied().unwrap_or_default();
    let phase = match progress.phase() {
        LoadPhase::Unspecified => "loading",
        LoadPhase::Downloading => "downloading",
        LoadPhase::Starting => "starting the engine",
        LoadPhase::Weights => "reading weights",
        LoadPhase::Warmup => "warming up",
    };
    if progress.fraction > 0.0 {
        shown.share(phase, progress.fraction);
    } else {
        shown.show(phase);
    }
}
