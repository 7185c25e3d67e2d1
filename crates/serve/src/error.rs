//! Why an accepted request ended without a response.

use crate::cell_graph::{CellError, GraphError};
use crate::scheduler::Refused;

/// Why a request that was accepted has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// It was cancelled.
    #[error("the request was cancelled")]
    Cancelled,
    /// Its deadline passed.
    #[error("the request's deadline has passed")]
    Late,
    /// A cell that it was in failed.
    #[error("cell `{cell}` failed: {why}")]
    Cell {
        /// Which.
        cell: String,
        /// Why.
        why: CellError,
    },
    /// A policy of the user's own formed a larger batch than the cell was prepared for.
    #[error("the policy formed a batch of {rows} rows of cell `{cell}`, where {most} are the most")]
    TooManyRows {
        /// Which cell.
        cell: String,
        /// How many rows, padding included.
        rows: usize,
        /// The cell's [`BatchSizes::max`](crate::cell_graph::BatchSizes::max).
        most: usize,
    },
    /// A cell that it was in panicked.
    #[error("cell `{cell}` panicked: {message}")]
    CellPanicked {
        /// Which.
        cell: String,
        /// What the panic said.
        message: String,
    },
    /// What grows its graph said that it cannot go on.
    #[error("the request cannot go on: {why}")]
    GrowFailed {
        /// Why.
        why: CellError,
    },
    /// What grows its graph panicked.
    #[error("the function that grows the request's graph panicked: {message}")]
    GrowPanicked {
        /// What the panic said.
        message: String,
    },
    /// What was added to its graph is wrong.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// There is no room for what was added to its graph.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// A value that a node takes is nowhere.
    #[error("what node {node} takes has been lost; please report this as a mistake in cellstream")]
    Lost {
        /// The node.
        node: usize,
    },
    /// The engine was shut down.
    #[error("the engine was shut down before the request was done")]
    ShutDown,
    /// The process is a child of the one that submitted it, which alone gets the answer.
    #[error("the request was submitted before this process was forked; the parent gets its answer")]
    Forked,
}
