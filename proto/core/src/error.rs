//! The one error catalogue (proto/README.md, Errors): each code has a gRPC status, an HTTP status and an OpenAI `type`. An [`Error`] is what parts of Muster
//! tell one another and the caller; nothing ever matches on its message.

use std::{collections::BTreeMap, fmt, time::Duration};

macro_rules! catalogue {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $grpc:ident, $http:literal, $kind:literal;)*) => {
        /// A key of the error catalogue.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $($(#[$doc])* $variant,)*
        }

        impl Code {
            /// Every code, for tables and tests.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The code as it is written on the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Its gRPC status.
            #[must_use]
            pub const fn grpc(self) -> Grpc {
                match self { $(Self::$variant => Grpc::$grpc,)* }
            }

            /// Its HTTP status. 499 is nginx's "client closed request".
            #[must_use]
            pub const fn http(self) -> u16 {
                match self { $(Self::$variant => $http,)* }
            }

            /// OpenAI's `error.type`.
            #[must_use]
            pub const fn openai_type(self) -> &'static str {
                match self { $(Self::$variant => $kind,)* }
            }

            /// Reads a code from the wire; none for one that this build does not know.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                match text { $($name => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

catalogue! {
    /// No catalogue entry of that name.
    UnknownModel = "unknown_model", NotFound, 404, "not_found_error";
    /// The entry exists but nothing serves it, and loading on demand is off.
    ModelNotLoaded = "model_not_loaded", FailedPrecondition, 409, "invalid_request_error";
    /// It is being loaded and the caller does not wait.
    ModelLoading = "model_loading", FailedPrecondition, 409, "invalid_request_error";
    /// An operator is unloading it.
    ModelUnloading = "model_unloading", FailedPrecondition, 409, "invalid_request_error";
    /// An operator's order must wait for work that runs, waits or is expected, or must be forced.
    InstanceBusy = "instance_busy", FailedPrecondition, 409, "invalid_request_error";
    /// The last load failed and automatic loads are in backoff.
    ModelFailed = "model_failed", FailedPrecondition, 409, "server_error";
    /// This load failed.
    ModelLoadFailed = "model_load_failed", Internal, 500, "server_error";
    /// A load made no progress and was ended.
    LoadStalled = "load_stalled", Internal, 500, "server_error";
    /// A load was cancelled.
    LoadCancelled = "load_cancelled", Aborted, 409, "server_error";
    /// Room was not free in time.
    EvictionTimeout = "eviction_timeout", Unavailable, 503, "server_error";
    /// It can never fit, or not now and nothing may be evicted.
    InsufficientMemory = "insufficient_memory", ResourceExhausted, 507, "server_error";
    /// Only pinned models stand in the way.
    SlotsPinned = "slots_pinned", FailedPrecondition, 409, "invalid_request_error";
    /// A load request makes no sense.
    InvalidLoadRequest = "invalid_load_request", InvalidArgument, 400, "invalid_request_error";
    /// No worker that could host the model is here.
    NoWorker = "no_worker", Unavailable, 503, "server_error";
    /// An operator wants a worker forgotten that is connected, or was never known.
    WorkerNotLost = "worker_not_lost", FailedPrecondition, 409, "invalid_request_error";
    /// A model file is missing on the worker.
    FileNotFound = "file_not_found", NotFound, 500, "server_error";
    /// The hub has no such repository, or the repository no such file; a private one without a token looks the same.
    CheckpointNotFound = "checkpoint_not_found", NotFound, 404, "not_found_error";
    /// The hub wants a token, or one whose owner accepted the model's terms.
    CheckpointForbidden = "checkpoint_forbidden", PermissionDenied, 403, "permission_error";
    /// The hub cannot be reached, or breaks off.
    HubUnavailable = "hub_unavailable", Unavailable, 502, "server_error";
    /// What came is not what the hub announced.
    DownloadCorrupt = "download_corrupt", DataLoss, 502, "server_error";
    /// The disk has no room for the files.
    InsufficientStorage = "insufficient_storage", ResourceExhausted, 507, "server_error";
    /// A download was cancelled, by a delete of its model.
    DownloadCancelled = "download_cancelled", Aborted, 409, "server_error";
    /// The body of an admin request does not have the shape it must have (seed 001, Validation behavior).
    InvalidSchema = "invalid_schema", InvalidArgument, 422, "invalid_request_error";
    /// A model has several instances and this is about one of them.
    AmbiguousInstance = "ambiguous_instance", FailedPrecondition, 409, "invalid_request_error";
    /// A request field is wrong.
    InvalidRequest = "invalid_request", InvalidArgument, 400, "invalid_request_error";
    /// The body is not JSON.
    InvalidJson = "invalid_json", InvalidArgument, 400, "invalid_request_error";
    /// The body is larger than allowed.
    BodyTooLarge = "body_too_large", ResourceExhausted, 413, "invalid_request_error";
    /// The client took too long to send its request.
    SlowRequest = "slow_request", DeadlineExceeded, 408, "invalid_request_error";
    /// The path is unknown.
    RouteNotFound = "route_not_found", NotFound, 404, "invalid_request_error";
    /// The path exists, the method does not.
    MethodNotAllowed = "method_not_allowed", Unimplemented, 405, "invalid_request_error";
    /// The model cannot switch thinking.
    ThinkingUnsupported = "thinking_unsupported", InvalidArgument, 400, "invalid_request_error";
    /// The runtime cannot do what was asked; nothing is silently ignored.
    UnsupportedByRuntime = "unsupported_by_runtime", Unimplemented, 400, "invalid_request_error";
    /// A content part names an address, which an engine would fetch.
    MediaUrlRefused = "media_url_refused", InvalidArgument, 400, "invalid_request_error";
    /// The prompt does not fit the context.
    ContextLengthExceeded = "context_length_exceeded", InvalidArgument, 400, "invalid_request_error";
    /// Too many requests wait.
    QueueFull = "queue_full", ResourceExhausted, 429, "rate_limit_error";
    /// The engine has no sequence or cells for one more; only the worker sees it.
    NoRoom = "no_room", ResourceExhausted, 503, "server_error";
    /// The instance takes no new work here; go elsewhere. Gateways re-dispatch.
    StaleInstance = "stale_instance", Aborted, 503, "server_error";
    /// The request was cancelled by its caller.
    Cancelled = "cancelled", Cancelled, 499, "server_error";
    /// A newer request with the same id took its place.
    Superseded = "superseded", Aborted, 409, "server_error";
    /// The client took nothing for too long.
    SlowReader = "slow_reader", Aborted, 408, "server_error";
    /// The connection to the worker broke while the request ran.
    WorkerLost = "worker_lost", Unavailable, 502, "server_error";
    /// The engine died or was ended because it hung.
    RuntimeCrashed = "runtime_crashed", Unavailable, 502, "server_error";
    /// The engine answered with something that cannot be understood.
    RuntimeError = "runtime_error", Internal, 502, "server_error";
    /// The controller is away and no route is known.
    ControllerUnavailable = "controller_unavailable", Unavailable, 503, "server_error";
    /// The process is shutting down.
    ShuttingDown = "shutting_down", Unavailable, 503, "server_error";
    /// The key is missing or wrong.
    Unauthenticated = "unauthenticated", Unauthenticated, 401, "authentication_error";
    /// The key does not allow this.
    Forbidden = "forbidden", PermissionDenied, 403, "permission_error";
    /// A bug of ours.
    Internal = "internal", Internal, 500, "server_error";
}

