//! The interface between the scheduler and a batching policy.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use super::{RequestKey, Row, SubgraphKey, Table, Task, WorkerId};
use crate::cell_graph::{CellCost, CellId};

/// A model that is added to a policy.
#[derive(Clone, Copy, Debug)]
pub struct NewModel<'a> {
    /// Its index ([`ModelKey::index`](super::ModelKey::index)).
    pub index: usize,
    /// Where models wait for the same worker, they get times of it in proportion to their weights.
    pub weight: NonZeroU32,
    /// The id of its first cell.
    pub first_cell: CellId,
    /// Costs of its cells, whose ids follow each other.
    pub costs: &'a [CellCost],
}

/// A task that a policy has formed. Its rows have been taken from the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewTask {
    /// The cell that the rows call.
    pub cell: CellId,
    /// Number of rows that are computed and belong to no request.
    pub padding: usize,
}

/// Which task a policy is asked for.
#[derive(Clone, Copy, Debug)]
pub enum Demand<'a> {
    /// Any task of `worker`, which has got `formed` tasks in this round.
    Any {
        /// The worker.
        worker: WorkerId,
        /// Tasks of this round, further steps not counted.
        formed: usize,
    },
    /// The next step of the rows of this task, the last one formed: rows of its requests, and of no
    /// others. A policy that never runs several steps at once returns `None`.
    NextStep(&'a Task),
}

/// What happens to a request when all of its nodes are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// Its response is sent at once.
    Return,
    /// It waits for [`Policy::released`].
    Hold,
}

/// Chooses what is computed next.
///
/// A policy has no clock, no thread and no values. It gets the [costs](CellCost) of the cells when
/// their model is added, is notified of events, and forms tasks on demand.
pub trait Policy: Send {
    /// Number of entries in its queues. Entries of ended requests count until they are purged: the
    /// number bounds the policy's memory.
    fn queued(&self) -> usize;

    /// A model is added.
    fn add_model(&mut self, model: NewModel<'_>) {
        let _ = model;
    }

    /// A model without live requests and without tasks is removed.
    fn remove_model(&mut self, index: usize) {
        let _ = index;
    }

    /// A released subgraph of a live request has `count` more ready nodes. Called before the
    /// subgraph gets further ones, so an unpinned subgraph never has more ready nodes in the table
    /// than were announced.
    fn ready(&mut self, table: &Table, subgraph: SubgraphKey, count: usize);

    /// A subgraph that was pinned to `worker` is no longer pinned.
    fn unpinned(&mut self, table: &Table, subgraph: SubgraphKey, worker: WorkerId) {
        let _ = (table, subgraph, worker);
    }

    /// Forms a task: takes its rows from the table ([`Table::take`]) and appends them to `rows`,
    /// which is empty. A task has at least one row or padding; `None` ends the round.
    ///
    /// All rows must belong to live requests, and none to a subgraph that is pinned to another
    /// worker. Rows and padding together must not exceed the cell's
    /// [`BatchSizes::max`](crate::cell_graph::BatchSizes::max); otherwise the requests of the task
    /// end with `gatestream_serve::RequestError::TooManyRows`.
    fn next_task(
        &mut self,
        table: &mut Table,
        demand: Demand<'_>,
        rows: &mut Vec<Row>,
    ) -> Option<NewTask>;

    /// The maximum of [`Policy::steps`], a constant from 1 to
    /// [`BatchSteps::MAX`](crate::policy::BatchSteps::MAX): workers allocate buffers for so many
    /// steps, and an engine refuses other numbers. `None`, as by default, leaves the steps of a
    /// batch to the scheduler: as many as have
    /// [`Scheduler::STEP_ROWS`](super::Scheduler::STEP_ROWS) rows together.
    fn max_steps(&self) -> Option<usize> {
        None
    }

    /// The number of steps of the rows of `first`, that task included, for one batch of the worker:
    /// from 1 to the maximum; rows may end before. Called if there are [`Policy::max_steps`], for
    /// tasks of [`Demand::Any`] whose cell computes several steps at once.
    fn steps(&mut self, now: Instant, table: &Table, first: &Task) -> usize {
        let _ = (now, table, first);
        1
    }

    /// A task has been run; its rows are not yet done in `table`. `took` is the time of the worker,
    /// `None` if nothing was computed.
    fn done(&mut self, table: &Table, task: &Task, took: Option<Duration>) {
        let _ = (table, task, took);
    }

    /// All nodes of a live request are done.
    fn completed(&mut self, table: &Table, request: RequestKey) -> Completion {
        let _ = (table, request);
        Completion::Return
    }

    /// Returns a request that was held and may end now. Called until it returns `None`.
    fn released(&mut self) -> Option<RequestKey> {
        None
    }

    /// A live request ends, for whatever reason; `table` still shows its last state. Its ready
    /// nodes must not be taken from now on. Not called for a request that is held, which has none.
    fn ended(&mut self, table: &Table, request: RequestKey);
}
