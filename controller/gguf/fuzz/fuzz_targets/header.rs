//! A model file that may be anything: nothing may panic, overflow, loop, or allocate by the file's word.
//!
//! An input is the length that the file is said to have (8 bytes, little endian) and the file's beginning.
//!
//! `controller/gguf/fuzz/run [SECONDS]` builds it with the coverage that libFuzzer wants, on stable Rust, and runs it on seeds of all shapes.
//! `cargo fuzz run header` works too, with a nightly toolchain and its sanitizers.
#![no_main]
#![allow(clippy::unwrap_used, reason = "a fuzz target fails by panicking")]

#[path = "../../tests/support/whole.rs"]
mod whole;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Some((len, bytes)) = input.split_first_chunk() {
        // Refused or read, both are fine.
        drop(whole::all(bytes, u64::from_le_bytes(*len)));
    }
});
