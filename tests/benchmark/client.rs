//! A load client that costs little: raw HTTP/1.1 over kept connections, frames counted by scanning, nothing parsed per token.

use std::{
    io,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// What one streamed request showed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// From the first byte sent to the first frame with text.
    pub(crate) first: Duration,
    /// From the first byte sent to the end of the body.
    pub(crate) whole: Duration,
    /// SSE frames, `[DONE]` not counted.
    pub(crate) frames: u64,
    /// Generated tokens as the server counts them; 0 if it does not say.
    pub(crate) tokens: u64,
    /// The prompt's, likewise.
    pub(crate) prompt_tokens: u64,
}

/// What a run of many requests showed.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) samples: Vec<Sample>,
    pub(crate) wall: Duration,
}

impl Run {
    pub(crate) fn tokens_per_second(&self) -> f64 {
        rate(self.samples.iter().map(|sample| sample.tokens).sum(), self.wall)
    }

    pub(crate) fn frames_per_second(&self) -> f64 {
        rate(self.samples.iter().map(|sample| sample.frames).sum(), self.wall)
    }

    pub(crate) fn requests_per_second(&self) -> f64 {
        rate(self.samples.len() as u64, self.wall)
    }

    /// The `share` quantile of the time to the first text.
    pub(crate) fn first(&self, share: f64) -> Duration {
        let mut times: Vec<Duration> = self.samples.iter().map(|sample| sample.first).collect();
        times.sort_unstable();
        quantile(&times, share)
    }
}

/// The `share` quantile of sorted `times`.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "an index"
)]
pub(crate) fn quantile(times: &[Duration], share: f64) -> Duration {
    let last = times.len().saturating_sub(1);
    times
        .get((last as f64 * share).round() as usize)
        .copied()
        .unwrap_or_default()
}

#[allow(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(count: u64, wall: Duration) -> f64 {
    count as f64 / wall.as_secs_f64()
}

/// Runs `requests` requests over `streams` connections at once; `body` makes the n-th request's JSON.
pub(crate) async fn load(
    address: &str,
    streams: usize,
    requests: usize,
    body: impl Fn(usize) -> String + Clone + 'static,
) -> anyhow::Result<Run> {
    let next = std::rc::Rc::new(std::cell::Cell::new(0));
    let local = tokio::task::LocalSet::new();
    let begun = Instant::now();
    let samples = local
        .run_until(async {
            let tasks: Vec<_> = (0..streams.min(requests))
                .map(|_| {
                    let (address, body, next) = (address.to_owned(), body.clone(), next.clone());
                    tokio::task::spawn_local(async move {
                        let mut connection = Connection::open(&address).await?;
                        let mut samples = Vec::new();
                        loop {
                            let number = next.get();
                            if number >= requests {
                                return anyhow::Ok(samples);
                            }
                            next.set(number + 1);
                            samples.push(connection.chat(&body(number)).await?);
                        }
                    })
                })
                .collect();
            let mut samples = Vec::new();
            for task in tasks {
                samples.extend(task.await??);
            }
            anyhow::Ok(samples)
        })
        .await?;
    Ok(Run {
        samples,
        wall: begun.elapsed(),
    })
}

