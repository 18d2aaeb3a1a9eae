//! `muster pull` and `muster delete`.

use muster_core::Code;
use muster_proto::v1::{
    DeleteModelRequest, FetchProgress, ModelDefinition, PullModelRequest, pull_model_event::Kind,
};

use crate::{
    args::PullOptions,
    client::{CONTROLLER, Controller, answer},
    failure::Failure,
    output::{Output, bytes},
    progress::Progress,
};

/// The recipe to register a model with if none is given.
const RECIPE: &str = "llamacpp";

/// Downloads a model's files and shows the progress.
pub(crate) async fn pull(
    controller: &Controller,
    output: Output,
    options: PullOptions,
) -> Result<(), Failure> {
    let started = std::time::Instant::now();
    let mut client = controller.models().await?;
    let mut progress = Progress::new();
    if !output.is_json() {
        progress.show(format_args!("asking for {}", options.model));
    }
    let mut events = answer(client.pull_model(request(options)).await)?;
    while let Some(event) = events
        .message()
        .await
        .map_err(|status| Failure::from_status(CONTROLLER, &status))?
    {
        if output.is_json() {
            output.message("PullModelEvent", &event)?;
        }
        match event.kind {
            Some(Kind::Done(model)) => {
                drop(progress);
                if output.is_json() {
                    return Ok(());
                }
                return output.line(format_args!(
                    "{} is here: {} ({:.2} s)",
                    model.id,
                    bytes(model.size_bytes),
                    started.elapsed().as_secs_f64()
                ));
            }
            Some(Kind::Progress(told)) if !output.is_json() => show(&mut progress, &told),
            Some(Kind::Progress(_)) | None => {}
        }
    }
    Err(Failure::remote(
        Code::Internal.error("the download ended without a result"),
    ))
}

fn request(options: PullOptions) -> PullModelRequest {
    let PullOptions {
        model,
        checkpoint,
        recipe,
        mmproj,
        revision,
        labels,
    } = options;
    let definition = (!checkpoint.is_empty()).then(|| ModelDefinition {
        model: model.clone(),
        checkpoint,
        recipe: recipe.unwrap_or_else(|| RECIPE.to_owned()),
        mmproj,
        revision,
        labels,
        ..ModelDefinition::default()
    });
    PullModelRequest { model, definition }
}

fn show(progress: &mut Progress, told: &FetchProgress) {
    let FetchProgress {
        file,
        file_index,
        total_files,
        ..
    } = told;
    let what = format!("file {file_index} of {total_files}: {file}");
    progress.bytes(&what, told.all_downloaded, told.all_total);
}

/// Deletes a model.
pub(crate) async fn delete(controller: &Controller, output: Output, model: String) -> Result<(), Failure> {
    let mut client = controller.models().await?;
    let mut progress = Progress::new();
    if !output.is_json() {
        progress.show(format_args!("deleting {model}: what runs finishes first"));
    }
    let request = DeleteModelRequest { model: model.clone() };
    let response = answer(client.delete_model(request).await)?;
    drop(progress);
    if output.is_json() {
        return output.message("DeleteModelResponse", &response);
    }
    let left = if response.model.is_some() {
        "its files are gone"
    } else {
        "it left the catalogue"
    };
    output.line(format_args!(
        "{model} is deleted: {left}, {} freed",
        bytes(response.freed_bytes)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_makes_it_a_registration() {
        let options = |checkpoint: &str| PullOptions {
            model: "user.m".to_owned(),
            checkpoint: checkpoint.to_owned(),
            recipe: None,
            mmproj: String::new(),
            revision: "v1".to_owned(),
            labels: vec!["vision".to_owned()],
        };
        assert_eq!(request(options("")).definition, None);
        let definition = request(options("o/n:Q4_0")).definition.unwrap();
        assert_eq!((definition.recipe.as_str(), definition.labels.len()), (RECIPE, 1));
        assert_eq!(definition.revision, "v1");
    }
}
