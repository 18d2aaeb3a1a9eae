//! What the gateway knows of the fleet: the route table that the controller streams, and wishes for models that are not loaded.
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
use muster_core::GatewayId;
use muster_proto::{
    MAX_MESSAGE_BYTES,
    net::{self, Address, Channel},
    trust::Credentials,
    v1::control_client::ControlClient,
};
use tokio::sync::watch as signal;

use self::{control::Control, ensure::Wishes, models::Models, table::Table};

/// The table follows the controller's answers by less than this.
const TABLE_LAG: Duration = Duration::from_secs(1);

/// The highest epoch of any controller heard so far; lower ones are refused (PROTOCOL.md 5).
#[derive(Debug, Default)]
pub(crate) struct Epochs(AtomicU64);

impl Epochs {
    /// Whether `epoch` may speak; remembers it if so.
    fn admit(&self, epoch: u64) -> bool {
        self.0.fetch_max(epoch, Ordering::AcqRel) <= epoch
    }
}

/// Whether the controller speaks. Loaded models are served all the same (proto/README.md, idea 1); nothing new is loaded without it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ControllerContact)]
pub(crate) enum Contact {
    /// It has not spoken yet.
    #[default]
    Connecting,
    /// It speaks.
    Ok,
    /// It cannot be reached, or it refuses.
    Unreachable,
    /// It can be reached and says nothing: it hangs, or is stopped.
    NotAnswering,
}

/// A client of the controller.
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

/// The fleet, shared by all threads.
#[derive(Debug)]
pub(crate) struct Fleet {
    table: ArcSwap<Table>,
    /// Whether the controller speaks.
    contact: ArcSwap<Contact>,
    /// What the controller said it cannot do.
    troubles: ArcSwap<Vec<String>>,
    /// Counts changes of the table; 0 until the controller was first tried.
    changes: signal::Sender<u64>,
    wishes: Arc<Wishes>,
    controller: Controller,
}

impl Fleet {
    /// Connects to the controller when first needed. Must be called on the control thread's runtime, which runs all its tasks.
    /// `load_wait`: how long a request waits for a model that is not loaded; none = as long as it takes.
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

    /// The table as it is now.
    pub(crate) fn table(&self) -> Guard<Arc<Table>> {
        self.table.load()
    }

    /// Whether the controller speaks, as of now.
    pub(crate) fn contact(&self) -> Contact {
        **self.contact.load()
    }

    /// What the controller last said it cannot do, in words.
    pub(crate) fn troubles(&self) -> Arc<Vec<String>> {
        self.troubles.load_full()
    }

    /// Wishes for models that are not loaded.
    pub(crate) fn wishes(&self) -> &Arc<Wishes> {
        &self.wishes
    }

    /// The controller, for what operators ask and order.
    pub(crate) fn control(&self) -> Control {
        Control::new(self.controller.channel.clone())
    }

    /// The controller, for what changes the catalogue and files.
    pub(crate) fn models(&self) -> Models {
        Models::new(self.controller.channel.clone())
    }

    /// Wakes at each change of the table.
    pub(crate) fn changes(&self) -> signal::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Waits until a first snapshot has come or the controller turned out to be away.
    pub(crate) async fn tried(&self) {
        let mut changes = self.changes();
        // An error means that the fleet is gone, and with it the wish to know.
        drop(changes.wait_for(|count| *count > 0).await);
    }

    /// Waits until the table has a model that the controller just called loaded: who ordered the load finds it so. It may be gone again already,
    /// so the wait has an end.
    pub(crate) async fn shows_loaded(&self, model: &str) {
        let shown = |_: &u64| {
            self.table()
                .model(model)
                .is_some_and(|summary| table::is_loaded(summary))
        };
        drop(tokio::time::timeout(TABLE_LAG, self.changes().wait_for(shown)).await);
    }

    fn publish(&self, table: Option<Table>) {
        if let Some(table) = table {
            self.table.store(Arc::new(table));
        }
        self.changes.send_modify(|count| *count += 1);
    }
}
