//! Files that lie: nothing here may panic, loop, or allocate by the file's word.

use std::{
    io::Cursor,
    path::PathBuf,
    time::{Duration, Instant},
};

use muster_gguf::{Error, Header, Model, memory};
use proptest::prelude::*;

use super::{
    header,
    seeds::{seeds, small},
    support::writer::*,
    whole::{all, settings},
};

/// Headers of all shapes, and those of the generated test models where there are any (`MUSTER_TEST_MODELS`).
fn corpus() -> Vec<(Vec<u8>, u64)> {
    let made = seeds();
    let mut corpus: Vec<_> = made
        .iter()
        .map(|writer| (writer.header(), writer.len()))
        .collect();
    let models = std::env::var_os("MUSTER_TEST_MODELS").map(PathBuf::from);
    for entry in models
        .iter()
        .flat_map(|dir| std::fs::read_dir(dir).unwrap().flatten())
    {
        if entry
            .path()
            .extension()
            .is_some_and(|extension| extension == "gguf")
        {
            let bytes = std::fs::read(entry.path()).unwrap();
            let data = usize::try_from(Header::open(&entry.path()).unwrap().data).unwrap();
            corpus.push((bytes[..data].to_vec(), bytes.len() as u64));
        }
    }
    corpus
}

#[test]
fn every_file_of_the_corpus_is_read() {
    for (bytes, len) in corpus() {
        all(&bytes, len).unwrap();
    }
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let writer = small();
    let (bytes, len) = (writer.header(), writer.len());
    for cut in 0..bytes.len() {
        assert!(
            Header::read(Cursor::new(&bytes[..cut]), cut as u64).is_err(),
            "cut at {cut}"
        );
    }
    for cut in [bytes.len() as u64, len / 2, len - 32] {
        assert!(
            Header::read(Cursor::new(&bytes), cut).is_err(),
            "data cut at {cut}"
        );
    }
    // A header that ends early although the file is said to be long.
    for cut in (0..bytes.len() - 64).step_by(7) {
        assert!(
            Header::read(Cursor::new(&bytes[..cut]), len).is_err(),
            "short at {cut}"
        );
    }
}

#[test]
fn counts_beyond_the_file_allocate_nothing() {
    for value in [u64::MAX, u64::MAX / 2, 1 << 60, 1 << 40, 1 << 21] {
        // Tensors, entries, the length of the first key.
        for at in [8, 16, 24] {
            let mut bytes = small().header();
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            let begun = Instant::now();
            let error = Header::read(Cursor::new(&bytes), 1 << 50).unwrap_err();
            assert!(
                matches!(error, Error::Absurd { .. } | Error::Truncated { .. }),
                "{value} at {at}: {error}"
            );
            assert!(begun.elapsed() < Duration::from_secs(5));
        }
    }
}

#[test]
fn lists_and_texts_beyond_the_file_are_refused() {
    let long = |kind: u32, count: u64| {
        let mut value = kind.to_le_bytes().to_vec();
        value.extend(count.to_le_bytes());
        let mut writer = Writer::new("llama");
        writer.entry("list", 9, &value);
        writer
    };
    for kind in [0, 4, 5, 6, 7, 8, 10, 12] {
        for count in [1 << 32, u64::MAX, u64::MAX / 8 + 1] {
            let error = header(&long(kind, count)).unwrap_err();
            assert!(
                matches!(error, Error::Truncated { .. }),
                "{kind} × {count}: {error}"
            );
        }
    }
    // An array of arrays, which a recursive reader would follow down.
    assert!(matches!(
        header(&long(9, 1)).unwrap_err(),
        Error::ValueType { kind: 9, .. }
    ));
    assert!(matches!(
        header(&long(13, 1)).unwrap_err(),
        Error::ValueType { kind: 13, .. }
    ));
    let mut writer = Writer::new("llama");
    writer.entry("text", 8, &u64::MAX.to_le_bytes());
    assert!(matches!(header(&writer).unwrap_err(), Error::Truncated { .. }));
}

