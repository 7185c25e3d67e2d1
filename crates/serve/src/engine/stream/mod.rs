//! Streams: chains whose next input arrives later, and that may go on for ever.
//!
//! A stream is an open request that grows by a node for each input. So that what is known of its
//! past does not grow with it, it is cut into segments of [`SEGMENT`] nodes, each a request:
//!
//! ```text
//! push   the segment has room    add a node; the last one closes the request
//!        it has none             put the input aside
//! a node is done                 tell its outputs; of the last one, keep the states
//! the segment has ended          begin the next, from these states, with all inputs put aside
//! ```
//!
//! Within a segment the states rest in the worker's batch, as those of any chain.

mod handle;
mod segments;

use super::{RequestError, SubmitError};

pub use handle::{Step, Stream};

/// Steps of a segment: enough that a new request costs little for each. Two for the model
/// checker, whose streams have few steps.
const SEGMENT: usize = if cfg!(loom) { 2 } else { 256 };

/// Bytes of a step beside its inputs: the records of the graph, of the values and of the scheduler.
const STEP_BYTES: usize = 256;

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
