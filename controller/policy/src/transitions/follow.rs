//! Follows a reported state that is not an end, whatever policy expected. The outstanding command shows whether the state was reported
//! before that command took effect or undoes it.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;

use crate::api::{DecisionKind, DeviceChoice, IdleTtl, InstanceSpec, ModelSpec, Need, NeedPart, Progress};
use crate::fleet::Fleet;
use crate::state::{Asked, Before, Exit, InstanceState, Load, Was};
use muster_core::{DeviceId, DeviceKind, InstanceId};

impl Fleet {
    pub(super) fn follow_loading(&mut self, id: &InstanceId, reported: Progress) {
        let Some(instance) = self.instances.get_mut(id) else {
            return;
        };
        if let InstanceState::Loading { progress, .. } = &mut instance.state {
            *progress = reported;
            return;
        }
        // An unload sent in an earlier session did not arrive; otherwise the end that was asked for is on its way.
        let due = instance.condemned.is_some_and(|condemned| condemned.due);
        let leaving = matches!(instance.state, InstanceState::Leaving(_)) && !due;
        if leaving || matches!(instance.state, InstanceState::Cancelling { .. }) {
            return;
        }
        let spec = Arc::clone(&instance.spec);
        if spec.group.is_some() {
            self.groups_loading.insert(spec.model.clone());
        }
        let state = InstanceState::Loading {
            load: Box::new(self.load_of(&spec, id)),
            progress: reported,
            unwanted_since: None,
        };
        self.set_state(id, state);
    }

    /// Follows a reported `ready`. Returns whether a load finished with it.
    pub(super) fn follow_ready(&mut self, id: &InstanceId) -> bool {
        let (now, quiet) = (self.now, self.config.quiet);
        let Some(instance) = self.instances.get_mut(id) else {
            return false;
        };
        let asked = instance.pending.as_ref().map(|pending| &pending.asked);
        match (&instance.state, asked) {
            (
                InstanceState::Loading { .. }
                | InstanceState::Leaving(Exit::Worker(Before::Loading(_)))
                | InstanceState::Opaque
                | InstanceState::Lost(Was::Loading | Was::Leaving | Was::Opaque),
                _,
            ) => {
                self.became_ready(id);
                return true;
            }
            // Reported before the command took effect; the command's outcome will tell.
            (InstanceState::Cancelling { .. } | InstanceState::Ready, _)
            | (InstanceState::Evicting { .. }, Some(Asked::Evict))
            | (InstanceState::Quiesced { .. }, Some(Asked::Quiesce))
            | (InstanceState::Leaving(Exit::Asked), Some(Asked::OperatorUnload)) => {}
            // The worker gave up an unload that it had begun. It is not sent again at once.
            (InstanceState::Evicting { .. } | InstanceState::Leaving(_), _) => {
                let known = instance.usage.touch_seq;
                instance.usage.refused(now, known, quiet);
                instance.state = InstanceState::Ready;
            }
            // A quiesce was undone, or the worker is back.
            (InstanceState::Quiesced { .. } | InstanceState::Resuming | InstanceState::Lost(_), _) => {
                instance.state = InstanceState::Ready;
            }
        }
        false
    }

    /// Handles a load that finished.
    pub(crate) fn became_ready(&mut self, id: &InstanceId) {
        let now = self.now;
        let Some(instance) = self.instances.get_mut(id) else {
            return;
        };
        let found_loaded = matches!(instance.state, InstanceState::Lost(_) | InstanceState::Opaque);
        instance.ready_since = Some(if found_loaded {
            instance.usage.last_used
        } else {
            now
        });
        let before = std::mem::replace(&mut instance.state, InstanceState::Ready);
        instance.press();
        let (spec, host) = (Arc::clone(&instance.spec), instance.host.clone());
        for reservation in &spec.reservations {
            if let Some(device) = self.devices.get_mut(&Self::key(&host, &reservation.device)) {
                device.changed(now);
            }
        }
        if let Some(model) = self.models.get_mut(&spec.model) {
            model.failure = None;
            model.strikes = 0;
        }
        self.decided_on(DecisionKind::Loaded, id);
        let load = if let InstanceState::Loading { load, .. }
        | InstanceState::Leaving(Exit::Worker(Before::Loading(load))) = before
        {
            Some(*load)
        } else {
            None
        };
        self.part_ready(id, load);
        self.room_changed();
    }

