//! How tokens are chosen: OpenAI's fields and llama.cpp's (seed 004, `POST /completion`).
//!
//! OpenAI's own fields have OpenAI's ranges; llama.cpp's have those within which its samplers are defined.

use muster_proto::v1::{ErrorInfo, LogitBias, Sampling, logit_bias};

use super::object::{Field, Kind, Object};

const MAX: f64 = f32::MAX as f64;
const MIN: f64 = f32::MIN as f64;

/// Takes all sampling parameters out of `body`.
pub(crate) fn sampling(body: &mut Object<'_>) -> Result<Sampling, ErrorInfo> {
    within(body, 2.0, (-2.0, 2.0))
}

/// As [`sampling`], on llama.cpp's own routes, which know none of OpenAI's ranges.
pub(crate) fn unbounded(body: &mut Object<'_>) -> Result<Sampling, ErrorInfo> {
    within(body, MAX, (MIN, MAX))
}

fn within(body: &mut Object<'_>, hottest: f64, penalties: (f64, f64)) -> Result<Sampling, ErrorInfo> {
    let mut float = |keys: &[&str], low: f64, high: f64| {
        body.take_any(keys)
            .map(|field| field.float(low, high))
            .transpose()
    };
    let mut sampling = Sampling {
        temperature: float(&["temperature"], MIN, hottest)?,
        dynatemp_range: float(&["dynatemp_range"], 0.0, MAX)?,
        dynatemp_exponent: float(&["dynatemp_exponent"], MIN, MAX)?,
        top_p: float(&["top_p"], 0.0, 1.0)?,
        min_p: float(&["min_p"], 0.0, 1.0)?,
        typical_p: float(&["typical_p", "typ_p"], 0.0, 1.0)?,
        top_n_sigma: float(&["top_n_sigma"], MIN, MAX)?,
        xtc_probability: float(&["xtc_probability"], 0.0, 1.0)?,
        xtc_threshold: float(&["xtc_threshold"], 0.0, 1.0)?,
        repeat_penalty: float(&["repeat_penalty", "repetition_penalty"], 0.0, MAX)?,
        presence_penalty: float(&["presence_penalty"], penalties.0, penalties.1)?,
        frequency_penalty: float(&["frequency_penalty"], penalties.0, penalties.1)?,
        dry_multiplier: float(&["dry_multiplier"], 0.0, MAX)?,
        dry_base: float(&["dry_base"], MIN, MAX)?,
        mirostat_tau: float(&["mirostat_tau"], MIN, MAX)?,
        mirostat_eta: float(&["mirostat_eta"], MIN, MAX)?,
        ..Sampling::default()
    };
    let mut int = |key: &str, low: i32| body.take(key).map(|field| field.i32(low, i32::MAX)).transpose();
    sampling.top_k = int("top_k", -1)?.map(|k| k.max(0));
    sampling.repeat_last_n = int("repeat_last_n", -1)?;
    sampling.dry_allowed_length = int("dry_allowed_length", 0)?;
    sampling.dry_penalty_last_n = int("dry_penalty_last_n", -1)?;
    sampling.mirostat = body.take("mirostat").map(|field| field.i32(0, 2)).transpose()?;
    sampling.min_keep = body.take("min_keep").map(|field| field.u32(0)).transpose()?;
    sampling.ignore_eos = body.take("ignore_eos").map(|field| field.bool()).transpose()?;
    sampling.seed = body
        .take("seed")
        .map(|field| field.integer(i64::MIN, i64::MAX))
        .transpose()?;
    if let Some(field) = body.take("dry_sequence_breakers") {
        sampling.dry_sequence_breakers = field
            .list()?
            .iter()
            .map(Field::string)
            .collect::<Result<_, _>>()?;
        sampling.dry_sequence_breakers_set = true;
    }
    if let Some(field) = body.take("samplers") {
        sampling.samplers = field.strings()?;
    }
    if let Some(field) = body.take("logit_bias") {
        sampling.logit_bias = biases(&field)?;
    }
    Ok(sampling)
}

