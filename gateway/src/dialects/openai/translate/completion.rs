//! `POST /v1/completions` (OpenAI's legacy completions; seeds 000 and 004).

use muster_core::{Code, Error};
use muster_proto::v1::{GenerateRequest, Infill, Prompt, generate_request::Input};

use super::{super::requests::CompletionBody, CompletionCall, asked, opened};
use crate::translate::{
    object::{Field, Kind},
    output::{best_of, constraint, max_tokens, switches, view},
    prompt::{prompts, text},
    read::{Fields as _, Uint},
};

/// Largest number of prompts in one request. Each becomes a request of its own at the worker.
const MAX_PROMPTS: usize = 128;
/// Largest total size in bytes of what is copied for each prompt.
const MAX_COPIES: usize = 256 << 20;
/// Largest number of alternatives per token; llama.cpp allows more than OpenAI's 5.
const MAX_LOGPROBS: i64 = 20;

/// Reads a completion request.
///
/// # Errors
/// `invalid_json`, `invalid_request` naming the field, or `unsupported_by_runtime`.
pub(crate) fn completions(body: &[u8]) -> Result<CompletionCall, Error> {
    let size = body.len();
    let mut body = opened(body)?;
    let request = CompletionBody::take_from(&mut body)?;
    let asked = asked(request.asking);
    let mut view = view(request.viewing);
    let field = request.prompt;
    let prompts = prompts(&field, MAX_PROMPTS)?;
    let suffix = request.suffix;
    best_of(&mut body, view.choices)?;
    let echo = (request.echo == Some(true)).then(|| prompts.clone());
    let copies = prompts.len() * if echo.is_some() { view.choices as usize } else { 1 };
    if copies > 1 && copies.saturating_mul(size) > MAX_COPIES {
        return Err(field.wrong("is too large to be given this many times"));
    }
    let mut work = GenerateRequest {
        sampling: Some(request.sampling.0),
        constraint: constraint(request.constraints)?,
        max_tokens: max_tokens(&request.limits),
        ..GenerateRequest::default()
    };
    if let Some(field) = request.logprobs {
        logprobs(&field, echo.is_some(), &mut work)?;
    }
    if let Some(Uint(top)) = request.n_probs {
        work.top_logprobs = work.top_logprobs.max(top);
        work.logprobs |= work.top_logprobs > 0;
    }
    view.logprobs = work.logprobs;
    switches(request.switches, &mut work, &mut view);
    work.extra_json = body.rest();
    let input = |prompt: Prompt| match suffix.as_deref() {
        Some(suffix) if !suffix.is_empty() => infill(&field, &prompt, suffix),
        Some(_) | None => Ok(Input::Prompt(prompt)),
    };
    let each = |prompt| {
        Ok(GenerateRequest {
            input: Some(input(prompt)?),
            ..work.clone()
        })
    };
    let work = prompts.into_iter().map(each).collect::<Result<_, Error>>()?;
    Ok(CompletionCall {
        asked,
        view,
        work,
        echo,
    })
}

fn infill(field: &Field<'_>, prompt: &Prompt, suffix: &str) -> Result<Input, Error> {
    match text(prompt) {
        Some(prefix) => Ok(Input::Infill(Infill {
            prefix: prefix.to_owned(),
            suffix: suffix.to_owned(),
            ..Infill::default()
        })),
        None => Err(field.wrong("must be text if there is a `suffix`")),
    }
}

