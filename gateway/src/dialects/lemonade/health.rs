//! Lemonade's health (seed 000, `GET /api/v1/health`, and what today's Lemonade adds).
//!
//! What is loaded is read from the route table, and told without the controller too. What only the controller knows is null then.

use std::{collections::BTreeMap, sync::Arc};

use axum::{Extension, extract::State, response::Response};
use http::StatusCode;
use muster_core::ModelType;
use muster_proto::v1::{self, InstanceStatus, Model, ModelSummary};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    fleet::{
        Contact,
        table::{Table, is_loaded},
    },
    stats::Stats,
    web::{
        App,
        access::{Access, Caller},
        reply,
        route::Route,
    },
};

/// The loaded models, and whether the controller is reachable.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeHealth)]
struct Health<'a> {
    /// The word `ok`.
    status: &'static str,
    /// Version of Muster.
    version: &'static str,
    /// Whether the gateway hears from the controller. Loaded models are served without it.
    controller: Contact,
    /// What the controller cannot do at the moment, in sentences; for example state that it could not write.
    troubles: Vec<String>,
    /// Checkpoint of the model used last; null if none is loaded.
    checkpoint_loaded: Option<&'a str>,
    /// Id of the model used last; null if none is loaded.
    model_loaded: Option<&'a str>,
    /// All loaded models.
    all_models_loaded: Vec<Loaded<'a>>,
    /// Number of loaded models that are pinned, by type; null while the controller is away. As in `max_models`, audio has three names.
    pinned_models: Option<BTreeMap<&'static str, i32>>,
    /// Number of models that may be loaded at once on a host, by type; -1 = no limit, null while the controller is away. `transcription` and
    /// `tts` are Lemonade's names for parts of `audio`.
    max_models: Option<BTreeMap<&'static str, i32>>,
}

/// A loaded model.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeLoaded)]
struct Loaded<'a> {
    /// Id in the catalogue.
    model_name: &'a str,
    /// `ORG/NAME:VARIANT` or `ORG/NAME` on the hub, or an absolute path.
    checkpoint: &'a str,
    /// Unix time in seconds of its last use; null before its first request.
    last_use: Option<f64>,
    /// `llm`, `embedding`, `reranking`, `audio` or `image`.
    r#type: &'static str,
    /// Kinds of its devices, separated by spaces: `cpu`, `gpu`, `npu`.
    device: String,
    /// Address of its engine, for people: `unix:PATH` or an HTTP address.
    backend_url: Option<&'a str>,
    /// Lemonade's name for the software that hosts it; empty if it is none of Lemonade's.
    recipe: &'a str,
    /// Id of the engine's first process on its host; null while the controller is away. Of several replicas the first.
    pid: Option<u32>,
    /// The command line that the engine was started with, its program first, without secrets; null unless the caller may administer, and
    /// while the controller is away. Of several replicas the first.
    launch_command: Option<Vec<String>>,
    /// Whether the model is never evicted; null while the controller is away.
    pinned: Option<bool>,
    /// Whether requests run or wait there; without the controller, this gateway's own.
    is_busy: bool,
    /// Whether an answer is being streamed to a client of this gateway.
    is_streaming: bool,
}

#[allow(
    clippy::cast_precision_loss,
    reason = "seconds with fractions, as the seed has them"
)]
fn last_use(summary: &ModelSummary) -> Option<f64> {
    let used = summary.last_used.as_ref()?;
    Some(used.seconds as f64 + f64::from(used.nanos) / 1e9)
}

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/v1/health", Access::User, health)
            .summary("What is loaded, always 200")
            .answers::<Health>("As the fleet stands now."),
    ]
}

