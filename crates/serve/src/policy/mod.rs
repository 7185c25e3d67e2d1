//! Which ready nodes form a batch: one file for each way to choose.
//!
//! All run on the same scheduler, workers and kernels, so that comparing them compares the choice alone.
//! A policy has no clock, no thread and no values; it is told what happens to requests, and how long batches took, and asked
//! for tasks.

pub mod bucketing;
pub mod cellular;
mod choice;
pub mod graph_batch;
pub mod ideal;
pub mod merge;
mod ordered;
pub mod padding;
mod sizes;
mod turns;

pub use bucketing::{Bucketing, PadTo};
pub use cellular::{Cellular, Order};
pub use choice::{Choice, ChoiceError};
pub use graph_batch::{GraphBatching, Rule, Step};
pub use ideal::Ideal;
pub use merge::Merge;
pub use padding::Padding;
pub use sizes::BatchSizes;
#[cfg(test)]
pub(crate) use sizes::tests as sizes_tests;

use std::time::Duration;

use super::cell_graph::CellId;
use super::scheduler::{RequestKey, Row, SubgraphKey, Table, Task, WorkerId};

/// A batch, whose rows have been taken from the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Formed {
    /// What they call.
    pub cell: CellId,
    /// Rows that nobody has asked for.
    pub padding: usize,
}

/// What becomes of a request whose nodes are all done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// Its answer is returned at once.
    Return,
    /// It waits for [`Policy::released`].
    Hold,
}

/// Chooses what is computed next.
pub trait Policy: Send {
    /// What reports call it.
    fn name(&self) -> &'static str;

    /// Is told, before anything else, of each cell [how many rows it computes in a
    /// pass](crate::cell_graph::Cell::rows_of_a_pass).
    fn passes(&mut self, rows: &[Option<usize>]) {
        let _ = rows;
    }

    /// Entries of its queues, those of ended requests that have not been purged included: what its memory
    /// grows with.
    fn queued(&self) -> usize;

    /// A request was accepted; its ready nodes are told next.
    fn admitted(&mut self, table: &Table, request: RequestKey) {
        let _ = (table, request);
    }

    /// A released subgraph of a live request has got `count` more ready nodes. Called before it gets further ones, so
    /// that of a subgraph that is not pinned the table never has more ready than has been told here.
    fn ready(&mut self, table: &Table, subgraph: SubgraphKey, count: usize);

    /// A subgraph was pinned to `worker` and is not any more.
    fn unpinned(&mut self, table: &Table, subgraph: SubgraphKey, worker: WorkerId) {
        let _ = (table, subgraph, worker);
    }

    /// Forms the next task of `worker`, which has got `formed` in this round: takes its rows from the
    /// table ([`Table::take`]) and adds them to `rows`, which is empty. At least one, or padding; `None` ends
    /// the round. All rows must be of live requests, and none of a subgraph pinned to another worker; with padding they may be as
    /// many as the cell's [`BatchSizes::max`]: the requests of a task of more end with
    /// [`RequestError::TooManyRows`](crate::engine::RequestError::TooManyRows).
    fn next_task(
        &mut self,
        table: &mut Table,
        worker: WorkerId,
        formed: usize,
        rows: &mut Vec<Row>,
    ) -> Option<Formed>;

    /// Forms a task of nodes that got ready by `before`, the last task formed: further steps of its rows, as far as these
    /// go on, and of nobody else. As [`Policy::next_task`] in all else.
    fn further_steps(
        &mut self,
        table: &mut Table,
        before: &Task,
        rows: &mut Vec<Row>,
    ) -> Option<Formed> {
        let _ = (table, before, rows);
        None
    }

    /// A step of a batch of so many rows of a cell took so long of its worker's time. Not told of everything that is run: a
    /// policy must do without.
    fn measured(&mut self, cell: CellId, rows: usize, took: Duration) {
        let _ = (cell, rows, took);
    }

    /// A task has been run. Called before its rows are done in `table`.
    fn done(&mut self, table: &Table, task: &Task) {
        let _ = (table, task);
    }

    /// All nodes of a live request are done.
    fn completed(&mut self, table: &Table, request: RequestKey) -> Completion {
        let _ = (table, request);
        Completion::Return
    }

    /// A request that was held and may go now; asked until there is none.
    fn released(&mut self) -> Option<RequestKey> {
        None
    }

    /// A live request ends, for whatever reason; it still is as it was in `table`. Its ready nodes must not
    /// be taken any more. (One that was held is not told of: it had none.)
    fn ended(&mut self, table: &Table, request: RequestKey);
}
