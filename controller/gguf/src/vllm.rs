//! Checkpoint folders as vLLM loads them: `config.json` beside safetensors files.
//!
//! vLLM takes what it is given: with `kv_cache_memory_bytes` its weights, that cache and what a step computes; else a share of the whole
//! device (`gpu_memory_utilization`), whatever the model needs of it: here is what it needs at least. Sources: vLLM's engine arguments,
//! seed 001 (vLLM settings), the safetensors format.

use std::{
    fs::File,
    io::Read as _,
    num::NonZeroU64,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::Error;

/// Longest header of a safetensors file (the format's own limit).
const HEADER_LIMIT: u64 = 100_000_000;
/// Longest `config.json`; real ones have some KiB.
const CONFIG_LIMIT: u64 = 16 * MIB;
/// Files of one checkpoint.
const FILE_LIMIT: usize = 4096;
const MIB: u64 = 1024 * 1024;
/// Context of the driver, PyTorch's allocator, captured graphs.
const OVERHEAD: u64 = 1536 * MIB;
/// Tokens of one step where nothing else is said (`max_num_batched_tokens` of a server).
const STEP: u64 = 8192;

/// A checkpoint folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Bytes of all tensors.
    pub weights: u64,
    /// Tokens the model was made for; 0 if unknown.
    pub context: u64,
    /// Bytes that one token takes in the cache, over all layers.
    pub token: u64,
    /// Width of the residual stream.
    pub width: u64,
    /// Width of the feed-forward part.
    pub feed_forward: u64,
    /// Tokens of the vocabulary.
    pub vocabulary: u64,
}

/// What decides how much vLLM takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Settings {
    /// `kv_cache_memory_bytes`, on each device; none = what is left of a share of the device.
    pub cache: Option<u64>,
    /// `max_model_len`; none = the model's.
    pub context: Option<u64>,
    /// Devices that the model is spread over (`tensor_parallel_size` × `pipeline_parallel_size`); none = one.
    pub devices: Option<NonZeroU64>,
}

/// Bytes vLLM takes of each of its devices if it is given a cache, else the least it can start with: room for one sequence of full length.
#[must_use]
pub fn demand(checkpoint: &Checkpoint, settings: &Settings) -> u64 {
    // In half precision: the feed-forward part's two factors and the stream for each token, logits in full precision for one per request.
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
        // Models that also see keep their language part apart.
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
        // Latent attention keeps one narrow row per token; all others a key and a value per head.
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

/// The safetensors files of a folder, `consolidated` duplicates left out, in a fixed order.
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

/// Bytes of the tensors of one file: those of its header, held against the file's size.
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
