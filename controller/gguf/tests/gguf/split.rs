//! Models in several files.

use std::path::{Path, PathBuf};

use muster_gguf::{Error, Gguf, Model, parts};
use tempfile::TempDir;

use super::support::writer::*;

const LAYERS: u64 = 3;

/// One part of a model of three layers, a layer each; the first has the metadata.
fn part(place: u64) -> Writer {
    let mut writer = Writer::new("llama");
    writer.entry("split.no", 2, &(place as u16).to_le_bytes());
    writer.entry("split.count", 2, &3_u16.to_le_bytes());
    writer.number("split.tensors.count", 4);
    if place == 0 {
        writer
            .number("block_count", LAYERS as u32)
            .number("embedding_length", 64)
            .number("attention.head_count", 2)
            .tensor("token_embd.weight", F16, &[64, 100]);
    }
    writer.tensor(
        &format!("blk.{place}.attn_k.weight"),
        F16,
        &[64, 64 * (place + 1)],
    );
    writer
}

fn path(dir: &TempDir, place: u64) -> PathBuf {
    dir.path().join(format!("big-{:05}-of-00003.gguf", place + 1))
}

fn saved() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for place in 0..LAYERS {
        part(place).save(&path(&dir, place));
    }
    dir
}

#[test]
fn parts_are_one_model() {
    let dir = saved();
    let gguf = Gguf::open(&path(&dir, 0)).unwrap();
    let sizes: u64 = (0..LAYERS).map(|place| part(place).len()).sum();
    assert_eq!(gguf.len(), sizes);
    let model = Model::read(&gguf).unwrap();
    let weights: Vec<u64> = model.layers.iter().map(|layer| layer.weights).collect();
    assert_eq!(weights, [8192, 16384, 24576]);
    assert_eq!(model.input, 12800);
}

#[test]
fn a_missing_part_is_named() {
    let dir = saved();
    std::fs::remove_file(path(&dir, 2)).unwrap();
    match Gguf::open(&path(&dir, 0)).unwrap_err() {
        Error::Io { what, .. } => assert!(what.ends_with("big-00003-of-00003.gguf"), "{what}"),
        other => panic!("{other}"),
    }
}

#[test]
fn parts_in_the_wrong_order_are_refused() {
    let dir = saved();
    // The second file is the third's, and the first may not be given by another name.
    part(2).save(&path(&dir, 1));
    assert!(matches!(
        Gguf::open(&path(&dir, 0)).unwrap_err(),
        Error::Part { wanted: 2, .. }
    ));
    assert!(matches!(
        Gguf::open(&path(&dir, 2)).unwrap_err(),
        Error::Part { wanted: 1, .. }
    ));
    let alone = dir.path().join("renamed.gguf");
    part(0).save(&alone);
    assert!(matches!(
        Gguf::open(&alone).unwrap_err(),
        Error::Part { wanted: 1, .. }
    ));
}

#[test]
fn a_file_that_is_its_own_second_part_is_refused() {
    let dir = saved();
    std::fs::remove_file(path(&dir, 1)).unwrap();
    std::os::unix::fs::symlink(path(&dir, 0), path(&dir, 1)).unwrap();
    assert!(matches!(
        Gguf::open(&path(&dir, 0)).unwrap_err(),
        Error::Part { wanted: 2, .. }
    ));
}

#[test]
fn tensors_in_two_parts_or_missing_are_refused() {
    let dir = saved();
    let mut second = part(1);
    second.tensor("blk.0.attn_k.weight", F16, &[64, 64]);
    second.save(&path(&dir, 1));
    assert!(matches!(
        Gguf::open(&path(&dir, 0)).unwrap_err(),
        Error::Twice { .. }
    ));
    let dir = saved();
    let mut second = part(1);
    second.tensor("blk.1.attn_v.weight", F16, &[64, 64]);
    second.save(&path(&dir, 1));
    assert!(matches!(Gguf::open(&path(&dir, 0)).unwrap_err(), Error::Key(_)));
}

#[test]
fn names_of_parts_follow_from_the_first() {
    let names = |name: &str| {
        parts(Path::new(name))
            .into_iter()
            .map(|path| path.display().to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        names("/m/a-00001-of-00002.gguf"),
        ["/m/a-00001-of-00002.gguf", "/m/a-00002-of-00002.gguf"]
    );
    for alone in [
        "/m/a.gguf",
        "/m/a-00002-of-00003.gguf",
        "/m/a-00001-of-00001.gguf",
        "/m/a-00001-of-99999.gguf",
        "/m/a-00001-of-2.gguf",
        "/m/a-00001-of-0000x.gguf",
    ] {
        assert_eq!(names(alone), [alone]);
    }
}