/// OpenAI's `{"123": -1}` or llama.cpp's `[[123, -1], ["text", false]]`.
fn biases(field: &Field<'_>) -> Result<Vec<LogitBias>, ErrorInfo> {
    match field.kind() {
        Kind::Object => {
            let entry = |(key, value): (String, Field<'_>)| bias(target(key), &value);
            field.entries()?.into_iter().map(entry).collect()
        }
        Kind::Array => field.list()?.iter().map(pair).collect(),
        Kind::Null | Kind::Bool | Kind::Number | Kind::String => {
            Err(field.want("an object or an array of pairs"))
        }
    }
}

/// A key that is a number names a token, any other stands for all tokens of its text.
fn target(key: String) -> logit_bias::Target {
    match key.parse() {
        Ok(token) => logit_bias::Target::Token(token),
        Err(_) => logit_bias::Target::Text(key),
    }
}

fn pair(field: &Field<'_>) -> Result<LogitBias, ErrorInfo> {
    let parts = field.list()?;
    let [who, value] = parts.as_slice() else {
        return Err(field.wrong("must be a pair of token and bias"));
    };
    let target = match who.kind() {
        Kind::String => logit_bias::Target::Text(who.string()?),
        Kind::Null | Kind::Bool | Kind::Number | Kind::Array | Kind::Object => {
            logit_bias::Target::Token(who.i32(0, i32::MAX)?)
        }
    };
    bias(target, value)
}

fn bias(target: logit_bias::Target, value: &Field<'_>) -> Result<LogitBias, ErrorInfo> {
    let (bias, never) = match value.kind() {
        Kind::Bool if value.bool()? => return Err(value.wrong("must be a number or false")),
        Kind::Bool => (0.0, true),
        Kind::Null | Kind::Number | Kind::String | Kind::Array | Kind::Object => {
            (value.float(MIN, MAX)?, false)
        }
    };
    Ok(LogitBias {
        target: Some(target),
        bias,
        never,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Sampling, ErrorInfo> {
        sampling(&mut Object::body(text).unwrap())
    }

    #[test]
    fn both_shapes_of_logit_bias_are_read() {
        let openai = read(r#"{"logit_bias": {"12": -100, "word": false}}"#)
            .unwrap()
            .logit_bias;
        let native = read(r#"{"logit_bias": [[12, -100], ["word", false]]}"#)
            .unwrap()
            .logit_bias;
        assert_eq!(openai, native);
        assert_eq!(openai[0].target, Some(logit_bias::Target::Token(12)));
        assert!(openai[1].never);
        let error = read(r#"{"logit_bias": [[12]]}"#).unwrap_err();
        assert_eq!(error.param, "logit_bias[0]");
    }

    #[test]
    fn openai_fields_have_openai_ranges() {
        for (field, value) in [
            ("temperature", "2.1"),
            ("top_p", "1.5"),
            ("presence_penalty", "-3"),
            ("mirostat", "3"),
        ] {
            let error = read(&format!("{{\"{field}\": {value}}}")).unwrap_err();
            assert_eq!(error.param, field);
        }
        // llama.cpp's own routes have no such ranges (seed 004).
        let text = r#"{"temperature": 3, "presence_penalty": 3, "frequency_penalty": -4}"#;
        let native = unbounded(&mut Object::body(text).unwrap()).unwrap();
        assert_eq!(
            (native.temperature, native.presence_penalty),
            (Some(3.0), Some(3.0))
        );
        assert!(unbounded(&mut Object::body(r#"{"top_p": 1.5}"#).unwrap()).is_err());
        assert_eq!(read(r#"{"temperature": -1}"#).unwrap().temperature, Some(-1.0));
        assert_eq!(read(r#"{"top_k": -1}"#).unwrap().top_k, Some(0));
    }

    #[test]
    fn an_empty_list_of_breakers_is_not_an_absent_one() {
        assert!(
            read(r#"{"dry_sequence_breakers": []}"#)
                .unwrap()
                .dry_sequence_breakers_set
        );
        assert!(!read("{}").unwrap().dry_sequence_breakers_set);
    }
}
