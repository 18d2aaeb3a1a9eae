//! The error catalogue (proto/README.md, Errors): each code has a gRPC status, an HTTP status and an OpenAI `type`. Muster's parts report
//! failures to each other and to callers as [`Error`]. No code ever compares messages.

use std::{collections::BTreeMap, fmt, time::Duration};

macro_rules! catalogue {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $grpc:ident, $http:literal, $kind:literal;)*) => {
        /// A key of the error catalogue.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $($(#[$doc])* $variant,)*
        }

        impl Code {
            /// All codes, for tables and tests.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The code's name, as on the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The gRPC status.
            #[must_use]
            pub const fn grpc(self) -> Grpc {
                match self { $(Self::$variant => Grpc::$grpc,)* }
            }

            /// The HTTP status. 499 is nginx's "client closed request".
            #[must_use]
            pub const fn http(self) -> u16 {
                match self { $(Self::$variant => $http,)* }
            }

            /// OpenAI's `error.type`.
            #[must_use]
            pub const fn openai_type(self) -> &'static str {
                match self { $(Self::$variant => $kind,)* }
            }

            /// The code with this name; none if this version does not have it.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                match text { $($name => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

catalogue! {
    /// The catalogue has no model with that name.
    UnknownModel = "unknown_model", NotFound, 404, "not_found_error";
    /// The model is not loaded, and requests may not load it.
    ModelNotLoaded = "model_not_loaded", FailedPrecondition, 409, "invalid_request_error";
    /// The model is loading, and the caller does not wait.
    ModelLoading = "model_loading", FailedPrecondition, 409, "invalid_request_error";
    /// An operator is unloading the model.
    ModelUnloading = "model_unloading", FailedPrecondition, 409, "invalid_request_error";
    /// An operator's order must wait for requests that run, wait or are expected; otherwise it must be forced.
    InstanceBusy = "instance_busy", FailedPrecondition, 409, "invalid_request_error";
    /// The last load failed, and requests may not cause another one for a while.
    ModelFailed = "model_failed", FailedPrecondition, 409, "server_error";
    /// The load failed.
    ModelLoadFailed = "model_load_failed", Internal, 500, "server_error";
    /// The load made no progress and was ended.
    LoadStalled = "load_stalled", Internal, 500, "server_error";
    /// The load was cancelled.
    LoadCancelled = "load_cancelled", Aborted, 409, "server_error";
    /// The configuration that was read again has problems.
    InvalidConfiguration = "invalid_configuration", InvalidArgument, 400, "invalid_request_error";
    /// Models that had to make room did not finish in time.
    EvictionTimeout = "eviction_timeout", Unavailable, 503, "server_error";
    /// The model can never fit, or does not fit now and nothing may be evicted.
    InsufficientMemory = "insufficient_memory", ResourceExhausted, 507, "server_error";
    /// Only pinned models could make room.
    SlotsPinned = "slots_pinned", FailedPrecondition, 409, "invalid_request_error";
    /// The settings of a load are invalid.
    InvalidLoadRequest = "invalid_load_request", InvalidArgument, 400, "invalid_request_error";
    /// No connected worker can host the model.
    NoWorker = "no_worker", Unavailable, 503, "server_error";
    /// An operator asked to forget a worker that is connected or unknown.
    WorkerNotLost = "worker_not_lost", FailedPrecondition, 409, "invalid_request_error";
    /// A model file is missing on the worker.
    FileNotFound = "file_not_found", NotFound, 500, "server_error";
    /// The hub has no such repository, or the repository no such file. A private repository without a token looks the same.
    CheckpointNotFound = "checkpoint_not_found", NotFound, 404, "not_found_error";
    /// The hub requires a token, or one whose owner has accepted the model's terms.
    CheckpointForbidden = "checkpoint_forbidden", PermissionDenied, 403, "permission_error";
    /// The hub cannot be reached, or broke off the download.
    HubUnavailable = "hub_unavailable", Unavailable, 502, "server_error";
    /// The downloaded file differs from what the hub announced.
    DownloadCorrupt = "download_corrupt", DataLoss, 502, "server_error";
    /// The disk has no room for the files.
    InsufficientStorage = "insufficient_storage", ResourceExhausted, 507, "server_error";
    /// An operator cancelled or paused the download, or deleted its model.
    DownloadCancelled = "download_cancelled", Aborted, 409, "server_error";
    /// No download is under way to which this could be done.
    NoSuchDownload = "no_such_download", NotFound, 404, "not_found_error";
    /// The body of an admin request has the wrong form (seed 001, Validation behavior).
    InvalidSchema = "invalid_schema", InvalidArgument, 422, "invalid_request_error";
    /// The request must name one of the model's instances.
    AmbiguousInstance = "ambiguous_instance", FailedPrecondition, 409, "invalid_request_error";
    /// A field of the request is invalid.
    InvalidRequest = "invalid_request", InvalidArgument, 400, "invalid_request_error";
    /// The body is not JSON.
    InvalidJson = "invalid_json", InvalidArgument, 400, "invalid_request_error";
    /// The body is larger than allowed.
    BodyTooLarge = "body_too_large", ResourceExhausted, 413, "invalid_request_error";
    /// The client took too long to send its request.
    SlowRequest = "slow_request", DeadlineExceeded, 408, "invalid_request_error";
    /// The path is unknown.
    RouteNotFound = "route_not_found", NotFound, 404, "invalid_request_error";
    /// The path exists, but not with this method.
    MethodNotAllowed = "method_not_allowed", Unimplemented, 405, "invalid_request_error";
    /// The model cannot switch thinking.
    ThinkingUnsupported = "thinking_unsupported", InvalidArgument, 400, "invalid_request_error";
    /// The runtime cannot do what was asked for.
    UnsupportedByRuntime = "unsupported_by_runtime", Unimplemented, 400, "invalid_request_error";
    /// The API has this route, but Muster does not do what it is for.
    NotImplemented = "not_implemented", Unimplemented, 501, "invalid_request_error";
    /// A content part has a URL that an engine would fetch.
    MediaUrlRefused = "media_url_refused", InvalidArgument, 400, "invalid_request_error";
    /// The prompt does not fit the context.
    ContextLengthExceeded = "context_length_exceeded", InvalidArgument, 400, "invalid_request_error";
    /// Too many requests are waiting.
    QueueFull = "queue_full", ResourceExhausted, 429, "rate_limit_error";
    /// The engine has no free sequence or cells; only seen between engine and worker.
    NoRoom = "no_room", ResourceExhausted, 503, "server_error";
    /// The instance takes no new requests; gateways try another one.
    StaleInstance = "stale_instance", Aborted, 503, "server_error";
    /// The request was cancelled by its caller.
    Cancelled = "cancelled", Cancelled, 499, "server_error";
    /// A newer request with the same id replaced this one.
    Superseded = "superseded", Aborted, 409, "server_error";
    /// The client did not read for too long.
    SlowReader = "slow_reader", Aborted, 408, "server_error";
    /// The connection to the worker broke while the request ran.
    WorkerLost = "worker_lost", Unavailable, 502, "server_error";
    /// The engine ended, or was ended because it hung.
    RuntimeCrashed = "runtime_crashed", Unavailable, 502, "server_error";
    /// The engine's answer cannot be understood.
    RuntimeError = "runtime_error", Internal, 502, "server_error";
    /// The controller cannot be reached and no route is known.
    ControllerUnavailable = "controller_unavailable", Unavailable, 503, "server_error";
    /// The process is shutting down.
    ShuttingDown = "shutting_down", Unavailable, 503, "server_error";
    /// The API key is missing or wrong.
    Unauthenticated = "unauthenticated", Unauthenticated, 401, "authentication_error";
    /// The API key does not allow this.
    Forbidden = "forbidden", PermissionDenied, 403, "permission_error";
    /// A bug in Muster.
    Internal = "internal", Internal, 500, "server_error";
}

