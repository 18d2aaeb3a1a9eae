//! What the gateway knows about the fleet: the route table that the controller streams, and wishes for models that are not loaded.
//!
//! ```text
//!  controller ══ WatchRoutes ══► watch ─► tracker ─► table (ArcSwap) ◄── read by every request, no lock
//!             ◄═ EnsureLoaded ═► ensure: one wish per cold model, shared by all its waiters
//! ```
//!
//! All clients of the controller run on the control thread; I/O threads only read the table and await wishes.
//! With the controller away the table stays as it is (proto/README.md, idea 1).
//!
//! Architecture invariant: this module knows no HTTP and talks to no worker.

pub(crate) mod control;
pub(crate) mod ensure;
pub(crate) mod gauge;
pub(crate) mod models;
pub(crate) mod route;
pub(crate) mod table;
mod watch;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::{ArcSwap, Guard};
use muster_core::{Error, GatewayId};
use muster_proto::{
    MAX_MESSAGE_BYTES,
    net::{self, Address, Channel},
    trust::Credentials,
    v1::{ReloadResponse, control_client::ControlClient},
};
use tokio::sync::watch as signal;

use self::{control::Control, ensure::Wishes, models::Models, table::Table};

/// The table lags behind the controller's answers by less than this.
const TABLE_LAG: Duration = Duration::from_secs(1);
/// Longest wait for the header of a file that was uploaded to be read.
const FILE_LOOK: Duration = Duration::from_secs(10);
/// Longest wait for what an answer can do without. A controller that hangs is known as such after a while, and then not asked.
const SOON: Duration = Duration::from_secs(1);

/// The highest controller epoch seen so far; lower ones are refused (PROTOCOL.md 5).
#[derive(Debug, Default)]
pub(crate) struct Epochs(AtomicU64);

impl Epochs {
    /// Whether `epoch` is accepted; if so, it is remembered.
    fn admit(&self, epoch: u64) -> bool {
        self.0.fetch_max(epoch, Ordering::AcqRel) <= epoch
    }
}

/// Whether the gateway hears from the controller. Loaded models are served without it (proto/README.md, idea 1), but none can be loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ControllerContact)]
pub(crate) enum Contact {
    /// It has not answered yet.
    #[default]
    Connecting,
    /// It answers.
    Ok,
    /// It cannot be reached, or it refuses the gateway.
    Unreachable,
    /// It can be reached but does not answer: it hangs, or is stopped.
    NotAnswering,
}

/// A connection to the controller.
#[derive(Clone, Debug)]
struct Controller {
    channel: Channel,
    gateway_id: GatewayId,
    epochs: Arc<Epochs>,
}

impl Controller {
    fn client(&self) -> ControlClient<Channel> {
        ControlClient::new(self.channel.clone())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }
}

/// What the gateway knows about the fleet, shared by all threads.
#[derive(Debug)]
pub(crate) struct Fleet {
    table: ArcSwap<Table>,
    /// Whether the gateway hears from the controller.
    contact: ArcSwap<Contact>,
    /// What the controller cannot do, as it reported last.
    troubles: ArcSwap<Vec<String>>,
    /// Number of changes of the table; 0 until the first attempt to reach the controller.
    changes: signal::Sender<u64>,
    wishes: Arc<Wishes>,
    controller: Controller,
}

impl Fleet {
    /// Makes a fleet that connects to the controller when first needed. Must be called on the control thread's runtime, which runs all its
    /// tasks. `load_wait`: how long a request waits for a model that is not loaded; none = without limit.
    pub(crate) fn new(
        controller: &Address,
        credentials: &Credentials,
        load_wait: Option<Duration>,
    ) -> Arc<Self> {
        let controller = Controller {
            channel: net::channel_lazy(controller, credentials),
            gateway_id: GatewayId::fresh(),
            epochs: Arc::default(),
        };
        Arc::new(Self {
            table: ArcSwap::default(),
            contact: ArcSwap::default(),
            troubles: ArcSwap::default(),
            changes: signal::Sender::new(0),
            wishes: Wishes::new(controller.clone(), load_wait, tokio::runtime::Handle::current()),
            controller,
        })
    }

