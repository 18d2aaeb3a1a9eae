//! Failures of commands, with messages that tell what to do next. Exit codes are part of the interface.

use muster_core::{Code, Error};
use muster_proto::{StatusExt as _, net::Address};

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// No controller listens at the address.
    #[error("no controller at {address}: {why}")]
    NoController {
        /// Address of the controller.
        address: Address,
        /// Error of the connection.
        why: String,
    },
    /// The connection broke during a call.
    #[error("the connection to {0} broke: {1}")]
    Lost(String, String),
    /// The server at the address is not Muster's.
    #[error("what answered is not {0}: {1}")]
    NoMuster(String, String),
    /// The controller or a worker answered with an error.
    #[error("{0}")]
    Remote(Box<Error>),
    /// The command's arguments make no sense.
    #[error("{0}")]
    Usage(String),
    /// `muster up` cannot start, or had to stop.
    #[error(transparent)]
    Up(#[from] crate::up::UpError),
    /// The user pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// Reading or writing failed.
    #[error("input or output failed: {0}")]
    Io(#[from] std::io::Error),
    /// A message could not be written as JSON; a bug in Muster.
    #[error("cannot write JSON: {0}")]
    Json(String),
}

impl Failure {
    /// The failure for a gRPC status from `peer` (`the controller`, `worker …`).
    pub(crate) fn from_status(peer: &str, status: &tonic::Status) -> Self {
        // Muster's processes send typed details with every error. Without them, the connection broke.
        let broken = matches!(
            status.code(),
            tonic::Code::Unavailable | tonic::Code::Unknown | tonic::Code::Cancelled
        );
        let foreign = matches!(status.code(), tonic::Code::Internal | tonic::Code::Unimplemented);
        if status.details().is_empty() && broken {
            Self::Lost(peer.to_owned(), chain(status))
        } else if status.details().is_empty() && foreign {
            Self::NoMuster(peer.to_owned(), chain(status))
        } else {
            Self::Remote(Box::new(Error::from_status(status)))
        }
    }

    /// The failure for an error of the catalogue.
    pub(crate) fn remote(error: Error) -> Self {
        Self::Remote(Box::new(error))
    }

    /// The exit code of the process, as documented in `muster --help`.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::NoController { .. } => 3,
            Self::Remote(error) if error.code == Code::UnknownModel => 4,
            Self::Interrupted => 130,
            Self::Lost(..)
            | Self::NoMuster(..)
            | Self::Remote(_)
            | Self::Up(_)
            | Self::Io(_)
            | Self::Json(_) => 1,
        }
    }

    /// The text for people: what happened, details, and what to do.
    pub(crate) fn report(&self) -> String {
        let mut text = format!("muster: {self}");
        if let Self::Remote(error) = self {
            let mut details: Vec<_> = error.details.iter().collect();
            details.sort();
            for (key, value) in details {
                text.push_str(&format!(
                    "\n  {key}: {}",
                    value.trim_end().replace('\n', "\n    ")
                ));
            }
        }
        if let Some(hint) = self.hint() {
            text.push_str("\n  → ");
            text.push_str(hint);
        }
        text
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoController { .. } => {
                Some("start one with `muster up`, or say where it is: --controller ADDR or MUSTER_CONTROLLER")
            }
            Self::Lost(..) => Some("see whether it still runs; `muster workers` and its log tell more"),
            Self::NoMuster(..) => Some(
                "HTTP has a port of its own; the controller's gRPC is at localhost:8100 unless it was told otherwise",
            ),
            Self::Remote(error) => advice(error.code),
            Self::Up(error) => error.hint(),
            Self::Usage(_) | Self::Interrupted | Self::Io(_) | Self::Json(_) => None,
        }
    }
}

/// What to do about a code, if the message does not say it.
const ADVICE: &[(&[Code], &str)] = &[
    (&[Code::UnknownModel], "`muster models` lists what there is"),
    (&[Code::ModelNotLoaded], "load it first: `muster load MODEL`"),
    (
        &[Code::ModelLoading],
        "it is on its way; `muster ps` shows how far",
    ),
    (
        &[Code::ModelUnloading],
        "wait until it is unloaded (`muster ps`), then ask again",
    ),
    (
        &[Code::InstanceBusy],
        "wait until it is idle (`muster ps`), or use --force",
    ),
    (
        &[Code::ModelFailed, Code::ModelLoadFailed, Code::LoadStalled],
        "`muster events` says what happened; `muster load MODEL` tries again at once",
    ),
    (
        &[Code::EvictionTimeout],
        "`muster ps` shows what is busy; `muster unload MODEL` makes room",
    ),
    (
        &[Code::InsufficientMemory],
        "`muster devices` shows the memory; a smaller ctx_size or `muster unload MODEL` helps",
    ),
    (
        &[Code::SlotsPinned],
        "only pinned models are in the way: `muster unload MODEL` or `muster unpin MODEL` one of them",
    ),
    (
        &[Code::NoWorker],
        "`muster workers` lists the workers and what they can host",
    ),
    (
        &[Code::FileNotFound],
        "check `checkpoint` in the configuration; `muster models` shows it",
    ),
    (
        &[Code::Unauthenticated, Code::Forbidden],
        "show the admin key: --key-file FILE or MUSTER_KEY; the user whom the controller runs as needs none",
    ),
    (&[Code::QueueFull], "it is busy; try again in a moment"),
    (
        &[
            Code::WorkerLost,
            Code::RuntimeCrashed,
            Code::RuntimeError,
            Code::StaleInstance,
            Code::NoRoom,
        ],
        "try again: it loads again on demand; `muster events` says what happened",
    ),
    (
        &[Code::ControllerUnavailable, Code::ShuttingDown],
        "try again when it is up",
    ),
    (
        &[Code::ContextLengthExceeded],
        "say less, or give the model a larger ctx_size",
    ),
    (&[Code::Internal], "this is a bug of Muster; its log has more"),
];

fn advice(code: Code) -> Option<&'static str> {
    let row = ADVICE.iter().find(|(codes, _)| codes.contains(&code));
    row.map(|(_, text)| *text)
}

/// The text of an error and its causes, without repetitions.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let words = source.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        next = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_tell_failures_apart() {
        let unknown = Failure::from_status(
            "the controller",
            &Code::UnknownModel.error("no model `x`").into_status(),
        );
        assert_eq!(unknown.exit_code(), 4);
        assert_eq!(
            unknown.report(),
            "muster: unknown_model: no model `x`\n  → `muster models` lists what there is"
        );
        let lost = Failure::from_status("the controller", &tonic::Status::unavailable("gone"));
        assert!(matches!(lost, Failure::Lost(..)), "{lost:?}");
        assert_eq!(Failure::Interrupted.exit_code(), 130);
    }

    #[test]
    fn details_are_shown_in_order() {
        let error = Code::InsufficientMemory
            .error("too big")
            .with_detail("wanted_bytes", 3)
            .with_detail("free_bytes", 2);
        let text = Failure::remote(error).report();
        assert!(text.contains("free_bytes: 2\n  wanted_bytes: 3\n"), "{text}");
    }
}
