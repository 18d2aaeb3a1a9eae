//! Generates the `muster.v1` types with protox, so that no `protoc` is needed.

use std::{env, fs, io::Error, path::PathBuf};

use prost::Message as _;

const FILES: [&str; 8] = [
    "common",
    "inference",
    "engine",
    "files",
    "fleet",
    "host",
    "control",
    "models",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=muster");
    let files = FILES.map(|name| format!("muster/v1/{name}.proto"));
    let descriptors = protox::compile(files, ["."])?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or_else(|| Error::other("OUT_DIR is not set"))?);
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    let mut config = tonic_prost_build::Config::new();
    config.bytes(["."]);
    tonic_prost_build::configure()
        .build_client(true)
        .build_server(true)
        .compile_fds_with_config(descriptors, config)?;
    Ok(())
}
