//! `POST /completion`, `/completions` and `/infill` (seed 004): llama.cpp's own completion, for every runtime.
//!
//! Streams end with an object whose `stop` is true; there is no `[DONE]` (gateway/README.md, llama.cpp's routes).

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use muster_proto::{
    Code, ErrorExt as _,
    v1::{
        ChoiceFinished, Delta, ErrorInfo, Finished, GenerateRequest, Infill, InfillFile, Prompt,
        PromptProgress, Sampling, StopKind, Timings, TokenLogprob, Usage, generate_request::Input,
        prompt_piece::Kind as Piece,
    },
};
use serde_json::{Map, Value, json};

use super::settings::{generation_settings, put_sampling};
use crate::{
    render::{
        answer::{Answer, Choice},
        json::{member, raw, value},
        logprobs,
        stream::{Frames, Stream},
        usage,
    },
    translate::{
        View,
        object::{Field, Object},
        output::{constraint, max_tokens, switches, view},
        prompt::{one, prompts},
        sampling::unbounded,
    },
};

/// Prompts in one request, as on OpenAI's route.
const MAX_PROMPTS: usize = 128;

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CompletionCall {
    pub(super) view: View,
    /// One per prompt.
    pub(super) work: Vec<GenerateRequest>,
    pub(super) shape: Shape,
}

/// How the answer is shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Shape {
    pub(super) model: String,
    /// Several prompts were given, so several answers are shown.
    many: bool,
    /// `response_fields`; none = all.
    fields: Option<Vec<String>>,
    /// As asked for.
    settings: Map<String, Value>,
    /// By prompt.
    prompts: Vec<Value>,
}

