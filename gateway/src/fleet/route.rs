//! The controller's routes, parsed once when they arrive.

use muster_core::{BootId, InstanceAddress, InstanceId, Missing, ModelId, WorkerAddress, WorkerId};
use muster_proto::v1::{self, Capabilities, InstanceRef, RouteState};

/// A route to an instance.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) model: ModelId,
    /// The instance and its worker.
    pub(crate) to: InstanceAddress,
    /// Whether the instance takes requests. States of newer controllers count as not.
    pub(crate) state: RouteState,
    /// Number of requests that it works on at the same time; 0 if unknown.
    pub(crate) target_inflight: u32,
    /// What the loaded model can do; none until known.
    pub(crate) capabilities: Option<Capabilities>,
}

impl Route {
    /// The instance in the form that requests name it.
    pub(crate) fn instance(&self) -> InstanceRef {
        InstanceRef {
            instance_id: (&self.to.instance).into(),
            worker_id: (&self.to.worker).into(),
            worker_boot_id: (&self.to.boot).into(),
        }
    }
}

impl TryFrom<v1::Route> for Route {
    type Error = Missing;

    fn try_from(route: v1::Route) -> Result<Self, Missing> {
        let state = route.state();
        let instance = route.instance.ok_or(Missing("instance"))?;
        Ok(Self {
            model: ModelId::new(route.model_id)?,
            to: InstanceAddress {
                instance: InstanceId::new(instance.instance_id)?,
                worker: WorkerId::new(instance.worker_id)?,
                boot: BootId::new(instance.worker_boot_id)?,
                at: WorkerAddress::read(&route.addresses)?,
            },
            state,
            target_inflight: route.target_inflight,
            capabilities: route.capabilities,
        })
    }
}

/// A complete route, for tests.
#[cfg(test)]
pub(crate) fn wire(model: &str, instance: &str) -> v1::Route {
    v1::Route {
        instance: Some(InstanceRef {
            instance_id: instance.into(),
            worker_id: "w".into(),
            worker_boot_id: "b".into(),
        }),
        model_id: model.into(),
        addresses: vec!["unix:/nowhere".into()],
        state: RouteState::Ready.into(),
        ..v1::Route::default()
    }
}
