//! Checkpoint folders.

use std::{num::NonZeroU64, path::Path};

use muster_gguf::{
    Error,
    vllm::{Checkpoint, Settings, demand},
};
use tempfile::TempDir;

const CONFIG: &str = r#"{"num_hidden_layers":4,"hidden_size":512,"num_attention_heads":8,"num_key_value_heads":2,
    "intermediate_size":2048,"vocab_size":1000,"max_position_embeddings":4096,"torch_dtype":"bfloat16"}"#;

fn safetensors(path: &Path, header: &str, data: u64) {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    let len = bytes.len() as u64 + data;
    std::fs::write(path, bytes).unwrap();
    std::fs::File::options()
        .write(true)
        .open(path)
        .unwrap()
        .set_len(len)
        .unwrap();
}

fn folder(config: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    let header =
        r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[500],"data_offsets":[0,1000]}}"#;
    safetensors(&dir.path().join("model-00001-of-00002.safetensors"), header, 1000);
    safetensors(&dir.path().join("model-00002-of-00002.safetensors"), header, 1000);
    safetensors(&dir.path().join("consolidated.safetensors"), header, 1000);
    dir
}

fn open(dir: &TempDir) -> Result<Checkpoint, Error> {
    Checkpoint::open(dir.path())
}

#[test]
fn a_folder_is_added_up() {
    let checkpoint = open(&folder(CONFIG)).unwrap();
    assert_eq!((checkpoint.weights, checkpoint.context), (2000, 4096));
    // 4 layers × 2 heads × 64 × key and value × 2 bytes.
    assert_eq!(checkpoint.token, 4 * 2 * 64 * 2 * 2);
    let nested = format!(r#"{{"text_config":{CONFIG},"vision_config":{{"hidden_size":1}}}}"#);
    assert_eq!(open(&folder(&nested)).unwrap(), checkpoint);
    let latent = CONFIG.replace(
        "\"vocab_size\"",
        "\"kv_lora_rank\":512,\"qk_rope_head_dim\":64,\"vocab_size\"",
    );
    assert_eq!(open(&folder(&latent)).unwrap().token, 4 * 576 * 2);
}

#[test]
fn a_cache_is_taken_as_given_else_there_is_room_for_one_sequence() {
    let checkpoint = open(&folder(CONFIG)).unwrap();
    let take = |cache, context, devices| {
        let settings = Settings {
            cache,
            context,
            devices: NonZeroU64::new(devices),
        };
        demand(&checkpoint, &settings)
    };
    let fixed = take(Some(0), None, 1);
    assert_eq!(take(Some(3 << 30), None, 1), fixed + (3 << 30));
    assert_eq!(take(None, None, 1), fixed + checkpoint.token * 4096);
    assert_eq!(take(None, Some(100), 1), fixed + checkpoint.token * 100);
    // The cache is said for each device; weights and sequences are shared.
    assert_eq!(take(Some(3 << 30), None, 4), fixed - 1500 + (3 << 30));
    assert_eq!(take(None, None, 4), fixed - 1500 + checkpoint.token * 1024);
}

#[test]
fn lying_folders_are_refused() {
    for config in ["", "[]", "{}", "{\"num_hidden_layers\":-1}", &"[".repeat(200)] {
        assert!(
            matches!(open(&folder(config)).unwrap_err(), Error::Json { .. }),
            "{config}"
        );
    }
    let with = |header: &str, data| {
        let dir = folder(CONFIG);
        safetensors(&dir.path().join("model-00002-of-00002.safetensors"), header, data);
        open(&dir)
    };
    let tensor = |begin: u64, end: u64| format!(r#"{{"a":{{"data_offsets":[{begin},{end}]}}}}"#);
    assert!(with(&tensor(0, 8), 8).is_ok());
    for (begin, end) in [(0, 9), (8, 0), (0, u64::MAX), (u64::MAX, u64::MAX)] {
        assert!(with(&tensor(begin, end), 8).is_err(), "{begin} to {end}");
    }
    let twice = r#"{"a":{"data_offsets":[0,8]},"b":{"data_offsets":[0,8]}}"#;
    assert!(with(twice, 8).is_err());
    let dir = folder(CONFIG);
    for bytes in [
        &u64::MAX.to_le_bytes()[..],
        &[9, 0, 0, 0, 0, 0, 0, 0, b'{'],
        b"abc",
    ] {
        std::fs::write(dir.path().join("model-00002-of-00002.safetensors"), bytes).unwrap();
        assert!(open(&dir).is_err());
    }
}