/// Reads `logprobs`: OpenAI's number, Lemonade's boolean (seed 000: for the output's tokens) or llama.cpp's `n_probs`. With `echo`,
/// OpenAI's lists begin with the prompt's tokens. No engine tells their probabilities, and lists without them would be misread, so a number
/// with `echo` is refused.
fn logprobs(field: &Field<'_>, echo: bool, work: &mut GenerateRequest) -> Result<(), Error> {
    match field.kind() {
        Kind::Bool => work.logprobs = field.bool()?,
        Kind::Number if echo => {
            let message = "no runtime here tells the probabilities of a prompt's tokens, which a number with `echo` asks for; `true` asks for those of the output";
            return Err(Code::UnsupportedByRuntime.error(message).with_param("logprobs"));
        }
        Kind::Null | Kind::Number | Kind::String | Kind::Array | Kind::Object => {
            work.top_logprobs = u32::try_from(field.integer(0, MAX_LOGPROBS)?).unwrap_or_default();
            work.logprobs = true;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::{PromptPiece, TokenIds, prompt_piece};

    use super::*;

    fn read(fields: &str) -> Result<CompletionCall, Error> {
        completions(format!("{{\"model\": \"m\", {fields}}}").as_bytes())
    }

    fn inputs(fields: &str) -> Vec<Input> {
        read(fields)
            .unwrap()
            .work
            .into_iter()
            .map(|work| work.input.unwrap())
            .collect()
    }

    fn piece(kind: prompt_piece::Kind) -> PromptPiece {
        PromptPiece { kind: Some(kind) }
    }

    #[test]
    fn every_shape_of_prompt_is_read() {
        let prompt = |pieces| {
            Input::Prompt(Prompt {
                pieces,
                add_special: None,
            })
        };
        let words = |text: &str| piece(prompt_piece::Kind::Text(text.into()));
        let tokens = |ids: &[i32]| piece(prompt_piece::Kind::Tokens(TokenIds { ids: ids.into() }));
        assert_eq!(inputs(r#""prompt": "a""#), [prompt(vec![words("a")])]);
        assert_eq!(
            inputs(r#""prompt": ["a", "b"]"#),
            [prompt(vec![words("a")]), prompt(vec![words("b")])]
        );
        assert_eq!(inputs(r#""prompt": [1, 2]"#), [prompt(vec![tokens(&[1, 2])])]);
        assert_eq!(
            inputs(r#""prompt": [[1, 2], "c"]"#),
            [prompt(vec![tokens(&[1, 2])]), prompt(vec![words("c")])]
        );
        assert_eq!(
            inputs(r#""prompt": [1, "b", 2, 3]"#),
            [prompt(vec![tokens(&[1]), words("b"), tokens(&[2, 3])])]
        );
    }

    #[test]
    fn a_suffix_makes_infill() {
        let [Input::Infill(infill)] = &inputs(r#""prompt": "a", "suffix": "z""#)[..] else {
            panic!("no infill");
        };
        assert_eq!((infill.prefix.as_str(), infill.suffix.as_str()), ("a", "z"));
        assert_eq!(
            read(r#""prompt": [1], "suffix": "z""#)
                .unwrap_err()
                .param
                .unwrap_or_default(),
            "prompt"
        );
    }

    #[test]
    fn logprobs_is_a_number_or_a_boolean() {
        let read = |value: &str| {
            let call = read(&format!("\"prompt\": \"a\", \"logprobs\": {value}")).unwrap();
            (call.work[0].logprobs, call.work[0].top_logprobs)
        };
        assert_eq!(read("true"), (true, 0));
        assert_eq!(read("false"), (false, 0));
        assert_eq!(read("0"), (true, 0));
        assert_eq!(read("5"), (true, 5));
        assert_eq!(read("true, \"echo\": true"), (true, 0));
        assert_eq!(read("2, \"echo\": false"), (true, 2));
    }

    #[test]
    fn faults_are_refused_by_name() {
        for (fields, param) in [
            (r#""x": 1"#, "prompt"),
            (r#""prompt": []"#, "prompt"),
            (r#""prompt": [true]"#, "prompt[0]"),
            (r#""prompt": [[1, -1]]"#, "prompt[0][1]"),
            (r#""prompt": "a", "best_of": 2"#, "best_of"),
            (r#""prompt": "a", "logprobs": 99"#, "logprobs"),
            (r#""prompt": "a", "logprobs": 0, "echo": true"#, "logprobs"),
        ] {
            assert_eq!(
                read(fields).unwrap_err().param.unwrap_or_default(),
                param,
                "{fields}"
            );
        }
        let echo = |fields| read(fields).unwrap().echo.map(|prompts| prompts.len());
        assert_eq!(
            echo(r#""prompt": ["a", [1]], "best_of": 1, "echo": true"#),
            Some(2)
        );
        assert_eq!(echo(r#""prompt": "a""#), None);
    }
}
