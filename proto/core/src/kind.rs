//! Types of models and kinds of devices.

/// The type of a model. Limits on loaded models count per type (seed 002, "Max Loaded Models").
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ModelType {
    /// Chat and completion models; the default.
    Llm,
    /// Text embedding models.
    Embedding,
    /// Rerankers.
    Reranking,
    /// Speech models.
    Audio,
    /// Image models.
    Image,
}

impl ModelType {
    /// All types, in the order of `--max-loaded-models`.
    pub const ALL: [Self; 5] = [
        Self::Llm,
        Self::Embedding,
        Self::Reranking,
        Self::Audio,
        Self::Image,
    ];

    /// The type's name in the API and in logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llm => "llm",
            Self::Embedding => "embedding",
            Self::Reranking => "reranking",
            Self::Audio => "audio",
            Self::Image => "image",
        }
    }
}

/// The kind of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceKind {
    /// Processor cores; its memory is the host's RAM.
    Cpu,
    /// A graphics processor with memory of its own, or unified memory that its driver reports.
    Gpu,
    /// A neural processing unit.
    Npu,
    /// A declared device without hardware, for tests.
    Sim,
}

impl DeviceKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Cpu, Self::Gpu, Self::Npu, Self::Sim];

    /// The kind's name in configurations, files and the API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Gpu => "gpu",
            Self::Npu => "npu",
            Self::Sim => "sim",
        }
    }

    /// The kind with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}
