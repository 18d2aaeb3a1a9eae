//! What a load would do, without doing it.

use muster_core::{Code, Error};
use muster_proto::{
    StatusExt as _,
    v1::{self, LoadVerdict},
};

use crate::{
    Client, Rig, TWO_MODELS,
    worker::{DEVICE, Worker},
};

async fn explain(client: &mut Client, model: &str) -> Result<v1::ExplainLoadResponse, tonic::Status> {
    let request = v1::ExplainLoadRequest {
        model: model.to_owned(),
        ..v1::ExplainLoadRequest::default()
    };
    let answer = client.0.explain_load(request).await?.into_inner();
    assert_eq!(answer.model, model);
    Ok(answer)
}

#[tokio::test]
async fn a_load_is_explained_before_it_happens() {
    let config = format!("{TWO_MODELS}\n[models.huge]\nruntime = 'stub'\nstub.memory_mib = 4096\n");
    let rig = Rig::start(&config).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;

    let free = explain(&mut client, "a").await.unwrap();
    assert_eq!(free.verdict(), LoadVerdict::Load, "{free:?}");
    assert_eq!(free.status(), v1::ModelStatus::Unloaded);
    let [place] = free.places.as_slice() else {
        panic!("{free:?}")
    };
    assert!(place.chosen && place.victims.is_empty() && place.obstruction.is_empty());
    assert_eq!((place.worker_id.as_str(), place.host_id.as_str()), ("w", "host"));
    let part = &place.parts[0];
    assert_eq!((part.device_id.as_str(), part.capacity_bytes), (DEVICE, 1 << 30));
    assert!(part.wanted_bytes > 0 && part.possible_bytes > part.wanted_bytes);

    client.load("a").await.unwrap();
    assert_eq!(
        explain(&mut client, "a").await.unwrap().verdict(),
        LoadVerdict::Here
    );
    let evicting = explain(&mut client, "b").await.unwrap();
    assert_eq!(evicting.verdict(), LoadVerdict::Evict, "{evicting:?}");
    assert_eq!(evicting.models, ["a"]);
    let victim = &evicting.places[0].victims[0];
    assert_eq!(
        (victim.model.as_str(), victim.rule.as_str()),
        ("a", "type slot (I2)")
    );
    assert!(victim.idle && victim.last_used.is_some());
    assert_eq!(victim.reservations[0].device_id, DEVICE);

    let instance = worker.instance("a");
    worker
        .change(&instance, |status| {
            status.running = 1;
            status.touch.as_mut().unwrap().touch_seq += 1;
        })
        .await;
    let mut busy = evicting;
    while busy.verdict() == LoadVerdict::Evict {
        busy = explain(&mut client, "b").await.unwrap();
    }
    assert_eq!(busy.verdict(), LoadVerdict::WaitForBusy, "{busy:?}");
    assert_eq!(busy.models, ["a"]);
    assert!(!busy.places[0].victims[0].idle);

    let never = explain(&mut client, "huge").await.unwrap();
    assert_eq!(never.verdict(), LoadVerdict::Refuse);
    let why = never.refusal.unwrap();
    assert_eq!(why.code, Code::InsufficientMemory.as_str());
    assert_eq!(why.details["wanted_bytes"], (4096_u64 << 20).to_string());
    // It was all talk.
    assert_eq!((worker.count("load"), worker.count("unload if idle")), (1, 0));
    assert_eq!(client.model("b").await.status(), v1::ModelStatus::Unloaded);
}

#[tokio::test]
async fn an_unknown_model_has_no_explanation() {
    let rig = Rig::start(TWO_MODELS).await;
    let mut client = rig.client().await;
    let unknown = explain(&mut client, "x").await.unwrap_err();
    assert_eq!(Error::from_status(&unknown).code, Code::UnknownModel);
    let nobody = explain(&mut client, "a").await.unwrap();
    assert_eq!(nobody.verdict(), LoadVerdict::Refuse);
    assert_eq!(nobody.refusal.unwrap().code, Code::NoWorker.as_str());
    assert!(nobody.places.is_empty());
}

async fn explain_anew(
    client: &mut Client,
    model: &str,
    device_id: &str,
    override_json: &str,
) -> Result<v1::ExplainLoadResponse, Error> {
    let request = v1::ExplainLoadRequest {
        model: model.to_owned(),
        anew: true,
        device_id: device_id.to_owned(),
        override_json: override_json.to_owned(),
        ..v1::ExplainLoadRequest::default()
    };
    let answer = client.0.explain_load(request).await;
    let answer = answer.map_err(|status| Error::from_status(&status))?;
    Ok(answer.into_inner())
}

#[tokio::test]
async fn a_loaded_model_is_judged_as_if_it_were_gone() {
    let config = format!("{TWO_MODELS}\n[models.m]\ncheckpoint = 'm.gguf'\n");
    let rig = Rig::start(&config).await;
    std::fs::write(rig.path("m.gguf"), b"x").unwrap();
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    client.load("m").await.unwrap();
    let verdict = async |client: &mut Client, device: &str, json: &str| {
        let answer = explain_anew(client, "m", device, json).await?;
        assert_eq!(answer.places.is_empty(), answer.refusal.is_some(), "{answer:?}");
        Ok::<_, Error>((answer.verdict(), answer.refusal.map(|why| why.code)))
    };
    // Its own instance is neither in the way nor an answer.
    let fits = verdict(&mut client, "", r#"{"ctx_size": 512}"#).await.unwrap();
    assert_eq!(fits, (LoadVerdict::Load, None));
    // No worker has such a device, and nobody waits for one.
    let nowhere = verdict(&mut client, "gpu", "").await.unwrap();
    assert_eq!(
        nowhere,
        (LoadVerdict::Refuse, Some(Code::NoWorker.as_str().to_owned()))
    );
    // Arguments are known without an engine.
    for args in ["--grp-attn-n 2", "-c many", "-t"] {
        let json = format!(r#"{{"llamacpp_args": "{args}"}}"#);
        let error = verdict(&mut client, "", &json).await.unwrap_err();
        assert_eq!(
            (error.code, error.param.as_deref().unwrap_or_default()),
            (Code::InvalidLoadRequest, "llamacpp_args"),
            "{args}"
        );
    }
    // What else is loaded counts.
    client.load("a").await.unwrap();
    assert_eq!(worker.count("load"), 2);
    let evicts = explain_anew(&mut client, "b", "", "").await.unwrap();
    assert_eq!(
        (evicts.verdict(), evicts.models),
        (LoadVerdict::Evict, vec!["a".to_owned()])
    );
    let unasked = v1::ExplainLoadRequest {
        model: "m".into(),
        device_id: "cpu".into(),
        ..v1::ExplainLoadRequest::default()
    };
    let error = client.0.explain_load(unasked).await.unwrap_err();
    assert_eq!(Error::from_status(&error).code, Code::InvalidRequest);
}
