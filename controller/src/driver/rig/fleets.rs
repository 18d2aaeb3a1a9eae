//! Fleets that are too small for their models, and how they are configured.

use std::num::NonZeroU32;
use std::time::Duration;

use muster_core::{DeviceKind, ModelType};
use muster_policy::{Config, DeviceChoice, Exclusivity, ModelSpec, WorkerFacts};
use proptest::prelude::*;

use super::Rig;
use super::world::{config, device, facts, limits, model, need, unlimited};

/// A language model beside an embedding model, and nothing else.
const ONE_OF_TWO_TYPES: Exclusivity = Exclusivity::PerType([Some(1), Some(1), Some(0), Some(0), Some(0)]);

/// A controller that knows these models, and these workers, with it.
pub(super) async fn joined(config: Config, models: Vec<ModelSpec>, workers: Vec<WorkerFacts>) -> Rig {
    let mut rig = Rig::new(config, models).await;
    for facts in workers {
        let id = facts.id.clone();
        rig.add_worker(facts);
        rig.connect(&id).await;
    }
    rig
}

/// One host, two workers that share a device.
pub(super) async fn crowded_fleet(config: Config) -> Rig {
    let (mut workers, mut models) = (Vec::new(), Vec::new());
    workers.push(facts("w0", "h", vec![device("sim:a", DeviceKind::Sim, 100)]));
    workers.push(facts(
        "w1",
        "h",
        vec![
            device("sim:a", DeviceKind::Sim, 100),
            device("sim:b", DeviceKind::Sim, 40),
        ],
    ));
    for (n, bytes) in [30_u64, 30, 50, 50, 20, 90, 100].into_iter().enumerate() {
        let kind = if n == 4 {
            ModelType::Embedding
        } else {
            ModelType::Llm
        };
        models.push(model(&format!("m{n}"), kind, bytes));
    }
    joined(config, models, workers).await
}

/// Two hosts: one with two GPUs, a worker each and one spanning both, and an NPU; one with a small simulated device.
pub(super) async fn fleet(config: Config) -> Rig {
    let (mut workers, mut models) = (Vec::new(), Vec::new());
    let gpu = |id| device(id, DeviceKind::Gpu, 100);
    workers.push(facts("w0", "h0", vec![gpu("g0")]));
    workers.push(facts("w1", "h0", vec![gpu("g1")]));
    workers.push(facts("w2", "h0", vec![gpu("g0"), gpu("g1")]));
    workers.push(facts("w3", "h0", vec![device("n0", DeviceKind::Npu, 50)]));
    workers.push(facts("w4", "h1", vec![device("sim:a", DeviceKind::Sim, 60)]));
    let kinds = [
        ModelType::Llm,
        ModelType::Llm,
        ModelType::Llm,
        ModelType::Embedding,
        ModelType::Reranking,
    ];
    for (n, bytes) in [10_u64, 40, 70, 95, 55, 30].into_iter().enumerate() {
        models.push(model(&format!("m{n}"), kinds[n % kinds.len()], bytes));
    }
    let mut spanning = model("span", ModelType::Llm, 0);
    spanning.needs = vec![need(&[(DeviceKind::Gpu, 80), (DeviceKind::Gpu, 80)])];
    models.push(spanning);
    for id in ["n0", "n1"] {
        let mut npu = model(
            id,
            if id == "n0" {
                ModelType::Llm
            } else {
                ModelType::Audio
            },
            0,
        );
        npu.needs = vec![need(&[(DeviceKind::Npu, 20)])];
        models.push(npu);
    }
    let mut twins = model("twins", ModelType::Reranking, 20);
    twins.replicas = NonZeroU32::new(2).unwrap();
    models.push(twins);
    let mut huge = model("huge", ModelType::Image, 0);
    huge.needs = vec![need(&[(DeviceKind::Gpu, 500)])];
    models.push(huge);
    joined(config, models, workers).await
}

/// One host with three devices, and models that are each bound to one of them: who waits for one device must not keep others from theirs.
pub(super) async fn bound_fleet(config: Config) -> Rig {
    let (mut workers, mut models) = (Vec::new(), Vec::new());
    for n in 0..3 {
        let id = format!("sim:{n}");
        workers.push(facts(
            &format!("w{n}"),
            "h",
            vec![device(&id, DeviceKind::Sim, 100)],
        ));
        for bytes in [60, 50, 30] {
            models.push(ModelSpec {
                device: DeviceChoice::Device(id.as_str().into()),
                ..model(&format!("m{n}-{bytes}"), ModelType::Llm, bytes)
            });
        }
    }
    joined(config, models, workers).await
}

