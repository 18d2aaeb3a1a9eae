//! The service `Host` for operators, with the handler that also serves the controller's commands.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use muster_core::{Code, Error, InstanceId};
use muster_proto::{
    StatusExt as _, VERSION,
    pauses::Pauses,
    v1::{
        DescribeRequest, DescribeResponse, DrainRequest, DrainResponse, HostUnloadRequest,
        HostUnloadResponse, InstanceDescription, InstanceStatus, Refused, RefusedReason, Unload,
        command::Kind as Order,
        host_server::{Host, HostServer},
    },
};
use tokio::time::timeout;
use tonic::{Request, Response, Status};

use crate::{
    board::is_terminal,
    command::order_instance,
    convert,
    instance::{actor::Service, registry::Registry},
};

/// Longest wait for an engine's description of itself.
const ENGINE_PATIENCE: Duration = Duration::from_secs(2);

/// The service.
#[derive(Debug)]
pub(crate) struct HostService {
    registry: Arc<Registry>,
    addresses: Vec<String>,
}

/// Makes the service for tonic.
pub(crate) fn server(registry: Arc<Registry>, addresses: Vec<String>) -> HostServer<HostService> {
    HostServer::new(HostService { registry, addresses })
        .max_decoding_message_size(muster_proto::MAX_MESSAGE_BYTES)
        .max_encoding_message_size(muster_proto::MAX_MESSAGE_BYTES)
}

impl HostService {
    async fn describe_instance(&self, status: InstanceStatus, engines: bool) -> InstanceDescription {
        let known = InstanceId::new(status.instance_id.as_str());
        let known = known.ok().and_then(|id| self.registry.get(&id));
        let mut description = InstanceDescription {
            status: Some(status),
            engine: None,
            log: Vec::new(),
        };
        let Some(engine) = known.and_then(|instance| instance.engine()) else {
            return description;
        };
        description.log = engine.process.log();
        if engines {
            // An engine that does not answer is shown without its own description.
            description.engine = timeout(ENGINE_PATIENCE, engine.calls.describe())
                .await
                .ok()
                .and_then(Result::ok);
        }
        description
    }

    fn statuses(&self) -> Vec<InstanceStatus> {
        self.registry
            .ground()
            .board
            .snapshot(Instant::now(), false)
            .instances
    }

    /// Waits until all instances in `wanted` have ended.
    async fn ended(&self, wanted: &[InstanceId]) {
        poll(|| wanted.iter().all(|id| self.registry.get(id).is_none())).await;
    }
}

/// Waits for a condition that an operator asked for, checking less and less often.
async fn poll(met: impl Fn() -> bool) {
    let mut pauses = Pauses::new((Duration::from_millis(1), Duration::from_millis(25)));
    while !met() {
        pauses.wait().await;
    }
}

fn status_of(refused: Refused) -> Status {
    let code = match refused.reason() {
        RefusedReason::Busy | RefusedReason::Held | RefusedReason::Touched => Code::InstanceBusy,
        RefusedReason::Draining => Code::ShuttingDown,
        RefusedReason::Unspecified
        | RefusedReason::NotLoading
        | RefusedReason::BadEpoch
        | RefusedReason::Invalid => Code::InvalidRequest,
    };
    let reason = refused.reason().as_str_name();
    code.error(refused.message)
        .with_detail("reason", reason)
        .into_status()
}

#[tonic::async_trait]
impl Host for HostService {
    async fn describe(
        &self,
        request: Request<DescribeRequest>,
    ) -> Result<Response<DescribeResponse>, Status> {
        let engines = request.into_inner().engines;
        let (identity, ground) = (self.registry.identity(), self.registry.ground());
        let report = ground.board.snapshot(Instant::now(), false);
        let devices = ground.devices.list();
        let mut instances = Vec::with_capacity(report.instances.len());
        for status in report.instances {
            instances.push(self.describe_instance(status, engines).await);
        }
        Ok(Response::new(DescribeResponse {
            worker_id: (&identity.worker).into(),
            boot_id: (&identity.boot).into(),
            host_id: (&identity.host).into(),
            version: VERSION.to_owned(),
            joined: ground.around.borrow().session.is_some(),
            draining: ground.around.borrow().service != Service::Open,
            runtimes: ground
                .runtimes
                .iter()
                .filter_map(|runtime| runtime.info(&devices))
                .collect(),
            devices,
            samples: report.devices,
            instances,
            addresses: self.addresses.clone(),
        }))
    }

    async fn drain(&self, request: Request<DrainRequest>) -> Result<Response<DrainResponse>, Status> {
        let limit = convert::span_from(request.into_inner().timeout);
        self.registry.ground().around.send_modify(|around| {
            if around.service == Service::Open {
                around.service = Service::Closed;
            }
        });
        self.registry.ground().board.draining();
        let left = || -> u32 {
            let live = self.statuses().into_iter().filter(|status| !is_terminal(status));
            live.map(|status| status.running + status.queued).sum()
        };
        let drained = poll(|| left() == 0);
        match limit {
            // If the time is over, the answer tells what is left.
            Some(limit) => drop(timeout(limit, drained).await),
            None => drained.await,
        }
        Ok(Response::new(DrainResponse { running: left() }))
    }

    async fn unload(
        &self,
        request: Request<HostUnloadRequest>,
    ) -> Result<Response<HostUnloadResponse>, Status> {
        let request = request.into_inner();
        let ids: Vec<InstanceId> = if let Ok(id) = InstanceId::new(request.instance_id) {
            vec![id]
        } else {
            let of_model = |instance: &crate::instance::Instance| instance.model().as_str() == request.model;
            self.registry
                .all()
                .into_iter()
                .filter(of_model)
                .map(|instance| instance.id().clone())
                .collect()
        };
        if ids.is_empty() {
            let error = Code::ModelNotLoaded.error(format!("`{}` is not loaded here", request.model));
            return Err(Error::into_status(error));
        }
        for id in &ids {
            let unload = Unload {
                mode: request.mode,
                if_touch_seq: u64::MAX,
                drain_for: None,
            };
            order_instance(&self.registry, id, Order::Unload(unload))
                .await
                .map_err(status_of)?;
        }
        self.ended(&ids).await;
        Ok(Response::new(HostUnloadResponse {
            instance_ids: ids.iter().map(String::from).collect(),
        }))
    }
}