#[test]
fn the_beginning_must_be_right() {
    let with = |at: usize, new: &[u8]| {
        let writer = small();
        let mut bytes = writer.header();
        bytes[at..at + new.len()].copy_from_slice(new);
        Header::read(Cursor::new(bytes), writer.len()).unwrap_err()
    };
    assert!(matches!(with(0, b"GGML"), Error::Magic));
    assert!(matches!(with(4, &1_u32.to_le_bytes()), Error::Version(1)));
    assert!(matches!(with(4, &4_u32.to_le_bytes()), Error::Version(4)));
    assert!(matches!(with(4, &3_u32.to_be_bytes()), Error::BigEndian));
}

#[test]
fn alignments_must_be_powers_of_two() {
    for alignment in [0, 3, 48, 1 << 30] {
        let mut writer = Writer::new("llama");
        writer.number("general.alignment", alignment);
        assert!(
            matches!(header(&writer).unwrap_err(), Error::Alignment(_)),
            "{alignment}"
        );
    }
    let mut writer = Writer::new("llama");
    writer.text("general.alignment", "32");
    assert!(matches!(header(&writer).unwrap_err(), Error::Key(_)));
}

/// A file with two tensors of which the second's description is changed at a place counted from its end.
fn second(change: impl Fn(&mut Vec<u8>)) -> Result<Header, Error> {
    let mut writer = Writer::new("llama");
    writer.tensor("a", F32, &[64]).tensor("b", Q8_0, &[64, 2]);
    let len = writer.len();
    writer.change_last_tensor(change);
    Header::read(Cursor::new(writer.header()), len)
}

#[test]
fn tensors_must_have_a_place_of_their_own() {
    let offset = |value: u64| {
        second(move |bytes| {
            let end = bytes.len();
            bytes[end - 8..].copy_from_slice(&value.to_le_bytes());
        })
    };
    assert!(offset(256).is_ok());
    for (value, why) in [
        (0, "the same place"),
        (224, "overlapping"),
        (8, "not aligned"),
        (1 << 40, "behind the end"),
        (u64::MAX - 31, "behind everything"),
    ] {
        assert!(matches!(offset(value), Err(Error::Tensor { .. })), "{why}");
    }
}

#[test]
fn shapes_must_be_countable() {
    let dimension = |place: usize, value: u64| {
        second(move |bytes| {
            let at = bytes.len() - 8 - 4 - 16 + place * 8;
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        })
    };
    assert!(dimension(1, 2).is_ok());
    for (place, value) in [(0, u64::MAX), (1, u64::MAX), (1, 1 << 60), (0, 33), (1, 3)] {
        assert!(
            matches!(dimension(place, value), Err(Error::Tensor { .. })),
            "{place} = {value}"
        );
    }
    let dimensions = second(|bytes| {
        let at = bytes.len() - 8 - 4 - 16 - 4;
        bytes[at..at + 4].copy_from_slice(&5_u32.to_le_bytes());
    });
    assert!(matches!(dimensions, Err(Error::Tensor { .. })));
}

#[test]
fn a_type_from_the_future_is_as_large_as_its_place() {
    let header = second(|bytes| {
        let at = bytes.len() - 8 - 4;
        bytes[at..at + 4].copy_from_slice(&999_u32.to_le_bytes());
    })
    .unwrap();
    // 128 elements of q8_0 take 136 bytes, padded to 160.
    assert_eq!(header.tensors[1].bytes, 160);
    assert_eq!(header.tensors[0].bytes, 256);
}

#[test]
fn names_come_once() {
    let mut writer = Writer::new("llama");
    writer.tensor("a", F32, &[64]).tensor("a", F32, &[64]);
    assert!(matches!(header(&writer).unwrap_err(), Error::Twice { .. }));
    let mut writer = Writer::new("llama");
    writer.number("x", 1).number("x", 1);
    assert!(matches!(header(&writer).unwrap_err(), Error::Twice { .. }));
}

