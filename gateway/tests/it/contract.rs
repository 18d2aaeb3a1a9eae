//! async-openai's types, which know nothing of us, read every answer in OpenAI's form.

use async_openai::error::WrappedError;
use async_openai::types::{
    chat::{CreateChatCompletionResponse, CreateChatCompletionStreamResponse},
    completions::CreateCompletionResponse,
    embeddings::CreateEmbeddingResponse,
    models::{ListModelResponse, Model},
    responses::{
        OutputItem, OutputMessageContent, OutputStatus, Response, ResponseErrorCode, ResponseStreamEvent,
        Status,
    },
};
use muster_core::Code;
use muster_proto::v1::{
    EmbedResult, Embedding, FinishReason, ModelSummary, ModelType, Start, TokenLogprob, ToolCallDelta,
    TopLogprob, Vector, event::Kind, start::Work,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    controller::Controller,
    gateway::{Gateway, events, model},
    within,
    worker::{Tick, Worker, admitted, ended, event, failed, finished, text},
};

/// With so many tokens at most an answer is cut, or fails, after its text.
pub(crate) const CUT: u32 = 1;
const FAILS: u32 = 2;

/// Reasoning, text with probabilities, and a call: everything an answer can hold.
pub(crate) fn everything(start: &Start) -> Vec<Tick> {
    if let Some(Work::Embed(embed)) = &start.work {
        let vector = Vector { values: vec![0.5] };
        let embedding = Embedding {
            vectors: vec![vector],
            tokens: 1,
        };
        let result = EmbedResult {
            embeddings: vec![embedding; embed.inputs.len()],
            usage: None,
        };
        return vec![(vec![admitted(), event(Kind::Embedded(result)), finished()], true)];
    }
    let mut thought = text(0, "");
    let mut said = text(0, "see");
    let mut call = text(0, "");
    if let Some(Kind::Delta(delta)) = &mut thought.kind {
        delta.reasoning = "hm".into();
    }
    if let Some(Kind::Delta(delta)) = &mut said.kind {
        delta.logprobs = vec![TokenLogprob {
            token: 7,
            bytes: "see".into(),
            logprob: -0.5,
            top: vec![TopLogprob {
                token: 7,
                bytes: "see".into(),
                logprob: -0.5,
            }],
        }];
    }
    if let Some(Kind::Delta(delta)) = &mut call.kind {
        delta.tool_calls = vec![ToolCallDelta {
            index: 0,
            id: "call_1".into(),
            name: "f".into(),
            arguments: "{}".into(),
        }];
    }
    let limit = match &start.work {
        Some(Work::Generate(work)) => work.max_tokens,
        Some(Work::Embed(_) | Work::Rerank(_)) | None => None,
    };
    let rest = match limit {
        Some(CUT) => vec![ended(0, FinishReason::Length), finished()],
        Some(FAILS) => vec![failed(Code::RuntimeCrashed)],
        Some(_) | None => vec![call, ended(0, FinishReason::ToolCalls), finished()],
    };
    let mut events = vec![admitted(), thought, said];
    events.extend(rest);
    vec![(events, true)]
}

pub(crate) async fn start() -> (Gateway, Controller, Worker) {
    let worker = Worker::start(everything).await;
    let routes = ["m", "e"].map(|model| worker.route(model, &format!("instance-{model}")));
    let (gateway, controller) = Gateway::with(routes.to_vec()).await;
    controller.say(|said| {
        said.models.push(ModelSummary {
            r#type: ModelType::Embedding.into(),
            ..model("e")
        });
    });
    within(async { while gateway.get("/v1/models/e").await.0 != 200 {} }).await;
    (gateway, controller, worker)
}

/// Reads a value as one of their types.
fn is<T: DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value:#}"))
}

async fn whole<T: DeserializeOwned>(gateway: &Gateway, path: &str, body: Value) -> T {
    let response = gateway.post(path, &body).await;
    assert_eq!(response.status(), 200);
    is(&within(response.json()).await.unwrap())
}

async fn streamed<T: DeserializeOwned>(gateway: &Gateway, path: &str, mut body: Value) -> Vec<T> {
    body["stream"] = true.into();
    let events = events(gateway.post(path, &body).await).await;
    events.iter().filter(|event| event.is_object()).map(is).collect()
}

#[tokio::test]
async fn chats_are_what_async_openai_reads() {
    let (gateway, _controller, _worker) = start().await;
    let messages = json!([{"role": "user", "content": "hi"}]);
    let body = json!({"model": "m", "messages": messages, "logprobs": true, "top_logprobs": 1,
        "stream_options": {"include_usage": true}});
    let path = "/v1/chat/completions";
    let chat: CreateChatCompletionResponse = whole(&gateway, path, body.clone()).await;
    assert_eq!(chat.choices[0].message.content.as_deref(), Some("see"));
    assert_eq!(chat.choices[0].message.tool_calls.as_ref().unwrap().len(), 1);
    let chunks: Vec<CreateChatCompletionStreamResponse> = streamed(&gateway, path, body).await;
    assert!(chunks.last().unwrap().usage.is_some());
}

