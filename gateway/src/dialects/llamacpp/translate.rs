//! `POST /completion`, `/completions` and `/infill`, read (seed 004).

use muster_core::{Code, Error};
use muster_proto::v1::{
    GenerateRequest, Infill, InfillFile, Prompt, Sampling, generate_request::Input,
    prompt_piece::Kind as Piece,
};
use serde_json::{Value, json};

use super::{render::CompletionForm, settings::generation_settings};
use crate::translate::{
    View,
    object::{Field, Object},
    output::{Constraints, Limits, Switches, Viewing, constraint, max_tokens, switches, view},
    prompt::{one, prompts},
    read::Fields as _,
    sampling::unbounded,
};

/// Prompts in one request, as on OpenAI's route.
const MAX_PROMPTS: usize = 128;

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CompletionCall {
    pub(super) view: View,
    /// One per prompt.
    pub(super) work: Vec<GenerateRequest>,
    pub(super) form: CompletionForm,
}

/// Reads what is common to completions and infills; `model` is what was found.
///
/// # Errors
/// `invalid_request` naming the field.
pub(super) fn completion(mut body: Object<'_>, model: String) -> Result<CompletionCall, Error> {
    let field = body.need("prompt")?;
    let prompts = prompts(&field, MAX_PROMPTS)?;
    let shown = prompts.iter().map(shown).collect();
    let inputs = prompts.into_iter().map(Input::Prompt).collect();
    call(body, model, inputs, shown)
}

/// Reads an infill (seed 004, `POST /infill`).
///
/// # Errors
/// As [`completion`].
pub(super) fn infill(mut body: Object<'_>, model: String) -> Result<CompletionCall, Error> {
    let extra = match body.take("input_extra") {
        None => Vec::new(),
        Some(field) => field.list()?.iter().map(file).collect::<Result<_, _>>()?,
    };
    let middle = body
        .take("prompt")
        .map(|field| one(std::slice::from_ref(&field)))
        .transpose()?;
    let infill = Infill {
        prefix: body.need("input_prefix")?.string()?,
        suffix: body.need("input_suffix")?.string()?,
        middle,
        extra,
    };
    let shown = json!(infill.prefix);
    call(body, model, vec![Input::Infill(infill)], vec![shown])
}

fn file(field: &Field<'_>) -> Result<InfillFile, Error> {
    let mut file = field.object()?;
    let filename = file.take("filename").map(|name| name.string()).transpose()?;
    Ok(InfillFile {
        filename: filename.unwrap_or_else(|| "tmp".to_owned()),
        text: file.need("text")?.string()?,
    })
}

/// A prompt as the answer shows it: text where it is text.
fn shown(prompt: &Prompt) -> Value {
    match prompt.pieces.as_slice() {
        [one] => match &one.kind {
            Some(Piece::Text(text)) => json!(text),
            Some(Piece::Tokens(tokens)) => json!(tokens.ids),
            None => Value::Null,
        },
        pieces => pieces
            .iter()
            .map(|piece| match &piece.kind {
                Some(Piece::Text(text)) => json!(text),
                Some(Piece::Tokens(tokens)) => json!(tokens.ids),
                None => Value::Null,
            })
            .collect(),
    }
}

fn call(
    mut body: Object<'_>,
    model: String,
    inputs: Vec<Input>,
    prompts: Vec<Value>,
) -> Result<CompletionCall, Error> {
    let mut view = view(Viewing::take_from(&mut body)?);
    let fields = body
        .take("response_fields")
        .map(|field| field.strings())
        .transpose()?;
    let mut work = GenerateRequest {
        sampling: Some(unbounded(&mut body)?),
        constraint: constraint(Constraints::take_from(&mut body)?)?,
        max_tokens: max_tokens(&Limits::take_from(&mut body)?)?,
        ..GenerateRequest::default()
    };
    if let Some(field) = body.take("n_probs") {
        work.top_logprobs = field.u32(0)?;
        work.logprobs = work.top_logprobs > 0;
    }
    view.logprobs = work.logprobs;
    switches(Switches::take_from(&mut body)?, &mut work, &mut view);
    // Seed 004: token ids are in every stream.
    work.return_tokens |= view.stream;
    view.tokens = work.return_tokens;
    view.choices = 1;
    if let Some(field) = body.take("timings_per_token") {
        work.timings_per_token = field.bool()?;
    }
    work.return_prompt = true;
    refuse_images(&mut body)?;
    // What llama.cpp's clients send that means nothing here.
    body.discard(&["n", "user"]);
    work.extra_json = body.rest();
    work.return_sampling = true;
    let mut settings = generation_settings(&work, &Sampling::default());
    settings.insert("model".to_owned(), model.as_str().into());
    let form = CompletionForm {
        model,
        many: inputs.len() > 1,
        fields,
        settings,
        prompts,
    };
    let each = |input| GenerateRequest {
        input: Some(input),
        ..work.clone()
    };
    Ok(CompletionCall {
        view,
        work: inputs.into_iter().map(each).collect(),
        form,
    })
}

/// Seed 004's `image_data`, which no engine of today takes in a plain prompt: never dropped in silence.
pub(super) fn refuse_images(body: &mut Object<'_>) -> Result<(), Error> {
    let Some(field) = body.take("image_data") else {
        return Ok(());
    };
    if field.list()?.is_empty() {
        return Ok(());
    }
    let error = Code::UnsupportedByRuntime
        .error("no runtime here takes images in a plain prompt; a chat's content parts may hold them");
    Err(error.with_param("image_data"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translate::object;

    fn read(text: &str) -> Result<CompletionCall, Error> {
        completion(
            Object::body(object::text(text.as_bytes()).unwrap()).unwrap(),
            "m".into(),
        )
    }

    #[test]
    fn seed_004_infill_is_read() {
        let text = r#"{"input_prefix": "a", "input_suffix": "z", "input_extra": [{"filename": "f", "text": "t"}], "prompt": "m"}"#;
        let call = infill(Object::body(text).unwrap(), "m".into()).unwrap();
        let Some(Input::Infill(infill)) = &call.work[0].input else {
            panic!("no infill");
        };
        assert_eq!((infill.prefix.as_str(), infill.suffix.as_str()), ("a", "z"));
        assert_eq!(infill.extra[0].filename, "f");
        assert!(infill.middle.is_some());
        let missing = super::infill(Object::body(r#"{"input_prefix": "a"}"#).unwrap(), "m".into());
        assert_eq!(missing.unwrap_err().param.unwrap_or_default(), "input_suffix");
    }

    #[test]
    fn faults_are_refused_by_name() {
        for (text, param) in [
            (r#"{"x": 1}"#, "prompt"),
            (r#"{"prompt": "a", "n_predict": -2}"#, "n_predict"),
            (r#"{"prompt": "a", "response_fields": 3}"#, "response_fields"),
            (
                r#"{"prompt": "a", "image_data": [{"data": "", "id": 1}]}"#,
                "image_data",
            ),
            (
                r#"{"prompt": {"prompt_string": "a", "multimodal_data": []}}"#,
                "prompt",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert_eq!(error.param.unwrap_or_default(), param, "{text}");
            assert_eq!(error.code.http(), 400);
        }
    }
}
