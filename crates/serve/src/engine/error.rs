//! Errors of starting an engine and of submitting requests.

use std::io;

use crate::cell_graph::{CellError, GraphError};
use crate::scheduler::{ModelError, Refused};
use gatestream::execute::team::TeamError;

/// Why an engine did not start, or a model was not added.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// There is no cell.
    #[error("the engine has no cells; add at least one")]
    NoCell,
    /// There is no worker.
    #[error("the engine has no workers; configure at least one")]
    NoWorker,
    /// The minimum of the batch sizes is 0 or exceeds the maximum.
    #[error(
        "cell `{cell}`: batches of {min} to {max} rows; the minimum must be from 1 to the maximum"
    )]
    Sizes {
        /// The cell.
        cell: String,
        /// Minimum rows of a batch.
        min: usize,
        /// Maximum rows of a batch.
        max: usize,
    },
    /// The batches have more rows than supported.
    #[error("cell `{cell}`: batches of up to {rows} rows; the maximum is {max}")]
    TooManyRows {
        /// The cell.
        cell: String,
        /// Maximum rows of a batch, as configured.
        rows: usize,
        /// [`EngineOptions::MAX_ROWS`](super::EngineOptions::MAX_ROWS).
        max: usize,
    },
    /// The number of batch sizes differs from the number of cells.
    #[error("batch sizes are given for {found} cells, but the engine has {expected} cells")]
    SizesCount {
        /// Number of cells.
        expected: usize,
        /// Number of sizes.
        found: usize,
    },
    /// `tasks_at_once` is 0.
    #[error("`tasks_at_once` is 0; it must be at least 1")]
    NoTasks,
    /// `steps_at_once` is 0.
    #[error("`steps_at_once` is 0; it must be at least 1")]
    NoSteps,
    /// `batch_steps` or [`Policy::max_steps`](crate::scheduler::Policy::max_steps) is 0.
    #[error("`batch_steps` or the policy's `max_steps` is 0; a batch has at least 1 step")]
    NoBatchSteps,
    /// `batch_steps` or [`Policy::max_steps`](crate::scheduler::Policy::max_steps) is above
    /// [`BatchSteps::MAX`](crate::policy::BatchSteps::MAX).
    #[error("`batch_steps` or the policy's `max_steps` is {steps}; at most {max} are supported")]
    TooManyBatchSteps {
        /// The steps.
        steps: usize,
        /// The maximum.
        max: usize,
    },
    /// A worker's team could not be created.
    #[error("worker {worker}: {why}")]
    Team {
        /// Index of the worker.
        worker: usize,
        /// The cause.
        why: TeamError,
    },
    /// A cell could not be prepared.
    #[error("worker {worker} cannot prepare cell `{cell}`: {why}")]
    Cell {
        /// Index of the worker.
        worker: usize,
        /// The cell.
        cell: String,
        /// The cause.
        why: CellError,
    },
    /// A thread could not be started.
    #[error("worker {worker} could not be started: {why}")]
    Spawn {
        /// Index of the worker.
        worker: usize,
        /// The error of the operating system.
        why: io::Error,
    },
    /// The reply thread could not be started.
    #[error("the reply thread could not be started: {why}")]
    SpawnReplies {
        /// The error of the operating system.
        why: io::Error,
    },
    /// All models together would have too many cells.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The engine has stopped, or was started in the process that this one was forked from.
    #[error("the engine has stopped, or belongs to the parent process; start a new one")]
    Stopped,
    /// A worker panicked before it was ready.
    #[error("worker {worker} panicked while it prepared its cells")]
    Panicked {
        /// Index of the worker.
        worker: usize,
    },
}

/// Why none of several requests was accepted. The engine keeps nothing of them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request {index}: {why}; none of the requests was accepted")]
pub struct SubmitAllError {
    /// The first request that was refused.
    pub index: usize,
    /// Why.
    #[source]
    pub why: SubmitError,
}

/// Why a request was not accepted. The engine keeps nothing of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// Its graph is invalid.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// It exceeds a limit, or the engine is shutting down.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// A [`Submitting`](super::Submitting) future was polled again after its end.
    #[error("the future has returned the ticket or the error of this submission before")]
    Returned,
    /// The process is a child of the one that started the engine.
    #[error(
        "the engine was started before this process was forked, and its workers are in the parent; \
         start a new engine in the child"
    )]
    Forked,
}
