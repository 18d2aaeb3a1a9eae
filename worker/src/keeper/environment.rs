//! The environment of a keeper and its engine: variables that programs need to run, and an operator's tuning of the hardware. Muster's and
//! the hub's keys are left out, and so is everything not listed here; a model's configuration can add variables.

use std::ffi::{OsStr, OsString};

/// Variables that programs need to run.
const NAMES: [&str; 17] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_RUNTIME_DIR",
    "MUSTER_LOG_LEVEL",
    "RUST_LOG",
    "RUST_BACKTRACE",
    "NO_COLOR",
];
/// Prefixes of variables for the locale, for drivers and for libraries that compute.
const PREFIXES: [&str; 21] = [
    "LC_",
    "CUDA_",
    "NVIDIA_",
    "NCCL_",
    "HIP_",
    "HSA_",
    "ROCR_",
    "ROCM_",
    "GPU_",
    "AMD_",
    "VK_",
    "SYCL_",
    "ONEAPI_",
    "ZE_",
    "GGML_",
    "LLAMA_",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
];
/// `llama-server` reads every flag from a variable with this prefix. Flags come from the configuration only.
const FLAGS: &str = "LLAMA_ARG_";
/// Parts of names of secrets, which are left out in any case.
const SECRETS: [&str; 4] = ["KEY", "TOKEN", "SECRET", "PASSWORD"];

/// The part of the worker's environment that engines get.
pub(crate) fn inherited() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| may_know(name))
}

fn may_know(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    let tuning = PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let secret = name.starts_with(FLAGS) || SECRETS.iter().any(|word| name.contains(word));
    NAMES.contains(&name) || (tuning && !secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_know_how_to_run_and_no_secret() {
        for name in [
            "PATH",
            "LC_ALL",
            "CUDA_VISIBLE_DEVICES",
            "OMP_NUM_THREADS",
            "GGML_CUDA_GRAPHS",
            "LLAMA_TRACE",
        ] {
            assert!(may_know(OsStr::new(name)), "{name}");
        }
        for name in [
            "MUSTER_API_KEY",
            "MUSTER_ADMIN_API_KEY",
            "MUSTER_API_KEY_FILE",
            "MUSTER_TOKEN_FILE",
            "MUSTER_KEY",
            "HF_TOKEN",
            "HF_TOKEN_PATH",
            "LLAMA_API_KEY",
            "LLAMA_ARG_TOOLS",
            "NVIDIA_API_KEY",
            "AWS_SECRET_ACCESS_KEY",
            "https_proxy",
            "LD_PRELOAD",
            "NOTIFY_SOCKET",
            "WATCHDOG_USEC",
        ] {
            assert!(!may_know(OsStr::new(name)), "{name}");
        }
    }
}
