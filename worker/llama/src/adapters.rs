//! LoRA adapters: files that change a model's weights by as much as a scale says. They are loaded with the model and named by number.
//!
//! What is read into a sequence's memory depends on the scales, so a memory serves only requests with the same ones (ENGINE.md 1, 7).
#![expect(unsafe_code, reason = "calls into the shim")]

use std::{path::Path, sync::Arc};

use muster_core::Error;
use serde_json::{Map, Value};

use crate::{
    ffi::{self, ErrorText, NativeError, RawAdapter},
    grpc::convert::invalid,
    model::{Model, path_string},
};

/// A loaded adapter. llama.cpp frees it with its model.
pub(crate) struct Adapter {
    raw: *mut RawAdapter,
    _model: Arc<Model>,
}

// SAFETY: an adapter does not change once it is loaded, and has no thread affinity.
unsafe impl Send for Adapter {}

impl std::fmt::Debug for Adapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Adapter").finish_non_exhaustive()
    }
}

impl Adapter {
    /// Loads an adapter of a model. Must not run at the same time as other calls.
    ///
    /// # Errors
    /// The file is no adapter of this model.
    pub(crate) fn load(model: &Arc<Model>, path: &Path) -> Result<Self, NativeError> {
        let path = path_string(path)?;
        let mut raw = std::ptr::null_mut();
        let mut error = ErrorText::new();
        // SAFETY: all pointers live during the call; the model outlives the adapter, which holds it.
        let code =
            unsafe { ffi::ms_adapter_load(model.raw(), path.as_ptr(), &raw mut raw, error.as_mut_ptr()) };
        error.check(code)?;
        Ok(Self {
            raw,
            _model: Arc::clone(model),
        })
    }

    pub(crate) const fn raw(&self) -> *mut RawAdapter {
        self.raw
    }
}

/// How much of each adapter is applied, by its number.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scales(Arc<[f32]>);

impl From<Vec<f32>> for Scales {
    fn from(scales: Vec<f32>) -> Self {
        Self(scales.into())
    }
}

impl Scales {
    pub(crate) fn as_slice(&self) -> &[f32] {
        &self.0
    }

    /// The scales that a request sets by `lora` (`[{"id": 0, "scale": 0.5}]`); an adapter that it does not name is not applied (seed 004).
    /// Without the field, or with an empty list, these, as llama.cpp's server has it.
    ///
    /// # Errors
    /// `invalid_request`: it has another form, or names an adapter that is not loaded.
    pub(crate) fn asked(&self, extra: &Map<String, Value>) -> Result<Self, Error> {
        const FIELD: &str = "lora";
        let list = match extra.get(FIELD) {
            None | Some(Value::Null) => return Ok(self.clone()),
            Some(Value::Array(list)) if list.is_empty() => return Ok(self.clone()),
            Some(Value::Array(list)) => list,
            Some(_) => return Err(invalid(FIELD, "`lora` must be a list of `id` and `scale`")),
        };
        let mut scales = vec![0.0; self.0.len()];
        for one in list {
            let id = one.get("id").and_then(Value::as_u64);
            let scale = one.get("scale").and_then(Value::as_f64);
            let (Some(id), Some(scale)) = (id, scale) else {
                return Err(invalid(FIELD, "`lora` must be a list of `id` and `scale`"));
            };
            #[expect(clippy::cast_possible_truncation, reason = "checked below")]
            let scale = scale as f32;
            if !scale.is_finite() {
                return Err(invalid(FIELD, "a `scale` of `lora` is too large"));
            }
            let place = usize::try_from(id).ok().and_then(|id| scales.get_mut(id));
            let Some(place) = place else {
                let message = format!("`lora` names adapter {id}, of {} that are loaded", self.0.len());
                return Err(invalid(FIELD, message));
            };
            *place = scale;
        }
        Ok(scales.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_004_adapters_that_are_not_named_are_not_applied() {
        let loaded = Scales::from(vec![1.0, 0.5]);
        let asked = |json: &str| loaded.asked(serde_json::from_str(json).as_ref().unwrap());
        assert_eq!(asked("{}").unwrap(), loaded);
        assert_eq!(
            asked(r#"{"lora": [{"id": 1, "scale": 0.25}]}"#).unwrap(),
            vec![0.0, 0.25].into()
        );
        assert_eq!(asked(r#"{"lora": []}"#).unwrap(), loaded);
        for wrong in [
            r#"{"lora": [{"id": 2, "scale": 1}]}"#,
            r#"{"lora": [{"id": -1, "scale": 1}]}"#,
            r#"{"lora": [{"id": 0, "scale": 1e300}]}"#,
            r#"{"lora": [{"id": 0}]}"#,
            r#"{"lora": [{"path": "/etc/passwd", "scale": 1}]}"#,
            r#"{"lora": ["a.gguf"]}"#,
            r#"{"lora": 1}"#,
        ] {
            assert_eq!(
                asked(wrong).unwrap_err().param.as_deref(),
                Some("lora"),
                "{wrong}"
            );
        }
    }
}