    /// Follows the controller's routes until the runtime ends.
    pub(crate) async fn follow(self: Arc<Self>) {
        watch::follow(&self).await;
    }

    /// The current table.
    pub(crate) fn table(&self) -> Guard<Arc<Table>> {
        self.table.load()
    }

    /// Whether the gateway hears from the controller now.
    pub(crate) fn contact(&self) -> Contact {
        **self.contact.load()
    }

    /// What the controller cannot do, in sentences, as it reported last.
    pub(crate) fn troubles(&self) -> Arc<Vec<String>> {
        self.troubles.load_full()
    }

    /// Wishes for models that are not loaded.
    pub(crate) fn wishes(&self) -> &Arc<Wishes> {
        &self.wishes
    }

    /// A client of the controller for operators' calls.
    pub(crate) fn control(&self) -> Control {
        Control::new(self.controller.channel.clone())
    }

    /// What a call of the controller's answers, for answers that do without it: none if it is away or hangs.
    pub(crate) async fn soon<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Option<T> {
        if self.contact() != Contact::Ok {
            return None;
        }
        tokio::time::timeout(SOON, call).await.ok()?.ok()
    }

    /// The limits by type, if the controller tells them soon.
    pub(crate) async fn limits_soon(&self) -> Option<Vec<i32>> {
        self.soon(self.control().limits()).await
    }

    /// A client of the controller for changes of the catalogue and files.
    pub(crate) fn models(&self) -> Models {
        Models::new(self.controller.channel.clone())
    }

    /// A receiver that is notified of each change of the table.
    pub(crate) fn changes(&self) -> signal::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Waits until the first snapshot has come or the first attempt has failed.
    pub(crate) async fn tried(&self) {
        let mut changes = self.changes();
        // An error means that the fleet is gone; nobody needs to know any more.
        drop(changes.wait_for(|count| *count > 0).await);
    }

    /// Waits until the table shows a model as loaded that the controller has just called loaded, so that whoever ordered the load finds it
    /// loaded. The model may be unloaded again already, so the wait is limited.
    pub(crate) async fn shows_loaded(&self, model: &str) {
        let is_loaded = |table: &Table| {
            table
                .model(model)
                .is_some_and(|summary| table::is_loaded(summary))
        };
        self.shows(is_loaded).await;
    }

    /// Waits until the table shows what a reload of the configuration has added and taken away. The wait is limited as above.
    pub(crate) async fn shows_reloaded(&self, reloaded: &ReloadResponse) {
        let ReloadResponse { added, removed, .. } = reloaded;
        let is_shown = |table: &Table| {
            added.iter().all(|id| table.has_id(id)) && !removed.iter().any(|id| table.has_id(id))
        };
        self.shows(is_shown).await;
    }

    /// Waits until the table shows what the file of a model says that has just been made. A file that is no model says nothing, so the wait is
    /// limited.
    pub(crate) async fn shows_file(&self, model: &str) {
        let is_read = |table: &Table| table.model(model).is_some_and(|summary| summary.file.is_some());
        self.shows_within(FILE_LOOK, is_read).await;
    }

    /// Waits until the table is as wanted, or ought to be.
    async fn shows(&self, wanted: impl Fn(&Table) -> bool) {
        self.shows_within(TABLE_LAG, wanted).await;
    }

    async fn shows_within(&self, limit: Duration, wanted: impl Fn(&Table) -> bool) {
        let shown = |_: &u64| wanted(&self.table());
        drop(tokio::time::timeout(limit, self.changes().wait_for(shown)).await);
    }

    fn publish(&self, table: Option<Table>) {
        if let Some(table) = table {
            self.table.store(Arc::new(table));
        }
        self.changes.send_modify(|count| *count += 1);
    }
}
