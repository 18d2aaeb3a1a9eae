//! Gateways' wishes for models, for policy.

use muster_core::{GatewayId, HoldId, InstanceId, Missing, ModelId, WorkerId};
use muster_proto::v1;

use super::ids;

/// A gateway's wish for a model: an open `EnsureLoaded` stream.
#[derive(Debug)]
pub(crate) struct Wish {
    /// Identifies the stream and is the id of its hold.
    pub(crate) hold: HoldId,
    /// The gateway that opened it; none if it did not say.
    pub(crate) gateway: Option<GatewayId>,
    pub(crate) model: ModelId,
    /// Instances that just refused the gateway or did not answer it.
    pub(crate) avoid_instances: Vec<InstanceId>,
    /// Workers that just refused the gateway or did not answer it.
    pub(crate) avoid_workers: Vec<WorkerId>,
}

impl TryFrom<&v1::EnsureLoadedRequest> for Wish {
    type Error = Missing;

    fn try_from(request: &v1::EnsureLoadedRequest) -> Result<Self, Missing> {
        Ok(Self {
            hold: HoldId::new(request.ensure_id.as_str())?,
            gateway: GatewayId::new(request.gateway_id.as_str()).ok(),
            model: ModelId::new(request.model_id.as_str())?,
            avoid_instances: ids(&request.avoid_instances, InstanceId::new)?,
            avoid_workers: ids(&request.avoid_workers, WorkerId::new)?,
        })
    }
}
