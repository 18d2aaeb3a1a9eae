//! The stub's settings, parsed into valid values.

use std::time::Duration;

use muster_core::{Code, Error};
use muster_proto::v1::{ModelSettings, ModelType, StubSettings};

/// Number of tokens in an answer if the request sets no limit.
const TOKENS: u32 = 64;
/// Number of sequences if the settings set none.
const SEQUENCES: u32 = 256;
/// Context length in tokens if the settings set none.
const CONTEXT: u32 = 1 << 20;

/// Where the stub fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fail {
    /// It does not fail.
    None,
    /// The load reports a failure.
    Load,
    /// The load never ends.
    HangLoad,
    /// The process aborts while loading.
    AbortLoad,
    /// The process aborts after this many tokens.
    AbortAfter(u64),
    /// The loop hangs, busy, after this many tokens.
    StallAfter(u64),
    /// One tick is dropped after this many tokens.
    GapAfter(u64),
}

/// How the stub behaves.
#[derive(Clone, Debug)]
pub(super) struct Behaviour {
    pub(super) kind: ModelType,
    pub(super) load_time: Duration,
    /// Time per token; zero = as fast as credits allow.
    pub(super) token_time: Duration,
    pub(super) word_time: Duration,
    pub(super) tokens: u32,
    pub(super) memory_bytes: usize,
    pub(super) sequences: u32,
    pub(super) context: u32,
    pub(super) interval: u32,
    pub(super) fail: Fail,
}

impl Behaviour {
    /// Reads the settings.
    ///
    /// # Errors
    /// `invalid_load_request` for an unknown failure point or type.
    pub(super) fn read(settings: &ModelSettings) -> Result<Self, Error> {
        let stub = settings.stub.clone().unwrap_or_default();
        let or = |value: u32, default: u32| if value == 0 { default } else { value };
        Ok(Self {
            kind: match ModelType::try_from(settings.r#type) {
                Ok(ModelType::Unspecified) => ModelType::Llm,
                Ok(kind) => kind,
                Err(error) => return Err(Code::InvalidLoadRequest.error(error.to_string())),
            },
            load_time: Duration::from_millis(stub.load_time_ms.into()),
            token_time: Duration::from_secs(1)
                .checked_div(stub.tokens_per_second)
                .unwrap_or_default(),
            word_time: Duration::from_micros(stub.prompt_us_per_word.into()),
            tokens: or(stub.tokens, TOKENS),
            memory_bytes: usize::try_from(stub.memory_mib)
                .unwrap_or(usize::MAX)
                .saturating_mul(1 << 20),
            sequences: or(settings.sequences, SEQUENCES),
            context: or(settings.ctx_size, CONTEXT),
            interval: or(settings.stream_interval, 1),
            fail: fail(&stub)?,
        })
    }
}

fn fail(stub: &StubSettings) -> Result<Fail, Error> {
    let wrong = || Code::InvalidLoadRequest.error(format!("stub: unknown failure point `{}`", stub.fail));
    let Some((point, tokens)) = stub.fail.split_once(':') else {
        return match stub.fail.as_str() {
            "" | "none" => Ok(Fail::None),
            "load" => Ok(Fail::Load),
            "hang_load" => Ok(Fail::HangLoad),
            "abort_load" => Ok(Fail::AbortLoad),
            _ => Err(wrong()),
        };
    };
    let tokens = tokens.parse().map_err(|_| wrong())?;
    match point {
        "abort_after_tokens" => Ok(Fail::AbortAfter(tokens)),
        "stall_after_tokens" => Ok(Fail::StallAfter(tokens)),
        "gap_after_tokens" => Ok(Fail::GapAfter(tokens)),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(fail: &str) -> Result<Behaviour, Error> {
        let stub = StubSettings {
            fail: fail.into(),
            tokens_per_second: 50,
            ..Default::default()
        };
        Behaviour::read(&ModelSettings {
            stub: Some(stub),
            ..Default::default()
        })
    }

    #[test]
    fn failure_points_are_read_and_unknown_ones_refused() {
        assert_eq!(read("").unwrap().fail, Fail::None);
        assert_eq!(read("abort_after_tokens:7").unwrap().fail, Fail::AbortAfter(7));
        assert_eq!(read("none").unwrap().token_time, Duration::from_millis(20));
        for wrong in ["explode", "abort_after_tokens:", "stall_after_tokens:x"] {
            assert_eq!(read(wrong).unwrap_err().code, Code::InvalidLoadRequest);
        }
    }
}
