//! The one error catalogue (proto/README.md, Errors): each code has a gRPC status, an HTTP status and an OpenAI `type`.
//! A failure travels as [`ErrorInfo`], inside gRPC as a typed detail of the status. Nothing ever matches on a message.

use std::{collections::HashMap, fmt, time::Duration};

use http::StatusCode;
use prost::Message as _;

use crate::v1::ErrorInfo;

macro_rules! catalogue {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $grpc:ident, $http:literal, $kind:literal;)*) => {
        /// A key of the error catalogue.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
            pub const fn grpc(self) -> tonic::Code {
                match self { $(Self::$variant => tonic::Code::$grpc,)* }
            }

            /// Its HTTP status as a number.
            #[must_use]
            pub const fn http_number(self) -> u16 {
                match self { $(Self::$variant => $http,)* }
            }

            /// OpenAI's `error.type`.
            #[must_use]
            pub const fn openai_type(self) -> &'static str {
                match self { $(Self::$variant => $kind,)* }
            }

            /// Reads a code from the wire; unknown ones are [`Code::Internal`].
            #[must_use]
            pub fn parse(text: &str) -> Self {
                match text { $($name => Self::$variant,)* _ => Self::Internal }
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

impl Code {
    /// Its HTTP status. 499 is nginx's "client closed request".
    #[must_use]
    pub fn http(self) -> StatusCode {
        StatusCode::from_u16(self.http_number()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// An error of this code; `message` is one sentence for a person.
    #[must_use]
    pub fn error(self, message: impl Into<String>) -> ErrorInfo {
        ErrorInfo {
            code: self.as_str().to_owned(),
            message: message.into(),
            param: String::new(),
            retry_after: None,
            details: HashMap::new(),
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What one does with an [`ErrorInfo`].
pub trait ErrorExt: Sized {
    /// Its catalogue code.
    fn kind(&self) -> Code;
    /// Names the request field at fault.
    #[must_use]
    fn with_param(self, param: impl Into<String>) -> Self;
    /// Adds a detail.
    #[must_use]
    fn with_detail(self, key: &str, value: impl ToString) -> Self;
    /// Says when a retry makes sense.
    #[must_use]
    fn with_retry_after(self, after: Duration) -> Self;
    /// As a gRPC status that carries this error as a typed detail.
    fn into_status(self) -> tonic::Status;
    /// Reads the error out of a gRPC status; a status of foreign origin becomes the nearest code.
    fn from_status(status: &tonic::Status) -> Self;
}

/// `google.rpc.Status`, as gRPC puts it into `grpc-status-details-bin`.
#[derive(Clone, PartialEq, prost::Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}

const TYPE_URL: &str = "type.googleapis.com/muster.v1.ErrorInfo";

impl ErrorExt for ErrorInfo {
    fn kind(&self) -> Code {
        Code::parse(&self.code)
    }

    fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = param.into();
        self
    }

    fn with_detail(mut self, key: &str, value: impl ToString) -> Self {
        self.details.insert(key.to_owned(), value.to_string());
        self
    }

    fn with_retry_after(mut self, after: Duration) -> Self {
        self.retry_after = prost_types::Duration::try_from(after).ok();
        self
    }

    fn into_status(self) -> tonic::Status {
        let code = self.kind().grpc();
        let message = format!("{}: {}", self.code, self.message);
        let any = prost_types::Any {
            type_url: TYPE_URL.to_owned(),
            value: self.encode_to_vec(),
        };
        let details = RpcStatus {
            code: code as i32,
            message: message.clone(),
            details: vec![any],
        };
        tonic::Status::with_details(code, message, details.encode_to_vec().into())
    }

    fn from_status(status: &tonic::Status) -> Self {
        RpcStatus::decode(status.details())
            .ok()
            .and_then(|rpc| rpc.details.into_iter().find(|any| any.type_url == TYPE_URL))
            .and_then(|any| Self::decode(any.value.as_slice()).ok())
            .unwrap_or_else(|| foreign(status))
    }
}

fn foreign(status: &tonic::Status) -> ErrorInfo {
    use tonic::Code as Grpc;
    let code = match status.code() {
        Grpc::Cancelled => Code::Cancelled,
        Grpc::InvalidArgument | Grpc::OutOfRange => Code::InvalidRequest,
        Grpc::NotFound => Code::RouteNotFound,
        Grpc::ResourceExhausted => Code::QueueFull,
        Grpc::Unimplemented => Code::UnsupportedByRuntime,
        Grpc::Unavailable | Grpc::DeadlineExceeded | Grpc::Aborted => Code::WorkerLost,
        Grpc::Unauthenticated => Code::Unauthenticated,
        Grpc::PermissionDenied => Code::Forbidden,
        Grpc::Ok
        | Grpc::Unknown
        | Grpc::AlreadyExists
        | Grpc::FailedPrecondition
        | Grpc::Internal
        | Grpc::DataLoss => Code::Internal,
    };
    code.error(status.message())
}

impl fmt::Display for ErrorInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for ErrorInfo {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_parse_back() {
        for code in Code::ALL {
            assert_eq!(Code::parse(code.as_str()), *code);
            assert_eq!(code.http().as_u16(), code.http_number());
        }
        let names: std::collections::HashSet<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(names.len(), Code::ALL.len());
    }

    #[test]
    fn an_error_survives_grpc() {
        let error = Code::InsufficientMemory
            .error("needs 3 GiB, has 2")
            .with_detail("wanted_bytes", 3_u64 << 30)
            .with_param("model")
            .with_retry_after(Duration::from_millis(1500));
        let status = error.clone().into_status();
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
        assert_eq!(ErrorInfo::from_status(&status), error);
    }

    #[test]
    fn a_foreign_status_becomes_the_nearest_code() {
        let status = tonic::Status::unavailable("gone");
        assert_eq!(ErrorInfo::from_status(&status).kind(), Code::WorkerLost);
    }
}
