//! `POST /completion`, `/completions` and `/infill`, read (seed 004).

use muster_core::Error;
use muster_proto::v1::{
    GenerateRequest, Infill, InfillFile, Prompt, PromptPiece, generate_request::Input,
    prompt_piece::Kind as Piece,
};
use serde_json::{Value, json};

use super::{
    render::CompletionForm,
    requests::{CompletionBody, Content, ExtraFile, InfillBody, Options},
};
use crate::{
    render::native::Native,
    translate::{
        Asked, View,
        object::Object,
        output::{constraint, max_tokens, switches},
        prompt::prompts,
        prompt_media::MARKER,
        read::{Fields as _, Int, Strings, Uint},
    },
    web::engine::ModelQuery,
};

/// Prompts in one request, as on OpenAI's route.
const MAX_PROMPTS: usize = 128;

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CompletionCall {
    pub(super) asked: Asked,
    pub(super) view: View,
    /// One per prompt.
    pub(super) work: Vec<GenerateRequest>,
    pub(super) form: CompletionForm,
}

/// Reads a completion; `query` may name the model too.
///
/// # Errors
/// `invalid_request` naming the field.
pub(super) fn completion(mut body: Object<'_>, query: ModelQuery) -> Result<CompletionCall, Error> {
    let CompletionBody { mut options, prompt } = CompletionBody::take_from(&mut body)?;
    let mut prompts = prompts(&prompt, MAX_PROMPTS)?;
    options
        .image_data
        .take()
        .unwrap_or_default()
        .place(&mut prompts)?;
    let shown = prompts.iter().map(shown).collect();
    let inputs = prompts.into_iter().map(Input::Prompt).collect();
    call(body, query, options, inputs, shown)
}

/// Reads an infill (seed 004, `POST /infill`).
///
/// # Errors
/// As [`completion`].
pub(super) fn infill(mut body: Object<'_>, query: ModelQuery) -> Result<CompletionCall, Error> {
    let mut request = InfillBody::take_from(&mut body)?;
    // Text around a gap has no place for an image.
    request
        .options
        .image_data
        .take()
        .unwrap_or_default()
        .place(&mut [])?;
    let file = |ExtraFile { filename, text }| InfillFile {
        filename: filename.unwrap_or_else(|| "tmp".to_owned()),
        text,
    };
    let extra = request.input_extra.unwrap_or_default();
    let infill = Infill {
        prefix: request.input_prefix,
        suffix: request.input_suffix,
        middle: request.prompt.map(|Content(prompt)| prompt),
        extra: extra.into_iter().map(file).collect(),
    };
    let shown = json!(infill.prefix);
    call(
        body,
        query,
        request.options,
        vec![Input::Infill(infill)],
        vec![shown],
    )
}

/// A prompt as the answer shows it: text where it is text.
fn shown(prompt: &Prompt) -> Value {
    let piece = |piece: &PromptPiece| match &piece.kind {
        Some(Piece::Text(text)) => json!(text),
        Some(Piece::Tokens(tokens)) => json!(tokens.ids),
        Some(Piece::Media(_)) => json!(MARKER),
        None => Value::Null,
    };
    match prompt.pieces.as_slice() {
        [one] => piece(one),
        pieces => pieces.iter().map(piece).collect(),
    }
}

fn call(
    mut body: Object<'_>,
    query: ModelQuery,
    options: Options,
    inputs: Vec<Input>,
    prompts: Vec<Value>,
) -> Result<CompletionCall, Error> {
    let mut view = View {
        stream: options.stream.unwrap_or_default(),
        choices: options.n_cmpl.map_or(1, |Int(choices)| choices.unsigned_abs()),
        ..View::default()
    };
    let top = options.n_probs.map_or(0, |Uint(top)| top);
    view.logprobs = top > 0;
    let mut work = GenerateRequest {
        sampling: Some(options.sampling.0),
        constraint: constraint(options.constraints)?,
        max_tokens: max_tokens(&options.limits),
        top_logprobs: top,
        logprobs: view.logprobs,
        return_prompt: true,
        return_sampling: true,
        ..GenerateRequest::default()
    };
    switches(options.switches, &mut work, &mut view);
    // Seed 004: token ids are in every stream.
    work.return_tokens |= view.stream;
    view.tokens = work.return_tokens;
    let progress = work.return_progress;
    // Each event of a stream counts the prompt's tokens.
    work.return_progress |= view.stream;
    // What llama.cpp's clients send that means nothing here.
    body.discard(&["user", "stream_options"]);
    work.extra_json = body.rest();
    let asked = Asked {
        model: query.or(options.model),
        ..Asked::default()
    };
    // Each answer shows its prompt.
    let each = |prompt| std::iter::repeat_n(prompt, view.choices as usize);
    let prompts: Vec<Value> = prompts.into_iter().flat_map(each).collect();
    // Of no field is the same as of all.
    let fields = options.response_fields.map(|Strings(fields)| fields);
    let form = CompletionForm {
        many: prompts.len() > 1,
        native: Native::of(&work, prompts),
        progress,
        fields: fields.filter(|fields| !fields.is_empty()),
    };
    let each = |input| GenerateRequest {
        input: Some(input),
        ..work.clone()
    };
    Ok(CompletionCall {
        asked,
        view,
        work: inputs.into_iter().map(each).collect(),
        form,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translate::object;

    fn read(text: &str) -> Result<CompletionCall, Error> {
        completion(
            Object::body(object::text(text.as_bytes()).unwrap()).unwrap(),
            ModelQuery::default(),
        )
    }

    #[test]
    fn seed_004_infill_is_read() {
        let text = r#"{"input_prefix": "a", "input_suffix": "z", "input_extra": [{"filename": "f", "text": "t"}], "prompt": "m"}"#;
        let call = infill(Object::body(text).unwrap(), ModelQuery::default()).unwrap();
        let Some(Input::Infill(infill)) = &call.work[0].input else {
            panic!("no infill");
        };
        assert_eq!((infill.prefix.as_str(), infill.suffix.as_str()), ("a", "z"));
        assert_eq!(infill.extra[0].filename, "f");
        assert!(infill.middle.is_some());
        let missing = super::infill(
            Object::body(r#"{"input_prefix": "a"}"#).unwrap(),
            ModelQuery::default(),
        );
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
                "image_data[0].data",
            ),
            (
                r#"{"prompt": {"prompt_string": "a", "multimodal_data": ["x"]}}"#,
                "prompt.multimodal_data",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert_eq!(error.param.unwrap_or_default(), param, "{text}");
            assert_eq!(error.code.http(), 400);
        }
    }
}
