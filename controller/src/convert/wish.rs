//! What gateways wish for, as policy hears of it.

use muster_core::{GatewayId, HoldId, InstanceId, Missing, ModelId, WorkerId};
use muster_proto::v1;

use super::ids;

/// A gateway wants a model: an `EnsureLoaded` stream that it opened.
#[derive(Debug)]
pub(crate) struct Wish {
    /// The stream, and the hold that it is.
    pub(crate) hold: HoldId,
    /// Whose it is; none if it did not say.
    pub(crate) gateway: Option<GatewayId>,
    /// The model.
    pub(crate) model: ModelId,
    /// Instances and workers that just refused the gateway or never answered it.
    pub(crate) avoid_instances: Vec<InstanceId>,
    /// As `avoid_instances`.
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
