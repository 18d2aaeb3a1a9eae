//! Files of the hub: downloaded before a load begins, once for all who ask, on a worker that can run the model; and the catalogue as users
//! change it.

use muster_core::{Code, Error};
use muster_proto::{
    FEATURES, MODEL_FILES, StatusExt as _,
    net::{Channel, channel},
    trust::Credentials,
    v1::{
        self, FilesOrder, HubCheckpoint, files_order::Kind as Order, models_client::ModelsClient,
        pull_model_event, worker_message::Kind as Up,
    },
};
use tokio::time::timeout;

use crate::{
    Client, LIMIT, Rig, TWO_MODELS,
    worker::{Fetches, Memory, Worker, cached},
};

pub(crate) type Models = ModelsClient<Channel>;

/// Two stubs, and two models that are files of one repository.
fn config() -> String {
    let hub = |id: &str, variant: &str| {
        format!("[models.{id}]\nruntime = 'llama_cpp'\ncheckpoint = 'o/n:{variant}'\nmemory_mib = 1\n")
    };
    format!("{TWO_MODELS}\n{}{}", hub("h", "Q4_0"), hub("other", "Q8_0"))
}

fn checkpoint(variant: &str) -> HubCheckpoint {
    HubCheckpoint {
        repo: "o/n".to_owned(),
        variant: variant.to_owned(),
        ..HubCheckpoint::default()
    }
}

fn worker(name: &str) -> Worker {
    let mut worker = Worker::new(name);
    worker.features = vec![MODEL_FILES.to_owned()];
    worker
}

pub(crate) async fn models(rig: &Rig) -> Models {
    ModelsClient::new(channel(&rig.address(), &Credentials::none()).await.unwrap())
}

fn fetches(memory: &Memory) -> Vec<&FilesOrder> {
    let fetch = |order: &&FilesOrder| matches!(order.kind, Some(Order::Fetch(_)));
    memory.orders.iter().filter(fetch).collect()
}

/// The worker ends the last download it was ordered.
async fn finish(worker: &Worker) {
    let order_id = {
        let mut memory = worker.memory.lock().unwrap();
        let order = (*fetches(&memory).last().unwrap()).clone();
        memory.has.push(order.checkpoint.unwrap());
        order.order_id
    };
    let kind = Some(v1::files_news::Kind::Cached(cached(true)));
    let news = v1::FilesNews { order_id, kind };
    worker.send_as(&worker.session(), Up::Files(news)).await;
}

async fn pull(models: &mut Models, model: &str) -> Result<v1::Model, Error> {
    let request = v1::PullModelRequest {
        model: model.to_owned(),
        definition: None,
    };
    let error = |status: tonic::Status| Error::from_status(&status);
    let mut events = models.pull_model(request).await.map_err(error)?.into_inner();
    loop {
        let event = timeout(LIMIT, events.message()).await.unwrap().map_err(error)?;
        if let pull_model_event::Kind::Done(model) = event.unwrap().kind.unwrap() {
            return Ok(model);
        }
    }
}

async fn begin(rig: &Rig, fetches: Fetches) -> (Worker, Client) {
    let mut worker = worker("w");
    worker.memory.lock().unwrap().fetches = fetches;
    worker.join(&rig.address()).await;
    (worker, rig.client().await)
}

#[tokio::test]
async fn a_download_holds_no_load_slot_and_is_one_for_all_who_wait() {
    let rig = Rig::start(&config()).await;
    let (worker, mut client) = begin(&rig, Fetches::Stay).await;
    let (mut one, mut two) = (client.ensure("h").await, client.ensure("h").await);
    let mut operator = rig.client().await;
    let request = v1::LoadModelRequest {
        download: true,
        ..Client::load_of("h")
    };
    let load = tokio::spawn(async move { operator.load_as(request).await });
    worker
        .until("the download", |memory| !fetches(memory).is_empty())
        .await;
    // Another load goes past it.
    client.load("a").await.unwrap();
    let shown = client.model("h").await;
    assert_eq!(
        (shown.status(), shown.downloaded),
        (v1::ModelStatus::Unloaded, false)
    );
    assert_eq!(shown.download.unwrap().all_total, 100);
    finish(&worker).await;
    let route = one.ready().await;
    assert_eq!(two.ready().await.instance, route.instance);
    load.await.unwrap().unwrap();
    assert_eq!(fetches(&worker.memory.lock().unwrap()).len(), 1);
    let shown = client.model("h").await;
    assert!(shown.downloaded && shown.download.is_none());
    // What an engine's worker gets is the name: only it knows its cache.
    let spec = shown.instances[0].status.as_ref().unwrap().spec.as_ref().unwrap();
    assert_eq!(spec.settings.as_ref().unwrap().checkpoint, "o/n:Q4_0");
}

