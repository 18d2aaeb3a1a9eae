//! `muster models`, `muster ps`, `muster pin` and `muster unpin`.

use muster_proto::v1::{
    Instance, InstanceState, InstanceStatus, ListModelsRequest, Model, ModelStatus, ModelType,
    PinModelRequest, UnpinModelRequest,
};

use crate::{
    client::{Controller, answer},
    failure::Failure,
    output::{Output, bytes, or_dash, span, word},
    progress::percent,
};

/// Lists the catalogue.
pub(crate) async fn list(controller: &Controller, output: Output, all: bool) -> Result<(), Failure> {
    let mut response = fetch(controller, ListModelsRequest::default()).await?;
    if all {
        let suggested = ListModelsRequest {
            suggested: true,
            ..ListModelsRequest::default()
        };
        response.models.extend(fetch(controller, suggested).await?.models);
    }
    if output.is_json() {
        return output.message("ListModelsResponse", &response);
    }
    if response.models.is_empty() {
        return output.line("the catalogue is empty: give `muster up` a --model or a --config");
    }
    let rows = response.models.iter().map(|model| {
        [
            model.id.clone(),
            word(kind(model).as_str_name(), "MODEL_TYPE_"),
            status(model),
            or_dash(&model.runtime),
            bytes(model.size_bytes),
            bytes(model.estimate_bytes),
            or_dash(&model.checkpoint),
        ]
    });
    output.table(
        [
            "MODEL",
            "TYPE",
            "STATUS",
            "RUNTIME",
            "SIZE",
            "MEMORY",
            "CHECKPOINT",
        ],
        rows,
    )?;
    failures(output, &response.models)
}

/// Lists models that are loaded, loading or waiting to load.
pub(crate) async fn running(controller: &Controller, output: Output) -> Result<(), Failure> {
    let loaded = ListModelsRequest {
        loaded_only: true,
        ..ListModelsRequest::default()
    };
    let response = fetch(controller, loaded).await?;
    if output.is_json() {
        return output.message("ListModelsResponse", &response);
    }
    let rows: Vec<_> = response
        .models
        .iter()
        .flat_map(|model| {
            let none = model.instances.is_empty().then(|| waiting(model));
            model
                .instances
                .iter()
                .map(|instance| row(model, instance))
                .chain(none)
        })
        .collect();
    if rows.is_empty() {
        return output.line("nothing is loaded");
    }
    output.table(
        [
            "MODEL",
            "STATE",
            "WORKER",
            "DEVICE",
            "RESERVED",
            "OBSERVED",
            "RUNNING",
            "QUEUED",
            "LAST USED",
            "PINNED",
            "TTL",
            "INSTANCE",
        ],
        rows,
    )?;
    failures(output, &response.models)
}

/// Keeps a model from being evicted.
pub(crate) async fn pin(controller: &Controller, output: Output, model: String) -> Result<(), Failure> {
    let mut client = controller.connect().await?;
    let response = answer(
        client
            .pin_model(PinModelRequest {
                model,
                while_loaded: false,
            })
            .await,
    )?;
    if output.is_json() {
        return output.message("PinModelResponse", &response);
    }
    let model = response.model.unwrap_or_default();
    let note = if model.status() == ModelStatus::Loaded {
        ""
    } else {
        "; it is not loaded yet"
    };
    output.line(format_args!("{} is pinned{note}", model.id))
}

/// Lets a model be evicted again.
pub(crate) async fn unpin(controller: &Controller, output: Output, model: String) -> Result<(), Failure> {
    let mut client = controller.connect().await?;
    let response = answer(client.unpin_model(UnpinModelRequest { model }).await)?;
    if output.is_json() {
        return output.message("UnpinModelResponse", &response);
    }
    let model = response.model.unwrap_or_default();
    output.line(format_args!("{} may be evicted", model.id))
}

async fn fetch(
    controller: &Controller,
    request: ListModelsRequest,
) -> Result<muster_proto::v1::ListModelsResponse, Failure> {
    let mut client = controller.connect().await?;
    answer(client.list_models(request).await)
}

fn kind(model: &Model) -> ModelType {
    model.r#type()
}

