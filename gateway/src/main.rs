//! The binary `muster-gateway`; the library does the work.
#![forbid(unsafe_code)]

use clap::{CommandFactory as _, FromArgMatches as _};
use muster_gateway::Options;
use muster_proto::trust::KeyOptions;

fn main() -> anyhow::Result<()> {
    let matches = Options::command().get_matches();
    let options = Options::from_arg_matches(&matches)?;
    muster_proto::process::init_logging(options.log_level);
    muster_proto::process::raise_file_limit();
    KeyOptions::warn_of_command_line(&matches);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(muster_gateway::run(options))?;
    Ok(())
}
