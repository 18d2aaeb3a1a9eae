//! The runtimes and what each can do, as rows of one table. No other code compares runtimes by name.
//!
//! A new runtime is a row here, and a folder in the worker (`worker/src/engine`) that starts its engine.

use std::{fmt, str::FromStr};

use crate::kind::DeviceKind::{self, Cpu, Gpu, Npu, Sim};

macro_rules! runtimes {
    ($($(#[$doc:meta])* $variant:ident = $row:expr;)*) => {
        /// A runtime.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Runtime {
            $($(#[$doc])* $variant,)*
        }

        impl Runtime {
            /// All runtimes.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// What the runtime is and can do.
            #[must_use]
            pub const fn facts(self) -> &'static Facts {
                match self {
                    $(Self::$variant => { const ROW: Facts = $row; &ROW })*
                }
            }
        }
    };
}

/// What a runtime is and can do.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Its name in configurations, between processes, and for people.
    pub name: &'static str,
    /// The family whose settings, flags and files it reads.
    pub family: Family,
    /// What its checkpoints are.
    pub checkpoints: Checkpoints,
    /// Kinds of device that it runs on, the preferred one first.
    pub devices: &'static [DeviceKind],
    /// Whether it puts layers on a GPU; with `gpu_layers = 0` it then needs none.
    pub offloads: bool,
    /// Whether one engine can share a model over several devices.
    pub spreads: bool,
    /// Whether it takes a chat template in place of the model's own (`prompt_format`, `chat_template`).
    pub templates: bool,
    /// Whether its language models take chats of several turns (seed 001, capabilities).
    pub chats: bool,
    /// Whether it downloads its models itself.
    pub pulls: bool,
    /// Whether thinking can be switched per request for every model.
    pub thinks: bool,
}

/// A family of runtimes that read the same settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Our own engine, which has llama.cpp linked in.
    LlamaCpp,
    /// llama.cpp's own server.
    LlamaServer,
    /// ExLlamaV3.
    ExLlamaV3,
    /// vLLM.
    Vllm,
    /// Runtimes without settings of their own.
    Other,
}

impl Family {
    /// The family of the runtime with this name; `Other` if this version does not have it.
    #[must_use]
    pub fn of(runtime: &str) -> Self {
        runtime.parse().map_or(Self::Other, Runtime::family)
    }

    /// The family's name, for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::LlamaCpp => Runtime::LlamaCpp.name(),
            Self::LlamaServer => Runtime::LlamaServer.name(),
            Self::ExLlamaV3 => "ExLlamaV3",
            Self::Vllm => "vLLM",
            Self::Other => "this runtime",
        }
    }

    /// Whether it runs llama.cpp, in either form.
    #[must_use]
    pub const fn is_llama_cpp(self) -> bool {
        matches!(self, Self::LlamaCpp | Self::LlamaServer)
    }
}

/// What a `checkpoint` of a runtime names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checkpoints {
    /// Nothing: the runtime needs no checkpoint.
    None,
    /// A GGUF file, on disk or in a repository on the hub.
    Gguf,
    /// A folder, on disk or a repository on the hub.
    Folder,
    /// A name that only the runtime understands; never a repository.
    Names,
}

/// A runtime without special abilities, which takes folders.
const PLAIN: Facts = Facts {
    name: "",
    family: Family::Other,
    checkpoints: Checkpoints::Folder,
    devices: &[Gpu, Cpu, Sim],
    offloads: true,
    spreads: false,
    templates: false,
    chats: false,
    pulls: false,
    thinks: false,
};

const LLAMA_CPP: Facts = Facts {
    name: "llama_cpp",
    family: Family::LlamaCpp,
    checkpoints: Checkpoints::Gguf,
    spreads: true,
    templates: true,
    chats: true,
    ..PLAIN
};

const VLLM: Facts = Facts {
    name: "vllm",
    family: Family::Vllm,
    chats: true,
    ..PLAIN
};

