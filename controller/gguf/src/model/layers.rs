//! The weights and caches of each layer.

use super::{Layer, WIDTH_LIMIT, keys::Keys, windows::Window};
use crate::{Error, Gguf};

/// Parts of a layer, recognised by its tensors.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    weights: u64,
    largest: u64,
    /// It has its own keys, or latent ones.
    keys: bool,
    /// It has queries, keys and values in one matrix; in a recurrent layer, its input.
    fused: bool,
    /// It has an indexer that selects what sparse attention sees, with keys of its own.
    indexed: bool,
    /// It has a recurrent part.
    recurrent: bool,
    /// Number of rows of the widest dense feed-forward matrix.
    feed_forward: u64,
    gated: bool,
    /// Number of rows of one expert's matrix.
    expert_width: u64,
}

/// The index of the layer that a tensor belongs to, and the tensor's name in it.
pub(super) fn place(name: &str) -> Option<(usize, &str)> {
    let (number, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((number.parse().ok()?, rest))
}

/// Numbers per layer from the metadata.
#[derive(Debug)]
struct Numbers {
    heads: Vec<u64>,
    kv_heads: Vec<u64>,
    experts: u64,
    experts_used: Vec<u64>,
    key_head: [Option<u64>; 2],
    value_head: [Option<u64>; 2],
    /// Width of a head before it becomes latent, if the keys are the values too; else 0.
    latent_head: u64,
    /// Number of elements of the indexer's key, which all heads share.
    index_key: u64,
    /// Layers from this index on use the caches of earlier ones.
    shared_from: u64,
    /// Layers from this index on predict further tokens and take no part in the answer.
    trunk: u64,
    /// Number of elements of recurrent state per sequence in a recurrent layer.
    state: u64,
    inner: u64,
}

/// Reads all layers.
pub(super) fn read(
    keys: &Keys<'_>,
    gguf: &Gguf,
    count: u64,
    width: u64,
    window: &Window,
) -> Result<Vec<Layer>, Error> {
    let numbers = numbers(keys, count, width)?;
    let seen = see(gguf, window.layers.len());
    let layers = seen.iter().zip(&window.layers).enumerate();
    Ok(layers
        .map(|(index, (seen, windowed))| layer(&numbers, index, *seen, *windowed, width))
        .collect())
}

fn see(gguf: &Gguf, count: usize) -> Vec<Seen> {
    let mut layers = vec![Seen::default(); count];
    for tensor in gguf.tensors() {
        let Some((layer, name)) = place(&tensor.name) else {
            continue;
        };
        let Some(seen) = layers.get_mut(layer) else {
            continue;
        };
        seen.weights = seen.weights.saturating_add(tensor.bytes);
        seen.largest = seen.largest.max(tensor.bytes);
        seen.recurrent |= ["ssm_", "shortconv", "time_mix_"]
            .iter()
            .any(|beginning| name.starts_with(beginning));
        seen.indexed |= name.starts_with("indexer.");
        let (part, kind) = name.split_once('.').unwrap_or((name, ""));
        if kind != "weight" {
            continue;
        }
        seen.keys |= matches!(part, "attn_k" | "attn_kv_a_mqa");
        seen.fused |= part == "attn_qkv";
        let rows = tensor.shape.get(1).copied().unwrap_or(0);
        seen.gated |= part.starts_with("ffn_gate");
        match part {
            "ffn_up" | "ffn_gate" | "ffn_up_shexp" => seen.feed_forward = seen.feed_forward.max(rows),
            "ffn_up_exps" | "ffn_gate_exps" | "ffn_gate_up_exps" => {
                seen.expert_width = seen.expert_width.max(rows)
            }
            _ => {}
        }
    }
    layers
}

fn layer(numbers: &Numbers, index: usize, seen: Seen, windowed: bool, width: u64) -> Layer {
    let at = |list: &[u64]| list.get(index).copied().unwrap_or(0);
    let heads = at(&numbers.heads);
    let default = width.checked_div(heads).unwrap_or(0);
    let head = |lengths: [Option<u64>; 2]| {
        let [full, in_window] = lengths;
        let full = full.unwrap_or(default);
        if windowed { in_window.unwrap_or(full) } else { full }
    };
    let (key_head, value_head) = (head(numbers.key_head), head(numbers.value_head));
    // With a recurrent part, the fused matrix feeds that part (the linear attention of qwen3next and similar models).
    let attends = seen.keys || (seen.fused && !seen.recurrent);
    let number = index as u64;
    let caches = attends && number < numbers.trunk && number < numbers.shared_from;
    let kv_heads = if caches { at(&numbers.kv_heads) } else { 0 };
    let index_key = if caches && seen.indexed {
        numbers.index_key
    } else {
        0
    };
    Layer {
        weights: seen.weights,
        largest: seen.largest,
        key: kv_heads.saturating_mul(key_head).saturating_add(index_key),
        value: if numbers.latent_head > 0 {
            0
        } else {
            kv_heads.saturating_mul(value_head)
        },
        windowed,
        state: if seen.recurrent && number < numbers.trunk {
            numbers.state
        } else {
            0
        },
        heads: if attends { heads } else { 0 },
        key_head,
        value_head,
        latent_head: numbers.latent_head,
        feed_forward: seen.feed_forward,
        gated: seen.gated,
        experts: if seen.expert_width > 0 { numbers.experts } else { 0 },
        experts_used: if seen.expert_width > 0 {
            at(&numbers.experts_used)
        } else {
            0
        },
        expert_width: seen.expert_width,
        inner: if seen.recurrent { numbers.inner } else { 0 },
    }
}

fn numbers(keys: &Keys<'_>, count: u64, width: u64) -> Result<Numbers, Error> {
    let layers = usize::try_from(count).unwrap_or(0);
    let per_layer = |key| keys.per_layer(key, layers, WIDTH_LIMIT);
    let number = |key| keys.number(key, WIDTH_LIMIT);
    let heads = per_layer("attention.head_count")?.unwrap_or_else(|| vec![0; layers]);
    let kv_heads = per_layer("attention.head_count_kv")?.unwrap_or_else(|| heads.clone());
    let nextn = number("nextn_predict_layers")?.unwrap_or(0);
    let shared = number("attention.shared_kv_layers")?.unwrap_or(0);
    let shared_from = match keys.architecture() {
        // A constant in gemma3n.cpp.
        "gemma3n" => 20,
        _ => count.saturating_sub(shared),
    };
    let latent_key = number("attention.key_length_mla")?.unwrap_or(0);
    let latent_value = number("attention.value_length_mla")?.unwrap_or(0);
    let first_heads = heads.first().copied().unwrap_or(0);
    Ok(Numbers {
        experts: number("expert_count")?.unwrap_or(0),
        experts_used: per_layer("expert_used_count")?.unwrap_or_default(),
        key_head: [
            number("attention.key_length")?,
            number("attention.key_length_swa")?,
        ],
        value_head: [
            number("attention.value_length")?,
            number("attention.value_length_swa")?,
        ],
        latent_head: if latent_value > 0 { latent_key } else { 0 },
        index_key: number("attention.indexer.key_length")?.unwrap_or(0),
        shared_from,
        trunk: if nextn < count { count - nextn } else { count },
        state: state(keys, width, first_heads)?,
        inner: number("ssm.inner_size")?.unwrap_or(width),
        heads,
        kv_heads,
    })
}

/// Number of elements of recurrent state per sequence and layer: llama.cpp's `n_embd_r` and `n_embd_s` (llama-hparams.cpp).
fn state(keys: &Keys<'_>, width: u64, heads: u64) -> Result<u64, Error> {
    let number = |key| Ok::<u64, Error>(keys.number(key, WIDTH_LIMIT)?.unwrap_or(0));
    let product = |factors: &[u64]| {
        factors
            .iter()
            .fold(1_u64, |product, factor| product.saturating_mul(*factor))
    };
    let wkv = number("wkv.head_size")?;
    if wkv != 0 {
        // Architectures without the key shift two tokens (rwkv6), or one (rwkv6qwen2, arwkv7).
        let shift = keys.number("token_shift_count", WIDTH_LIMIT)?.unwrap_or(2);
        return Ok(product(&[shift, width]).saturating_add(product(&[width, wkv])));
    }
    let short = number("shortconv.l_cache")?;
    if short != 0 {
        return Ok(product(&[width, short - 1]));
    }
    let convolved = number("ssm.conv_kernel")?;
    let kda = number("kda.head_dim")?;
    if kda != 0 {
        let kept = if convolved > 0 { convolved - 1 } else { 3 };
        return Ok(product(&[3, kept, heads, kda]).saturating_add(product(&[kda, kda, heads])));
    }
    let (inner, state) = (number("ssm.inner_size")?, number("ssm.state_size")?);
    let groups = number("ssm.group_count")?;
    let channels = inner.saturating_add(product(&[2, groups, state]));
    Ok(product(&[convolved.saturating_sub(1), channels]).saturating_add(product(&[state, inner])))
}
