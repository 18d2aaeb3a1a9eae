//! The service `Inference`: sessions of gateways, and single calls for `grpcurl` and other clients.

use std::{pin::Pin, sync::Arc};

use futures::{Stream, StreamExt as _, stream};
use muster_core::{Code, Error, GatewayId};
use muster_proto::{
    GATEWAY_ID_KEY, StatusExt as _,
    v1::{
        ApplyTemplateCall, ApplyTemplateResult, DescribeCall, DetokenizeCall, DetokenizeResult, EmbedCall,
        EmbedResult, EngineDescription, EngineHttpCall, EngineHttpChunk, Event, GenerateCall, InstanceRef,
        RerankCall, RerankResult, SessionCommand, SlotActionCall, SlotActionResult, Start, TokenizeCall,
        TokenizeResult,
        event::Kind,
        inference_server::{Inference, InferenceServer},
        start::Work,
    },
};
use tonic::{Request, Response, Status, Streaming};

use crate::{
    instance::{Purpose, Visit, registry::Registry},
    session::{self, Sessions, Ticks, single::Single},
};

/// The service.
#[derive(Debug)]
pub(crate) struct Service {
    registry: Arc<Registry>,
    tasks: Sessions,
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Makes the service for tonic. `tasks` tracks its sessions.
pub(crate) fn server(registry: Arc<Registry>, tasks: Sessions) -> InferenceServer<Service> {
    InferenceServer::new(Service { registry, tasks })
        .max_decoding_message_size(muster_proto::MAX_MESSAGE_BYTES)
        .max_encoding_message_size(muster_proto::MAX_MESSAGE_BYTES)
}

impl Service {
    async fn single(
        &self,
        named: Option<&InstanceRef>,
        model: &str,
        work: Option<Work>,
    ) -> Result<Single, Status> {
        let work = work.ok_or_else(|| missing("request"))?;
        let instance = self.registry.find(named, model).map_err(Error::into_status)?;
        let start = Start {
            work: Some(work),
            ..Start::default()
        };
        Ok(Single::start(&self.registry, &self.tasks, instance, start).await)
    }

    async fn visit(&self, named: Option<&InstanceRef>, model: &str) -> Result<Visit, Status> {
        self.visit_for(Purpose::Look, named, model).await
    }

    async fn visit_for(
        &self,
        purpose: Purpose,
        named: Option<&InstanceRef>,
        model: &str,
    ) -> Result<Visit, Status> {
        let instance = self.registry.find(named, model).map_err(Error::into_status)?;
        instance.visit(purpose).await.map_err(Error::into_status)
    }
}

fn missing(field: &str) -> Status {
    Code::InvalidRequest
        .error(format!("`{field}` is missing"))
        .with_param(field)
        .into_status()
}

#[tonic::async_trait]
impl Inference for Service {
    type SessionStream = Ticks;
    type GenerateStream = Answers<Event>;
    type EngineHttpStream = Answers<EngineHttpChunk>;

    async fn session(&self, request: Request<Streaming<SessionCommand>>) -> Result<Response<Ticks>, Status> {
        let gateway = request.metadata().get(GATEWAY_ID_KEY);
        let gateway = gateway.and_then(|id| id.to_str().ok()).unwrap_or_default();
        Ok(Response::new(session::open(
            &self.registry,
            &self.tasks,
            GatewayId::new(gateway).ok(),
            request.into_inner(),
        )))
    }

    async fn generate(
        &self,
        request: Request<GenerateCall>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let GenerateCall {
            instance,
            model,
            request,
        } = request.into_inner();
        let mut single = self
            .single(instance.as_ref(), &model, request.map(Work::Generate))
            .await?;
        // A refusal before the admission is a plain status.
        let first = match single.next().await {
            Some(Event {
                kind: Some(Kind::Failed(error)),
                ..
            }) => return Err(Error::from(error).into_status()),
            first => first,
        };
        let rest = stream::unfold(single, async |mut single| Some((single.next().await?, single)));
        Ok(Response::new(Box::pin(stream::iter(first).chain(rest).map(Ok))))
    }

    async fn embed(&self, request: Request<EmbedCall>) -> Result<Response<EmbedResult>, Status> {
        let EmbedCall {
            instance,
            model,
            request,
        } = request.into_inner();
        let single = self
            .single(instance.as_ref(), &model, request.map(Work::Embed))
            .await?;
        let answer = single.answer(|kind| {
            if let Kind::Embedded(result) = kind {
                Some(result)
            } else {
                None
            }
        });
        answer.await.map(Response::new).map_err(Error::into_status)
    }

    async fn rerank(&self, request: Request<RerankCall>) -> Result<Response<RerankResult>, Status> {
        let RerankCall {
            instance,
            model,
            request,
        } = request.into_inner();
        let single = self
            .single(instance.as_ref(), &model, request.map(Work::Rerank))
            .await?;
        let answer = single.answer(|kind| {
            if let Kind::Reranked(result) = kind {
                Some(result)
            } else {
                None
            }
        });
        answer.await.map(Response::new).map_err(Error::into_status)
    }

    async fn tokenize(&self, request: Request<TokenizeCall>) -> Result<Response<TokenizeResult>, Status> {
        let call = request.into_inner();
        let visit = self.visit(call.instance.as_ref(), &call.model).await?;
        visit
            .calls()
            .tokenize(call)
            .await
            .map(Response::new)
            .map_err(Error::into_status)
    }

    async fn detokenize(
        &self,
        request: Request<DetokenizeCall>,
    ) -> Result<Response<DetokenizeResult>, Status> {
        let call = request.into_inner();
        let visit = self.visit(call.instance.as_ref(), &call.model).await?;
        visit
            .calls()
            .detokenize(call)
            .await
            .map(Response::new)
            .map_err(Error::into_status)
    }

    async fn apply_template(
        &self,
        request: Request<ApplyTemplateCall>,
    ) -> Result<Response<ApplyTemplateResult>, Status> {
        let call = request.into_inner();
        let visit = self.visit(call.instance.as_ref(), &call.model).await?;
        visit
            .calls()
            .apply_template(call)
            .await
            .map(Response::new)
            .map_err(Error::into_status)
    }

    async fn engine_http(
        &self,
        request: Request<EngineHttpCall>,
    ) -> Result<Response<Self::EngineHttpStream>, Status> {
        let call = request.into_inner();
        let purpose = if call.work { Purpose::Work } else { Purpose::Look };
        let visit = self
            .visit_for(purpose, call.instance.as_ref(), &call.model)
            .await?;
        let chunks = visit
            .calls()
            .engine_http(call)
            .await
            .map_err(Error::into_status)?;
        // The visit lasts as long as the answer.
        let chunks = chunks.map(move |chunk| {
            let _ = &visit;
            chunk.map_err(Error::into_status)
        });
        Ok(Response::new(Box::pin(chunks)))
    }

    async fn slot_action(
        &self,
        request: Request<SlotActionCall>,
    ) -> Result<Response<SlotActionResult>, Status> {
        let call = request.into_inner();
        let visit = self.visit(call.instance.as_ref(), &call.model).await?;
        let done = visit.calls().slot_action(call).await;
        done.map(Response::new).map_err(Error::into_status)
    }

    async fn describe(&self, request: Request<DescribeCall>) -> Result<Response<EngineDescription>, Status> {
        let call = request.into_inner();
        let visit = self.visit(call.instance.as_ref(), &call.model).await?;
        let description = visit.calls().describe().await;
        description.map(Response::new).map_err(Error::into_status)
    }
}
