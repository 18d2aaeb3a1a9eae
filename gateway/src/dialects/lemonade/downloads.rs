//! `GET downloads` and `POST downloads/control`.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_core::Error;
use muster_proto::v1::{Download, DownloadAction, DownloadState};

use super::{
    answers::{DownloadShown, Downloads},
    load::not_found,
    requests::{DownloadBody, ModelName},
};
use crate::{
    translate::{object, read::Fields as _},
    web::{
        App,
        access::Access,
        reply::{self, Refusal},
        route::Route,
        run::ClientRequest,
    },
};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/v1/downloads", Access::Admin, list)
            .summary("Downloads of models, with their speed and the time left")
            .answers::<Downloads>("Open ones, and those that ended lately.")
            .fails("The controller is away."),
        Route::post("/v1/downloads/control", Access::Admin, control)
            .summary("Pause, resume or cancel a download")
            .description(
                "A paused download keeps what came, and goes on from there when it is resumed, or its model is pulled or loaded by an operator. A cancelled \
                 one removes it.",
            )
            .takes::<DownloadBody>()
            .answers::<DownloadShown>("The download afterwards.")
            .refuses("No such download is open, or there is no such action.")
            .fails("It could not be done."),
    ]
}

async fn list(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    let downloads = app.dispatcher.fleet.models().downloads().await?;
    let downloads = downloads.into_iter().map(shown).collect();
    Ok(reply::value(StatusCode::OK, &Downloads { downloads }))
}

async fn control(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    let DownloadBody {
        id: ModelName(model),
        action: name,
    } = DownloadBody::body(&request.body)?;
    let action = action(&name)?;
    let models = app.dispatcher.fleet.models();
    let download = models.control_download(&model, action).await.map_err(not_found)?;
    Ok(reply::value(StatusCode::OK, &shown(download)))
}

fn action(name: &str) -> Result<DownloadAction, Error> {
    match name {
        "pause" => Ok(DownloadAction::Pause),
        "resume" => Ok(DownloadAction::Resume),
        "cancel" => Ok(DownloadAction::Cancel),
        _ => Err(object::invalid("action", "must be pause, resume or cancel")),
    }
}

fn shown(download: Download) -> DownloadShown {
    let status = match download.state() {
        DownloadState::Unspecified | DownloadState::Waiting => "waiting",
        DownloadState::Running => "downloading",
        DownloadState::Paused => "paused",
        DownloadState::Done => "completed",
        DownloadState::Failed => "error",
        DownloadState::Cancelled => "cancelled",
    };
    let progress = download.progress.unwrap_or_default();
    let share = progress.all_downloaded.saturating_mul(100);
    DownloadShown {
        id: download.model.clone(),
        model_name: download.model,
        checkpoint: download.checkpoint,
        status,
        percent: share.checked_div(progress.all_total).unwrap_or_default(),
        file: progress.file,
        file_index: progress.file_index,
        total_files: progress.total_files,
        bytes_downloaded: progress.all_downloaded,
        bytes_total: progress.all_total,
        bytes_per_second: progress.bytes_per_second,
        eta_seconds: download.time_left.map(|left| left.seconds),
        error: download.error.map(|error| error.message),
    }
}
