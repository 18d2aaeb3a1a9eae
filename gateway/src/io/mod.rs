//! The I/O threads: each a `current_thread` runtime with its own listener on the shared port, and its own sessions to workers.
//!
//! ```text
//!            ┌ io-0: listener ─► connections ─► routes ─► sessions ═══► workers
//!  one port ─┤            (SO_REUSEPORT)
//!            └ io-1: listener ─► …
//! ```
//!
//! One runtime per core measured 5.4 against 6.8 to 8.1 µs per event for one work-stealing runtime (proto/README.md, Life of a streaming chat). Threads share only the
//! fleet's table. A unix socket cannot be shared this way: it has one thread.

mod connection;
mod listen;
mod stall;

use std::{collections::HashSet, io, sync::Arc, thread, time::Duration};

use muster_proto::{
    accept::Places,
    life::{Life, Part},
    net::Address,
    trust::{Credentials, Keys},
};
use tokio::sync::oneshot;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    dialects,
    dispatch::{Dispatcher, autoload::Autoload, media::MediaHosts},
    fleet::Fleet,
    session::Pool,
    stats::Stats,
    web::{self, App, budget::Budget, host::Hosts},
};

/// Longest wait for a gateway that is shutting down to release the address.
const TAKING_OVER: Duration = Duration::from_secs(1);
/// Time for clients to read the error that ends their streams.
const LAST_WORDS: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(10);

/// What all I/O threads need to know.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) max_body: usize,
    pub(crate) bodies: Arc<Budget>,
    /// Connection slots of all threads together.
    pub(crate) places: Places,
    /// How long running streams may go on after the shutdown began.
    pub(crate) drain: Duration,
    pub(crate) keys: Arc<Keys>,
    /// Credentials for workers.
    pub(crate) credentials: Credentials,
    /// Host names under which requests may come.
    pub(crate) hosts: Arc<Hosts>,
    /// The hosts from which engines may fetch images and audio.
    pub(crate) media: Arc<MediaHosts>,
    pub(crate) autoload: Autoload,
    /// Whether cached prompts serve only requests with the same API key.
    pub(crate) private_prefixes: bool,
    pub(crate) stats: Arc<Stats>,
}

/// The running I/O threads.
#[derive(Debug)]
pub(crate) struct Threads {
    address: Address,
    /// One receiver per thread; it fails when the thread ends.
    ends: Vec<oneshot::Receiver<()>>,
}

impl Threads {
    /// Starts `count` threads that listen on `address` until `stop` and then drain. Each is a part of the gateway's life.
    ///
    /// # Errors
    /// The address is in use or not permitted, or a thread cannot be started.
    pub(crate) async fn start(
        address: &Address,
        count: usize,
        fleet: &Arc<Fleet>,
        settings: &Settings,
        (stop, life): (&CancellationToken, &Life),
    ) -> io::Result<Self> {
        let (listeners, address) = taking_over(address, count).await?;
        let mut ends = Vec::new();
        for (index, listener) in listeners.into_iter().enumerate() {
            let (ended, end) = oneshot::channel::<()>();
            let (listening, listens) = oneshot::channel();
            let thread = Thread {
                fleet: Arc::clone(fleet),
                settings: settings.clone(),
                stop: stop.clone(),
                sessions: life.part(format!("sessions-{index}")),
            };
            let part = life.part(format!("io-{index}"));
            thread::Builder::new()
                .name(format!("io-{index}"))
                .spawn(move || {
                    // Dropped when the thread ends for whatever reason; that is the signal.
                    let _ended = ended;
                    thread.run(listener, listening, part);
                })?;
            listens
                .await
                .map_err(|_| io::Error::other("an I/O thread ended at its start"))??;
            ends.push(end);
        }
        Ok(Self { address, ends })
    }

    /// The address that was bound.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Waits until all threads have drained.
    pub(crate) async fn ended(self) {
        for end in self.ends {
            // Nothing is ever sent: the sender is dropped when the thread ends.
            drop(end.await);
        }
    }
}

/// Binds the address. A gateway that is shutting down may hold it for a moment more, to answer requests that reached it.
async fn taking_over(address: &Address, count: usize) -> io::Result<(Vec<listen::Unbound>, Address)> {
    let begin = tokio::time::Instant::now();
    loop {
        match listen::listeners(address, count) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && begin.elapsed() < TAKING_OVER => {
                tokio::time::sleep(RETRY).await;
            }
            bound => return bound,
        }
    }
}

struct Thread {
    fleet: Arc<Fleet>,
    settings: Settings,
    stop: CancellationToken,
    /// The task that keeps sessions open.
    sessions: Part,
}

impl Thread {
    fn run(self, listener: listen::Unbound, listening: oneshot::Sender<io::Result<()>>, part: Part) {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return drop(listening.send(Err(error))),
        };
        runtime.block_on(part.run(async {
            let listener = match listener.bind(self.settings.places.clone()).await {
                Ok(listener) => listener,
                Err(error) => return drop(listening.send(Err(error))),
            };
            drop(listening.send(Ok(())));
            self.serve(listener).await;
        }));
    }

    async fn serve(self, listener: muster_proto::net::Listener) {
        let pool = Arc::new(Pool::new(self.settings.credentials.clone()));
        // This task ends with the runtime.
        tokio::spawn(
            self.sessions
                .run(warm(Arc::clone(&self.fleet), Arc::clone(&pool))),
        );
        let app = App {
            dispatcher: Dispatcher {
                fleet: self.fleet,
                pool: Arc::clone(&pool),
                autoload: self.settings.autoload,
                media: self.settings.media,
                private_prefixes: self.settings.private_prefixes,
            },
            max_body: self.settings.max_body,
            bodies: self.settings.bodies,
            keys: self.settings.keys,
            hosts: self.settings.hosts,
            lists: web::lists::Lists::default(),
            stats: self.settings.stats,
            stopping: self.stop.clone(),
        };
        let surface = web::surface(Arc::new(app), dialects::routes(), dialects::form_at);
        let connections = TaskTracker::new();
        let shared = connection::Shared {
            surface,
            places: self.settings.places,
            stop: self.stop,
        };
        connection::accept(listener, &connections, &shared).await;
        connections.close();
        if tokio::time::timeout(self.settings.drain, connections.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                connections = connections.len(),
                "streams did not end in time; cutting them"
            );
            // Clients get an error instead of a cut stream.
            pool.close();
            drop(tokio::time::timeout(LAST_WORDS, connections.wait()).await);
        }
    }
}

/// Keeps a session open to every worker in the table, so that no request has to wait for a connection.
async fn warm(fleet: Arc<Fleet>, pool: Arc<Pool>) {
    let mut changes = fleet.changes();
    loop {
        pool.prune();
        let mut known = HashSet::new();
        for target in fleet.table().all_targets() {
            pool.session(target.at());
            known.insert(target.at().clone());
        }
        pool.keep_clients(&known);
        if changes.changed().await.is_err() {
            return;
        }
    }
}
