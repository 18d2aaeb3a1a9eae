//! Whether a request may load its model (gateway/README.md, Autoload). The request's `autoload` decides, else the model's, else the
//! gateway's; the operator may ignore the request's. If it is off, a model that is not loaded rejects requests with a code for its state,
//! as seed 001 requires.

use muster_core::{Code, Error};
use muster_proto::v1::ModelSummary;

use crate::fleet::table::state_error;

/// The gateway's settings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Autoload {
    /// The default if neither the request nor the model says anything.
    pub(crate) on: bool,
    /// Ignore the request's own `autoload`.
    pub(crate) locked: bool,
}

impl Default for Autoload {
    fn default() -> Self {
        Self {
            on: true,
            locked: false,
        }
    }
}

impl Autoload {
    /// Decides for a model that does not take requests now. `asked`: the request's own `autoload`. Without a `summary` the model is
    /// unknown.
    ///
    /// # Errors
    /// Why the model takes no requests, if it may not be loaded.
    pub(super) fn check(self, asked: Option<bool>, summary: Option<&ModelSummary>) -> Result<(), Error> {
        let model = summary.and_then(|summary| summary.autoload);
        let asked = asked.filter(|_| !self.locked);
        if asked.or(model).unwrap_or(self.on) {
            return Ok(());
        }
        Err(summary.map_or_else(
            || Code::ModelNotLoaded.error("the model is not known to be loaded"),
            state_error,
        ))
    }
}

/// Parses a switch: `on`, `off` and their usual synonyms.
pub(crate) fn on_off(text: &str) -> Option<bool> {
    match text {
        "on" | "true" | "1" => Some(true),
        "off" | "false" | "0" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::ModelStatus;

    use super::*;

    fn model(autoload: Option<bool>) -> ModelSummary {
        ModelSummary {
            autoload,
            status: ModelStatus::Unloaded.into(),
            ..ModelSummary::default()
        }
    }

    #[test]
    fn the_request_wins_over_the_model_and_the_model_over_the_gateway() {
        let loads = |on, locked, asked, model_says| {
            let summary = model(model_says);
            Autoload { on, locked }.check(asked, Some(&summary)).is_ok()
        };
        assert!(loads(true, false, None, None));
        assert!(!loads(false, false, None, None));
        assert!(loads(false, false, None, Some(true)));
        assert!(!loads(true, false, None, Some(false)));
        assert!(loads(false, false, Some(true), Some(false)));
        assert!(!loads(true, false, Some(false), Some(true)));
        // Locked: the request's `autoload` is ignored.
        assert!(loads(true, true, Some(false), None));
        assert!(!loads(false, true, Some(true), None));
        assert!(Autoload::default().check(None, None).is_ok());
    }

    #[test]
    fn seed_001_rejections_say_how_the_model_stands() {
        let off = Autoload {
            on: false,
            locked: false,
        };
        for (status, code) in [
            (ModelStatus::Unloaded, Code::ModelNotLoaded),
            (ModelStatus::Loading, Code::ModelLoading),
            (ModelStatus::Unloading, Code::ModelUnloading),
            (ModelStatus::Failed, Code::ModelFailed),
        ] {
            let summary = ModelSummary {
                status: status.into(),
                ..model(None)
            };
            assert_eq!(off.check(None, Some(&summary)).unwrap_err().code, code);
        }
    }
}
