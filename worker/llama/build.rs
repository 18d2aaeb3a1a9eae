//! Compiles the C++ shim against the headers that ship inside the `llama-cpp-sys-2` package.
use std::error::Error;
use std::path::Path;

mod sources;

const UNITS: [&str; 7] = ["model", "context", "devices", "media", "sampler", "chat", "locks"];

fn main() -> Result<(), Box<dyn Error>> {
    let built = std::env::var_os("DEP_LLAMA_GGML_CMAKE_DIR")
        .ok_or("llama-cpp-sys-2 doesn't say where it installed ggml")?;
    let llama = sources::compiled_from(Path::new(&built))?;
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
    for include in [
        "",
        "common",
        "include",
        "ggml/include",
        "src",
        "tools/mtmd",
        "vendor",
    ] {
        build.include(llama.join(include));
    }
    for unit in UNITS {
        build.file(format!("shim/{unit}.cpp"));
    }
    build.compile("muster_llama_shim");
    // For the test that reads which flags there are.
    println!("cargo:rustc-env=MUSTER_LLAMA_CPP={}", llama.display());
    println!("cargo:rerun-if-changed=shim");
    println!("cargo:rerun-if-env-changed=MUSTER_PORTABLE");
    Ok(())
}
