//! Checkpoint folders as vLLM loads them: `config.json` beside safetensors files.
//!
//! With `kv_cache_memory_bytes` vLLM takes its weights, that cache and the memory of one step. Without it, vLLM takes a share of the whole
//! device (`gpu_memory_utilization`), however much the model needs; then this module computes the least that it needs. Sources: vLLM's
//! engine arguments, seed 001 (vLLM settings), the safetensors format.

use std::{
    fs::File,
    io::Read as _,
    num::NonZeroU64,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::Error;

/// Longest header of a safetensors file (a limit of the format).
const HEADER_LIMIT: u64 = 100_000_000;
/// Largest `config.json` in bytes; real ones have some KiB.
const CONFIG_LIMIT: u64 = 16 * MIB;
/// Largest number of files of a checkpoint.
const FILE_LIMIT: usize = 4096;
const MIB: u64 = 1024 * 1024;
/// Memory of the driver's context, PyTorch's allocator and captured graphs.
const OVERHEAD: u64 = 1536 * MIB;
/// Number of tokens per step if nothing is set (`max_num_batched_tokens` of a server).
const STEP: u64 = 8192;

/// A checkpoint folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Size of all tensors in bytes.
    pub weights: u64,
    /// Context length in tokens that the model was made for; 0 if unknown.
    pub context: u64,
    /// Bytes that a token takes in the cache, over all layers.
    pub token: u64,
    /// Width of the residual stream.
    pub width: u64,
    /// Width of the feed-forward part.
    pub feed_forward: u64,
    /// Number of tokens in the vocabulary.
    pub vocabulary: u64,
}

/// Settings that decide how much memory vLLM takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Settings {
    /// `kv_cache_memory_bytes`, on each device; none = the rest of a share of the device.
    pub cache: Option<u64>,
    /// `max_model_len`; none = the model's context length.
    pub context: Option<u64>,
    /// Number of devices that the model is spread over (`tensor_parallel_size` × `pipeline_parallel_size`); none = one.
    pub devices: Option<NonZeroU64>,
}

/// Bytes that vLLM takes on each of its devices with a given cache size; without one, the least it can start with: room for one sequence of
/// full length.
#[must_use]
pub fn demand(checkpoint: &Checkpoint, settings: &Settings) -> u64 {
    // In half precision: the feed-forward part's two factors and the stream for each token; in full precision: logits for one token per
    // request.
    let step = STEP
        .saturating_mul(
            checkpoint
                .feed_forward
                .saturating_mul(2)
                .saturating_add(checkpoint.width),
        )
        .saturating_mul(2);
    let devices = settings.devices.map_or(1, NonZeroU64::get);
    let weights = checkpoint.weights.div_ceil(devices);
    let fixed = weights.saturating_add(step).saturating_add(OVERHEAD);
    if let Some(cache) = settings.cache {
        return fixed.saturating_add(cache);
    }
    let context = settings.context.unwrap_or(checkpoint.context);
    fixed.saturating_add(checkpoint.token.saturating_mul(context).div_ceil(devices))
}

impl Checkpoint {
    /// Reads a folder.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn open(folder: &Path) -> Result<Self, Error> {
        let config = config(&folder.join("config.json"))?;
        let mut weights = 0_u64;
        for path in safetensors(folder)? {
            weights = weights.saturating_add(tensors(&path)?);
        }
        if weights == 0 {
            return Err(json(folder, "there are no safetensors"));
        }
        // Models with vision have the settings of their language part in an object of their own.
        let text = config.get("text_config").unwrap_or(&config);
        let number = |key: &str| text.get(key).and_then(Value::as_u64);
        let needed =
            |key: &str| number(key).ok_or_else(|| json(folder, &format!("config.json has no `{key}`")));
        let (layers, width) = (needed("num_hidden_layers")?, needed("hidden_size")?);
        let heads = needed("num_attention_heads")?;
        let kv_heads = number("num_key_value_heads").unwrap_or(heads);
        let head = number("head_dim")
            .or_else(|| width.checked_div(heads))
            .unwrap_or(0);
        let element = match text
            .get("torch_dtype")
            .or_else(|| text.get("dtype"))
            .and_then(Value::as_str)
        {
            Some("float32") => 4,
            Some(_) | None => 2,
        };
        // Latent attention keeps one narrow row per token; other models a key and a value per head.
        let row = match number("kv_lora_rank") {
            Some(rank) => rank.saturating_add(number("qk_rope_head_dim").unwrap_or(0)),
            None => kv_heads.saturating_mul(head).saturating_mul(2),
        };
        Ok(Self {
            weights,
            context: number("max_position_embeddings").unwrap_or(0),
            token: layers.saturating_mul(row).saturating_mul(element),
            width,
            feed_forward: number("intermediate_size").unwrap_or(0),
            vocabulary: number("vocab_size").unwrap_or(0),
        })
    }
}

fn json(path: &Path, why: &str) -> Error {
    Error::Json {
        what: path.display().to_string(),
        why: why.to_owned(),
    }
}

fn io(path: &Path) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::Io {
        what: path.display().to_string(),
        source,
    }
}

fn config(path: &Path) -> Result<Value, Error> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(io(path))?;
    let read = file
        .take(CONFIG_LIMIT + 1)
        .read_to_end(&mut bytes)
        .map_err(io(path))?;
    if read as u64 > CONFIG_LIMIT {
        return Err(json(path, "it is too long"));
    }
    serde_json::from_slice(&bytes).map_err(|error| json(path, &error.to_string()))
}

/// The safetensors files of a folder in a fixed order, without `consolidated` duplicates.
fn safetensors(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io(folder))? {
        let path = entry.map_err(io(folder))?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        if name.ends_with(".safetensors") && !name.starts_with("consolidated") {
            paths.push(path);
        }
        if paths.len() > FILE_LIMIT {
            return Err(json(folder, "it has too many files"));
        }
    }
    paths.sort();
    Ok(paths)
}

/// Bytes of the tensors of one file: those in its header, checked against the file's size.
fn tensors(path: &Path) -> Result<u64, Error> {
    let mut file = File::open(path).map_err(io(path))?;
    let len = file.metadata().map_err(io(path))?.len();
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(io(path))?;
    let length = u64::from_le_bytes(length);
    let data = len
        .checked_sub(8)
        .and_then(|rest| rest.checked_sub(length))
        .filter(|_| length <= HEADER_LIMIT)
        .ok_or_else(|| json(path, "its header is longer than the file or the format allow"))?;
    let mut header = Vec::new();
    file.take(length).read_to_end(&mut header).map_err(io(path))?;
    let header: serde_json::Map<String, Value> =
        serde_json::from_slice(&header).map_err(|error| json(path, &error.to_string()))?;
    let mut sum = 0_u64;
    for (name, tensor) in header.iter().filter(|(name, _)| *name != "__metadata__") {
        let offset = |place| tensor.get("data_offsets")?.get(place)?.as_u64();
        let (Some(begin), Some(end)) = (offset(0), offset(1)) else {
            return Err(json(path, &format!("tensor `{name}` has no place")));
        };
        if begin > end || end > data {
            return Err(json(path, &format!("tensor `{name}` is not inside the file")));
        }
        sum = sum.saturating_add(end - begin);
    }
    if sum > data {
        return Err(json(path, "its tensors overlap"));
    }
    Ok(sum)
}
