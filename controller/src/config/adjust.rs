//! Settings that operators change while the controller runs (`Control.Adjust`, Lemonade's `/internal/set`). They stand over the files and the
//! command line, in a file of the state directory that is read wherever the configuration is.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use muster_core::{Code, Error, runtime::Family};
use muster_policy::Limit;
use muster_proto::overrides::Overrides;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Config, Defaults, LimitsArg, policy::limits_of};

/// What was set; the rest is as configured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Adjustments {
    /// Models of each type that may be loaded at once on a host; -1 = unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_loaded_models: Option<i64>,
    /// Context of models that say none.
    #[serde(skip_serializing_if = "Option::is_none")]
    ctx_size: Option<u32>,
    /// Arguments of llama.cpp's models that say none: those that a request may say too.
    #[serde(skip_serializing_if = "Option::is_none")]
    llamacpp_args: Option<String>,
    /// One more folder whose GGUF files are models, below one that the configuration allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    extra_models_dir: Option<PathBuf>,
}

impl Adjustments {
    /// Reads a file; what is not there adjusts nothing.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        match fs::read(path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| error.to_string()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// With `changes` in place of what was set; null takes a setting back.
    ///
    /// # Errors
    /// `invalid_request`: a key that is none, or a value that is wrong.
    pub(crate) fn changed(&self, changes: &Map<String, Value>) -> Result<Self, Error> {
        let whole = serde_json::to_value(self).map_err(|error| Code::Internal.error(error.to_string()))?;
        let mut adjusted = whole;
        for (key, value) in changes {
            let one = json!({key: value});
            let checked = if value.is_null() { json!({key: 0}) } else { one };
            if let Err(error) = serde_json::from_value::<Self>(checked)
                && (!value.is_null() || error.to_string().contains("unknown field"))
            {
                let error = format!("`{key}`: {error}");
                return Err(Code::InvalidRequest.error(error).with_param(key));
            }
            match adjusted.as_object_mut() {
                Some(all) if value.is_null() => drop(all.remove(key)),
                Some(all) => drop(all.insert(key.clone(), value.clone())),
                None => {}
            }
        }
        serde_json::from_value(adjusted).map_err(|error| Code::InvalidRequest.error(error.to_string()))
    }

    /// The command line's limits and settings, adjusted.
    ///
    /// # Errors
    /// A value that is wrong, with the name of its setting.
    pub(super) fn over(
        &self,
        limits: Option<LimitsArg>,
        defaults: &Defaults,
    ) -> Result<(Option<LimitsArg>, Defaults), (&'static str, String)> {
        let mut defaults = defaults.clone();
        defaults.ctx_size = self.ctx_size.unwrap_or(defaults.ctx_size);
        if let Some(args) = &self.llamacpp_args {
            let wrong = |error: String| ("llamacpp_args", error);
            Overrides::from_json(Family::LlamaCpp, &json!({"llamacpp_args": args}).to_string())
                .map_err(|error| wrong(error.message))?;
            defaults.llamacpp_args = shell_words::split(args).map_err(|error| wrong(error.to_string()))?;
        }
        let limits = match self.max_loaded_models {
            None => limits,
            Some(most) => {
                let limits = limits_of(&[most], Limit::ONE).map_err(|why| ("max_loaded_models", why))?;
                Some(LimitsArg(limits))
            }
        };
        Ok((limits, defaults))
    }

    /// The further folder.
    ///
    /// # Errors
    /// It is below none of the folders that the configuration allows.
    pub(super) fn folder(&self, allowed: &[PathBuf]) -> Result<Option<PathBuf>, String> {
        let Some(folder) = &self.extra_models_dir else {
            return Ok(None);
        };
        // Links and `..` may lead out of what is allowed.
        let real = fs::canonicalize(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let below =
            |allowed: &PathBuf| fs::canonicalize(allowed).is_ok_and(|allowed| real.starts_with(allowed));
        if real.is_dir() && allowed.iter().any(below) {
            return Ok(Some(real));
        }
        Err(format!(
            "{} is no folder below one of `catalogue.allowed_models_dirs`",
            folder.display()
        ))
    }
}

impl Config {
    /// What an operator sees of what can be adjusted: as it is in force.
    pub(crate) fn adjustable(&self) -> Map<String, Value> {
        let folders: Vec<String> = self
            .extra_models_dir
            .iter()
            .map(|folder| folder.display().to_string())
            .collect();
        let shown = json!({
            "max_loaded_models": match self.policy.limits.per_type[0] {
                Limit::Unlimited => -1,
                Limit::AtMost(most) => i64::from(most.get()),
            },
            "ctx_size": if self.defaults.ctx_size == 0 { -1 } else { i64::from(self.defaults.ctx_size) },
            "llamacpp_args": shell_words::join(&self.defaults.llamacpp_args),
            "extra_models_dir": folders.join(":"),
        });
        shown.as_object().cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: &Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn settings_are_set_and_taken_back_and_others_are_refused_by_name() {
        let none = Adjustments::default();
        let set = none
            .changed(&object(&json!({"ctx_size": 512, "max_loaded_models": -1})))
            .unwrap();
        let (limits, defaults) = set.over(None, &Defaults::default()).unwrap();
        assert!(limits.is_some() && defaults.ctx_size == 512);
        let back = set
            .changed(&object(&json!({"ctx_size": null, "max_loaded_models": null})))
            .unwrap();
        assert_eq!(back, none);
        for (wrong, key) in [
            (json!({"port": 1}), "port"),
            (json!({"port": null}), "port"),
            (json!({"ctx_size": "much"}), "ctx_size"),
        ] {
            let error = none.changed(&object(&wrong)).unwrap_err();
            assert_eq!(
                (error.code, error.param.as_deref()),
                (Code::InvalidRequest, Some(key))
            );
        }
    }

    #[test]
    fn arguments_are_those_that_a_request_may_say() {
        let with = |args: &str| {
            let set = Adjustments::default().changed(&object(&json!({"llamacpp_args": args})));
            set.unwrap().over(None, &Defaults::default())
        };
        assert_eq!(with("-b 64").unwrap().1.llamacpp_args, ["-b", "64"]);
        for wrong in ["--log-file /tmp/x", "--port 1", "'"] {
            assert_eq!(with(wrong).unwrap_err().0, "llamacpp_args", "{wrong}");
        }
    }

    #[test]
    fn folders_are_below_what_is_allowed_whatever_they_are_called() {
        let dir = tempfile::tempdir().unwrap();
        let allowed = [dir.path().join("models")];
        fs::create_dir_all(allowed[0].join("mine")).unwrap();
        fs::create_dir(dir.path().join("other")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("other"), allowed[0].join("link")).unwrap();
        let at = |path: &str| Adjustments {
            extra_models_dir: Some(dir.path().join(path)),
            ..Adjustments::default()
        };
        assert!(at("models/mine").folder(&allowed).unwrap().is_some());
        assert!(at("models/mine").folder(&[]).is_err());
        for wrong in ["other", "models/link", "models/../other", "models/nothing"] {
            assert!(at(wrong).folder(&allowed).is_err(), "{wrong}");
        }
    }
}
