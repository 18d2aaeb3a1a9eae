//! Scripted gateways and operators: they watch routes as real ones do, ask for loaded models, and have others loaded and unloaded.

use std::{
    collections::HashMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, bail};
use muster_proto::{
    net::{self, Address, Channel},
    trust::Credentials,
    v1::{
        EnsureLoadedRequest, LoadModelRequest, Route, RouteState, RouteUpdate, UnloadModelRequest,
        WatchRoutesRequest, control_client::ControlClient, ensure_loaded_event::Kind as Stage,
        load_model_event::Kind as Loaded, route_update::Kind,
    },
};
use tokio::{
    sync::{Notify, watch},
    task::{JoinHandle, JoinSet},
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};

use super::{CHURNED, fresh, worker, worker::Workers};

/// Callers of `EnsureLoaded`, and how often each of them calls.
const CALLERS: usize = 4;
const CALL_EVERY: Duration = Duration::from_millis(20);
/// Models that are loaded and unloaded at a time.
const OPERATORS: usize = 4;
/// How often a worker is lost.
const CUT_EVERY: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(30);

/// A model that comes and goes.
pub(super) fn churned(number: usize) -> String {
    format!("c{number}")
}

async fn client(controller: &Address) -> anyhow::Result<ControlClient<Channel>> {
    Ok(ControlClient::new(
        net::channel(controller, &Credentials::none()).await?,
    ))
}

/// What a gateway knows.
#[derive(Debug, Default)]
struct Table {
    /// Routes that may be used, with the epoch that mentioned them last.
    routes: HashMap<String, u64>,
    snapshot: Vec<Route>,
    settled: bool,
}

impl Table {
    /// Takes an update as a gateway does; how many routes of models that nobody unloads went by it.
    fn apply(&mut self, update: RouteUpdate) -> u64 {
        let epoch = update.epoch;
        let mut dropped = 0;
        match update.kind {
            Some(Kind::Snapshot(part)) => {
                self.snapshot.extend(part.routes);
                if part.last {
                    self.settled = part.settled;
                    for route in std::mem::take(&mut self.snapshot) {
                        self.put(&route, epoch);
                    }
                    if part.settled {
                        dropped += self.drop_unmentioned(epoch);
                    }
                }
            }
            Some(Kind::Delta(delta)) => {
                for route in &delta.upserted {
                    self.put(route, epoch);
                }
                for instance in &delta.removed_instances {
                    dropped += u64::from(self.routes.remove(instance).is_some());
                }
                if delta.settled {
                    self.settled = true;
                    dropped += self.drop_unmentioned(epoch);
                }
            }
            Some(Kind::Heartbeat(_)) | None => {}
        }
        dropped
    }

    /// Suspect routes are still used, if nothing else is left. Those of models that come and go are no loss.
    fn put(&mut self, route: &Route, epoch: u64) {
        let lasting = route.model_id.starts_with('m') && route.state() != RouteState::Draining;
        if let Some(instance) = route.instance.as_ref().filter(|_| lasting) {
            self.routes.insert(instance.instance_id.clone(), epoch);
        }
    }

    fn drop_unmentioned(&mut self, epoch: u64) -> u64 {
        let before = self.routes.len();
        self.routes.retain(|_, mentioned| *mentioned == epoch);
        (before - self.routes.len()) as u64
    }
}

/// A gateway that watches routes and comes back when the controller does.
pub(super) struct Watcher {
    task: JoinHandle<()>,
    known: watch::Receiver<(usize, bool)>,
    dropped: Arc<AtomicU64>,
}

impl Watcher {
    pub(super) fn start(controller: &Address, number: usize) -> Self {
        let (tell, known) = watch::channel((0, false));
        let dropped = Arc::new(AtomicU64::new(0));
        let (controller, count) = (controller.clone(), Arc::clone(&dropped));
        let task = tokio::spawn(async move {
            let mut table = Table::default();
            loop {
                let watching = watch_routes(&controller, number, |update| {
                    count.fetch_add(table.apply(update), Ordering::Relaxed);
                    tell.send_replace((table.routes.len(), table.settled));
                });
                // The controller has gone, and comes back.
                drop(watching.await);
                table.snapshot.clear();
                table.settled = false;
                tell.send_replace((table.routes.len(), false));
                sleep(Duration::from_millis(20)).await;
            }
        });
        Self { task, known, dropped }
    }

    /// Waits until it knows so many routes.
    pub(super) async fn has(&self, routes: usize, limit: Duration) -> anyhow::Result<()> {
        let mut known = self.known.clone();
        match timeout(limit, known.wait_for(|(count, _)| *count >= routes)).await {
            Ok(done) => done.map(drop).context("the watcher goes on"),
            Err(_) => bail!("a gateway knows {:?} of {routes} routes", *self.known.borrow()),
        }
    }

