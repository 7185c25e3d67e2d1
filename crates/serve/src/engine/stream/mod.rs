//! Streams: chains whose next input arrives later, and that may go on for ever.
//!
//! A stream keeps its states between steps, so it does not keep its past. Steps are computed in
//! segments, each a request that starts from these states:
//!
//! ```text
//! push                   no segment runs: begin one with this step; otherwise the step waits
//! a step is computed     keep the states, send the outputs
//! a segment has ended    begin the next, with all steps that wait
//! ```
//!
//! Segments are not visible from outside: the room of a stream is reserved when it is opened, and
//! all its segments have its position in the order of arrivals.

mod handle;
mod idle;
mod segments;

use std::time::Instant;

use super::{RequestError, SubmitError};

pub use handle::{Step, Stream};
pub(super) use idle::IdleStreams;
pub(super) use segments::Inner;

/// Maximum number of unanswered steps of a stream. Few for the model checker.
const AHEAD: usize = if cfg!(loom) { 4 } else { 256 };

/// Bytes of a step beside its inputs: the records of the graph, of the values and of the scheduler.
const STEP_BYTES: usize = 256;

/// Options of one step of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepOptions {
    /// As [`Request::priority`](super::Request::priority). Steps that wait for an earlier step of
    /// the stream raise its priority to theirs if it has not begun.
    pub priority: u8,
    /// If the step is not computed by then, it ends with [`RequestError::Late`], and so do the
    /// steps that were added after it. None of them changes the states; the stream goes on.
    pub deadline: Option<Instant>,
}

/// Why a stream was not opened, or does not go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// There is no such cell.
    #[error("there is no cell {cell}; there are {cells}, numbered from 0")]
    UnknownCell {
        /// Which was asked for.
        cell: usize,
        /// How many there are.
        cells: usize,
    },
    /// A cell that takes nothing over from step to step.
    #[error("cell `{cell}` has no state to carry from step to step; submit its calls as requests")]
    NoState {
        /// Which.
        cell: String,
    },
    /// A cell with sequences.
    #[error("cell `{cell}` takes whole sequences; submit its calls as requests")]
    Sequences {
        /// Which.
        cell: String,
    },
    /// Values of another size.
    #[error("{what} of cell `{cell}` are {expected} values, not {found}")]
    Values {
        /// States or inputs.
        what: &'static str,
        /// Which cell.
        cell: String,
        /// How many it takes.
        expected: usize,
        /// How many were given.
        found: usize,
    },
    /// The step was refused; the stream is as it was before.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The stream has ended.
    #[error("the stream has ended: {0}")]
    Ended(#[from] RequestError),
}
