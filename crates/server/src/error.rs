//! Why a request has no answer, in the terms of both protocols.

use std::time::Duration;

use gatestream_network::NetworkError as GraphError;
use gatestream_serve::RequestError;
use gatestream_serve::engine::{StreamError, SubmitAllError, SubmitError};
use gatestream_serve::networks::NetworkError;
use gatestream_serve::scheduler::{LimitOf, Reason, Refused};
use tonic::Code;

macro_rules! kinds {
    ($($kind:ident, $name:literal, $http:literal, $grpc:ident, $meaning:literal;)*) => {
        /// Kinds of errors, in the order of their statuses of HTTP.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ErrorKind {
            $(#[doc = $meaning] $kind,)*
        }

        impl ErrorKind {
            /// All kinds.
            #[cfg(test)]
            const ALL: &[ErrorKind] = &[$(ErrorKind::$kind,)*];

            /// The answer of both protocols.
            pub fn answer(self) -> KindAnswer {
                match self {
                    $(ErrorKind::$kind => KindAnswer {
                        name: $name,
                        http: $http,
                        grpc: Code::$grpc,
                        #[cfg(test)]
                        meaning: $meaning,
                    },)*
                }
            }
        }
    };
}

/// The answer of both protocols to a kind of error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindAnswer {
    /// The name in metrics.
    pub name: &'static str,
    /// The status of HTTP.
    pub http: u16,
    /// The code of gRPC.
    pub grpc: Code,
    /// As the README's table has it.
    #[cfg(test)]
    meaning: &'static str,
}

// The README has this table, which a test compares.
kinds! {
    Invalid, "invalid", 400, InvalidArgument,
        "the request is wrong; the text names the correction";
    Unauthenticated, "unauthenticated", 401, Unauthenticated, "no token, or an unknown one";
    Forbidden, "forbidden", 403, PermissionDenied,
        "the token is not for this model, or the server does not load models for clients";
    NotFound, "not_found", 404, NotFound, "no such model, version, sequence or path";
    WrongMethod, "wrong_method", 405, Unimplemented,
        "the path has other methods (`Allow` lists them); no such method of gRPC";
    Slow, "slow", 408, DeadlineExceeded, "the body did not come in time";
    Exists, "exists", 409, AlreadyExists, "the sequence is open";
    TooLarge, "too_large", 413, ResourceExhausted,
        "larger than a limit; sending it again does not help";
    Overloaded, "overloaded", 429, ResourceExhausted,
        "overloaded: `Retry-After`, `retry-after-ms`, or `grpc-retry-pushback-ms` say when to try \
         again";
    Cancelled, "cancelled", 499, Cancelled,
        "the client has gone: no answer is sent; metrics, statistics and the status page count it";
    Internal, "internal", 500, Internal, "a defect of the server or of a model; its log tells more";
    Unsupported, "unsupported", 501, Unimplemented,
        "a part of the protocol that is not there: shared memory, classification, traces, settings \
         of logs";
    Unavailable, "unavailable", 503, Unavailable,
        "the server or the model is being stopped; the model is being loaded (`Retry-After`)";
    Late, "late", 504, DeadlineExceeded,
        "`timeout` (microseconds) or `grpc-timeout` has passed; no work begins after it";
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
            message: shortened(message.to_string()),
            retry_after: None,
        }
    }

    pub fn invalid(message: impl ToString) -> InferError {
        InferError::new(ErrorKind::Invalid, message)
    }

    pub fn not_found(message: impl ToString) -> InferError {
        InferError::new(ErrorKind::NotFound, message)
    }

    pub fn late() -> InferError {
        InferError::new(ErrorKind::Late, "the request's deadline has passed")
    }
}

/// Bytes of a message, at most.
const LONGEST_MESSAGE: usize = 1024;

/// A message without its middle if it is long: it may have a name or a value of the request, and
/// these may have megabytes.
fn shortened(message: String) -> String {
    if message.len() <= LONGEST_MESSAGE {
        return message;
    }
    let head = message.floor_char_boundary(LONGEST_MESSAGE / 2);
    let tail = message.ceil_char_boundary(message.len() - LONGEST_MESSAGE / 4);
    let left_out = tail - head;
    format!(
        "{}… ({left_out} bytes) …{}",
        &message[..head],
        &message[tail..]
    )
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
        let option = option(&refused);
        InferError::new(kind, refused.message(option.as_deref()))
    }
}

/// The option of the command, or the entry of the model's configuration, that has the limit.
fn option(refused: &Refused) -> Option<String> {
    let (option, entry) = match refused.reason() {
        Reason::Requests => ("--requests", "requests"),
        Reason::ClientRequests => ("--client-requests", "client_requests"),
        Reason::Nodes => ("--nodes", "nodes"),
        Reason::RequestNodes => ("--request-nodes", "request_nodes"),
        Reason::Bytes => ("--bytes", "bytes"),
        Reason::Streams => ("--sequences", "sequences"),
        _ => return None,
    };
    Some(match refused.limit_of() {
        Some(LimitOf::Engine) => option.to_owned(),
        Some(LimitOf::Model) => format!("limits.{entry} in the model's config.toml"),
        _ => format!("{option} or limits.{entry} in the model's config.toml"),
    })
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
        let (index, why) = (error.index, InferError::from(error.why));
        InferError {
            message: format!("sequence {index} of the request: {}", why.message),
            ..why
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
    /// A graph that is served runs, so that a failed run is a matter of its inputs.
    fn from(error: GraphError) -> InferError {
        match error {
            GraphError::Plan { why } | GraphError::Run { why } => InferError::invalid(format!(
                "the model cannot take these inputs: {}",
                why.lines().next().unwrap_or_default()
            )),
            error @ GraphError::Input { .. } => InferError::invalid(error),
            error => InferError::new(ErrorKind::Internal, error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `INVALID_ARGUMENT` of `InvalidArgument`.
    fn name(code: Code) -> String {
        let mut name = String::new();
        for letter in format!("{code:?}").chars() {
            if letter.is_uppercase() && !name.is_empty() {
                name.push('_');
            }
            name.push(letter.to_ascii_uppercase());
        }
        name
    }

    #[test]
    fn the_readme_has_the_table_of_statuses() {
        let mut table = String::from("| status | gRPC | meaning |\n|---|---|---|\n");
        for kind in ErrorKind::ALL {
            let KindAnswer {
                http,
                grpc,
                meaning,
                ..
            } = kind.answer();
            table += &format!("| {http} | {} | {meaning} |\n", name(grpc));
        }
        let readme = include_str!("../README.md");
        assert!(readme.contains(&table), "the README must have:\n{table}");
    }

    #[test]
    fn long_names_are_not_echoed() {
        let error = InferError::invalid(format!("input {:?} is unknown", "é".repeat(1 << 20)));
        assert!(
            error.message.len() < 2 * LONGEST_MESSAGE,
            "{}",
            error.message.len()
        );
        assert!(error.message.starts_with("input \"é") && error.message.ends_with("is unknown"));
    }

    #[test]
    fn refusals_name_the_options_of_the_server() {
        let nodes = Refused::RequestNodes { nodes: 9, most: 8 };
        let error = InferError::from(nodes);
        assert_eq!(error.kind, ErrorKind::TooLarge);
        assert!(error.message.contains("--request-nodes"), "{error}");
        assert!(!error.message.contains('`'), "{error}");
    }
}