/// Answers with status 200 in all cases (gateway/README.md, Lemonade).
async fn health(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Response {
    let known = Known::ask(&app).await;
    let table = app.dispatcher.fleet.table();
    let loaded: Vec<_> = table.models().filter(|summary| is_loaded(summary)).collect();
    let age = |one: &&&Arc<ModelSummary>, two: &&&Arc<ModelSummary>| {
        last_use(one)
            .unwrap_or_default()
            .total_cmp(&last_use(two).unwrap_or_default())
    };
    let latest = loaded.iter().max_by(age);
    let sight = Sight {
        table: &table,
        known: known.as_ref(),
        stats: &app.stats,
        commands: caller.administers,
    };
    let rows: Vec<Loaded> = loaded.iter().map(|summary| sight.row(summary)).collect();
    let health = Health {
        status: "ok",
        version: muster_proto::VERSION,
        controller: app.dispatcher.fleet.contact(),
        troubles: app.dispatcher.fleet.troubles().to_vec(),
        checkpoint_loaded: latest.map(|summary| summary.checkpoint.as_str()),
        model_loaded: latest.map(|summary| summary.id.as_str()),
        pinned_models: known.as_ref().map(|_| pinned(&rows)),
        max_models: known.as_ref().map(|known| limits_by_type(&known.limits)),
        all_models_loaded: rows,
    };
    reply::value(StatusCode::OK, &health)
}

/// What only the controller knows.
struct Known {
    models: BTreeMap<String, Model>,
    limits: Vec<i32>,
}

impl Known {
    /// Asks the controller; none if it is away.
    async fn ask(app: &App) -> Option<Self> {
        let fleet = &app.dispatcher.fleet;
        let both = async { tokio::try_join!(fleet.control().not_unloaded(), fleet.control().limits()) };
        let (models, limits) = fleet.soon(both).await?;
        Some(Self {
            models: models
                .into_iter()
                .map(|model| (model.id.clone(), model))
                .collect(),
            limits,
        })
    }
}

/// A figure for each type, under our names and Lemonade's.
fn by_type(figure: impl Fn(ModelType) -> i32) -> BTreeMap<&'static str, i32> {
    let ours = ModelType::ALL.map(|kind| (kind.name(), figure(kind)));
    let theirs = ["transcription", "tts"].map(|name| (name, figure(ModelType::Audio)));
    ours.into_iter().chain(theirs).collect()
}

/// The controller's limits by type; -1 where it names none.
pub(super) fn limits_by_type(limits: &[i32]) -> BTreeMap<&'static str, i32> {
    by_type(|kind| {
        let place = ModelType::ALL.iter().position(|other| *other == kind);
        place.and_then(|place| limits.get(place)).copied().unwrap_or(-1)
    })
}

fn pinned(rows: &[Loaded<'_>]) -> BTreeMap<&'static str, i32> {
    by_type(|kind| {
        let pinned = rows
            .iter()
            .filter(|row| row.r#type == kind.name() && row.pinned == Some(true));
        i32::try_from(pinned.count()).unwrap_or(i32::MAX)
    })
}

/// Reports about a model's engines that run.
fn engines(model: &Model) -> impl Iterator<Item = &InstanceStatus> {
    let statuses = model
        .instances
        .iter()
        .filter_map(|instance| instance.status.as_ref());
    statuses.filter(|status| !status.engine.is_empty())
}

fn command(model: &Model) -> Option<Vec<String>> {
    let mut commands = engines(model).map(|status| &status.launch_command);
    // An older worker does not say.
    commands.find(|command| !command.is_empty()).cloned()
}

/// What a caller is shown of loaded models.
struct Sight<'a> {
    table: &'a Table,
    known: Option<&'a Known>,
    stats: &'a Stats,
    /// Command lines too.
    commands: bool,
}

impl Sight<'_> {
    fn row<'a>(&self, summary: &'a ModelSummary) -> Loaded<'a> {
        let model = self.known.and_then(|known| known.models.get(&summary.id));
        let targets = self.table.targets(&summary.id);
        let own = targets.iter().any(|target| target.gauge.inflight() > 0);
        let busy = |status: &InstanceStatus| status.running > 0 || status.queued > 0;
        let kind = v1::ModelType::try_from(summary.r#type).unwrap_or_default();
        Loaded {
            model_name: &summary.id,
            checkpoint: &summary.checkpoint,
            last_use: last_use(summary),
            r#type: ModelType::try_from(kind).unwrap_or(ModelType::Llm).name(),
            device: summary.device_kinds.join(" "),
            backend_url: summary.backend_urls.first().map(String::as_str),
            recipe: &summary.recipe,
            pid: model.and_then(pid),
            launch_command: model.filter(|_| self.commands).and_then(command),
            pinned: model.map(|model| model.pinned),
            is_busy: own || model.is_some_and(|model| engines(model).any(busy)),
            is_streaming: self.stats.streams(&summary.id),
        }
    }
}

fn pid(model: &Model) -> Option<u32> {
    let mut roots = engines(model).filter_map(|status| status.engine.first());
    roots.next().map(|root| root.pid)
}
