//! How a request ended.

use std::time::Duration;

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With its answer, and the times that the target reports, if it does.
    Answered(Option<ServerTimes>),
    /// Without an answer, and the message of the target; empty if it has none.
    Failed(ErrorKind, String),
}

impl From<ErrorKind> for Outcome {
    /// A request without an answer and without a message.
    fn from(kind: ErrorKind) -> Outcome {
        Outcome::Failed(kind, String::new())
    }
}

/// Where the time of a request went, as the target reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerTimes {
    /// From submission to the start of its first cell.
    pub queueing: Duration,
    /// From there to the end of its last cell.
    pub computing: Duration,
}

/// Why a request ended without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Refused at once: the queue was full.
    Overloaded,
    /// Its deadline passed.
    Deadline,
    /// The target gave it up: a cell failed, it was cancelled or the target shut down.
    Failed,
    /// The generator stopped waiting for it.
    Unfinished,
}

impl ErrorKind {
    /// All, in the order of reports.
    pub const ALL: [ErrorKind; 4] = [
        ErrorKind::Overloaded,
        ErrorKind::Deadline,
        ErrorKind::Failed,
        ErrorKind::Unfinished,
    ];

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::Overloaded => "overloaded",
            ErrorKind::Deadline => "deadline",
            ErrorKind::Failed => "failed",
            ErrorKind::Unfinished => "unfinished",
        }
    }
}