/// Reads what is common to completions and infills; `model` is what was found.
///
/// # Errors
/// `invalid_request` naming the field.
pub(super) fn completion(mut body: Object<'_>, model: String) -> Result<CompletionCall, ErrorInfo> {
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
pub(super) fn infill(mut body: Object<'_>, model: String) -> Result<CompletionCall, ErrorInfo> {
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

fn file(field: &Field<'_>) -> Result<InfillFile, ErrorInfo> {
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
) -> Result<CompletionCall, ErrorInfo> {
    let mut view = view(&mut body)?;
    let fields = body
        .take("response_fields")
        .map(|field| field.strings())
        .transpose()?;
    let mut work = GenerateRequest {
        sampling: Some(unbounded(&mut body)?),
        constraint: constraint(&mut body)?,
        max_tokens: max_tokens(&mut body)?,
        ..GenerateRequest::default()
    };
    if let Some(field) = body.take("n_probs") {
        work.top_logprobs = field.u32(0)?;
        work.logprobs = work.top_logprobs > 0;
    }
    view.logprobs = work.logprobs;
    switches(&mut body, &mut work, &mut view)?;
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
    let shape = Shape {
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
        shape,
    })
}

/// Seed 004's `image_data`, which no engine of today takes in a plain prompt: never dropped in silence.
pub(super) fn refuse_images(body: &mut Object<'_>) -> Result<(), ErrorInfo> {
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

impl Shape {
    /// The context of the instance that answers, shown in `generation_settings`.
    pub(super) fn context(&mut self, n_ctx: u32) {
        self.settings.insert("n_ctx".to_owned(), n_ctx.into());
    }

    /// What was in force for a choice.
    fn settings(&self, end: &ChoiceFinished) -> Map<String, Value> {
        let mut settings = self.settings.clone();
        if let Some(sampling) = &end.sampling {
            put_sampling(&mut settings, sampling);
        }
        settings
    }

    /// The prompt as the model saw it, or as it came if the engine did not say.
    fn prompt(&self, index: u32, end: &ChoiceFinished) -> Value {
        if !end.prompt.is_empty() {
            return end.prompt.as_str().into();
        }
        self.prompts.get(index as usize).cloned().unwrap_or_default()
    }
}

/// The whole answer: one object, or a list of them for several prompts, each with figures of its own.
pub(super) fn body(shape: &Shape, view: View, answers: &[Answer]) -> Value {
    let objects = (0..).zip(answers).flat_map(|(index, answer)| {
        let choices = answer.choices.values();
        choices.map(move |choice| whole(shape, view, index, choice, &answer.finished))
    });
    let mut objects: Vec<Value> = objects.collect();
    if !shape.many && objects.len() == 1 {
        return objects.remove(0);
    }
    objects.into()
}

fn whole(shape: &Shape, view: View, index: u32, choice: &Choice, finished: &Finished) -> Value {
    let mut object = last(shape, &choice.end, finished);
    object.insert("index".into(), index.into());
    object.insert(
        "content".into(),
        [&*choice.reasoning, &*choice.content].concat().into(),
    );
    // Some engines tell them unasked.
    let tokens = if view.tokens {
        choice.tokens.as_slice()
    } else {
        &[]
    };
    object.insert("tokens".into(), tokens.into());
    object.insert("prompt".into(), shape.prompt(index, &choice.end));
    object.insert("has_new_line".into(), choice.content.contains('\n').into());
    if view.logprobs {
        object.insert(
            "completion_probabilities".into(),
            probabilities(&choice.logprobs, view),
        );
    }
    match &shape.fields {
        Some(fields) => Value::from(selected(fields, &object.into())),
        None => object.into(),
    }
}

/// What is known at the end of an answer.
fn last(shape: &Shape, end: &ChoiceFinished, finished: &Finished) -> Map<String, Value> {
    let tokens = finished.usage.unwrap_or_default();
    let kind = match StopKind::try_from(end.stop).unwrap_or_default() {
        StopKind::Eos => "eos",
        StopKind::Word => "word",
        StopKind::Limit => "limit",
        StopKind::Unspecified => "none",
    };
    let object = json!({
        "id_slot": finished.id_slot.map_or(-1, i64::from),
        "stop": true,
        "model": shape.model,
        "tokens_predicted": end.generated,
        "tokens_evaluated": tokens.prompt_tokens,
        "generation_settings": shape.settings(end),
        "truncated": end.truncated,
        "stop_type": kind,
        "stopping_word": end.stopping_word,
        "tokens_cached": tokens.cached_tokens,
        "timings": finished.timings.map(|timings| times(&timings, &tokens)),
    });
    serde_json::from_value(object).unwrap_or_default()
}

/// An engine's times in llama.cpp's form.
fn times(timings: &Timings, usage: &Usage) -> Value {
    let mut out = BytesMut::new();
    usage::times(&mut out, timings, usage);
    serde_json::from_slice(&out).unwrap_or_default()
}

fn probabilities(tokens: &[TokenLogprob], view: View) -> Value {
    let mut out = BytesMut::new();
    raw(&mut out, "[");
    logprobs::chat(&mut out, tokens, view.post_sampling);
    raw(&mut out, "]");
    serde_json::from_slice(&out).unwrap_or_default()
}

/// `response_fields`: those that are there; what stands deeper comes to the top under its whole path, as llama.cpp names it (seed 004).
fn selected(fields: &[String], object: &Value) -> Map<String, Value> {
    let find = |field: &String| {
        let found = field.split('/').try_fold(object, |value, key| value.get(key))?;
        Some((field.clone(), found.clone()))
    };
    fields.iter().filter_map(find).collect()
}

/// The objects of a stream.
#[derive(Debug)]
pub(crate) struct Events {
    shape: Shape,
    view: View,
    /// Whether a choice's output had a line break, and how many tokens it has; by prompt.
    seen: Vec<(bool, u32)>,
}

/// The answer as it comes.
pub(crate) fn stream(shape: Shape, view: View) -> Stream<Events> {
    let seen = vec![(false, 0); shape.prompts.len().max(1)];
    Stream::new(Events { shape, view, seen }, view.tokens)
}

fn event(out: &mut BytesMut, object: &Value) {
    raw(out, "data: ");
    value(out, object);
    raw(out, "\n\n");
}

impl Frames for Events {
    fn delta(&mut self, delta: &Delta, _first: bool, _extra: &str, out: &mut BytesMut) {
        // A plain prompt's output is not split; the common case copies nothing.
        let content = match delta.reasoning.as_str() {
            "" => Cow::Borrowed(delta.content.as_str()),
            reasoning => Cow::Owned([reasoning, &delta.content].concat()),
        };
        let mut predicted = delta.generated;
        if let Some((line, generated)) = self.seen.get_mut(delta.choice as usize) {
            *line |= content.contains('\n');
            *generated = delta.generated.max(*generated);
            predicted = *generated;
        }
        raw(out, "data: {\"index\":");
        value(out, &delta.choice);
        member(out, "content", &content);
        member(out, "tokens", &delta.tokens);
        raw(out, ",\"stop\":false,\"id_slot\":-1");
        member(out, "tokens_predicted", &predicted);
        if self.view.logprobs {
            raw(out, ",\"completion_probabilities\":[");
            logprobs::chat(out, &delta.logprobs, self.view.post_sampling);
            raw(out, "]");
        }
        if let Some(timings) = &delta.timings {
            raw(out, ",\"timings\":");
            usage::times(out, timings, &Usage::default());
        }
        raw(out, "}\n\n");
    }

    fn progress(&mut self, progress: &PromptProgress, _first: bool, out: &mut BytesMut) {
        let object = json!({
            "content": "",
            "stop": false,
            "prompt_progress": {
                "total": progress.total,
                "cache": progress.cached,
                "processed": progress.processed,
                "time_ms": progress.elapsed_ms,
            },
        });
        event(out, &object);
    }

    fn shows_progress(&self) -> bool {
        true
    }

    fn end(&mut self, end: &ChoiceFinished, _first: bool, finished: Option<&Finished>, out: &mut BytesMut) {
        let mut object = last(&self.shape, end, finished.unwrap_or(&Finished::default()));
        let line = self.seen.get(end.choice as usize).is_some_and(|(line, _)| *line);
        let prompt = self.shape.prompt(end.choice, end);
        object.insert("index".into(), end.choice.into());
        object.insert("content".into(), "".into());
        object.insert("tokens".into(), json!([]));
        object.insert("prompt".into(), prompt);
        object.insert("has_new_line".into(), line.into());
        let object = match &self.shape.fields {
            Some(fields) => Value::from(selected(fields, &object.into())),
            None => object.into(),
        };
        event(out, &object);
    }

    /// The last choice's end was the last object.
    fn finish(&mut self, _finished: &Finished, _extra: &str, _out: &mut BytesMut) {}

    fn fail(&mut self, error: &ErrorInfo, out: &mut BytesMut) {
        raw(out, "data: ");
        super::error::FORM.write(out, error);
        raw(out, "\n\n");
    }
}

/// A body's bytes.
pub(super) fn bytes(object: &Value) -> Bytes {
    let mut out = BytesMut::new();
    value(&mut out, object);
    out.freeze()
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::{Event, event::Kind};

    use super::*;
    use crate::{render::Render as _, translate::object};

    fn read(text: &str) -> Result<CompletionCall, ErrorInfo> {
        completion(
            Object::body(object::text(text.as_bytes()).unwrap()).unwrap(),
            "m".into(),
        )
    }

    fn events() -> Vec<Event> {
        let event = |kind| Event {
            kind: Some(kind),
            extra_json: String::new(),
        };
        let delta = |content: &str, generated, token| {
            event(Kind::Delta(Delta {
                content: content.into(),
                tokens: vec![token],
                generated,
                ..Delta::default()
            }))
        };
        let end = ChoiceFinished {
            stop: StopKind::Word.into(),
            stopping_word: "END".into(),
            generated: 2,
            sampling: Some(Box::new(Sampling {
                temperature: Some(0.5),
                min_p: Some(0.25),
                ..Sampling::default()
            })),
            ..ChoiceFinished::default()
        };
        let finished = Finished {
            usage: Some(Usage {
                prompt_tokens: 5,
                cached_tokens: 3,
                completion_tokens: 2,
                ..Usage::default()
            }),
            timings: Some(Timings {
                predicted_n: 2,
                predicted_ms: 4.0,
                ..Timings::default()
            }),
            id_slot: Some(1),
        };
        vec![
            delta("a\n", 1, 7),
            delta("b", 2, 8),
            event(Kind::ChoiceFinished(end)),
            event(Kind::Finished(finished)),
        ]
    }

    #[test]
    fn seed_004_fields_of_a_completion() {
        let call =
            read(r#"{"prompt": "p", "n_predict": 8, "temperature": 0.5, "return_tokens": true}"#).unwrap();
        let mut answer = Answer::default();
        for event in events() {
            answer.event(event).unwrap();
        }
        let object = body(&call.shape, call.view, &[answer]);
        for (key, value) in [
            ("content", json!("a\nb")),
            ("tokens", json!([7, 8])),
            ("stop", json!(true)),
            ("model", json!("m")),
            ("prompt", json!("p")),
            ("stop_type", json!("word")),
            ("stopping_word", json!("END")),
            ("tokens_predicted", json!(2)),
            ("tokens_evaluated", json!(5)),
            ("tokens_cached", json!(3)),
            ("truncated", json!(false)),
            ("id_slot", json!(1)),
            ("has_new_line", json!(true)),
        ] {
            assert_eq!(object[key], value, "{key}");
        }
        assert_eq!(object["timings"]["predicted_per_second"], 500.0);
        assert_eq!(object["generation_settings"]["n_predict"], 8);
        assert_eq!(object["generation_settings"]["temperature"], 0.5);
        // As the engine says; where it says nothing, as llama.cpp does by itself.
        assert_eq!(object["generation_settings"]["min_p"], 0.25);
        assert_eq!(object["generation_settings"]["top_k"], 40);
        assert_eq!(object["generation_settings"]["model"], "m");
    }

    #[test]
    fn seed_004_timings_per_token_are_in_each_event() {
        let call = read(r#"{"prompt": "p", "stream": true, "timings_per_token": true}"#).unwrap();
        assert!(call.work[0].timings_per_token);
        let mut stream = stream(call.shape, call.view);
        let mut out = BytesMut::new();
        let delta = Delta {
            content: "a".into(),
            timings: Some(Timings {
                prompt_n: 4,
                prompt_ms: 2.0,
                predicted_n: 1,
                ..Timings::default()
            }),
            ..Delta::default()
        };
        let event = Event {
            kind: Some(Kind::Delta(delta)),
            extra_json: String::new(),
        };
        stream.event(event, &mut out);
        let text = std::str::from_utf8(&out).unwrap();
        let object: Value = serde_json::from_str(text.trim_end().strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(object["timings"]["prompt_per_second"], 2000.0);
        assert_eq!(object["timings"]["predicted_n"], 1);
    }

    #[test]
    fn seed_004_response_fields_are_picked_and_unnested() {
        let call = read(
            r#"{"prompt": "p", "n_predict": 8, "response_fields": ["content", "generation_settings/n_predict", "nothing"]}"#,
        );
        let call = call.unwrap();
        let mut answer = Answer::default();
        for event in events() {
            answer.event(event).unwrap();
        }
        assert_eq!(
            body(&call.shape, call.view, &[answer]),
            json!({"content": "a\nb", "generation_settings/n_predict": 8})
        );
    }

    #[test]
    fn a_stream_ends_with_stop_and_without_done() {
        let call = read(r#"{"prompt": "p", "stream": true}"#).unwrap();
        assert!(call.work[0].return_tokens);
        let mut stream = stream(call.shape, call.view);
        let mut out = BytesMut::new();
        let ends: Vec<bool> = events()
            .into_iter()
            .map(|event| stream.event(event, &mut out))
            .collect();
        assert_eq!(ends, [false, false, false, true]);
        let text = std::str::from_utf8(&out).unwrap();
        let objects: Vec<Value> = text
            .split_terminator("\n\n")
            .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
            .collect();
        assert_eq!(objects.len(), 3);
        assert_eq!(
            (&objects[0]["content"], &objects[0]["tokens"]),
            (&json!("a\n"), &json!([7]))
        );
        assert_eq!(objects[1]["stop"], false);
        assert_eq!(
            (&objects[2]["stop"], &objects[2]["content"]),
            (&json!(true), &json!(""))
        );
        assert_eq!(objects[2]["tokens_evaluated"], 5);
    }

    #[test]
    fn seed_004_several_prompts_are_several_answers_with_their_own_figures() {
        let call = read(r#"{"prompt": ["a", [1, 2]]}"#).unwrap();
        assert_eq!(call.work.len(), 2);
        let answer = |prompt: &str, prompt_tokens| {
            let choice = Choice {
                tokens: vec![7],
                end: ChoiceFinished {
                    prompt: prompt.into(),
                    ..ChoiceFinished::default()
                },
                ..Choice::default()
            };
            let usage = Usage {
                prompt_tokens,
                ..Usage::default()
            };
            Answer {
                choices: [(0, choice)].into(),
                finished: Finished {
                    usage: Some(usage),
                    ..Finished::default()
                },
                ..Answer::default()
            }
        };
        let list = body(&call.shape, call.view, &[answer("<s>a", 2), answer("", 3)]);
        assert_eq!(list.as_array().unwrap().len(), 2);
        for (key, one, other) in [
            ("index", json!(0), json!(1)),
            ("prompt", json!("<s>a"), json!([1, 2])),
            ("tokens_evaluated", json!(2), json!(3)),
            // Nobody asked for them.
            ("tokens", json!([]), json!([])),
        ] {
            assert_eq!((&list[0][key], &list[1][key]), (&one, &other), "{key}");
        }
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
        assert_eq!(missing.unwrap_err().param, "input_suffix");
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
            assert_eq!(error.param, param, "{text}");
            assert_eq!(error.kind().http_number(), 400);
        }
    }
}
