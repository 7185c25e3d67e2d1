//! Why a request has no answer, in the terms of both protocols.

use std::time::Duration;

use cellstream_network::NetworkError as GraphError;
use cellstream_serve::RequestError;
use cellstream_serve::engine::{StreamError, SubmitAllError, SubmitError};
use cellstream_serve::networks::NetworkError;
use cellstream_serve::scheduler::Refused;

/// Kinds of errors; each has a status of HTTP and a code of gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The request is wrong: 400, INVALID_ARGUMENT.
    Invalid,
    /// No valid token: 401, UNAUTHENTICATED.
    Unauthenticated,
    /// A token of other models: 403, PERMISSION_DENIED.
    Forbidden,
    /// There is no such model, version, sequence or path: 404, NOT_FOUND.
    NotFound,
    /// The sequence is open: 409, ALREADY_EXISTS.
    Exists,
    /// The body exceeds a limit: 413, RESOURCE_EXHAUSTED.
    TooLarge,
    /// A limit is reached now: 429, RESOURCE_EXHAUSTED.
    Overloaded,
    /// The client has gone: 499, CANCELLED.
    Cancelled,
    /// A defect of the server or of a model: 500, INTERNAL.
    Internal,
    /// A part of the protocol that this server does not have: 501, UNIMPLEMENTED.
    Unsupported,
    /// The server or the model is being drained: 503, UNAVAILABLE.
    Unavailable,
    /// The deadline has passed: 504, DEADLINE_EXCEEDED.
    Late,
}

impl ErrorKind {
    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::Invalid => "invalid",
            ErrorKind::Unauthenticated => "unauthenticated",
            ErrorKind::Forbidden => "forbidden",
            ErrorKind::NotFound => "not_found",
            ErrorKind::Exists => "exists",
            ErrorKind::TooLarge => "too_large",
            ErrorKind::Overloaded => "overloaded",
            ErrorKind::Cancelled => "cancelled",
            ErrorKind::Internal => "internal",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::Late => "late",
        }
    }
}

/// An error with a sentence for the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InferError {
    pub kind: ErrorKind,
    pub message: String,
    /// The time after which the same request may be accepted.
    pub retry_after: Option<Duration>,
}

impl InferError {
    pub fn new(kind: ErrorKind, message: impl ToString) -> InferError {
        InferError {
            kind,
            message: message.to_string(),
            retry_after: None,
        }
    }

    pub fn invalid(message: impl ToString) -> InferError {
        InferError::new(ErrorKind::Invalid, message)
    }

    pub fn not_found(message: impl ToString) -> InferError {
        InferError::new(ErrorKind::NotFound, message)
    }
}

impl From<Refused> for InferError {
    fn from(refused: Refused) -> InferError {
        let kind = match &refused {
            refused if refused.may_pass() => ErrorKind::Overloaded,
            Refused::ShuttingDown | Refused::ModelDrains => ErrorKind::Unavailable,
            Refused::NoModel => ErrorKind::NotFound,
            // Too large for the limits, also later.
            _ => ErrorKind::TooLarge,
        };
        InferError::new(kind, refused)
    }
}

impl From<SubmitError> for InferError {
    fn from(error: SubmitError) -> InferError {
        match error {
            SubmitError::Refused(refused) => refused.into(),
            SubmitError::Graph(why) => InferError::invalid(why),
            error => InferError::new(ErrorKind::Internal, error),
        }
    }
}

impl From<SubmitAllError> for InferError {
    fn from(error: SubmitAllError) -> InferError {
        let message = error.to_string();
        InferError {
            message,
            ..error.why.into()
        }
    }
}

impl From<RequestError> for InferError {
    fn from(error: RequestError) -> InferError {
        let kind = match &error {
            RequestError::Cancelled => ErrorKind::Cancelled,
            RequestError::Late => ErrorKind::Late,
            RequestError::Refused(refused) => return (*refused).into(),
            RequestError::GrowFailed { .. } | RequestError::Graph(_) => ErrorKind::Invalid,
            RequestError::ShutDown => ErrorKind::Unavailable,
            _ => ErrorKind::Internal,
        };
        InferError::new(kind, error)
    }
}

impl From<StreamError> for InferError {
    fn from(error: StreamError) -> InferError {
        match error {
            StreamError::Submit(error) => error.into(),
            StreamError::Ended(error) => error.into(),
            error => InferError::invalid(error),
        }
    }
}

impl From<NetworkError> for InferError {
    fn from(error: NetworkError) -> InferError {
        InferError::invalid(error)
    }
}

impl From<GraphError> for InferError {
    fn from(error: GraphError) -> InferError {
        let kind = match &error {
            GraphError::Input { .. } => ErrorKind::Invalid,
            _ => ErrorKind::Internal,
        };
        InferError::new(kind, error)
    }
}
