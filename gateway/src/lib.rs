//! The gateway: HTTP dialects in front of Muster's workers.
//!
//! ```text
//!  client ─► io ─► web ─► dialects ─► dispatch ─► session ═══► worker
//!                 ▲      (translate)      │ table, wishes
//!                 └─ body ◄─ render ◄─ answers    fleet ◄══► controller
//! ```
//!
//! * `io` accepts connections and serves them; `web` checks who may ask and runs a request of any dialect.
//! * Each of the `dialects` translates JSON into one validated request and renders typed events as its answers; `translate` and `render`
//!   have what dialects share. Both are pure.
//! * `dispatch` finds an instance; `session` is the stream to one worker; `fleet` follows the controller.
//!
//! Architecture invariant: a request for a loaded model does not involve the controller.
#![forbid(unsafe_code)]

mod answer_events;
mod body;
mod dialects;
mod dispatch;
mod fleet;
mod gauges;
mod io;
#[doc(hidden)]
pub mod measure;
mod metrics;
mod openapi;
mod options;
mod render;
mod session;
mod stats;
mod translate;
mod web;

use std::time::Duration;

use muster_proto::{accept::Places, life::Life, process, trust::Credentials};
use tokio_util::sync::CancellationToken;

pub use self::options::Options;
use self::{
    fleet::Fleet,
    io::{Settings, Threads},
    web::budget::Budget,
};

/// How long the gateway waits for the controller's first routes before it is ready anyway.
const FIRST_ROUTES: Duration = Duration::from_secs(1);

/// Serves until SIGTERM or SIGINT, then drains. Runs on the control thread's `current_thread` runtime.
///
/// # Errors
/// The address cannot be bound, or would need an API key; a key file cannot be read; signals cannot be handled; or a part of the gateway
/// ended by itself.
pub async fn run(options: Options) -> std::io::Result<()> {
    let stop = CancellationToken::new();
    let credentials = Credentials::from(options.token.read()?.as_ref());
    let fleet = Fleet::new(&options.controller, &credentials, options.load_wait());
    let life = Life::default();
    // This task ends with the runtime. If it ends earlier, the gateway stops.
    tokio::spawn(life.part("routes").run(std::sync::Arc::clone(&fleet).follow()));
    let keys = options.keys()?;
    let settings = Settings {
        private_prefixes: options.private_prefixes(&keys),
        max_body: options.max_body(),
        bodies: Budget::new(options.max_bodies()),
        places: Places::new(options.max_connections),
        drain: options.drain(),
        hosts: std::sync::Arc::new(options.hosts()?),
        media: std::sync::Arc::new(options.media()),
        keys: std::sync::Arc::new(keys),
        credentials,
        autoload: options.autoload(),
        stats: std::sync::Arc::default(),
    };
    let threads = Threads::start(
        &options.listen,
        options.threads(),
        &fleet,
        &settings,
        (&stop, &life),
    )
    .await?;
    // Ready even if the controller is away: its routes come later.
    drop(tokio::time::timeout(FIRST_ROUTES, fleet.tried()).await);
    tracing::info!(address = %threads.address(), controller = %options.controller, "listening");
    tokio::spawn(process::show_life(life.clone()));
    process::notify_ready(threads.address());
    tokio::select! {
        signal = process::shutdown_signal() => signal?,
        part = life.ended() => {
            let error = format!("a part of the gateway ended by itself: {part}");
            return Err(std::io::Error::other(error));
        }
    }
    tracing::info!("shutting down");
    life.leaving();
    process::notify_stopping();
    stop.cancel();
    threads.ended().await;
    Ok(())
}
