//! Writes a header of each shape into a folder, as inputs of the fuzz target `header`.
#![allow(clippy::unwrap_used, reason = "a tool of the tests")]

#[path = "../tests/support/seeds.rs"]
mod seeds;
#[path = "../tests/support/mod.rs"]
mod support;

fn main() {
    let folder = std::env::args_os().nth(1).map(std::path::PathBuf::from).unwrap();
    std::fs::create_dir_all(&folder).unwrap();
    for (number, writer) in seeds::seeds().iter().enumerate() {
        let mut input = writer.len().to_le_bytes().to_vec();
        input.extend(writer.header());
        std::fs::write(folder.join(number.to_string()), input).unwrap();
    }
}
