//! async-openai's types, which know nothing of us, read every answer in OpenAI's form.

use async_openai::types::{
    chat::{CreateChatCompletionResponse, CreateChatCompletionStreamResponse},
    completions::CreateCompletionResponse,
    embeddings::CreateEmbeddingResponse,
    models::{ListModelResponse, Model},
    responses::{Response, ResponseStreamEvent},
};
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
    worker::{Tick, Worker, admitted, ended, event, finished, text},
};

/// Reasoning, text with probabilities, and a call: everything an answer can hold.
fn everything(start: &Start) -> Vec<Tick> {
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
    vec![(
        vec![
            admitted(),
            thought,
            said,
            call,
            ended(0, FinishReason::ToolCalls),
            finished(),
        ],
        true,
    )]
}

async fn start() -> (Gateway, Controller, Worker) {
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
async fn models_are_what_async_openai_reads() {
    let (gateway, _controller, _worker) = start().await;
    let (_, list) = gateway.get("/v1/models").await;
    assert_eq!(is::<ListModelResponse>(&list).data.len(), 3);
    let (_, one) = gateway.get("/v1/models/m").await;
    assert_eq!(is::<Model>(&one).id, "m");
}
