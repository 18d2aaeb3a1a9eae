//! Errors in messages: the core's [`Error`] as [`ErrorInfo`], and in gRPC statuses as a typed detail.
//!
//! The status is that of `tonic-types`. The detail is ours and not Google's, for two reasons: events carry the same message where there is no status
//! (`Failed`), and one error would need three of Google's details (`ErrorInfo`, `BadRequest`, `RetryInfo`).

use std::{fmt, time::Duration};

use muster_core::{Code, Error};
use prost::Message as _;
use tonic_types::pb;

use crate::v1::ErrorInfo;

/// The detail with the name of a code that this version does not know; the error then has [`Code::Internal`].
const UNKNOWN_CODE: &str = "code";

impl From<Error> for ErrorInfo {
    fn from(error: Error) -> Self {
        Self {
            code: error.code.as_str().to_owned(),
            message: error.message,
            param: error.param.unwrap_or_default(),
            retry_after: error
                .retry_after
                .and_then(|after| prost_types::Duration::try_from(after).ok()),
            details: error.details.into_iter().collect(),
        }
    }
}

impl From<ErrorInfo> for Error {
    fn from(info: ErrorInfo) -> Self {
        let known = Code::parse(&info.code);
        let mut error = Self {
            code: known.unwrap_or(Code::Internal),
            message: info.message,
            param: Some(info.param).filter(|param| !param.is_empty()),
            retry_after: info.retry_after.and_then(|after| Duration::try_from(after).ok()),
            details: info.details.into_iter().collect(),
        };
        if known.is_none() && !info.code.is_empty() {
            error.details.entry(UNKNOWN_CODE.to_owned()).or_insert(info.code);
        }
        error
    }
}

impl fmt::Display for ErrorInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

/// Converts errors to and from gRPC statuses.
pub trait StatusExt: Sized {
    /// A gRPC status with this error as a typed detail.
    fn into_status(self) -> tonic::Status;
    /// The error in a gRPC status. A status of other software gets the nearest code.
    fn from_status(status: &tonic::Status) -> Self;
}

const TYPE_URL: &str = "type.googleapis.com/muster.v1.ErrorInfo";

impl StatusExt for Error {
    fn into_status(self) -> tonic::Status {
        let code = grpc(self.code);
        let message = self.to_string();
        let any = prost_types::Any {
            type_url: TYPE_URL.to_owned(),
            value: ErrorInfo::from(self).encode_to_vec(),
        };
        let details = pb::Status {
            code: code as i32,
            message: message.clone(),
            details: vec![any],
        };
        tonic::Status::with_details(code, message, details.encode_to_vec().into())
    }

    fn from_status(status: &tonic::Status) -> Self {
        pb::Status::decode(status.details())
            .ok()
            .and_then(|rpc| rpc.details.into_iter().find(|any| any.type_url == TYPE_URL))
            .and_then(|any| ErrorInfo::decode(any.value.as_slice()).ok())
            .map_or_else(|| foreign(status), Self::from)
    }
}

/// The gRPC status of a code.
pub(crate) const fn grpc(code: Code) -> tonic::Code {
    tonic::Code::from_i32(code.grpc() as i32)
}

fn foreign(status: &tonic::Status) -> Error {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_survives_grpc() {
        let error = Code::InsufficientMemory
            .error("needs 3 GiB, has 2")
            .with_detail("wanted_bytes", 3_u64 << 30)
            .with_param("model")
            .with_retry_after(Duration::from_millis(1500));
        let status = error.clone().into_status();
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
        assert_eq!(Error::from_status(&status), error);
    }

    #[test]
    fn a_foreign_status_becomes_the_nearest_code() {
        let status = tonic::Status::unavailable("gone");
        assert_eq!(Error::from_status(&status).code, Code::WorkerLost);
    }

    #[test]
    fn a_code_of_a_later_version_is_a_fault_that_says_what_it_was() {
        let info = ErrorInfo {
            code: "of_tomorrow".to_owned(),
            message: "m".to_owned(),
            ..ErrorInfo::default()
        };
        let error = Error::from(info);
        assert_eq!(
            (error.code, error.details["code"].as_str()),
            (Code::Internal, "of_tomorrow")
        );
    }

    #[test]
    fn every_code_has_statuses_that_exist() {
        for code in Code::ALL {
            assert!(http::StatusCode::from_u16(code.http()).is_ok(), "{code}");
            assert_ne!(grpc(*code), tonic::Code::Unknown, "{code}");
        }
    }
}
