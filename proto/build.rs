//! Generates the `muster.v1` types with protox, so that no `protoc` is needed, and the tables of parameters from the options of their fields.

mod tables;

use std::{env, fs, io::Error, path::PathBuf};

use prost::Message as _;

const FILES: [&str; 9] = [
    "options",
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
    let mut compiler = protox::Compiler::new(["."])?;
    compiler
        .include_source_info(true)
        .include_imports(true)
        .open_files(files)?;
    let descriptors = compiler.file_descriptor_set();
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or_else(|| Error::other("OUT_DIR is not set"))?);
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    let pool = compiler.descriptor_pool();
    fs::write(out.join("parameters.rs"), tables::of_parameters(&pool)?)?;
    fs::write(out.join("settings.rs"), tables::of_settings(&pool)?)?;
    let mut config = tonic_prost_build::Config::new();
    config.bytes(["."]);
    // Large, and only there if it was asked for: events are moved about by the million.
    config.boxed(".muster.v1.ChoiceFinished.sampling");
    tonic_prost_build::configure()
        .build_client(true)
        .build_server(true)
        .compile_fds_with_config(descriptors, config)?;
    Ok(())
}
