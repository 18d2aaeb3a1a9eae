//! What the command line says beside files: `--ctx-size`, `--llamacpp` and `--llamacpp-args`, settings for models that set none themselves (a
//! model's own definition overrides them: controller/README.md, Settings), and `--models-dir`.

use std::path::PathBuf;

use muster_core::DeviceKind;

/// Settings of the command line for models that set none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Defaults {
    /// `--ctx-size`; 0 = not given.
    pub(super) ctx_size: u32,
    /// `--llamacpp`: the kind of device for llama.cpp's models.
    pub(super) llamacpp_device: Option<DeviceKind>,
    /// `--llamacpp-args`, one word each.
    pub(super) llamacpp_args: Vec<String>,
    /// `--models-dir`: folders whose GGUF files are models, beside the configured ones.
    pub(super) models_dirs: Vec<PathBuf>,
}

/// Backends of llama.cpp that `--llamacpp` accepts (seed 000).
const BACKENDS: [(&str, DeviceKind); 5] = [
    ("cpu", DeviceKind::Cpu),
    ("cuda", DeviceKind::Gpu),
    ("vulkan", DeviceKind::Gpu),
    ("rocm", DeviceKind::Gpu),
    ("metal", DeviceKind::Gpu),
];

impl Defaults {
    /// Reads the values of the flags.
    ///
    /// # Errors
    /// An unknown backend, or arguments with an unclosed quote.
    pub fn new(
        ctx_size: Option<u32>,
        llamacpp: Option<&str>,
        llamacpp_args: Option<&str>,
    ) -> Result<Self, String> {
        let llamacpp_device = llamacpp.map(device_of).transpose()?;
        let llamacpp_args = shell_words::split(llamacpp_args.unwrap_or_default())
            .map_err(|error| format!("--llamacpp-args: {error}"))?;
        Ok(Self {
            ctx_size: ctx_size.unwrap_or_default(),
            llamacpp_device,
            llamacpp_args,
            models_dirs: Vec::new(),
        })
    }

    /// With folders whose GGUF files are models.
    ///
    /// # Errors
    /// One is no directory.
    pub fn with_models_dirs(self, folders: &[PathBuf]) -> Result<Self, String> {
        let absolute = |folder: &PathBuf| std::path::absolute(folder).ok().filter(|folder| folder.is_dir());
        let read = |folder| {
            absolute(folder).ok_or_else(|| format!("--models-dir: {} is no directory", folder.display()))
        };
        Ok(Self {
            models_dirs: folders.iter().map(read).collect::<Result<_, _>>()?,
            ..self
        })
    }
}

/// The kind of device for a backend of llama.cpp.
pub(crate) fn backend(name: &str) -> Option<DeviceKind> {
    let found = BACKENDS.iter().find(|(known, _)| *known == name);
    found.map(|(_, kind)| *kind)
}

fn device_of(backend: &str) -> Result<DeviceKind, String> {
    self::backend(backend).ok_or_else(|| {
        let known: Vec<&str> = BACKENDS.iter().map(|(known, _)| *known).collect();
        format!("--llamacpp: want one of {}, got `{backend}`", known.join(", "))
    })
}
