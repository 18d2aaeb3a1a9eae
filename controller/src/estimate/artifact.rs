//! A guess from the size of the files, if nothing better is known.

use muster_core::Bytes;
use muster_proto::llamacpp::default;

/// Memory of an engine without its model.
const ENGINE: Bytes = Bytes::mib(64);

/// Files × 1.2 for weights and compute buffers, and a KV cache in proportion to the model. In today's models one cell takes about 1/65536
/// of the weights (an 8B model at f16: 128 KiB of 16 GiB with grouped-query attention, twice as much without).
pub(super) fn from_size(size: u64, ctx_size: u32) -> Bytes {
    const CELLS_PER_SIZE: u64 = 65536;
    let cells: u64 = match ctx_size {
        0 => default::CONTEXT.into(),
        given => given.into(),
    };
    let weights = size.saturating_add(size / 5);
    let cache = (size / CELLS_PER_SIZE).saturating_mul(cells);
    Bytes::new(weights) + Bytes::new(cache) + ENGINE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guess_grows_with_files_and_context() {
        let gib = 1 << 30;
        assert!(from_size(gib, 8192) > from_size(gib, 0));
        assert_eq!(from_size(gib, 0), from_size(gib, default::CONTEXT));
        assert!(from_size(0, 0) == ENGINE);
    }
}
