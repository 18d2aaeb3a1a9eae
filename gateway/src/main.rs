//! `muster-gateway`: see the library.

use clap::Parser as _;
use muster_gateway::Options;

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    muster_proto::process::init_logging(options.log_level);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(muster_gateway::run(options))?;
    Ok(())
}
