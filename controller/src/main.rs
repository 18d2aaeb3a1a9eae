//! `muster-controller`: see the library.

use anyhow::Context as _;
use clap::Parser as _;
use muster_controller::{
    Controller,
    config::{Config, Options},
};
use muster_proto::{net::Listener, process};

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    process::init_logging(options.log_level);
    // One task owns the fleet and the rest only moves messages: one thread is enough, and switches least.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(run(options))
}

async fn run(options: Options) -> anyhow::Result<()> {
    let limits = options.limits().map_err(anyhow::Error::msg)?;
    let defaults = options.defaults().map_err(anyhow::Error::msg)?;
    let config = Config::load(&options.config, limits, &defaults)?;
    let listener = Listener::bind(&options.listen)
        .await
        .with_context(|| format!("cannot listen on {}", options.listen))?;
    let mut controller = Controller::start(config, &options.state_dir, listener).await?;
    // Ends with the runtime.
    tokio::spawn(process::show_life(controller.life().clone()));
    process::notify_ready(controller.address());
    tokio::select! {
        signal = process::shutdown_signal() => signal?,
        ended = controller.failed() => {
            process::notify_stopping();
            ended?;
            anyhow::bail!("a part of the controller ended by itself");
        }
    }
    tracing::info!("shutting down");
    process::notify_stopping();
    Ok(controller.shutdown().await?)
}