/// Two hosts with more than two GPUs for one worker and host RAM for all: models that are split, offloaded in part, bound to a device, a kind of
/// device or a worker, and a group of three.
pub(super) async fn wide_fleet(config: Config) -> Rig {
    const GPU: DeviceKind = DeviceKind::Gpu;
    const CPU: DeviceKind = DeviceKind::Cpu;
    let (mut workers, mut models) = (Vec::new(), Vec::new());
    let devices = |gpus: &[(&str, u64)], ram: u64| {
        let mut all: Vec<_> = gpus.iter().map(|(id, bytes)| device(id, GPU, *bytes)).collect();
        all.push(device("cpu", CPU, ram));
        all
    };
    let four = [("g0", 100), ("g1", 100), ("g2", 100), ("g3", 60)];
    workers.push(facts("w0", "h0", devices(&four, 200)));
    workers.push(facts("w1", "h0", devices(&four[..2], 200)));
    workers.push(facts(
        "w2",
        "h1",
        devices(&[("g0", 80), ("g1", 80), ("g2", 80)], 100),
    ));
    let shaped = |id: &str, shapes: &[&[(DeviceKind, u64)]]| ModelSpec {
        needs: shapes.iter().map(|parts| need(parts)).collect(),
        ..model(id, ModelType::Llm, 0)
    };
    models.push(shaped(
        "offload",
        &[&[(GPU, 90)], &[(GPU, 40), (CPU, 60)], &[(CPU, 120)]],
    ));
    models.push(shaped("pair", &[&[(GPU, 60), (GPU, 60)], &[(CPU, 150)]]));
    models.push(shaped("three", &[&[(GPU, 50), (GPU, 50), (GPU, 50)]]));
    models.push(shaped("uneven", &[&[(GPU, 70), (GPU, 30), (CPU, 20)]]));
    models.push(ModelSpec {
        workers: ["w2".into()].into(),
        ..model("there", ModelType::Llm, 30)
    });
    models.push(ModelSpec {
        device: DeviceChoice::Device("g1".into()),
        ..model("bound", ModelType::Embedding, 40)
    });
    models.push(ModelSpec {
        device: DeviceChoice::Kind(CPU),
        ..shaped("ram", &[&[(GPU, 70)], &[(CPU, 70)]])
    });
    models.push(ModelSpec {
        replicas: NonZeroU32::new(3).unwrap(),
        ..shaped("trio", &[&[(GPU, 20)]])
    });
    for (id, bytes) in [("small", 30), ("medium", 50), ("large", 95)] {
        models.push(model(id, ModelType::Llm, bytes));
    }
    joined(config, models, workers).await
}

pub(super) fn configs() -> impl Strategy<Value = Config> {
    let waits = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let basics = (1_u32..4, any::<bool>(), 1_u32..3, any::<bool>(), any::<bool>());
    let rare = (
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.3),
        prop::option::weighted(0.3, 1_u32..5),
    );
    (basics, waits, rare).prop_map(
        |(
            (limit, no_limit, loads, pack, cost_aware),
            (impatient, strict, stay, ttl),
            (overcommit, per_type, in_fleet),
        )| Config {
            overcommit,
            fleet_limits: in_fleet.map_or(unlimited(), limits),
            exclusivity: per_type
                .then_some((DeviceKind::Npu, ONE_OF_TWO_TYPES))
                .into_iter()
                .collect(),
            max_eviction_wait: impatient.then_some(Duration::from_secs(3)),
            max_drain: (impatient && strict).then_some(Duration::from_secs(4)),
            min_residency: if stay {
                Duration::from_secs(2)
            } else {
                Duration::ZERO
            },
            idle_ttl: ttl.then_some(Duration::from_secs(20)),
            limits: if no_limit { unlimited() } else { limits(limit) },
            max_concurrent_loads: NonZeroU32::new(loads).unwrap(),
            placement: if pack {
                muster_policy::Placement::Pack
            } else {
                muster_policy::Placement::Spread
            },
            eviction: if cost_aware {
                muster_policy::Eviction::CostAware
            } else {
                muster_policy::Eviction::Lru
            },
            ..config()
        },
    )
}
