//! Memory computed from model files, and what follows from it: refusals with numbers, models split between a device and the host.

use std::fmt::Write as _;

use muster_core::{Code, Error};
use muster_gguf::{
    CacheType, Gguf, Model,
    memory::{self, Settings},
};
use muster_proto::{
    StatusExt as _, llamacpp,
    v1::{self, DeviceKind, EstimateSource},
};

use crate::{
    Rig,
    support::shapes,
    worker::{Worker, device},
};

const MIB: u64 = 1 << 20;

/// A controller with models of the same file: `m`, and those of `more`.
async fn rig(more: &str) -> Rig {
    let mut config = String::from("[policy]\nsettle = '300ms'\nworker_wait = '600ms'\nmargin_mib = 0\n");
    write!(
        config,
        "[models.m]\ncheckpoint = 'm.gguf'\nctx_size = 16384\n{more}"
    )
    .unwrap();
    let mut rig = Rig::start(&config).await;
    shapes::llama(8, 32_000).save(&rig.path("m.gguf"));
    rig.restart().await;
    rig
}

fn settings(cells: u64) -> Settings {
    Settings {
        cells,
        sequences: 4,
        ubatch: 512,
        outputs: llamacpp::outputs(4, &[]).into(),
        results: llamacpp::outputs(4, &[]).into(),
        vectors: false,
        keys: CacheType::F16,
        values: CacheType::F16,
        flash: true,
        full_windows: false,
        split: false,
    }
}

fn shape(rig: &Rig) -> Model {
    Model::read(&Gguf::open(&rig.path("m.gguf")).unwrap()).unwrap()
}

#[tokio::test]
async fn estimates_are_computed_from_the_file_and_the_settings() {
    let rig = rig("device = 'cpu'\n[models.long]\ncheckpoint = 'm.gguf'\nctx_size = 65536\ndevice = 'cpu'\n\
                   [models.sized]\ncheckpoint = 'm.gguf'\nmemory_mib = 7\n[models.vague]\ncheckpoint = 'no.gguf'\n")
    .await;
    std::fs::write(rig.path("no.gguf"), b"no model at all").unwrap();
    let mut client = rig.client().await;
    let mut estimate = async |model: &str| {
        let model = client.model(model).await;
        (model.estimate_bytes, model.estimate_source())
    };
    let computed = |cells| memory::demand(&shape(&rig), &settings(cells), 0).host.total();
    assert_eq!(estimate("m").await, (computed(16_384), EstimateSource::Computed));
    assert_eq!(
        estimate("long").await,
        (computed(65_536), EstimateSource::Computed)
    );
    assert_eq!(estimate("sized").await, (7 * MIB, EstimateSource::Configured));
    assert_eq!(estimate("vague").await.1, EstimateSource::Artifact);
}

#[tokio::test]
async fn a_file_that_comes_later_or_changes_is_read_then() {
    let rig = rig("").await;
    let mut client = rig.client().await;
    let before = client.model("m").await;
    assert_eq!(before.estimate_source(), EstimateSource::Computed);
    shapes::llama(16, 32_000).save(&rig.path("m.gguf"));
    let after = client.model("m").await;
    assert!(after.estimate_bytes > before.estimate_bytes + 100 * MIB);
    std::fs::remove_file(rig.path("m.gguf")).unwrap();
    assert_eq!(
        client.model("m").await.estimate_source(),
        EstimateSource::Unavailable
    );
}

