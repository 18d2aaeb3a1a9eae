//! The gateway: HTTP dialects in front of Muster's workers.
//!
//! ```text
//!  client ─► io ─► routes ─► dialects ─► dispatch ─► session ═══► worker
//!                    ▲      (translate)      │ table, wishes
//!                    └─ body ◄─ render ◄─ answers    fleet ◄══► controller
//! ```
//!
//! * [`io`](self) threads accept and serve; `routes` says who may ask and runs one request, whatever its dialect.
//! * Each of the `dialects` translates its JSON into one validated request and renders typed events as its answers; what they share is in
//!   `translate` and `render`. Both are pure.
//! * `dispatch` finds an instance; `session` is the one stream to each worker; `fleet` follows the controller.
//!
//! Architecture invariant: the controller is not on the way of a request whose model is loaded.

mod answers;
mod body;
mod dialects;
mod dispatch;
mod fleet;
mod io;
#[doc(hidden)]
pub mod measure;
mod metrics;
mod openapi;
mod options;
mod render;
mod routes;
mod session;
mod stats;
mod translate;

use std::time::Duration;

use muster_proto::process;
use tokio_util::sync::CancellationToken;

pub use self::options::Options;
use self::{
    fleet::Fleet,
    io::{Settings, Threads},
    routes::budget::Budget,
};

/// Longest wait for the controller before the gateway calls itself ready.
const FIRST_ROUTES: Duration = Duration::from_secs(1);

/// Serves until SIGTERM or SIGINT, then drains. Runs on the control thread's `current_thread` runtime.
///
/// # Errors
/// The address cannot be bound or must not be without a key, a key file cannot be read, or signals cannot be handled.
pub async fn run(options: Options) -> std::io::Result<()> {
    let stop = CancellationToken::new();
    let fleet = Fleet::new(&options.controller, options.load_wait());
    // Ends with the runtime, that is, with the process.
    tokio::spawn(std::sync::Arc::clone(&fleet).follow());
    let settings = Settings {
        max_body: options.max_body(),
        bodies: Budget::new(options.max_bodies()),
        drain: options.drain(),
        keys: std::sync::Arc::new(options.keys()?),
        autoload: options.autoload(),
        stats: std::sync::Arc::default(),
    };
    let threads = Threads::start(&options.listen, options.threads(), &fleet, &settings, &stop).await?;
    // Ready all the same if the controller is away: its routes come when it does.
    drop(tokio::time::timeout(FIRST_ROUTES, fleet.tried()).await);
    tracing::info!(address = %threads.address(), controller = %options.controller, "listening");
    process::notify_ready(threads.address());
    process::shutdown_signal().await?;
    tracing::info!("shutting down");
    process::notify_stopping();
    stop.cancel();
    threads.ended().await;
    Ok(())
}