    pub(super) fn follow_quiesced(&mut self, id: &InstanceId) {
        let now = self.now;
        let Some(instance) = self.instances.get_mut(id) else {
            return;
        };
        let resumes = instance
            .pending
            .as_ref()
            .is_some_and(|pending| pending.asked == Asked::Resume);
        let goes = matches!(
            instance.state,
            InstanceState::Evicting { .. } | InstanceState::Leaving(_)
        );
        if let InstanceState::Quiesced { confirmed, .. } = &mut instance.state {
            *confirmed = true;
        } else if !(goes || resumes && matches!(instance.state, InstanceState::Resuming)) {
            instance.state = InstanceState::Quiesced {
                plan: None,
                confirmed: true,
                patient: false,
                since: now,
            };
        }
    }

    /// Follows a reported `unloading`. The worker reports it before every end, and the end tells the reason; so the state before it is
    /// kept.
    pub(super) fn follow_leaving(&mut self, id: &InstanceId) {
        let Some(instance) = self.instances.get_mut(id) else {
            return;
        };
        let before = std::mem::replace(&mut instance.state, InstanceState::Opaque);
        let asked = instance.condemned.is_some() || matches!(before, InstanceState::Cancelling { .. });
        instance.state = InstanceState::Leaving(if let InstanceState::Leaving(exit) = before {
            exit
        } else if asked {
            Exit::Asked
        } else if let InstanceState::Loading { load, .. } = before {
            Exit::Worker(Before::Loading(load))
        } else {
            Exit::Worker(Before::Serving)
        });
    }

    /// A load that could have produced an instance found loading.
    pub(super) fn load_of(&mut self, spec: &InstanceSpec, id: &InstanceId) -> Load {
        let model_spec = match self.spec_of(&spec.model) {
            Some(known) if known.spec_hash == spec.spec_hash => Arc::clone(known),
            Some(_) | None => Arc::new(self.spec_from_echo(spec, id)),
        };
        Load {
            attempt: spec.attempt,
            group: spec.group.clone(),
            ..Load::new(self.new_load_id(), model_spec, spec.origin)
        }
    }

    /// The model's spec, rebuilt from the instance's spec, to retry in the same place with the same settings.
    fn spec_from_echo(&self, spec: &InstanceSpec, id: &InstanceId) -> ModelSpec {
        let host = self.instances.get(id).map(|instance| &instance.host);
        let kind_of = |device: &DeviceId| {
            let known = host.and_then(|host| self.devices.get(&Self::key(host, device)));
            known.map_or(DeviceKind::Cpu, |device| device.kind)
        };
        let parts = spec
            .reservations
            .iter()
            .map(|r| NeedPart {
                kind: kind_of(&r.device),
                bytes: r.bytes,
                share: None,
            })
            .collect();
        let main = spec
            .reservations
            .first()
            .map(|reservation| reservation.device.clone());
        ModelSpec {
            id: spec.model.clone(),
            kind: spec.kind,
            runtime: spec.runtime,
            device: main.map_or(DeviceChoice::Any, DeviceChoice::Device),
            needs: vec![Need {
                parts,
                source: spec.source,
                settings: spec.settings.clone(),
            }],
            spec_hash: spec.spec_hash.clone(),
            pinned: spec.pinned,
            idle_ttl: spec.idle_ttl.map_or(IdleTtl::Never, IdleTtl::After),
            replicas: spec
                .group
                .as_ref()
                .and_then(|group| NonZeroU32::new(group.size))
                .unwrap_or(NonZeroU32::MIN),
            workers: BTreeSet::new(),
        }
    }
}