#[tokio::test]
async fn what_can_never_fit_is_refused_at_once_with_numbers() {
    let rig = rig("").await;
    let mut worker = Worker::new("w");
    worker.devices = vec![device("sim:small", DeviceKind::Sim, 100 * MIB)];
    let mut client = rig.client().await;
    let on_gpu = client.model("m").await.estimate_bytes;
    worker.join(&rig.address()).await;
    // Shown is what it takes where it would go.
    let shown = client.model("m").await.estimate_bytes;
    assert!(shown < on_gpu, "{shown} and {on_gpu}");
    let status = client.load("m").await.unwrap_err();
    let error = Error::from_status(&status);
    assert_eq!(error.code, Code::InsufficientMemory);
    let wanted = memory::demand(&shape(&rig), &settings(16_384), 0).host.total();
    assert_eq!(error.details["wanted_bytes"], wanted.to_string());
    assert_eq!(shown, wanted);
    assert_eq!(error.details["possible_bytes"], (100 * MIB).to_string());
    assert!(worker.memory.lock().unwrap().instances.is_empty());
}

/// A folder with a small checkpoint.
fn checkpoint(rig: &Rig) {
    std::fs::create_dir(rig.path("folder")).unwrap();
    let config =
        r#"{"num_hidden_layers":2,"hidden_size":64,"num_attention_heads":2,"max_position_embeddings":128}"#;
    std::fs::write(rig.path("folder/config.json"), config).unwrap();
    let header = r#"{"a":{"data_offsets":[0,64]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes().chain([0; 64]));
    std::fs::write(rig.path("folder/model.safetensors"), file).unwrap();
}

#[tokio::test]
async fn a_checkpoint_folder_counts_its_tensors_and_the_cache_it_is_given() {
    let mut rig = rig("[models.v]\nruntime = 'vllm_serve'\ncheckpoint = 'folder'\n").await;
    checkpoint(&rig);
    // A name stays a name until there is such a folder: that is read with the configuration.
    rig.restart().await;
    let model = rig.client().await.model("v").await;
    assert_eq!(model.estimate_source(), EstimateSource::Computed);
    assert!(model.estimate_bytes > 64 + 128 * 2 * 64 * 2 * 2);
}

/// The spec of the load that reached the worker.
async fn loaded(rig: &Rig, worker: &mut Worker) -> v1::InstanceSpec {
    worker.join(&rig.address()).await;
    let model = rig.client().await.load("m").await.unwrap();
    model.instances[0].status.clone().unwrap().spec.unwrap()
}

#[tokio::test]
async fn as_many_layers_as_fit_go_on_the_device() {
    let rig = rig("gpu_layers = 'auto'\n").await;
    let mut worker = Worker::new("w");
    let capacity = 700 * MIB;
    worker.devices = vec![
        device("GPU-1", DeviceKind::Gpu, capacity),
        device("cpu", DeviceKind::Cpu, 8 << 30),
    ];
    let spec = loaded(&rig, &mut worker).await;
    let model = shape(&rig);
    let on_device = |layers| memory::demand(&model, &settings(16_384), layers).device.total();
    assert!(on_device(9) > capacity, "it would fit whole: nothing is shown");
    let most = (1..9)
        .rev()
        .find(|layers| on_device(*layers) <= capacity)
        .unwrap();
    let settings_sent = spec.settings.unwrap();
    assert_eq!(settings_sent.gpu_layers, i32::try_from(most).ok());
    let demand = memory::demand(&model, &settings(16_384), most);
    let reserved: Vec<(&str, u64)> = spec
        .reservations
        .iter()
        .map(|r| (r.device_id.as_str(), r.bytes))
        .collect();
    assert_eq!(
        reserved,
        [("GPU-1", demand.device.total()), ("cpu", demand.host.total())]
    );
    assert_eq!(
        EstimateSource::try_from(spec.source),
        Ok(EstimateSource::Computed)
    );
}

#[tokio::test]
async fn all_layers_go_on_a_device_that_holds_them() {
    let rig = rig("gpu_layers = 'auto'\n").await;
    let mut worker = Worker::new("w");
    worker.devices = vec![
        device("GPU-1", DeviceKind::Gpu, 8 << 30),
        device("cpu", DeviceKind::Cpu, 8 << 30),
    ];
    let spec = loaded(&rig, &mut worker).await;
    assert_eq!(spec.settings.unwrap().gpu_layers, None);
    assert_eq!(spec.reservations.len(), 1);
    assert_eq!(spec.reservations[0].device_id, "GPU-1");
}

