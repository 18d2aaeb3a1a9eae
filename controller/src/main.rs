//! The binary `muster-controller`; the library does the work.
#![forbid(unsafe_code)]

use std::pin::pin;

use clap::{CommandFactory as _, FromArgMatches as _};
use muster_controller::{
    Controller, Doors,
    config::{Config, Options},
};
use muster_proto::{
    private::PrivateDir,
    process,
    trust::{Door, KeyOptions, place},
};

use tokio::signal::unix::{SignalKind, signal};

fn main() -> anyhow::Result<()> {
    let matches = Options::command().get_matches();
    let options = Options::from_arg_matches(&matches)?;
    process::init_logging(options.log_level);
    process::raise_file_limit();
    KeyOptions::warn_of_command_line(&matches);
    // One task owns the fleet and the others only move messages, so one thread is enough and causes the fewest switches.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let ended = runtime.block_on(run(options));
    // Do not wait for a look at a disk that hangs.
    runtime.shutdown_background();
    ended
}

async fn run(options: Options) -> anyhow::Result<()> {
    let limits = options.limits().map_err(anyhow::Error::msg)?;
    let defaults = options.defaults().map_err(anyhow::Error::msg)?;
    let config = Config::load(&options.config, limits, &defaults)?;
    let doors = doors(&options).await?;
    let mut controller = Controller::start(config, &options.state_dir, doors).await?;
    // This task ends with the runtime.
    tokio::spawn(process::show_life(controller.life().clone()));
    process::notify_ready(controller.operators().unwrap_or_else(|| controller.address()));
    let mut reload = signal(SignalKind::hangup())?;
    let mut shutdown = pin!(process::shutdown_signal());
    loop {
        tokio::select! {
            signal = &mut shutdown => break signal?,
            _ = reload.recv() => controller.reload().await,
            ended = controller.failed() => {
                process::notify_stopping();
                ended?;
                anyhow::bail!("a part of the controller ended by itself");
            }
        }
    }
    tracing::info!("shutting down");
    process::notify_stopping();
    Ok(controller.shutdown().await?)
}

async fn doors(options: &Options) -> anyhow::Result<Doors> {
    let keys = options.keys.read()?;
    let token = options.token.read()?;
    if options.listen == place::controller() {
        PrivateDir::open(&place::runtime_dir(), place::CONTROLLER_SOCKET)?;
    }
    let parts = Door::parts(&options.listen, token.as_ref(), &keys).await?;
    let operators = match options.operators() {
        Some(address) => Some(Door::operators(&address, &keys).await?),
        None => None,
    };
    Ok(Doors { parts, operators })
}
