//! Tensors: their types, shapes and sizes.

use std::io::{Read, Seek};

use crate::{Error, input::Input};

/// Longest name; llama.cpp refuses longer ones (`GGML_MAX_NAME`).
const NAME_LIMIT: u64 = 63;
/// Largest number of dimensions (`GGML_MAX_DIMS`).
const DIMENSIONS: u32 = 4;
/// Largest number of tensors in a file; the deepest known models have about 2,000.
pub(crate) const TENSOR_LIMIT: u64 = 1 << 20;
/// Size in bytes of the smallest description: length of the name, dimensions, type, offset.
pub(crate) const SMALLEST: u64 = 8 + 4 + 4 + 8;

/// An element type of ggml, by its number in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorType(pub u32);

/// Type number, bytes and elements of one block, from ggml's `type_traits` (ggml.c) and `ggml-common.h`. Missing numbers are no longer used
/// by ggml. The size of tensors of newer types follows from their offsets.
const BLOCKS: [(u32, u64, u64); 35] = [
    (0, 4, 1),      // f32
    (1, 2, 1),      // f16
    (2, 18, 32),    // q4_0
    (3, 20, 32),    // q4_1
    (6, 22, 32),    // q5_0
    (7, 24, 32),    // q5_1
    (8, 34, 32),    // q8_0
    (9, 36, 32),    // q8_1
    (10, 84, 256),  // q2_K
    (11, 110, 256), // q3_K
    (12, 144, 256), // q4_K
    (13, 176, 256), // q5_K
    (14, 210, 256), // q6_K
    (15, 292, 256), // q8_K
    (16, 66, 256),  // iq2_xxs
    (17, 74, 256),  // iq2_xs
    (18, 98, 256),  // iq3_xxs
    (19, 50, 256),  // iq1_s
    (20, 18, 32),   // iq4_nl
    (21, 110, 256), // iq3_s
    (22, 82, 256),  // iq2_s
    (23, 136, 256), // iq4_xs
    (24, 1, 1),     // i8
    (25, 2, 1),     // i16
    (26, 4, 1),     // i32
    (27, 8, 1),     // i64
    (28, 8, 1),     // f64
    (29, 56, 256),  // iq1_m
    (30, 2, 1),     // bf16
    (34, 54, 256),  // tq1_0
    (35, 66, 256),  // tq2_0
    (39, 17, 32),   // mxfp4
    (40, 36, 64),   // nvfp4
    (41, 18, 128),  // q1_0
    (42, 18, 64),   // q2_0
];

impl TensorType {
    /// Bytes and elements of one block; none for a type that this crate does not know.
    #[must_use]
    pub fn block(self) -> Option<(u64, u64)> {
        BLOCKS
            .iter()
            .find(|(number, ..)| *number == self.0)
            .map(|(_, bytes, elements)| (*bytes, *elements))
    }
}

/// An element type that llama.cpp offers for its caches (`--cache-type-k`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheType {
    bytes: u64,
    elements: u64,
    quantized: bool,
}

impl CacheType {
    /// f16, the default.
    pub const F16: Self = Self {
        bytes: 2,
        elements: 1,
        quantized: false,
    };

    /// The type with llama.cpp's name; an empty name is f16.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let (bytes, elements) = match name {
            "" | "f16" | "bf16" => (2, 1),
            "f32" => (4, 1),
            "q8_0" => (34, 32),
            "q5_1" => (24, 32),
            "q5_0" => (22, 32),
            "q4_1" => (20, 32),
            "q4_0" | "iq4_nl" => (18, 32),
            _ => return None,
        };
        Some(Self {
            bytes,
            elements,
            quantized: elements > 1,
        })
    }

    /// Bytes of this many elements.
    #[must_use]
    pub const fn size(self, elements: u64) -> u64 {
        elements.div_ceil(self.elements).saturating_mul(self.bytes)
    }

    /// Whether it is stored in blocks.
    #[must_use]
    pub const fn quantized(self) -> bool {
        self.quantized
    }
}

/// A tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    pub name: String,
    pub kind: TensorType,
    /// Number of elements per dimension, the fastest first; 1 to 4 dimensions.
    pub shape: Vec<u64>,
    /// Offset in bytes from the beginning of the file's data.
    pub offset: u64,
    /// Size in bytes.
    pub bytes: u64,
}

impl Tensor {
    /// Reads a description. The size of an unknown type is 0 at first.
    pub(crate) fn read<R: Read + Seek>(input: &mut Input<R>, alignment: u64) -> Result<Self, Error> {
        const WHAT: &str = "a tensor";
        let length = input.u64(WHAT)?;
        if length > NAME_LIMIT {
            return Err(Error::Absurd {
                what: "bytes of a tensor's name",
                value: length,
                limit: NAME_LIMIT,
            });
        }
        let name =
            String::from_utf8(input.bytes(WHAT, length)?).map_err(|_| Error::NotText("a tensor's name"))?;
        let dimensions = input.u32(WHAT)?;
        let wrong = |why| Error::Tensor {
            name: name.clone(),
            why,
        };
        if dimensions > DIMENSIONS {
            return Err(wrong("has more than four dimensions"));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            shape.push(input.u64(WHAT)?);
        }
        let kind = TensorType(input.u32(WHAT)?);
        let offset = input.u64(WHAT)?;
        if !offset.is_multiple_of(alignment) {
            return Err(wrong("does not begin where the alignment says"));
        }
        let bytes = size(kind, &shape).map_err(wrong)?;
        Ok(Self {
            name,
            kind,
            shape,
            offset,
            bytes,
        })
    }
}

fn size(kind: TensorType, shape: &[u64]) -> Result<u64, &'static str> {
    let elements = shape
        .iter()
        .try_fold(1_u64, |product, next| product.checked_mul(*next))
        .filter(|elements| i64::try_from(*elements).is_ok())
        .ok_or("has more elements than can be counted")?;
    let Some((bytes, block)) = kind.block() else {
        return Ok(0);
    };
    if !shape.first().copied().unwrap_or(1).is_multiple_of(block) {
        return Err("has rows that are no whole blocks of its type");
    }
    (elements / block)
        .checked_mul(bytes)
        .ok_or("has more bytes than can be counted")
}

/// Sets the size of tensors of unknown types: up to the next tensor. Refuses tensors that overlap or leave the file.
///
/// `data` is the size of the file's data in bytes.
pub(crate) fn place(tensors: &mut [Tensor], data: u64) -> Result<(), Error> {
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_key(|place| tensors.get(*place).map(|tensor| (tensor.offset, tensor.bytes)));
    let mut end = data;
    for place in order.into_iter().rev() {
        let Some(tensor) = tensors.get_mut(place) else {
            continue;
        };
        let wrong = |why| Error::Tensor {
            name: tensor.name.clone(),
            why,
        };
        let room = end
            .checked_sub(tensor.offset)
            .ok_or_else(|| wrong("begins behind the end of the file"))?;
        if tensor.kind.block().is_none() {
            tensor.bytes = room;
        }
        if tensor.bytes > room {
            return Err(wrong(if end == data {
                "goes on behind the end of the file"
            } else {
                "overlaps the next"
            }));
        }
        end = tensor.offset;
    }
    Ok(())
}
