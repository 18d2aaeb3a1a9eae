//! Conversions between wire types and core types that several parts need.

use std::time::Duration;

use muster_core::{DeviceKind, ModelType};

use crate::v1;

/// A value of an enum that this version does not know, or that must not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {0} has an unknown value")]
pub struct UnknownValue(pub &'static str);

impl From<ModelType> for v1::ModelType {
    fn from(kind: ModelType) -> Self {
        match kind {
            ModelType::Llm => Self::Llm,
            ModelType::Embedding => Self::Embedding,
            ModelType::Reranking => Self::Reranking,
            ModelType::Audio => Self::Audio,
            ModelType::Image => Self::Image,
        }
    }
}

impl TryFrom<v1::ModelType> for ModelType {
    type Error = UnknownValue;

    fn try_from(kind: v1::ModelType) -> Result<Self, UnknownValue> {
        match kind {
            v1::ModelType::Unspecified => Err(UnknownValue("model type")),
            v1::ModelType::Llm => Ok(Self::Llm),
            v1::ModelType::Embedding => Ok(Self::Embedding),
            v1::ModelType::Reranking => Ok(Self::Reranking),
            v1::ModelType::Audio => Ok(Self::Audio),
            v1::ModelType::Image => Ok(Self::Image),
        }
    }
}

impl From<DeviceKind> for v1::DeviceKind {
    fn from(kind: DeviceKind) -> Self {
        match kind {
            DeviceKind::Cpu => Self::Cpu,
            DeviceKind::Gpu => Self::Gpu,
            DeviceKind::Npu => Self::Npu,
            DeviceKind::Sim => Self::Sim,
        }
    }
}

impl TryFrom<v1::DeviceKind> for DeviceKind {
    type Error = UnknownValue;

    fn try_from(kind: v1::DeviceKind) -> Result<Self, UnknownValue> {
        match kind {
            v1::DeviceKind::Unspecified => Err(UnknownValue("device kind")),
            v1::DeviceKind::Cpu => Ok(Self::Cpu),
            v1::DeviceKind::Gpu => Ok(Self::Gpu),
            v1::DeviceKind::Npu => Ok(Self::Npu),
            v1::DeviceKind::Sim => Ok(Self::Sim),
        }
    }
}

/// A duration as a message. One that is too long becomes the longest possible.
#[must_use]
pub fn span(span: Duration) -> prost_types::Duration {
    prost_types::Duration::try_from(span).unwrap_or(prost_types::Duration {
        seconds: i64::MAX,
        nanos: 0,
    })
}

/// A duration from a message; none if it is negative.
#[must_use]
pub fn span_from(span: Option<prost_types::Duration>) -> Option<Duration> {
    span.and_then(|span| Duration::try_from(span).ok())
}