/// A worker of an older version would take `main` for it.
#[tokio::test]
async fn a_revision_is_asked_of_workers_only_that_know_revisions() {
    let pinned =
        "[models.pinned]\nruntime = 'llama_cpp'\ncheckpoint = 'o/n:Q4_0'\nrevision = 'v1'\nmemory_mib = 1\n";
    let rig = Rig::start(&format!("{}{pinned}", config())).await;
    let (older, mut client) = begin(&rig, Fetches::Done).await;
    let mut api = models(&rig).await;
    let begun = tokio::spawn(async move { pull(&mut api, "pinned").await });
    client.load("a").await.unwrap();
    let mut newer = worker("newer");
    newer.features = FEATURES.map(str::to_owned).to_vec();
    newer.join(&rig.address()).await;
    assert!(begun.await.unwrap().unwrap().downloaded);
    let revisions = |worker: &Worker| {
        let memory = worker.memory.lock().unwrap();
        let revision = |order: &FilesOrder| order.checkpoint.clone().unwrap().revision;
        memory.orders.iter().map(revision).collect::<Vec<_>>()
    };
    assert!(revisions(&newer).contains(&"v1".to_owned()));
    assert!(!revisions(&older).contains(&"v1".to_owned()));
    // What an operator wants is the newest; `h` is other files.
    assert!(matches!(
        fetches(&newer.memory.lock().unwrap())[0].kind,
        Some(Order::Fetch(v1::FetchFiles { refresh: true }))
    ));
    assert!(!client.model("h").await.downloaded);
    let route = client.ensure("pinned").await.ready().await;
    assert_eq!(route.instance.unwrap().worker_id, "newer");
    let shown = client.model("pinned").await;
    let spec = shown.instances[0].status.as_ref().unwrap().spec.as_ref().unwrap();
    assert_eq!(spec.settings.as_ref().unwrap().revision, "v1");
}

