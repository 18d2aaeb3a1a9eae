//! Parses server-sent events. No crate is used because those return one event at a time, and the events of one chunk should be passed on
//! together.

/// The bytes of an event that is not complete yet.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    buffer: Vec<u8>,
}

impl Decoder {
    /// Takes a chunk and passes the data of each complete event to `event`. Comments and other fields are skipped.
    ///
    /// # Errors
    /// The first error of `event`; the rest of the chunk is lost.
    pub(super) fn feed<E>(
        &mut self,
        chunk: &[u8],
        mut event: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.buffer.extend_from_slice(chunk);
        let mut done = 0;
        // llama-server writes each event's data as one line, so a line is an event.
        while let Some(length) = self.buffer[done..].iter().position(|byte| *byte == b'\n') {
            let line = &self.buffer[done..done + length];
            done += length + 1;
            if let Some(data) = line.strip_prefix(b"data:") {
                event(data.trim_ascii())?;
            }
        }
        self.buffer.drain(..done);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_survive_any_cut() {
        let stream = b"data: {\"a\":1}\n\n:\n\ndata:{\"b\":2}\r\n\r\ndata: [DONE]\n\n";
        for cut in 0..stream.len() {
            let mut decoder = Decoder::default();
            let mut got = Vec::new();
            for part in [&stream[..cut], &stream[cut..]] {
                decoder
                    .feed(part, |data| {
                        got.push(String::from_utf8_lossy(data).into_owned());
                        Ok::<_, ()>(())
                    })
                    .unwrap();
            }
            assert_eq!(got, [r#"{"a":1}"#, r#"{"b":2}"#, "[DONE]"], "cut at {cut}");
        }
    }
}
