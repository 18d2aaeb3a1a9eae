//! Copies the output of child processes to standard error, line by line, each with the child's name.

use std::io::{self, IsTerminal as _, Write as _};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader},
    task::JoinHandle,
};

/// Longest line in bytes that is not split.
const LINE_BYTES: u64 = 64 << 10;

/// Copies `from` to standard error until its end. Ends with the child, which holds the other end.
pub(crate) fn forward(
    name: &str,
    width: usize,
    from: impl AsyncRead + Unpin + Send + 'static,
) -> JoinHandle<()> {
    let prefix = prefix(name, width, io::stderr().is_terminal());
    tokio::spawn(async move {
        let mut reader = BufReader::new(from);
        let mut line = prefix.clone().into_bytes();
        // A read error means that the child closed its output.
        while (&mut reader)
            .take(LINE_BYTES)
            .read_until(b'\n', &mut line)
            .await
            .is_ok_and(|read| read > 0)
        {
            if line.last() != Some(&b'\n') {
                line.push(b'\n');
            }
            // If standard error is gone, nobody can be told.
            drop(io::stderr().lock().write_all(&line));
            line.truncate(prefix.len());
        }
    })
}

fn prefix(name: &str, width: usize, colour: bool) -> String {
    if !colour {
        return format!("{name:width$} | ");
    }
    let code = 31 + name.bytes().map(u32::from).sum::<u32>() % 6;
    format!("\x1b[{code}m{name:width$} |\x1b[0m ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_line_up() {
        assert_eq!(prefix("gateway", 10, false), "gateway    | ");
        assert!(prefix("gateway", 10, true).starts_with("\x1b[3"));
    }
}