fn status(model: &Model) -> String {
    let text = word(model.status().as_str_name(), "MODEL_STATUS_");
    if model.queue_position > 0 {
        return format!("{text} (waits, place {})", model.queue_position);
    }
    if model.status() == ModelStatus::Loading
        && let Some(progress) = &model.progress
    {
        return format!("{text} {:.0} %", progress.fraction * 100.0);
    }
    match &model.download {
        Some(told) => format!(
            "{text} (downloading, {} %)",
            percent(told.all_downloaded, told.all_total)
        ),
        None if model.hub.is_some() && !model.downloaded => format!("{text} (not downloaded)"),
        None => text,
    }
}

fn waiting(model: &Model) -> [String; 12] {
    let mut row: [String; 12] = std::array::from_fn(|_| "-".to_owned());
    row[0].clone_from(&model.id);
    row[1] = status(model);
    row
}

fn row(model: &Model, instance: &Instance) -> [String; 12] {
    let Some(seen) = &instance.status else {
        return waiting(model);
    };
    let state = word(
        InstanceState::try_from(seen.state)
            .unwrap_or(InstanceState::Unspecified)
            .as_str_name(),
        "INSTANCE_STATE_",
    );
    let state = if instance.suspect {
        format!("{state} (suspect)")
    } else {
        state
    };
    let reserved = seen.spec.iter().flat_map(|spec| &spec.reservations);
    let observed = seen.observed.iter().map(|part| part.bytes).sum();
    let used = if seen.running > 0 {
        "now".to_owned()
    } else {
        let age = span(seen.touch.as_ref().and_then(|touch| touch.age.as_ref()));
        format!("{age} ago")
    };
    [
        model.id.clone(),
        state,
        or_dash(instance.r#ref.as_ref().map_or("", |place| &place.worker_id)),
        devices(seen),
        bytes(reserved.map(|part| part.bytes).sum()),
        bytes(observed),
        seen.running.to_string(),
        seen.queued.to_string(),
        used,
        if model.pinned { "yes" } else { "-" }.to_owned(),
        span(instance.ttl_left.as_ref()),
        seen.instance_id.clone(),
    ]
}

/// The devices of an instance. If policy split the model between a device and host memory: also how many layers are on the device.
fn devices(seen: &InstanceStatus) -> String {
    let Some(spec) = &seen.spec else {
        return or_dash("");
    };
    let ids: Vec<&str> = spec
        .reservations
        .iter()
        .map(|part| part.device_id.as_str())
        .collect();
    let layers = spec.settings.as_ref().and_then(|settings| settings.gpu_layers);
    match layers {
        Some(layers) if ids.len() > 1 => format!("{} ({layers} layers on {})", ids.join(","), ids[0]),
        Some(_) | None => or_dash(&ids.join(",")),
    }
}

fn failures(output: Output, models: &[Model]) -> Result<(), Failure> {
    for model in models {
        if let Some(error) = &model.last_error {
            output.line(format_args!("{}: last error: {error}", model.id))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::{InstanceSpec, ModelSettings, Reservation};

    use super::*;

    #[test]
    fn a_split_model_says_how_much_of_it_is_where() {
        let seen = |layers: Option<i32>, ids: &[&str]| InstanceStatus {
            spec: Some(InstanceSpec {
                settings: Some(ModelSettings {
                    gpu_layers: layers,
                    ..ModelSettings::default()
                }),
                reservations: ids
                    .iter()
                    .map(|id| Reservation {
                        device_id: (*id).to_owned(),
                        bytes: 1,
                    })
                    .collect(),
                ..InstanceSpec::default()
            }),
            ..InstanceStatus::default()
        };
        let split = seen(Some(12), &["GPU-1", "cpu"]);
        assert_eq!(devices(&split), "GPU-1,cpu (12 layers on GPU-1)");
        assert_eq!(devices(&seen(None, &["GPU-1", "GPU-2"])), "GPU-1,GPU-2");
        assert_eq!(devices(&seen(Some(0), &["cpu"])), "cpu");
        assert_eq!(devices(&InstanceStatus::default()), "-");
    }
}