/// One kept HTTP/1.1 connection.
pub(crate) struct Connection {
    stream: TcpStream,
    host: String,
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            host: address.to_owned(),
            buffer: vec![0; 1 << 18],
        })
    }

    /// Posts a streamed chat completion and reads it to its end. llama-server closes a connection after each stream without saying so: then it is
    /// opened again and the clock starts anew, so that no path pays for connecting.
    pub(crate) async fn chat(&mut self, body: &str) -> anyhow::Result<Sample> {
        self.watch(body, &mut |_| {}).await
    }

    /// The same; `seen` hears of frames as they come, several at once if they came together.
    pub(crate) async fn watch(&mut self, body: &str, seen: &mut impl FnMut(u64)) -> anyhow::Result<Sample> {
        for _ in 0..2 {
            if let Some(sample) = self.try_chat(body, seen).await? {
                return Ok(sample);
            }
            *self = Self::open(&self.host).await?;
        }
        bail!("the server closed a new connection")
    }

    /// `None` if the connection was closed before the answer began.
    async fn try_chat(&mut self, body: &str, seen: &mut impl FnMut(u64)) -> anyhow::Result<Option<Sample>> {
        let request = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.host,
            body.len()
        );
        let begun = Instant::now();
        if self.stream.write_all(request.as_bytes()).await.is_err() {
            return Ok(None);
        }
        let mut tail = Vec::new();
        let (mut frames, mut first) = (0, None);
        loop {
            let read = match self.stream.read(&mut self.buffer).await {
                Ok(0) if tail.is_empty() => return Ok(None),
                Err(_) if tail.is_empty() => return Ok(None),
                other => other?,
            };
            if read == 0 {
                bail!(
                    "the server closed the connection: {}",
                    String::from_utf8_lossy(&tail)
                );
            }
            // Frames are counted in what was kept of the last read and in the new bytes.
            let kept = tail.len();
            tail.extend_from_slice(&self.buffer[..read]);
            if frames == 0 && first.is_none() && !tail.starts_with(b"HTTP/1.1 200") {
                bail!("refused: {}", String::from_utf8_lossy(&tail));
            }
            if first.is_none() && has_text(&tail) {
                first = Some(begun.elapsed());
            }
            let new = find_all(&tail, b"data: ", kept.saturating_sub(5));
            frames += new;
            if first.is_some() && new > 0 {
                seen(new);
            }
            if tail.ends_with(b"\r\n0\r\n\r\n") {
                let tokens = count(&tail, b"\"completion_tokens\":");
                let prompt_tokens = count(&tail, b"\"prompt_tokens\":");
                let done = find_all(&tail, b"data: [DONE]", 0);
                let first = first.context("no text came")?;
                return Ok(Some(Sample {
                    first,
                    whole: begun.elapsed(),
                    frames: frames - done,
                    tokens,
                    prompt_tokens,
                }));
            }
            if first.is_some() && tail.len() > 4096 {
                tail.drain(..tail.len() - 2048);
            }
        }
    }
}

/// A frame with content that is not empty (the first one has only the role).
fn has_text(bytes: &[u8]) -> bool {
    let keys: [&[u8]; 2] = [b"\"content\":\"", b"\"reasoning_content\":\""];
    keys.iter().any(|key| {
        bytes
            .windows(key.len() + 1)
            .any(|at| at.starts_with(key) && at[key.len()] != b'"')
    })
}

fn find_all(bytes: &[u8], what: &[u8], from: usize) -> u64 {
    memchr::memmem::find_iter(&bytes[from.min(bytes.len())..], what).count() as u64
}

/// The last number after `key`; 0 if there is none.
fn count(tail: &[u8], key: &[u8]) -> u64 {
    let Some(at) = memchr::memmem::rfind(tail, key) else {
        return 0;
    };
    tail[at + key.len()..]
        .iter()
        .skip_while(|byte| **byte == b' ')
        .take_while(|byte| byte.is_ascii_digit())
        .fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scanner_reads_frames_tokens_and_text() {
        let body = b"data: {\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}\n\ndata: {\"content\":\"x\"}\n\ndata: {\"usage\":{\"completion_tokens\": 42}}\n\ndata: [DONE]\n\n";
        assert_eq!(find_all(body, b"data: ", 0), 4);
        assert_eq!(count(body, b"\"completion_tokens\":"), 42);
        assert_eq!(count(body, b"\"prompt_tokens\":"), 0);
        assert!(has_text(body));
        assert!(!has_text(&body[..50]));
    }

    #[test]
    fn quantiles_take_the_nearest_sample() {
        let times: Vec<_> = (0..=100).map(Duration::from_millis).collect();
        assert_eq!(quantile(&times, 0.5), Duration::from_millis(50));
        assert_eq!(quantile(&times, 0.99), Duration::from_millis(99));
        assert_eq!(quantile(&[], 0.5), Duration::ZERO);
    }
}
