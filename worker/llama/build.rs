//! Compiles the C++ shim against the headers that ship inside the `llama-cpp-sys-2` package.
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

const UNITS: [&str; 4] = ["model", "context", "sampler", "chat"];

fn main() -> Result<(), Box<dyn Error>> {
    let llama = llama_cpp_dir()?;
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        // the shim is on the per-token path: fast in dev builds too
        .opt_level(3)
        .debug(false)
        .define("NDEBUG", None)
        .flag_if_supported("-fopenmp-simd")
        .warnings(false)
        .flag_if_supported("-w");
    if std::env::var_os("MUSTER_PORTABLE").is_none() && std::env::var("HOST")? == std::env::var("TARGET")? {
        build.flag_if_supported("-march=native");
    }
    for include in ["", "common", "include", "ggml/include", "vendor"] {
        build.include(llama.join(include));
    }
    for unit in UNITS {
        build.file(format!("shim/{unit}.cpp"));
    }
    build.compile("muster_llama_shim");
    println!("cargo:rerun-if-changed=shim");
    println!("cargo:rerun-if-env-changed=MUSTER_PORTABLE");
    Ok(())
}

/// The `llama.cpp` folder of the package, asked of cargo (the `links` metadata doesn't carry it).
fn llama_cpp_dir() -> Result<PathBuf, Box<dyn Error>> {
    let cargo = std::env::var("CARGO")?;
    let target = std::env::var("TARGET")?;
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--format-version",
            "1",
            "--offline",
            "--filter-platform",
            &target,
        ])
        .output()?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let manifest = metadata["packages"]
        .as_array()
        .and_then(|packages| packages.iter().find(|p| p["name"] == "llama-cpp-sys-2"))
        .and_then(|p| p["manifest_path"].as_str())
        .ok_or("llama-cpp-sys-2 is not among the dependencies")?;
    let dir = Path::new(manifest)
        .parent()
        .ok_or("a manifest without a folder")?;
    Ok(dir.join("llama.cpp"))
}