/// A runtime for NPUs.
const NPU: Facts = Facts {
    devices: &[Npu],
    offloads: false,
    ..PLAIN
};

runtimes! {
    /// Our own engine, which has llama.cpp linked in.
    LlamaCpp = LLAMA_CPP;
    /// llama.cpp's own server.
    LlamaServer = Facts {
        name: "llama_server",
        family: Family::LlamaServer,
            ..LLAMA_CPP
    };
    /// Stands for any other runtime in tests; loads no real model.
    Stub = Facts {
        name: "stub",
        checkpoints: Checkpoints::None,
        devices: &[Cpu, Sim, Gpu, Npu],
        offloads: false,
        spreads: true,
        templates: true,
        chats: true,
        thinks: true,
        ..PLAIN
    };
    /// vLLM inside a process of ours.
    Vllm = VLLM;
    /// `vllm serve`.
    VllmServe = Facts { name: "vllm_serve", ..VLLM };
    /// FastFlowLM.
    Flm = Facts { name: "flm", checkpoints: Checkpoints::Names, pulls: true, ..NPU };
    /// AMD's Ryzen AI server.
    RyzenaiServer = Facts { name: "ryzenai_server", ..NPU };
    /// ExLlamaV3.
    ExLlamaV3 = Facts { name: "exllamav3", family: Family::ExLlamaV3, ..PLAIN };
    /// CTranslate2.
    Ct2 = Facts { name: "ct2", ..PLAIN };
    /// A remote server with OpenAI's API.
    OpenAiRemote = Facts { name: "openai_remote", checkpoints: Checkpoints::Names, ..PLAIN };
}

/// Lemonade's recipes and the runtimes that can host them, the default one first (controller/README.md, Settings).
pub const RECIPES: [(&str, &[Runtime]); 7] = [
    ("llamacpp", &[Runtime::LlamaCpp, Runtime::LlamaServer]),
    ("vllm", &[Runtime::Vllm, Runtime::VllmServe]),
    ("flm", &[Runtime::Flm]),
    ("ryzenai-llm", &[Runtime::RyzenaiServer]),
    ("oga-hybrid", &[Runtime::RyzenaiServer]),
    ("oga-npu", &[Runtime::RyzenaiServer]),
    ("oga-cpu", &[Runtime::RyzenaiServer]),
];

impl Runtime {
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.facts().name
    }

    /// The family whose settings it reads.
    #[must_use]
    pub const fn family(self) -> Family {
        self.facts().family
    }

    /// Whether it runs llama.cpp, so that it reads GGUF files and llama.cpp's flags.
    #[must_use]
    pub const fn is_llama_cpp(self) -> bool {
        self.family().is_llama_cpp()
    }

    /// Whether a checkpoint can be the name of a repository on the hub.
    #[must_use]
    pub const fn reads_repositories(self) -> bool {
        matches!(self.facts().checkpoints, Checkpoints::Gguf | Checkpoints::Folder)
    }

    /// Whether a checkpoint on the hub is a whole repository rather than a file of one.
    #[must_use]
    pub const fn takes_folders(self) -> bool {
        matches!(self.facts().checkpoints, Checkpoints::Folder)
    }
}

/// No runtime of this version has the name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no runtime of this version")]
pub struct UnknownRuntime(String);

impl FromStr for Runtime {
    type Err = UnknownRuntime;

    fn from_str(name: &str) -> Result<Self, UnknownRuntime> {
        let found = Self::ALL.iter().find(|runtime| runtime.name() == name);
        found.copied().ok_or_else(|| UnknownRuntime(name.to_owned()))
    }
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_one_runtime() {
        for runtime in Runtime::ALL {
            assert_eq!(runtime.name().parse(), Ok(*runtime));
        }
        assert!("".parse::<Runtime>().is_err());
        assert_eq!(
            "elsewhere".parse::<Runtime>(),
            Err(UnknownRuntime("elsewhere".to_owned()))
        );
    }
}