    /// Waits until the controller has said that it knows everything.
    pub(super) async fn settled(&self, limit: Duration) -> anyhow::Result<()> {
        let mut known = self.known.clone();
        let settled = timeout(limit, known.wait_for(|(_, settled)| *settled)).await?;
        settled.map(drop).context("the watcher goes on")
    }

    /// Routes that went although their models were loaded all the time.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn watch_routes(
    controller: &Address,
    number: usize,
    mut take: impl FnMut(RouteUpdate),
) -> anyhow::Result<()> {
    let request = WatchRoutesRequest {
        gateway_id: format!("watcher-{number}"),
    };
    let mut updates = client(controller)
        .await?
        .max_decoding_message_size(muster_proto::MAX_MESSAGE_BYTES)
        .watch_routes(request)
        .await?
        .into_inner();
    while let Some(update) = updates.message().await? {
        take(update);
    }
    Ok(())
}

/// How long it takes from the wish for a loaded model to its route; these workers' models, for so long.
pub(super) async fn ensure_loaded(
    controller: &Address,
    models: Range<usize>,
    span: Duration,
) -> anyhow::Result<Vec<Duration>> {
    let end = Instant::now() + span;
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (controller, models) = (controller.clone(), models.clone());
        callers.spawn(async move {
            let mut client = client(&controller).await?;
            let mut calls = interval(CALL_EVERY);
            calls.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut times = Vec::new();
            let mut turn = caller;
            while Instant::now() < end {
                calls.tick().await;
                // Prime to all numbers of workers that are measured.
                turn += 7919;
                let model = models.start + turn % models.len();
                times.push(ready(&mut client, &worker::model(model)).await?);
            }
            anyhow::Ok(times)
        });
    }
    let mut times = Vec::new();
    while let Some(caller) = callers.join_next().await {
        times.extend(caller??);
    }
    Ok(times)
}

async fn ready(client: &mut ControlClient<Channel>, model: &str) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let request = EnsureLoadedRequest {
        ensure_id: fresh(),
        gateway_id: "bench".to_owned(),
        model_id: model.to_owned(),
        ..EnsureLoadedRequest::default()
    };
    let wait = async {
        let mut events = client.ensure_loaded(request).await?.into_inner();
        while let Some(event) = events.message().await? {
            match event.kind {
                Some(Stage::Ready(_)) => return Ok(begun.elapsed()),
                Some(Stage::Failed(error)) => bail!("{model}: {error}"),
                Some(Stage::Queued(_) | Stage::Evicting(_) | Stage::Loading(_)) | None => {}
            }
        }
        bail!("the wish for {model} ended")
    };
    timeout(PATIENCE, wait).await?
}

/// Models are loaded and unloaded, and workers of the first half are lost and come back.
pub(super) struct Churn {
    stop: watch::Sender<bool>,
    tasks: JoinSet<anyhow::Result<()>>,
}

impl Churn {
    pub(super) fn start(controller: &Address, workers: &Workers) -> Self {
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for operator in 0..OPERATORS {
            tasks.spawn(operate(controller.clone(), operator, stopped.clone()));
        }
        tasks.spawn(cut(workers.cuts(), workers.len() / 2, stopped));
        Self { stop, tasks }
    }

    /// Ends it in order; fails if an operator's call failed.
    pub(super) async fn end(mut self) -> anyhow::Result<()> {
        self.stop.send_replace(true);
        while let Some(task) = self.tasks.join_next().await {
            task??;
        }
        Ok(())
    }
}

async fn operate(controller: Address, operator: usize, stopped: watch::Receiver<bool>) -> anyhow::Result<()> {
    let mut client = client(&controller).await?;
    let mut turn = operator;
    while !*stopped.borrow() {
        let model = churned(turn % CHURNED);
        turn += OPERATORS;
        // One whose worker is lost meanwhile fails; the next one goes on.
        drop(timeout(PATIENCE, load(&mut client, &model)).await?);
        let request = UnloadModelRequest {
            model,
            ..UnloadModelRequest::default()
        };
        drop(timeout(PATIENCE, client.unload_model(request)).await?);
    }
    Ok(())
}

async fn load(client: &mut ControlClient<Channel>, model: &str) -> anyhow::Result<()> {
    let request = LoadModelRequest {
        model: model.to_owned(),
        ..LoadModelRequest::default()
    };
    let mut events = client.load_model(request).await?.into_inner();
    while let Some(event) = events.message().await? {
        if let Some(Loaded::Loaded(_)) = event.kind {
            return Ok(());
        }
    }
    bail!("the load of {model} ended")
}

async fn cut(cuts: Vec<Arc<Notify>>, of: usize, mut stopped: watch::Receiver<bool>) -> anyhow::Result<()> {
    let mut turn = 0;
    loop {
        tokio::select! {
            _ = stopped.wait_for(|stopped| *stopped) => return Ok(()),
            () = sleep(CUT_EVERY) => {}
        }
        turn += 7919;
        if let Some(cut) = cuts.get(turn % of.max(1)) {
            cut.notify_one();
        }
    }
}