#[tokio::test]
async fn completions_and_vectors_are_what_async_openai_reads() {
    let (gateway, _controller, _worker) = start().await;
    let body = json!({"model": "m", "prompt": "hi", "logprobs": 1});
    let completion: CreateCompletionResponse = whole(&gateway, "/v1/completions", body.clone()).await;
    assert_eq!(completion.choices[0].text, "hmsee");
    let chunks: Vec<CreateCompletionResponse> = streamed(&gateway, "/v1/completions", body).await;
    assert!(!chunks.is_empty());
    let body = json!({"model": "e", "input": ["a", "b"]});
    let vectors: CreateEmbeddingResponse = whole(&gateway, "/v1/embeddings", body).await;
    assert_eq!(vectors.data.len(), 2);
}

#[tokio::test]
async fn responses_are_what_async_openai_reads() {
    let (gateway, _controller, _worker) = start().await;
    let tool = json!({"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": true});
    let body = json!({"model": "m", "input": "hi", "tools": [tool], "instructions": "be"});
    let response: Response = whole(&gateway, "/v1/responses", body.clone()).await;
    assert_eq!(response.output.len(), 3);
    let events: Vec<ResponseStreamEvent> = streamed(&gateway, "/v1/responses", body).await;
    assert!(
        matches!(events.last(), Some(ResponseStreamEvent::ResponseCompleted(_))),
        "{:?}",
        events.last()
    );
}

#[tokio::test]
async fn responses_that_are_cut_or_fail_are_what_async_openai_reads() {
    let (gateway, _controller, _worker) = start().await;
    let path = "/v1/responses";
    let body = json!({"model": "m", "input": "hi", "max_output_tokens": CUT, "top_logprobs": 1});
    let response: Response = whole(&gateway, path, body.clone()).await;
    assert_eq!(response.status, Status::Incomplete);
    assert_eq!((response.output.len(), response.completed_at), (2, None));
    let text = |response: &Response| {
        let OutputItem::Message(message) = &response.output[1] else {
            panic!("{:?}", response.output[1]);
        };
        assert_eq!(message.status, OutputStatus::Incomplete);
        match &message.content[0] {
            OutputMessageContent::OutputText(text) => text.clone(),
            OutputMessageContent::Refusal(refusal) => panic!("{refusal:?}"),
        }
    };
    let figures = text(&response).logprobs.unwrap();
    assert_eq!((figures.len(), figures[0].top_logprobs.len()), (1, 1));
    let events: Vec<ResponseStreamEvent> = streamed(&gateway, path, body).await;
    let Some(ResponseStreamEvent::ResponseCompleted(last)) = events.last() else {
        panic!("{:?}", events.last());
    };
    assert_eq!(text(&last.response).logprobs.unwrap(), figures);
    let body = json!({"model": "m", "input": "hi", "max_output_tokens": FAILS});
    let events: Vec<ResponseStreamEvent> = streamed(&gateway, path, body).await;
    let Some(ResponseStreamEvent::ResponseFailed(last)) = events.last() else {
        panic!("{:?}", events.last());
    };
    assert_eq!(last.response.status, Status::Failed);
    let code = ResponseErrorCode::Other("runtime_crashed".into());
    assert_eq!(last.response.error.as_ref().unwrap().code, code);
}

#[tokio::test]
async fn models_are_what_async_openai_reads() {
    let (gateway, _controller, _worker) = start().await;
    let (_, list) = gateway.get("/v1/models").await;
    assert_eq!(is::<ListModelResponse>(&list).data.len(), 3);
    let (_, one) = gateway.get("/v1/models/m").await;
    assert_eq!(is::<Model>(&one).id, "m");
}

#[tokio::test]
async fn errors_are_what_async_openai_reads() {
    let (gateway, _controller, _worker) = start().await;
    let messages = json!([{"role": "user", "content": "hi"}]);
    for (path, body, status, code, param) in [
        (
            "/v1/chat/completions",
            json!({"model": "x", "messages": messages}),
            404,
            "unknown_model",
            "model",
        ),
        (
            "/v1/chat/completions",
            json!({"model": "m", "messages": messages, "n": 0}),
            400,
            "invalid_request",
            "n",
        ),
        (
            "/v1/completions",
            json!({"model": "m"}),
            400,
            "invalid_request",
            "prompt",
        ),
        (
            "/v1/embeddings",
            json!({"model": "m", "input": "x"}),
            400,
            "unsupported_by_runtime",
            "model",
        ),
        (
            "/v1/responses",
            json!({"model": "m", "input": "x", "n": 2}),
            400,
            "unsupported_by_runtime",
            "n",
        ),
    ] {
        let response = gateway.post(path, &body).await;
        assert_eq!(response.status(), status, "{path} {body}");
        let error: WrappedError = is(&within(response.json()).await.unwrap());
        assert_eq!(error.error.code.as_deref(), Some(code), "{path} {body}");
        assert_eq!(error.error.param.as_deref(), Some(param), "{path} {body}");
        assert!(error.error.r#type.is_some() && !error.error.message.is_empty());
    }
    let body = json!({"model": "m", "messages": messages, "stream": true, "max_tokens": FAILS});
    let events = events(gateway.post("/v1/chat/completions", &body).await).await;
    let error: WrappedError = is(events.last().unwrap());
    assert_eq!(error.error.code.as_deref(), Some("runtime_crashed"));
}
