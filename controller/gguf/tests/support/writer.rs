//! Writes GGUF files: headers byte by byte, data as a hole of zeros, so that a model of any size takes no room on the disk.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::{fs::File, io::Write as _, path::Path};

const ALIGNMENT: u64 = 32;

/// Element types by their numbers in the file.
pub(crate) const F32: u32 = 0;
pub(crate) const F16: u32 = 1;
pub(crate) const Q8_0: u32 = 8;

/// A file to be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writer {
    architecture: String,
    entries: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: u64,
}

fn text(out: &mut Vec<u8>, value: &[u8]) {
    out.extend((value.len() as u64).to_le_bytes());
    out.extend(value);
}

/// Bytes of a tensor.
pub(crate) fn size(kind: u32, shape: &[u64]) -> u64 {
    let elements: u64 = shape.iter().product();
    match kind {
        F32 => elements * 4,
        F16 => elements * 2,
        Q8_0 => elements / 32 * 34,
        kind => panic!("the writer knows no type {kind}"),
    }
}

impl Writer {
    pub(crate) fn new(architecture: &str) -> Self {
        let mut writer = Self {
            architecture: architecture.to_owned(),
            ..Self::default()
        };
        writer.text("general.architecture", architecture);
        writer
    }

    fn key(&self, key: &str) -> String {
        if key.starts_with("general.") || key.starts_with("tokenizer.") || key.starts_with("split.") {
            key.to_owned()
        } else {
            format!("{}.{key}", self.architecture)
        }
    }

    /// An entry of any type, its value as bytes.
    pub(crate) fn entry(&mut self, key: &str, kind: u32, value: &[u8]) -> &mut Self {
        let mut entry = Vec::new();
        text(&mut entry, self.key(key).as_bytes());
        entry.extend(kind.to_le_bytes());
        entry.extend(value);
        self.entries.push(entry);
        self
    }

    pub(crate) fn number(&mut self, key: &str, value: u32) -> &mut Self {
        self.entry(key, 4, &value.to_le_bytes())
    }

    pub(crate) fn float(&mut self, key: &str, value: f32) -> &mut Self {
        self.entry(key, 6, &value.to_le_bytes())
    }

    pub(crate) fn flag(&mut self, key: &str, value: bool) -> &mut Self {
        self.entry(key, 7, &[value.into()])
    }

    pub(crate) fn text(&mut self, key: &str, value: &str) -> &mut Self {
        let mut bytes = Vec::new();
        text(&mut bytes, value.as_bytes());
        self.entry(key, 8, &bytes)
    }

    pub(crate) fn numbers(&mut self, key: &str, values: &[u32]) -> &mut Self {
        let mut bytes = 4_u32.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
        self.entry(key, 9, &bytes)
    }

    pub(crate) fn flags(&mut self, key: &str, values: &[bool]) -> &mut Self {
        let mut bytes = 7_u32.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        bytes.extend(values.iter().map(|value| u8::from(*value)));
        self.entry(key, 9, &bytes)
    }

    pub(crate) fn texts(&mut self, key: &str, values: impl Iterator<Item = String>) -> &mut Self {
        let values: Vec<String> = values.collect();
        let mut bytes = 8_u32.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|value| text(&mut bytes, value.as_bytes()));
        self.entry(key, 9, &bytes)
    }

    /// A tensor of zeros.
    pub(crate) fn tensor(&mut self, name: &str, kind: u32, shape: &[u64]) -> &mut Self {
        let mut tensor = Vec::new();
        text(&mut tensor, name.as_bytes());
        tensor.extend(u32::try_from(shape.len()).unwrap().to_le_bytes());
        shape
            .iter()
            .for_each(|length| tensor.extend(length.to_le_bytes()));
        tensor.extend(kind.to_le_bytes());
        tensor.extend(self.data.to_le_bytes());
        self.tensors.push(tensor);
        self.data += size(kind, shape).next_multiple_of(ALIGNMENT);
        self
    }

    /// Changes the description of the last tensor as it will be written.
    pub(crate) fn change_last_tensor(&mut self, change: impl Fn(&mut Vec<u8>)) {
        change(self.tensors.last_mut().unwrap());
    }

    /// What comes before the data.
    pub(crate) fn header(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3_u32.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.entries.len() as u64).to_le_bytes());
        bytes.extend(self.entries.concat());
        bytes.extend(self.tensors.concat());
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT as usize), 0);
        bytes
    }

    /// Size of the file.
    pub(crate) fn len(&self) -> u64 {
        self.header().len() as u64 + self.data
    }

    /// Writes the file; its data is a hole.
    pub(crate) fn save(&self, path: &Path) {
        let mut file = File::create(path).unwrap();
        file.write_all(&self.header()).unwrap();
        file.set_len(self.len()).unwrap();
    }
}
