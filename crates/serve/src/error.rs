//! Why an accepted request ended without a response.

use crate::cell_graph::{CellError, GraphError};
use crate::scheduler::Refused;

/// Why an accepted request has no response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// It was cancelled.
    #[error("the request was cancelled")]
    Cancelled,
    /// Its deadline passed.
    #[error("the request's deadline has passed")]
    Late,
    /// A cell failed in a batch with the request.
    #[error("cell `{cell}` failed: {why}")]
    Cell {
        /// The cell.
        cell: String,
        /// The cause.
        why: CellError,
    },
    /// A user's policy formed a larger batch than the cell was prepared for.
    #[error("the policy formed a batch of {rows} rows of cell `{cell}`; the maximum is {max}")]
    TooManyRows {
        /// The cell.
        cell: String,
        /// Rows of the batch, padding included.
        rows: usize,
        /// The cell's [`BatchSizes::max`](crate::cell_graph::BatchSizes::max).
        max: usize,
    },
    /// A cell panicked in a batch with the request.
    #[error("cell `{cell}` panicked: {message}")]
    CellPanicked {
        /// The cell.
        cell: String,
        /// The message of the panic.
        message: String,
    },
    /// Its `DynamicGraph` ended it with
    /// [`Growth::fail`](crate::cell_graph::Growth::fail).
    #[error("the function that grows the request's graph failed: {why}")]
    GrowFailed {
        /// The cause.
        why: CellError,
    },
    /// Its `DynamicGraph` panicked.
    #[error("the function that grows the request's graph panicked: {message}")]
    GrowPanicked {
        /// The message of the panic.
        message: String,
    },
    /// Nodes added to its graph are invalid.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// Nodes added to its graph exceed a limit.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// An input of a node is missing.
    #[error("an input of node {node} is missing; this is a bug in gatestream, please report it")]
    Lost {
        /// The node.
        node: usize,
    },
    /// The engine was shut down.
    #[error("the engine was shut down before the request was done")]
    ShutDown,
    /// A stream was idle for longer than
    /// [`EngineOptions::idle_streams`](crate::engine::EngineOptions::idle_streams).
    #[error("the stream was idle for too long; open another one from its states")]
    Idle,
    /// The response was returned by an earlier call.
    #[error("the response was returned before; a ticket returns it once")]
    Returned,
    /// The process is a child of the one that submitted it.
    #[error(
        "the request was submitted before this process was forked; \
         only the parent process receives its response"
    )]
    Forked,
}
