//! What a load of a model would do: now, or in place of the model's loaded instances.
//!
//! For the second question policy is asked about a fleet with the same workers on which everything runs except that model. That fleet is
//! made for the question and then dropped.

use muster_core::{Code, Error, InstanceId};
use muster_policy::{Event, Explanation, Fleet, Moment};
use muster_proto::v1::{self};

use super::Driver;
use crate::{
    catalogue::Entry,
    config,
    convert::{self, stage::unknown_model},
};

impl Driver {
    /// Answers `Control.ExplainLoad`.
    pub(super) fn explain(
        &mut self,
        request: &v1::ExplainLoadRequest,
        places: usize,
    ) -> Result<v1::ExplainLoadResponse, Error> {
        let unknown = || unknown_model(&request.model);
        let answer = if request.anew {
            let entry = self.catalogue.get(&request.model).ok_or_else(unknown)?;
            self.explain_anew(entry, request, places)?
        } else {
            let ignored = [
                ("device_id", &request.device_id),
                ("override_json", &request.override_json),
            ];
            if let Some((param, _)) = ignored.iter().find(|(_, given)| !given.is_empty()) {
                let error = Code::InvalidRequest.error(format!("`{param}` is taken with `anew` only"));
                return Err(error.with_param(*param));
            }
            self.fleet.explain(self.now(), &request.model, places)
        };
        let answer = answer.ok_or_else(unknown)?;
        let mut shown = convert::explain::explanation(&answer, |at| self.timestamp(at));
        if request.anew
            && let Some(refusal) = shown.refusal.as_mut()
            && Code::parse(&refusal.code) == Some(Code::NoWorker)
        {
            // Policy's message is about a load that waited for a worker.
            refusal.message = match request.device_id.as_str() {
                "" => format!("no worker that is here can load {}", request.model),
                device => format!("no worker that is here can load {} on `{device}`", request.model),
            };
            shown.reason.clone_from(&refusal.message);
        }
        Ok(shown)
    }

    fn explain_anew(
        &self,
        entry: &Entry,
        request: &v1::ExplainLoadRequest,
        places: usize,
    ) -> Result<Option<Explanation>, Error> {
        let changed = entry.overridden(&request.override_json)?;
        changed.check_args()?;
        let device = match request.device_id.as_str() {
            "" => entry.model().device.clone(),
            chosen => config::device(chosen),
        };
        let wanted = convert::model::spec_on(&changed, device, &self.observed);
        let others = self.catalogue.entries().iter();
        let others = others.filter(|other| other.model().id != entry.model().id);
        let mut models: Vec<_> = others
            .map(|other| convert::model::spec(other, &self.observed))
            .collect();
        let id = wanted.id.clone();
        models.push(wanted);

        let policy = muster_policy::Config {
            // Absent workers are not waited for.
            worker_wait: std::time::Duration::ZERO,
            ..self.config.policy.clone()
        };
        let mut fleet = Fleet::new(policy, Vec::new(), Moment::START);
        let mut ids = || InstanceId::fresh();
        fleet.step(Moment::START, Event::CatalogueChanged { models }, &mut ids);
        for view in self.fleet.workers().into_iter().filter(|view| view.connected) {
            let instances = self.mirror.on_worker(view.facts.id.as_str());
            let wire = v1::WorkerReport {
                instances: instances
                    .filter(|status| !of(status, id.as_str()))
                    .cloned()
                    .collect(),
                ..v1::WorkerReport::default()
            };
            // Malformed entries were reported when they came.
            let (report, _) = convert::report::report(&wire);
            let joined = Event::WorkerJoined {
                facts: view.facts,
                report,
            };
            fleet.step(Moment::START, joined, &mut ids);
        }
        Ok(fleet.explain(Moment::START, id.as_str(), places))
    }
}

fn of(status: &v1::InstanceStatus, model: &str) -> bool {
    status.spec.as_ref().is_some_and(|spec| spec.model_id == model)
}
