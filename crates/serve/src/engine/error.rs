//! Why an engine did not start, accept or answer.

use std::io;

use crate::cell_graph::{CellError, GraphError};
use crate::scheduler::Refused;
use cellstream::execute::team::TeamError;

/// Why an engine could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// There is no cell.
    #[error("an engine without cells computes nothing; add at least one")]
    NoCell,
    /// There is no worker.
    #[error("an engine without workers computes nothing; ask for at least one")]
    NoWorker,
    /// The minimum of the batch sizes is 0 or exceeds the maximum.
    #[error(
        "cell `{cell}`: batches of {min} to {max} rows; the minimum must be from 1 to the maximum"
    )]
    Sizes {
        /// The cell.
        cell: String,
        /// Least rows of a batch.
        min: usize,
        /// Most rows of a batch.
        max: usize,
    },
    /// The batches have more rows than supported.
    #[error("cell `{cell}`: batches of up to {rows} rows; at most {most} are supported")]
    TooManyRows {
        /// The cell.
        cell: String,
        /// Most rows of a batch.
        rows: usize,
        /// Most that are supported.
        most: usize,
    },
    /// The number of batch sizes differs from the number of cells.
    #[error("batch sizes for {found} cells, there are {expected}")]
    SizesCount {
        /// How many cells there are.
        expected: usize,
        /// How many sizes were given.
        found: usize,
    },
    /// Workers would get no task.
    #[error("`tasks_at_once` is 0; it must be at least 1")]
    NoTasks,
    /// Batches would have no step.
    #[error("`steps_at_once` is 0; it must be at least 1")]
    NoSteps,
    /// A worker's team could not be created.
    #[error("worker {worker}: {why}")]
    Team {
        /// Which.
        worker: usize,
        /// Why.
        why: TeamError,
    },
    /// A cell could not be prepared.
    #[error("worker {worker} cannot prepare cell `{cell}`: {why}")]
    Cell {
        /// Which worker.
        worker: usize,
        /// Which cell.
        cell: String,
        /// Why.
        why: CellError,
    },
    /// A thread could not be started.
    #[error("worker {worker} could not be started: {why}")]
    Spawn {
        /// Which.
        worker: usize,
        /// The system's answer.
        why: io::Error,
    },
    /// A worker panicked before it was ready.
    #[error("worker {worker} panicked while it prepared its cells")]
    Panicked {
        /// Which.
        worker: usize,
    },
}

/// Why a request was not accepted; nothing of it has been kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// Its graph is wrong.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// There is no room for it, or the engine is shutting down.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The process is a child of the one that started the engine.
    #[error(
        "the engine was started before this process was forked, and its workers are in the parent; \
         start a new engine in the child"
    )]
    Forked,
}
