//! Options of an engine.

use std::time::Duration;

use super::EngineError;
use crate::cell_graph::BatchSizes;
use crate::policy::{BatchSteps, PolicyKind};
use crate::scheduler::Limits;
use gatestream::execute::team::{Cores, TeamError, check_threads};
use gatestream::machine::Topology;

/// Options of an engine. Set single fields and take the others from the default, with
/// `..EngineOptions::default()`: later versions may add fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// The choice of the ready nodes of a batch.
    pub policy: PolicyKind,
    /// Division of the cores among workers.
    pub workers: Workers,
    /// Rows of the batches of each cell, in the order of the cells. If empty, those of
    /// [`Cell::cost`](crate::cell_graph::Cell::cost).
    pub sizes: Vec<BatchSizes>,
    /// Maximum number of tasks that a worker gets at once (BatchMaker's MaxTasksToSubmit), further
    /// steps of their rows not counted. A worker with a device gets the next ones while the last of
    /// these is in flight.
    pub tasks_at_once: usize,
    /// Under policies without [`Policy::max_steps`](crate::scheduler::Policy::max_steps), as
    /// `cellular`: maximum number of steps of a chain in one batch, for cells that [support
    /// it](crate::cell_graph::Cell::supports_multiple_steps). More steps read the weights less
    /// often. All steps together have at most
    /// [`Scheduler::STEP_ROWS`](crate::scheduler::Scheduler::STEP_ROWS) rows: four steps of up to 4
    /// rows, three of 5, two of up to 8, one of more. Requests join, end and pass their deadlines
    /// between batches, not between the steps of a batch. A cancellation is reported immediately;
    /// its rows are freed after the batch. Decoders, trees and streams run one step at a time.
    pub steps_at_once: usize,
    /// Steps of a batch under [`PolicyKind::EBatch`]. Buffers are allocated for the maximum number
    /// of steps of the maximum number of rows.
    pub batch_steps: BatchSteps,
    /// Limits of the accepted requests.
    pub limits: Limits,
    /// Runs callbacks and wakers, and drops users' objects, on a thread of its own, which is not
    /// pinned. Otherwise the workers do so between two batches: this saves the change of threads,
    /// but a callback delays all requests while it runs, and must not wait for one.
    pub reply_thread: bool,
    /// Ends a stream without unanswered steps after this time since its last answer (at least 1
    /// ms), and returns its room. Its next step is refused with
    /// [`RequestError::Idle`](crate::RequestError::Idle); [`Stream::state`](super::Stream::state)
    /// still returns its states, for another stream.
    pub idle_streams: Option<Duration>,
}

impl EngineOptions {
    /// Maximum number of rows of a batch that is supported: buffers are allocated for all of them.
    pub const MAX_ROWS: usize = 1 << 16;

    /// Checks the numbers.
    pub(super) fn check(&self) -> Result<(), EngineError> {
        if self.tasks_at_once == 0 {
            return Err(EngineError::NoTasks);
        }
        if self.steps_at_once == 0 {
            return Err(EngineError::NoSteps);
        }
        check_batch_steps(self.batch_steps.max_steps())
    }
}

/// Checks a maximum number of steps of a batch: that of the options, or of a policy.
pub(super) fn check_batch_steps(steps: usize) -> Result<(), EngineError> {
    let max = BatchSteps::MAX;
    if steps == 0 {
        return Err(EngineError::NoBatchSteps);
    }
    if steps > max {
        return Err(EngineError::TooManyBatchSteps { steps, max });
    }
    Ok(())
}

impl Default for EngineOptions {
    /// The policy `ebatch`, whose batches have as many steps as pay. One worker a core, one task at
    /// once, because a new request joins sooner. A reply thread. Idle streams stay open.
    fn default() -> EngineOptions {
        EngineOptions {
            policy: PolicyKind::default(),
            workers: Workers::default(),
            sizes: Vec::new(),
            tasks_at_once: 1,
            steps_at_once: 4,
            batch_steps: BatchSteps::default(),
            limits: Limits::default(),
            reply_thread: true,
            idle_streams: None,
        }
    }
}

/// Division of the cores among workers. Each worker has one thread on each of its cores, and its
/// own packed weights of all cells.
///
/// A worker over several cores is as fast as the slowest of them, so another busy program on one
/// core delays all its batches. With one worker a core, the other workers go on. Their weights need
/// more memory, one copy for each worker, and one request alone uses one core. Choose one worker
/// over all cores for large models with few requests at once, on a machine without other load.
///
/// Cores that no other team of the process uses are assigned first: two engines over half of the
/// cores each share none. This does not work across processes: give each process its own CPU set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Workers {
    /// One worker over all cores.
    OneOverAll,
    /// One worker over this number of cores, or over all if there are fewer (a plan for more is
    /// refused then).
    OneOver(usize),
    /// One worker for each core: the default.
    #[default]
    OnePerCore,
    /// The CPU numbers of each worker, as the operating system counts them. Workers that share a
    /// CPU slow each other down. A thread whose CPU does not exist is not pinned.
    Cores(Vec<Vec<usize>>),
}

impl Workers {
    /// The cores of each worker, in a process that has no other teams.
    ///
    /// # Errors
    /// [`TeamError`] for an invalid number of threads.
    pub fn cores(&self) -> Result<Vec<Vec<usize>>, TeamError> {
        let topology = Topology::detect();
        let all = || topology.cpus_for_team(topology.team_size());
        Ok(match self {
            Workers::OneOverAll => vec![all()],
            Workers::OneOver(threads) => {
                let threads = (*threads).min(topology.team_size());
                check_threads(threads)?;
                vec![topology.cpus_for_team(threads)]
            }
            Workers::OnePerCore => all().into_iter().map(|core| vec![core]).collect(),
            Workers::Cores(cores) => cores.clone(),
        })
    }

    /// Reserves the cores of each worker.
    pub(super) fn take(&self) -> Result<Vec<Cores>, TeamError> {
        let cores = self.cores()?;
        let take = |cores: &Vec<usize>| match self {
            Workers::Cores(_) => Ok(Cores::named(cores)),
            _ => Cores::free(cores.len()),
        };
        cores.iter().map(take).collect()
    }
}
