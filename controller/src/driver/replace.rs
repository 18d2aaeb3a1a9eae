//! What a load has to do for a model that may be loaded with other settings already.

use muster_core::{DeviceKind, Error, InstanceId};
use muster_policy::{DeviceChoice, ModelState};
use muster_proto::v1::{self};

use super::Driver;
use crate::{config, convert::stage::unknown_model};

/// What a load has to do for a model that may be loaded already.
#[derive(Debug)]
pub(crate) enum Replacement {
    /// The model is not loaded: just load it.
    Load,
    /// The model is loaded as the load wants it.
    AsWanted(Box<v1::Model>),
    /// The model is loaded otherwise, and could be loaded as wanted after it is unloaded. Contains the load that would restore its present
    /// state.
    Otherwise(Box<v1::LoadModelRequest>),
}

impl Driver {
    /// Compares the loaded instances of a model with what a load would make.
    ///
    /// # Errors
    /// `unknown_model`; or why the model could not be loaded as wanted even after it is unloaded.
    pub(super) fn replacement(&mut self, request: &v1::LoadModelRequest) -> Result<Replacement, Error> {
        let unknown = || unknown_model(&request.model);
        let view = self.fleet.model(&request.model).ok_or_else(unknown)?;
        if view.state != ModelState::Loaded {
            return Ok(Replacement::Load);
        }
        let entry = self.catalogue.get(&request.model).ok_or_else(unknown)?;
        let wanted = entry.overridden(&request.override_json)?;
        let loaded: Vec<(&InstanceId, &v1::InstanceSpec)> = view
            .instances
            .iter()
            .filter_map(|id| Some((id, self.mirror.spec(id.as_str())?)))
            .collect();
        let Some((_, spec)) = loaded.first() else {
            return Ok(Replacement::Load);
        };
        let as_many = request.replicas == 0 || usize::try_from(request.replicas) == Ok(loaded.len());
        let device = config::device(&request.device_id);
        let as_wanted = |(id, spec): &(&InstanceId, &v1::InstanceSpec)| {
            spec.spec_hash == wanted.spec_hash().as_str() && self.runs_on(id, spec, &device)
        };
        if as_many && loaded.iter().all(as_wanted) {
            let model = self.model(&request.model).ok_or_else(unknown)?;
            return Ok(Replacement::AsWanted(Box::new(model)));
        }
        // A load that would be refused is refused before anything is unloaded.
        self.overrides(request)?;
        let settings = spec.settings.as_ref();
        let former = v1::LoadModelRequest {
            model: request.model.clone(),
            device_id: match loaded.as_slice() {
                // The main device; the other devices follow from it.
                [(_, only)] => main_device(only).unwrap_or_default().to_owned(),
                _ => String::new(),
            },
            replicas: u32::try_from(loaded.len()).unwrap_or_default(),
            override_json: settings.map_or_else(String::new, |settings| settings.load_override_json.clone()),
            download: false,
        };
        let anew = v1::ExplainLoadRequest {
            model: request.model.clone(),
            anew: true,
            device_id: request.device_id.clone(),
            override_json: request.override_json.clone(),
            ..v1::ExplainLoadRequest::default()
        };
        match self.explain(&anew, 1)?.refusal {
            Some(refusal) => Err(refusal.into()),
            None => Ok(Replacement::Otherwise(Box::new(former))),
        }
    }

    fn runs_on(&self, id: &InstanceId, spec: &v1::InstanceSpec, device: &DeviceChoice) -> bool {
        match device {
            DeviceChoice::Any => true,
            // A model on a GPU also has a part of it in host memory.
            DeviceChoice::Kind(DeviceKind::Cpu) => self.mirror.kinds(id.as_str()) == [DeviceKind::Cpu].into(),
            DeviceChoice::Kind(kind) => self.mirror.kinds(id.as_str()).contains(kind),
            DeviceChoice::Device(device) => main_device(spec) == Some(device.as_str()),
        }
    }
}

fn main_device(spec: &v1::InstanceSpec) -> Option<&str> {
    spec.reservations.first().map(|part| part.device_id.as_str())
}