/// The gRPC status codes of failures, with their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Grpc {
    /// The caller cancelled the call.
    Cancelled = 1,
    /// The request is invalid.
    InvalidArgument = 3,
    /// The time is over.
    DeadlineExceeded = 4,
    /// The thing asked for does not exist.
    NotFound = 5,
    /// The caller may not do this.
    PermissionDenied = 7,
    /// A resource is used up.
    ResourceExhausted = 8,
    /// Not possible in the present state.
    FailedPrecondition = 9,
    /// Ended by another operation; the caller may try again.
    Aborted = 10,
    /// Not supported.
    Unimplemented = 12,
    /// A fault of Muster or of an engine.
    Internal = 13,
    /// Not available at the moment.
    Unavailable = 14,
    /// Data is lost or damaged.
    DataLoss = 15,
    /// The caller is not authenticated.
    Unauthenticated = 16,
}

impl Code {
    /// An error with this code. `message` is one sentence for people.
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

/// A failure with its code, a message and details.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Error {
    /// Key of the catalogue, for programs.
    pub code: Code,
    /// One sentence for people.
    pub message: String,
    /// Path of the request field at fault; none if there is none.
    pub param: Option<String>,
    /// Time after which a retry makes sense; none if unknown.
    pub retry_after: Option<Duration>,
    /// More facts by name, for example `wanted_bytes`.
    pub details: BTreeMap<String, String>,
}

impl Error {
    /// Sets the request field at fault; an empty one is ignored.
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

    /// Sets the time after which a retry makes sense.
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