#[tokio::test]
async fn a_check_asks_one_worker_of_each_host_that_has_the_files() {
    let rig = Rig::start(&config()).await;
    let mut workers = Vec::new();
    for (name, host) in [("w1", "one"), ("w2", "one"), ("w3", "two")] {
        let mut worker = worker(name);
        worker.features = FEATURES.map(str::to_owned).to_vec();
        worker.host = host.to_owned();
        worker.memory.lock().unwrap().has.push(checkpoint("Q4_0"));
        worker.join(&rig.address()).await;
        workers.push(worker);
    }
    let mut api = models(&rig).await;
    let hosts = async |api: &mut Models| {
        let request = v1::CheckUpdatesRequest {
            models: vec!["h".to_owned()],
        };
        let answer = api.check_updates(request).await.unwrap().into_inner();
        answer
            .updates
            .into_iter()
            .map(|update| update.host_id)
            .collect::<Vec<_>>()
    };
    let known = async {
        while hosts(&mut api).await != ["one", "two"] {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    timeout(LIMIT, known).await.unwrap();
    let asked = |worker: &Worker| {
        let memory = worker.memory.lock().unwrap();
        memory
            .orders
            .iter()
            .filter(|order| matches!(order.kind, Some(Order::Check(_))))
            .count()
    };
    let before: Vec<_> = workers.iter().map(asked).collect();
    assert_eq!(hosts(&mut api).await.len(), 2);
    let after: Vec<_> = workers.iter().map(asked).collect();
    assert_eq!(
        after.iter().sum::<usize>() - before.iter().sum::<usize>(),
        2,
        "{before:?} {after:?}"
    );
    let request = v1::CheckUpdatesRequest {
        models: vec!["nobody".to_owned()],
    };
    let error = api.check_updates(request).await.unwrap_err();
    assert_eq!(Error::from_status(&error).code, Code::UnknownModel);
}

#[tokio::test]
async fn a_plain_load_downloads_nothing_and_an_unload_ends_the_wait_for_files() {
    let rig = Rig::start(&config()).await;
    let (worker, mut client) = begin(&rig, Fetches::Stay).await;
    let mut waiting = client.ensure("h").await;
    worker
        .until("the download", |memory| !fetches(memory).is_empty())
        .await;
    let request = v1::UnloadModelRequest {
        model: "h".to_owned(),
        cancel_load: true,
        ..v1::UnloadModelRequest::default()
    };
    client.0.unload_model(request).await.unwrap();
    assert_eq!(waiting.failed().await.code, Code::LoadCancelled);
    client.load("other").await.unwrap();
    assert_eq!(fetches(&worker.memory.lock().unwrap()).len(), 1);
    // The download itself goes on.
    finish(&worker).await;
    client.ensure("h").await.ready().await;
}

#[tokio::test]
async fn a_download_outlives_its_workers_session() {
    let rig = Rig::start(&config()).await;
    let (mut first, _) = begin(&rig, Fetches::Stay).await;
    let mut models = models(&rig).await;
    let pulled = tokio::spawn(async move { pull(&mut models, "h").await });
    first
        .until("the download", |memory| !fetches(memory).is_empty())
        .await;
    first.cut().await;
    first.join(&rig.address()).await;
    first
        .until("it is asked again", |memory| fetches(memory).len() == 2)
        .await;
    finish(&first).await;
    assert!(pulled.await.unwrap().unwrap().downloaded);
}

#[tokio::test]
async fn a_paused_download_is_nobodys_until_an_operator_wants_it_again() {
    let rig = Rig::start(&config()).await;
    let (mut first, mut client) = begin(&rig, Fetches::Stay).await;
    let mut models = models(&rig).await;
    let mut control = models.clone();
    let mut control = async |action: v1::DownloadAction| {
        let request = v1::ControlDownloadRequest {
            model: "h".to_owned(),
            action: action.into(),
        };
        let answer = control.control_download(request).await;
        let answer = answer.map_err(|status| Error::from_status(&status))?;
        Ok::<_, Error>(answer.into_inner().download.unwrap().state())
    };
    let error = control(v1::DownloadAction::Resume).await.unwrap_err();
    assert_eq!(error.code, Code::NoSuchDownload);
    let mut waiting = client.ensure("h").await;
    first
        .until("the download", |memory| !fetches(memory).is_empty())
        .await;
    let error = control(v1::DownloadAction::Unspecified).await.unwrap_err();
    assert_eq!(error.code, Code::InvalidRequest);
    assert_eq!(
        control(v1::DownloadAction::Pause).await,
        Ok(v1::DownloadState::Paused)
    );
    assert_eq!(waiting.failed().await.code, Code::DownloadCancelled);
    let kept = |memory: &Memory| {
        let keep =
            |order: &FilesOrder| matches!(order.kind, Some(Order::Cancel(v1::CancelFetch { keep: true })));
        memory.orders.iter().any(keep)
    };
    first.until("what came is kept", kept).await;
    // Neither a request nor a worker that comes back begins it again.
    assert_eq!(
        client.ensure("h").await.failed().await.code,
        Code::DownloadCancelled
    );
    first.cut().await;
    first.join(&rig.address()).await;
    client.load("a").await.unwrap();
    assert_eq!(fetches(&first.memory.lock().unwrap()).len(), 1);
    let pulled = tokio::spawn({
        let mut models = models.clone();
        async move { pull(&mut models, "h").await }
    });
    first
        .until("it goes on", |memory| fetches(memory).len() == 2)
        .await;
    let listed = models.list_downloads(v1::ListDownloadsRequest {}).await.unwrap();
    let [running] = &listed.into_inner().downloads[..] else {
        panic!("one download")
    };
    assert_eq!(
        (
            running.model.as_str(),
            running.state(),
            running.worker_id.as_str()
        ),
        ("h", v1::DownloadState::Running, "w")
    );
    assert_eq!(
        control(v1::DownloadAction::Cancel).await,
        Ok(v1::DownloadState::Cancelled)
    );
    assert_eq!(pulled.await.unwrap().unwrap_err().code, Code::DownloadCancelled);
}

#[tokio::test]
async fn a_failed_download_is_told_and_not_tried_again_at_once_except_by_an_operator() {
    let rig = Rig::start(&config()).await;
    let gone = Code::CheckpointNotFound.error("no such thing");
    let (worker, mut client) = begin(&rig, Fetches::Fail(gone)).await;
    for _ in 0..2 {
        assert_eq!(
            client.ensure("h").await.failed().await.code,
            Code::CheckpointNotFound
        );
    }
    assert_eq!(fetches(&worker.memory.lock().unwrap()).len(), 1);
    let mut models = models(&rig).await;
    assert_eq!(
        pull(&mut models, "h").await.unwrap_err().code,
        Code::CheckpointNotFound
    );
    assert_eq!(fetches(&worker.memory.lock().unwrap()).len(), 2);
    assert_eq!(pull(&mut models, "x").await.unwrap_err().code, Code::UnknownModel);
    worker.memory.lock().unwrap().fetches = Fetches::Done;
    pull(&mut models, "h").await.unwrap();
    client.ensure("h").await.ready().await;
}

#[tokio::test]
async fn a_model_runs_where_its_files_are_and_workers_without_the_feature_get_no_orders() {
    let rig = Rig::start(&config()).await;
    let mut old = Worker::new("a-old");
    old.join(&rig.address()).await;
    let mut without = worker("b-without");
    without.join(&rig.address()).await;
    let mut with = worker("c-with");
    with.memory.lock().unwrap().has.push(checkpoint("Q4_0"));
    with.join(&rig.address()).await;
    with.until("it was asked", |memory| memory.orders.len() >= 2)
        .await;
    let mut client = rig.client().await;
    let mut routes = client.routes().await;
    while !client.model("h").await.downloaded {
        routes.next().await;
    }
    let route = client.ensure("h").await.ready().await;
    assert_eq!(route.instance.unwrap().worker_id, "c-with");
    for worker in [&with, &without] {
        assert!(fetches(&worker.memory.lock().unwrap()).is_empty());
    }
    assert!(old.memory.lock().unwrap().orders.is_empty());
}

#[tokio::test]
async fn a_delete_unloads_and_spares_what_others_have() {
    let rig = Rig::start(&config()).await;
    let (worker, mut client) = begin(&rig, Fetches::Done).await;
    let mut models = models(&rig).await;
    pull(&mut models, "other").await.unwrap();
    client.ensure("h").await.ready().await;
    let request = |model: &str| v1::DeleteModelRequest {
        model: model.to_owned(),
    };
    let deleted = models.delete_model(request("h")).await.unwrap().into_inner();
    assert_eq!(deleted.freed_bytes, 10);
    let left = deleted.model.unwrap();
    assert!(!left.downloaded && left.instances.is_empty());
    let removal = |memory: &Memory| {
        memory.orders.iter().find_map(|order| match &order.kind {
            Some(Order::Remove(remove)) => Some(remove.keep.clone()),
            _ => None,
        })
    };
    assert_eq!(
        removal(&worker.memory.lock().unwrap()).unwrap(),
        [checkpoint("Q8_0")]
    );
    assert!(client.model("other").await.downloaded);
    // A stub has no files, and the configuration is not Muster's to change.
    let error = models.delete_model(request("a")).await.unwrap_err();
    assert_eq!(Error::from_status(&error).code, Code::InvalidRequest);
}

fn pin_of(model: &str) -> v1::PinModelRequest {
    v1::PinModelRequest {
        model: model.into(),
        while_loaded: false,
    }
}

fn nothing_is_kept(rig: &Rig) {
    for (file, key) in [
        ("user_models.json", "models"),
        ("model_options.json", "options"),
        ("aliases.json", "aliases"),
    ] {
        let text = std::fs::read_to_string(rig.path(&format!("state/{file}"))).unwrap();
        let kept: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(kept, serde_json::json!({"version": 1, key: {}}), "{file}");
    }
}

#[tokio::test]
async fn what_users_made_outlives_restarts() {
    let mut rig = Rig::start(&config()).await;
    let definition = v1::ModelDefinition {
        model: "user.mine".to_owned(),
        checkpoint: "o/n:Q4_0".to_owned(),
        recipe: "llamacpp".to_owned(),
        labels: vec!["embeddings".to_owned()],
        ..v1::ModelDefinition::default()
    };
    let mut api = models(&rig).await;
    let register = v1::RegisterModelRequest {
        definition: Some(definition),
    };
    let made = api
        .register_model(register)
        .await
        .unwrap()
        .into_inner()
        .model
        .unwrap();
    assert!(made.user && made.r#type() == v1::ModelType::Embedding && !made.downloaded);
    let options = |json: &str| v1::SetModelOptionsRequest {
        model: "user.mine".to_owned(),
        options_json: json.to_owned(),
    };
    let kept = r#"{"ctx_size":512,"llamacpp_backend":"cpu"}"#;
    api.set_model_options(options(kept)).await.unwrap();
    for wrong in [
        r#"{"ctx_size":"big"}"#,
        r#"{"llamacpp_backend":"abacus"}"#,
        "[]",
        r#"{"pinned":1}"#,
    ] {
        let error = api.set_model_options(options(wrong)).await.unwrap_err();
        assert_eq!(
            Error::from_status(&error).code,
            Code::InvalidLoadRequest,
            "{wrong}"
        );
    }
    let alias = v1::Alias {
        alias: "mine".to_owned(),
        model: "user.mine".to_owned(),
    };
    let set = v1::SetAliasRequest {
        alias: Some(alias.clone()),
    };
    api.set_alias(set).await.unwrap();
    rig.restart().await;
    let again = rig.client().await.model("user.mine").await;
    assert_eq!((again.created, again.labels), (made.created, made.labels));
    assert_eq!(again.settings.unwrap().ctx_size, 512);
    assert_eq!(again.definition.unwrap().ctx_size, 0);
    let mut api = models(&rig).await;
    let aliases = api
        .list_aliases(v1::ListAliasesRequest {})
        .await
        .unwrap()
        .into_inner()
        .aliases;
    assert_eq!(aliases, [alias]);
    let mut worker = worker("w");
    worker.join(&rig.address()).await;
    let route = rig.client().await.ensure("mine").await.ready().await;
    assert_eq!(route.model_id, "user.mine");
    // Whatever is asked about a model takes its other names too.
    let mut client = rig.client().await;
    assert_eq!(client.model("mine").await.id, "user.mine");
    assert_eq!(client.unload("mine", false).await.unwrap().id, "user.mine");
    assert_eq!(
        client.load("mine").await.unwrap().status(),
        v1::ModelStatus::Loaded
    );
    let pin = pin_of("mine");
    let pinned = client.0.pin_model(pin).await.unwrap().into_inner().model.unwrap();
    assert!(pinned.id == "user.mine" && pinned.pinned);
    let by_alias = v1::SetModelOptionsRequest {
        model: "mine".to_owned(),
        options_json: kept.to_owned(),
    };
    api.set_model_options(by_alias).await.unwrap();
    // But an alias is not its model's files.
    let delete = v1::DeleteModelRequest { model: "mine".into() };
    let error = api.delete_model(delete).await.unwrap_err();
    assert_eq!(Error::from_status(&error).code, Code::InvalidRequest);
    assert_eq!(client.model("user.mine").await.status(), v1::ModelStatus::Loaded);
    let delete = v1::DeleteModelRequest {
        model: "user.mine".to_owned(),
    };
    assert!(
        api.delete_model(delete)
            .await
            .unwrap()
            .into_inner()
            .model
            .is_none()
    );
    nothing_is_kept(&rig);
}
