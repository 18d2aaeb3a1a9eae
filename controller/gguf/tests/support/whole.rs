//! Everything that is done with a file, for tests and for the fuzz target.

use std::io::Cursor;

use muster_gguf::{
    CacheType, Error, Facts, Gguf, Header, Kind, Model,
    memory::{self, Settings},
};

pub(crate) fn settings(cells: u64) -> Settings {
    Settings {
        cells,
        sequences: 4,
        ubatch: 512,
        outputs: 4,
        results: 4,
        vectors: false,
        keys: CacheType::F16,
        values: CacheType::F16,
        flash: true,
        full_windows: false,
        split: false,
    }
}

/// Everything that is done with a file, on one that may be anything: its beginning, and the length it is said to have.
pub(crate) fn all(bytes: &[u8], len: u64) -> Result<(), Error> {
    let gguf: Gguf = Header::read(Cursor::new(bytes), len)?.into();
    let sum = gguf
        .tensors()
        .map(|tensor| tensor.bytes)
        .fold(0, u64::saturating_add);
    assert!(sum <= len, "tensors of {sum} bytes in a file of {len}");
    if Facts::read(&gguf)?.kind == Kind::Part {
        // A projector or an adapter: no model, nothing to load by itself.
        return Ok(());
    }
    let model = Model::read(&gguf)?;
    let most = model.layers.len() as u64 + 1;
    for offloaded in [0, 1, most / 2, most, u64::MAX] {
        let demand = memory::demand(&model, &settings(4096), offloaded);
        assert!(demand.host.total() > 0);
    }
    Ok(())
}