#[tokio::test]
async fn a_model_too_large_for_one_gpu_takes_two_of_one_worker() {
    let mut rig = rig("").await;
    let model = shape(&rig);
    let alone = memory::demand(&model, &settings(16_384), 9).device.total();
    let capacity = alone - MIB;
    let gpus = |ids: &[&str]| {
        let gpu = |id: &&str| device(id, DeviceKind::Gpu, capacity);
        ids.iter().map(gpu).collect::<Vec<_>>()
    };
    let mut single = Worker::new("single");
    single.devices = gpus(&["GPU-1"]);
    single.join(&rig.address()).await;
    let status = rig.client().await.load("m").await.unwrap_err();
    let error = Error::from_status(&status);
    assert_eq!(error.details["wanted_bytes"], alone.to_string());

    let mut both = Worker::new("spans");
    both.devices = gpus(&["GPU-1", "GPU-2"]);
    let spec = loaded(&rig, &mut both).await;
    let shares = memory::spread(&model, &settings(16_384), 2).unwrap();
    let reserved: Vec<(&str, u64)> = spec
        .reservations
        .iter()
        .map(|r| (r.device_id.as_str(), r.bytes))
        .collect();
    assert_eq!(
        reserved,
        [("GPU-1", shares[0].total()), ("GPU-2", shares[1].total())]
    );
    // What one of them uses says nothing of the whole.
    let instance = both.instance("m");
    both.change(&instance, |status| {
        status.observed = vec![v1::Reservation {
            device_id: "GPU-2".to_owned(),
            bytes: 333 * MIB,
        }];
    })
    .await;
    assert_eq!(rig.client().await.model("m").await.estimate_bytes, alone);
    rig.stop().await;
    let kept = std::fs::read_to_string(rig.path("state/observed.json")).unwrap();
    let kept: serde_json::Value = serde_json::from_str(&kept).unwrap();
    let key = format!("{}*2", spec.spec_hash);
    assert_eq!(kept["memory"][key]["bytes"]["gpu"], 333 * MIB);
}

#[tokio::test]
async fn nothing_is_split_unless_allowed() {
    let rig = rig("").await;
    let mut worker = Worker::new("w");
    worker.devices = vec![
        device("GPU-1", DeviceKind::Gpu, 700 * MIB),
        device("cpu", DeviceKind::Cpu, 8 << 30),
    ];
    let spec = loaded(&rig, &mut worker).await;
    assert_eq!(
        (
            spec.settings.unwrap().gpu_layers,
            spec.reservations[0].device_id.as_str()
        ),
        (None, "cpu")
    );
}

#[tokio::test]
async fn a_split_models_use_is_learned_for_that_split() {
    let mut rig = rig("gpu_layers = 'auto'\n").await;
    let mut worker = Worker::new("w");
    worker.devices = vec![
        device("GPU-1", DeviceKind::Gpu, 700 * MIB),
        device("cpu", DeviceKind::Cpu, 8 << 30),
    ];
    let spec = loaded(&rig, &mut worker).await;
    let layers = spec.settings.unwrap().gpu_layers.unwrap();
    let mut client = rig.client().await;
    let whole = client.model("m").await.estimate_bytes;
    let instance = worker.instance("m");
    worker
        .change(&instance, |status| {
            status.observed = vec![v1::Reservation {
                device_id: "GPU-1".to_owned(),
                bytes: 333 * MIB,
            }];
        })
        .await;
    client.unload("m", false).await.unwrap();
    let model = client.model("m").await;
    assert_eq!(
        (model.estimate_bytes, model.estimate_source()),
        (whole, EstimateSource::Computed)
    );
    rig.stop().await;
    let kept = std::fs::read_to_string(rig.path("state/observed.json")).unwrap();
    let kept: serde_json::Value = serde_json::from_str(&kept).unwrap();
    let key = format!("{}/{layers}", spec.spec_hash);
    assert_eq!(kept["memory"][key]["bytes"]["gpu"], 333 * MIB);
}

