//! Metadata keys of one architecture: `ARCHITECTURE.key`.

use crate::{Error, Metadata};

/// Reads the keys of an architecture.
#[derive(Debug)]
pub(super) struct Keys<'a> {
    metadata: &'a Metadata,
    architecture: &'a str,
}

impl<'a> Keys<'a> {
    pub(super) fn of(metadata: &'a Metadata) -> Result<Self, Error> {
        const KEY: &str = "general.architecture";
        let architecture = metadata.text(KEY).ok_or_else(|| Error::Key(KEY.to_owned()))?;
        Ok(Self {
            metadata,
            architecture,
        })
    }

    pub(super) const fn architecture(&self) -> &'a str {
        self.architecture
    }

    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// A number of at most `limit`; none if the key is missing.
    pub(super) fn number(&self, key: &str, limit: u64) -> Result<Option<u64>, Error> {
        let Some(value) = self.metadata.number(&self.name(key)) else {
            return Ok(None);
        };
        if value > limit {
            return Err(Error::Absurd {
                what: "a width or count of the model",
                value,
                limit,
            });
        }
        Ok(Some(value))
    }

    /// A number that must be present and not 0.
    pub(super) fn required(&self, key: &str, limit: u64) -> Result<u64, Error> {
        self.number(key, limit)?
            .filter(|value| *value > 0)
            .ok_or_else(|| Error::Key(self.name(key)))
    }

    /// A list as it stands in the file.
    pub(super) fn list(&self, key: &str) -> Option<&'a [u64]> {
        self.metadata.list(&self.name(key))
    }

    /// One number per layer. The file has a list, or one number for all layers.
    pub(super) fn per_layer(&self, key: &str, layers: usize, limit: u64) -> Result<Option<Vec<u64>>, Error> {
        let Some(values) = self.metadata.per_layer(&self.name(key), layers) else {
            return Ok(None);
        };
        match values.iter().find(|value| **value > limit) {
            Some(value) => Err(Error::Absurd {
                what: "a width or count of a layer",
                value: *value,
                limit,
            }),
            None => Ok(Some(values)),
        }
    }
}
