//! Between the wire (`muster.v1`) and policy. The only modules that know both.
//!
//! * [`mod@report`]: workers' reports, for policy.
//! * [`mod@command`]: policy's commands, for workers.
//! * [`mod@explain`]: explanations of loads, for operators.
//! * [`mod@stage`]: stages of loads, for gateways and operators.
//! * [`mod@wish`]: gateways' wishes, for policy.
//! * [`mod@model`]: catalogue entries, for policy and for people.

pub(crate) mod command;
pub(crate) mod explain;
pub(crate) mod model;
pub(crate) mod report;
pub(crate) mod stage;
pub(crate) mod wish;

use std::time::{Duration, SystemTime};

use muster_core::{Code, Error, Missing, Runtime, SpecHash};
use muster_policy::{EstimateSource, Moment, Origin, Settings};
use muster_proto::{convert, v1};
use prost::Message as _;
use sha2::{Digest as _, Sha256};

/// The source of an estimate as a message's value.
pub(crate) const fn estimate_source(source: EstimateSource) -> v1::EstimateSource {
    match source {
        EstimateSource::Observed => v1::EstimateSource::Observed,
        EstimateSource::Computed => v1::EstimateSource::Computed,
        EstimateSource::Artifact => v1::EstimateSource::Artifact,
        EstimateSource::Configured => v1::EstimateSource::Configured,
        EstimateSource::Unavailable => v1::EstimateSource::Unavailable,
    }
}

const fn estimate_source_from(source: v1::EstimateSource) -> EstimateSource {
    match source {
        v1::EstimateSource::Observed => EstimateSource::Observed,
        v1::EstimateSource::Computed => EstimateSource::Computed,
        v1::EstimateSource::Artifact => EstimateSource::Artifact,
        v1::EstimateSource::Configured => EstimateSource::Configured,
        v1::EstimateSource::Unspecified | v1::EstimateSource::Unavailable => EstimateSource::Unavailable,
    }
}

const fn origin(origin: Origin) -> v1::Origin {
    match origin {
        Origin::Auto => v1::Origin::Auto,
        Origin::Admin => v1::Origin::Admin,
        Origin::Preload => v1::Origin::Preload,
    }
}

const fn origin_from(origin: v1::Origin) -> Option<Origin> {
    match origin {
        v1::Origin::Unspecified => None,
        v1::Origin::Auto => Some(Origin::Auto),
        v1::Origin::Admin => Some(Origin::Admin),
        v1::Origin::Preload => Some(Origin::Preload),
    }
}

/// Settings as bytes, the same bytes for equal settings. Protobuf leaves the order of maps open, so the map is appended in sorted order
/// (concatenated messages are one message).
pub(crate) fn canonical(settings: &v1::ModelSettings) -> Vec<u8> {
    let mut rest = settings.clone();
    let mut environment: Vec<_> = std::mem::take(&mut rest.environment).into_iter().collect();
    environment.sort();
    let mut bytes = rest.encode_to_vec();
    for pair in environment {
        let one = v1::ModelSettings {
            environment: [pair].into(),
            ..v1::ModelSettings::default()
        };
        bytes.extend(one.encode_to_vec());
    }
    bytes
}

/// Settings as policy stores them.
pub(crate) fn settings(settings: &v1::ModelSettings) -> Settings {
    Settings(canonical(settings).into())
}

/// Hash of a runtime and its settings, in hexadecimal. It stays the same over restarts.
pub(crate) fn spec_hash(runtime: Runtime, settings: &v1::ModelSettings) -> SpecHash {
    let mut hash = Sha256::new();
    hash.update(runtime.name());
    hash.update([0]);
    hash.update(canonical(settings));
    let bytes = hash.finalize();
    let first = bytes.iter().take(16);
    SpecHash::of(first.fold(0, |hash, byte| hash << 8 | u128::from(*byte)))
}

/// The error for a request without a required field.
pub(crate) fn missing(missing: Missing) -> Error {
    Code::InvalidRequest.error(missing.to_string())
}

/// Ids from a message.
///
/// # Errors
/// One is empty.
pub(crate) fn ids<'a, Id, All: FromIterator<Id>>(
    texts: &'a [String],
    id: impl Fn(&'a str) -> Result<Id, Missing>,
) -> Result<All, Missing> {
    texts.iter().map(|text| id(text)).collect()
}

pub(crate) use muster_proto::convert::span;

/// A duration from a message; an absent or negative one is zero.
pub(crate) fn span_from(span: Option<&prost_types::Duration>) -> Duration {
    convert::span_from(span.copied()).unwrap_or_default()
}

/// A moment of the driver's clock as a timestamp, for API fields (PROTOCOL.md 19: nothing else uses wall clocks). The same moment always
/// gives the same timestamp.
pub(crate) fn timestamp(started: SystemTime, moment: Moment) -> prost_types::Timestamp {
    let at = match moment.since_start() {
        Duration::ZERO => started.checked_sub(Moment::START.since(moment)),
        since => started.checked_add(since),
    };
    at.unwrap_or(started).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_settings_have_equal_bytes_whatever_the_order_of_their_maps() {
        let one = |names: &[&str]| v1::ModelSettings {
            ctx_size: 7,
            environment: names
                .iter()
                .map(|name| ((*name).to_owned(), "1".to_owned()))
                .collect(),
            ..v1::ModelSettings::default()
        };
        let names: Vec<String> = (0..50).map(|number| format!("N{number}")).collect();
        let forward: Vec<&str> = names.iter().map(String::as_str).collect();
        let backward: Vec<&str> = names.iter().rev().map(String::as_str).collect();
        assert_eq!(canonical(&one(&forward)), canonical(&one(&backward)));
        assert_eq!(
            v1::ModelSettings::decode(canonical(&one(&forward)).as_slice()).unwrap(),
            one(&backward)
        );
        assert_eq!(
            spec_hash(Runtime::Stub, &one(&forward)),
            spec_hash(Runtime::Stub, &one(&backward))
        );
        assert_ne!(
            spec_hash(Runtime::Stub, &one(&forward)),
            spec_hash(Runtime::Flm, &one(&forward))
        );
    }
}