/// One such figure used to keep a model out for good: it could never be seen to take less again.
#[tokio::test]
async fn what_was_seen_is_not_believed_against_all_reason() {
    let rig = rig("device = 'cpu'\n").await;
    let mut worker = Worker::new("w");
    worker.devices = vec![device("cpu", DeviceKind::Cpu, 8 << 30)];
    loaded(&rig, &mut worker).await;
    let mut client = rig.client().await;
    let computed = memory::demand(&shape(&rig), &settings(16_384), 0).host.total();
    let instance = worker.instance("m");
    for (seen, believed) in [
        (computed * 3 / 2, computed * 3 / 2),
        (64 << 30, 2 * computed + 1024 * MIB),
    ] {
        worker
            .change(&instance, |status| {
                status.observed = vec![v1::Reservation {
                    device_id: "cpu".to_owned(),
                    bytes: seen,
                }];
            })
            .await;
        // Nothing tells when the report was heard: it is, in time.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        loop {
            let model = client.model("m").await;
            if (model.estimate_bytes, model.estimate_source()) == (believed, EstimateSource::Observed) {
                break;
            }
            assert!(
                std::time::Instant::now() < until,
                "{} after {seen}",
                model.estimate_bytes
            );
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }
    client.unload("m", false).await.unwrap();
    client.load("m").await.unwrap();
}

/// A worker with GPUs of these sizes that hosts vLLM.
fn vllm(name: &str, sizes: &[u64]) -> Worker {
    let mut worker = Worker::new(name);
    worker.runtimes = vec!["vllm_serve"];
    let gpu = |(number, size): (usize, &u64)| device(&format!("{name}-{number}"), DeviceKind::Gpu, *size);
    worker.devices = sizes.iter().enumerate().map(gpu).collect();
    worker
}

fn reserved(model: &v1::Model) -> Vec<(String, u64)> {
    let spec = model.instances[0].status.clone().unwrap().spec.unwrap();
    let parts = spec.reservations.into_iter();
    parts.map(|part| (part.device_id, part.bytes)).collect()
}

/// What vLLM took of a large card used to make a small one "too small" for good, and a load was judged by the least it can start with.
#[tokio::test]
async fn a_share_of_each_device_is_reserved_whatever_was_seen_on_another() {
    const GB: u64 = 1_000_000_000;
    let mut rig = rig("[models.v]\nruntime = 'vllm_serve'\ncheckpoint = 'folder'\n\
                       [models.two]\nruntime = 'vllm_serve'\ncheckpoint = 'folder'\n\
                       llamacpp_args = '--tensor-parallel-size 2'\nvllm_gpu_memory_utilization = 0.5\n")
    .await;
    checkpoint(&rig);
    rig.restart().await;
    let mut client = rig.client().await;
    let mut large = vllm("large", &[80 * GB, 80 * GB]);
    large.join(&rig.address()).await;
    let two = client.load("two").await.unwrap();
    let half = |gpu: &str| (gpu.to_owned(), 40 * GB);
    assert_eq!(reserved(&two), [half("large-0"), half("large-1")]);
    client.unload("two", false).await.unwrap();
    let v = client.load("v").await.unwrap();
    assert_eq!(reserved(&v), [("large-0".to_owned(), 72 * GB)]);
    let instance = large.instance("v");
    large
        .change(&instance, |status| {
            status.observed = vec![v1::Reservation {
                device_id: "large-0".to_owned(),
                bytes: 72 * GB,
            }];
        })
        .await;
    client.unload("v", false).await.unwrap();
    large.cut().await;
    let mut small = vllm("small", &[24 * GB]);
    small.join(&rig.address()).await;
    let v = client.load("v").await.unwrap();
    assert_eq!(reserved(&v), [("small-0".to_owned(), 21_600_000_000)]);
}