/// gRPC's status codes that failures have, with their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Grpc {
    /// The caller cancelled.
    Cancelled = 1,
    /// The request makes no sense.
    InvalidArgument = 3,
    /// Too late.
    DeadlineExceeded = 4,
    /// What is asked for is not there.
    NotFound = 5,
    /// Not for this caller.
    PermissionDenied = 7,
    /// Something is used up.
    ResourceExhausted = 8,
    /// Not in this state.
    FailedPrecondition = 9,
    /// Ended by something else; try again higher up.
    Aborted = 10,
    /// Nothing here can do it.
    Unimplemented = 12,
    /// A fault of ours or of an engine.
    Internal = 13,
    /// Not here at the moment.
    Unavailable = 14,
    /// Damaged.
    DataLoss = 15,
    /// The caller is not known.
    Unauthenticated = 16,
}

impl Code {
    /// An error of this code; `message` is one sentence for a person.
    #[must_use]
    pub fn error(self, message: impl Into<String>) -> Error {
        Error {
            code: self,
            message: message.into(),
            param: None,
            retry_after: None,
            details: BTreeMap::new(),
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A failure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Error {
    /// What it is, for programs.
    pub code: Code,
    /// One sentence for a person.
    pub message: String,
    /// The request field at fault.
    pub param: Option<String>,
    /// When a retry makes sense.
    pub retry_after: Option<Duration>,
    /// Numbers and names that belong to the code.
    pub details: BTreeMap<String, String>,
}

impl Error {
    /// Names the request field at fault.
    #[must_use]
    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into()).filter(|param| !param.is_empty());
        self
    }

    /// Adds a detail.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "numbers are said as they are")]
    pub fn with_detail(mut self, key: &str, value: impl ToString) -> Self {
        self.details.insert(key.to_owned(), value.to_string());
        self
    }

    /// Says when a retry makes sense.
    #[must_use]
    pub fn with_retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_parse_back() {
        for code in Code::ALL {
            assert_eq!(Code::parse(code.as_str()), Some(*code));
        }
        let names: std::collections::HashSet<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(names.len(), Code::ALL.len());
        assert_eq!(Code::parse("no_such_code"), None);
    }
}
