//! Pixels of image files.
//!
//! Invariant: a file claims no more memory than [`PIXELS`] allow, whatever its header says.

use std::io::Cursor;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use image::{ImageReader, Limits};
use sha2::{Digest as _, Sha256};

/// Pixels of all images of one request.
pub(crate) const PIXELS: u64 = 64 << 20;
/// Longest side of an image in pixels.
const SIDE: u32 = 16 << 10;
/// Bytes that reading one file may take.
const READING: u64 = 512 << 20;

/// Pixels of an image.
#[derive(Debug)]
pub(crate) struct Pixels {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) rgb: Vec<u8>,
}

impl Pixels {
    /// The image of a `data:` URL, which may have `left` pixels; they are counted off.
    ///
    /// # Errors
    /// It is none, or the image is not read here, or larger than it may be.
    pub(crate) fn of_url(url: &str, left: &mut u64) -> Result<Self, String> {
        let data = url
            .split_once(',')
            .filter(|(kind, _)| {
                kind.get(..5)
                    .is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"))
            })
            .filter(|(kind, _)| kind.ends_with(";base64"));
        let Some((_, data)) = data else {
            return Err("an image must be a data: URL with base64 text".to_owned());
        };
        Self::of_base64(data, left)
    }

    /// The image of a file as base64 text.
    ///
    /// # Errors
    /// As [`of_url`](Self::of_url).
    pub(crate) fn of_base64(data: &str, left: &mut u64) -> Result<Self, String> {
        let file = STANDARD
            .decode(data)
            .map_err(|error| format!("an image is no base64 text: {error}"))?;
        let unreadable = |error: &dyn std::fmt::Display| format!("an image cannot be read: {error}");
        let mut reader = ImageReader::new(Cursor::new(&file))
            .with_guessed_format()
            .map_err(|error| unreadable(&error))?;
        let mut limits = Limits::default();
        limits.max_image_width = Some(SIDE);
        limits.max_image_height = Some(SIDE);
        limits.max_alloc = Some(READING);
        reader.limits(limits);
        let (width, height) = ImageReader::new(Cursor::new(&file))
            .with_guessed_format()
            .map_err(|error| unreadable(&error))?
            .into_dimensions()
            .map_err(|error| unreadable(&error))?;
        let pixels = u64::from(width) * u64::from(height);
        let Some(rest) = left.checked_sub(pixels) else {
            return Err(format!(
                "an image has {width} × {height} pixels: all of a request may have no more than {PIXELS}"
            ));
        };
        *left = rest;
        let image = reader.decode().map_err(|error| unreadable(&error))?.into_rgb8();
        Ok(Self {
            width: image.width(),
            height: image.height(),
            rgb: image.into_raw(),
        })
    }

    /// Tells the image from others.
    pub(super) fn sum(&self) -> [u8; 32] {
        let mut sum = Sha256::new();
        sum.update(self.width.to_le_bytes());
        sum.update(&self.rgb);
        sum.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1 × 1 pixel.
    const RED: &str =
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC";

    #[test]
    fn images_are_read_from_data_urls_and_from_nothing_else() {
        let red = Pixels::of_url(&format!("data:image/png;base64,{RED}"), &mut 1).unwrap();
        assert_eq!(
            (red.width, red.height, red.rgb.as_slice()),
            (1, 1, [255, 0, 0].as_slice())
        );
        assert_eq!(Pixels::of_base64(RED, &mut 1).unwrap().sum(), red.sum());
        for url in [
            "http://127.0.0.1/a.png",
            "file:///etc/passwd",
            "data:,x",
            "data:image/png;base64,!",
            "",
            RED,
        ] {
            assert!(Pixels::of_url(url, &mut 1).is_err(), "{url}");
        }
        assert!(
            Pixels::of_base64("AAAA", &mut 1)
                .unwrap_err()
                .contains("cannot be read")
        );
        let none_left = Pixels::of_base64(RED, &mut 0).unwrap_err();
        assert!(none_left.contains("no more than"), "{none_left}");
    }

    #[test]
    fn what_a_header_claims_is_not_allocated() {
        let mut file = STANDARD.decode(RED).unwrap();
        // Width and height of the header, and the header's sum.
        for (width, height) in [(1_u32 << 20, 1_u32), (16_000, 16_000)] {
            file[16..20].copy_from_slice(&width.to_be_bytes());
            file[20..24].copy_from_slice(&height.to_be_bytes());
            let error = Pixels::of_base64(&STANDARD.encode(&file), &mut PIXELS.clone()).unwrap_err();
            assert!(error.contains("image"), "{error}");
        }
    }
}
