//! `muster downloads`.

use muster_proto::v1::{ControlDownloadRequest, Download, DownloadAction, ListDownloadsRequest};

use crate::{
    args::DownloadVerb,
    client::{Controller, answer},
    failure::Failure,
    output::{Output, bytes, or_dash, span, word},
    progress::percent,
};

/// Lists downloads, or does something with a model's.
pub(crate) async fn downloads(
    controller: &Controller,
    output: Output,
    call: Option<(DownloadVerb, String)>,
) -> Result<(), Failure> {
    let mut client = controller.models().await?;
    if let Some((verb, model)) = call {
        let action = match verb {
            DownloadVerb::Pause => DownloadAction::Pause,
            DownloadVerb::Resume => DownloadAction::Resume,
            DownloadVerb::Cancel => DownloadAction::Cancel,
        };
        let request = ControlDownloadRequest {
            model,
            action: action.into(),
        };
        let response = answer(client.control_download(request).await)?;
        if output.is_json() {
            return output.message("ControlDownloadResponse", &response);
        }
        let download = response.download.unwrap_or_default();
        return output.line(format_args!("{}: {}", download.model, state(&download)));
    }
    let response = answer(client.list_downloads(ListDownloadsRequest {}).await)?;
    if output.is_json() {
        return output.message("ListDownloadsResponse", &response);
    }
    if response.downloads.is_empty() {
        return output.line("nothing is or was being downloaded");
    }
    output.table(
        [
            "MODEL",
            "STATE",
            "DONE",
            "SIZE",
            "SPEED",
            "LEFT",
            "CHECKPOINT",
            "WHY",
        ],
        response.downloads.iter().map(row),
    )
}

fn state(download: &Download) -> String {
    word(download.state().as_str_name(), "DOWNLOAD_STATE_")
}

fn row(download: &Download) -> [String; 8] {
    let progress = download.progress.clone().unwrap_or_default();
    let speed = match progress.bytes_per_second {
        0 => "-".to_owned(),
        speed => format!("{}/s", bytes(speed)),
    };
    let why = download.error.as_ref().map_or("", |error| error.message.as_str());
    [
        download.model.clone(),
        state(download),
        format!("{} %", percent(progress.all_downloaded, progress.all_total)),
        bytes(progress.all_total),
        speed,
        span(download.time_left.as_ref()),
        or_dash(&download.checkpoint),
        or_dash(why),
    ]
}