#[test]
fn absurd_models_are_refused_or_cost_absurdly_much() {
    let with = |key: &str, value: u32| {
        let mut writer = Writer::new("llama");
        for (name, normal) in [
            ("block_count", 2),
            ("embedding_length", 64),
            ("attention.head_count", 2),
            ("context_length", 128),
        ] {
            writer.number(name, if name == key { value } else { normal });
        }
        Model::read(&header(&writer).unwrap().into())
    };
    assert!(with("none", 0).is_ok());
    assert!(matches!(with("block_count", u32::MAX), Err(Error::Absurd { .. })));
    assert!(matches!(with("block_count", 0), Err(Error::Key(_))));
    assert!(matches!(with("embedding_length", 0), Err(Error::Key(_))));
    for key in ["embedding_length", "attention.head_count", "context_length"] {
        let model = with(key, u32::MAX).unwrap();
        let settings = memory::Settings {
            cells: u64::MAX,
            sequences: u64::MAX,
            ubatch: u64::MAX,
            outputs: u64::MAX,
            results: u64::MAX,
            ..settings(1)
        };
        assert!(memory::demand(&model, &settings, 3).host.total() > 1 << 40);
    }
}

/// Changes a header at random and reads it, for a while: `MUSTER_FUZZ_SECONDS` seconds, or 2.
#[test]
fn fuzz() {
    let seconds = std::env::var("MUSTER_FUZZ_SECONDS").map_or(2, |text| text.parse().unwrap());
    let until = Instant::now() + Duration::from_secs(seconds);
    let corpus = corpus();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut read, mut refused) = (0_u64, 0_u64);
    while Instant::now() < until || read + refused < 1000 {
        let (bytes, len) = &corpus[random.below(corpus.len())];
        let (mut bytes, mut len) = (bytes.clone(), *len);
        for _ in 0..=random.below(4) {
            mutate(&mut bytes, &mut len, &mut random);
        }
        match all(&bytes, len) {
            Ok(()) => read += 1,
            Err(_) => refused += 1,
        }
    }
    println!("{read} changed files read, {refused} refused");
    assert!(
        read > 0 && refused > 0,
        "changes that all files survive, or none, test nothing"
    );
}

/// xorshift64*: the same sequence in each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit.max(1) as u64).unwrap()
    }
}

fn mutate(bytes: &mut Vec<u8>, len: &mut u64, random: &mut Random) {
    const NUMBERS: [u64; 8] = [0, 1, 31, 255, 1 << 31, 1 << 32, i64::MAX as u64, u64::MAX];
    let at = random.below(bytes.len().max(1));
    let rest = bytes.len() - at;
    match random.below(6) {
        0 if rest > 0 => bytes[at] ^= 1 << random.below(8),
        1 if rest >= 8 => {
            bytes[at..at + 8].copy_from_slice(&NUMBERS[random.below(NUMBERS.len())].to_le_bytes());
        }
        2 if rest >= 4 => {
            let number = NUMBERS[random.below(NUMBERS.len())] as u32;
            bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        3 => bytes.truncate(at),
        4 => {
            let count = random.below(64).min(rest);
            let copy = bytes[at..at + count].to_vec();
            let to = random.below(bytes.len().max(1));
            bytes.splice(to..to, copy);
        }
        _ => *len = random.next() >> random.below(64),
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..512), len in any::<u64>()) {
        drop(all(&bytes, len));
        let mut marked = b"GGUF\x03\0\0\0".to_vec();
        marked.extend(bytes);
        drop(all(&marked, len));
    }

    /// What is written is what is read, whatever the sizes.
    #[test]
    fn tensors_are_read_as_written(shapes in prop::collection::vec((0_usize..3, 1_u64..40, 1_u64..40), 1..20)) {
        let mut writer = Writer::new("llama");
        let mut expected = Vec::new();
        for (place, (kind, columns, rows)) in shapes.into_iter().enumerate() {
            let (kind, shape) = ([F32, F16, Q8_0][kind], [columns * 32, rows]);
            writer.tensor(&format!("t{place}"), kind, &shape);
            expected.push((shape.to_vec(), size(kind, &shape)));
        }
        let read = header(&writer).unwrap();
        let read: Vec<_> = read.tensors.into_iter().map(|tensor| (tensor.shape, tensor.bytes)).collect();
        prop_assert_eq!(read, expected);
    }
}
