//! Cellular batching: BatchMaker's Algorithm 1.
//!
//! ```text
//! Schedule(worker):
//!   cell = the cell that has been skipped in MAX_SKIPS batches of the worker or more, most of all
//!   if there is none: of the cells with a full batch of ready nodes: the latest in graphs
//!   if there is none: of the cells with ready nodes: the choice of the `CellSelector`
//!   repeat at most MaxTasksToSubmit times, until another cell has been skipped too often
//!     batch = ready nodes of the cell's subgraphs in their order, not pinned elsewhere, at most a full batch
//!       (where more are ready, an eighth of it by turns of requests: `turns.rs`)
//!     if the batch is smaller than the minimum, and not the first: stop
//!     submit the batch to worker; pin its subgraphs there
//! ```
//!
//! The first rule is not the paper's, which lets a cell with full batches stop all others. With it
//! a cell with rows that a worker may take waits for at most `MAX_SKIPS + cells - 1` batches of
//! that worker, beside those that the worker has got already: each other cell that has been skipped
//! as often runs once before it. Within a cell, turns bound the wait of a request beside others that
//! the order prefers; its module has the bound, in batches of the cell.
//!
//! The paper scans a queue of all subgraphs for ready nodes. Here a subgraph is queued only while
//! it has ready nodes that a worker may take, so the cost of a decision does not depend on the
//! number of waiting requests. Subgraphs that have not begun are in first-in-first-out queues, one
//! for each rank; those that have begun are in ordered sets. They are merged by rank, then by the
//! order of release. The rank is the priority and, with [`Order::FewestLeft`], the number of cells
//! left. With equal priorities and [`Order::Arrival`], this is the paper's order.
//!
//! Only nodes that the worker may take are counted as ready. Counting nodes that are pinned
//! elsewhere, as the paper's text does, could choose a cell of which this worker gets an empty
//! batch.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};
use std::time::Duration;

use super::ordered::Ordered;
use super::selector::CellSelector;
use super::turns::Turns;
use crate::cell_graph::{BatchSizes, CellCost, CellId};
use crate::scheduler::{
    Demand, NewTask, Policy, RequestKey, Row, SubgraphKey, SubgraphView, Table, Task, WorkerId,
};

/// See the [module](self).
pub struct Cellular {
    order: Order,
    cells: Vec<Queue>,
    selector: CellSelector,
    /// The cell that each worker works on.
    rounds: Vec<Option<CellId>>,
}

/// The order of subgraphs with the same priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// In the order of release, as in Algorithm 1.
    Arrival,
    /// Fewest cells left first ([`SubgraphView::request_left`]), then in the order of release.
    FewestLeft,
}

/// The ready subgraphs of one cell.
struct Queue {
    sizes: BatchSizes,
    running_tasks: usize,
    turns: Turns,
    free: Ready,
    /// By worker.
    pinned: Vec<Ready>,
}

/// Subgraphs with ready nodes.
#[derive(Default)]
struct Ready {
    nodes: usize,
    /// Subgraphs without a taken node; first in, first out. Some are stale: their requests have ended, or
    /// their first node was taken by turn.
    waiting: BTreeMap<Rank, VecDeque<QueueKey>>,
    /// Number of entries of `waiting`.
    queued: usize,
    /// Number of those that are stale.
    stale: usize,
    /// Subgraphs with a taken node.
    begun: Ordered<QueueKey>,
}

/// The priority, highest first, then the number of cells left, or 0 if that is ignored. One number,
/// because a batch compares keys several times for each of its rows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank(u64);

impl Rank {
    fn new(priority: u8, left: u32) -> Rank {
        Rank(u64::from(u8::MAX - priority) << 32 | u64::from(left))
    }
}

/// The sort key of a queued subgraph. Constant while the subgraph has ready nodes.
#[derive(Clone, Copy)]
struct QueueKey {
    rank: Rank,
    /// Position in the order of releases, which is unique.
    released: u64,
    subgraph: SubgraphKey,
}

impl Ord for QueueKey {
    fn cmp(&self, other: &QueueKey) -> Ordering {
        (self.rank, self.released).cmp(&(other.rank, other.released))
    }
}

impl PartialOrd for QueueKey {
    fn partial_cmp(&self, other: &QueueKey) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for QueueKey {
    fn eq(&self, other: &QueueKey) -> bool {
        self.released == other.released && self.rank == other.rank
    }
}

impl Eq for QueueKey {}

impl Order {
    fn key(self, subgraph: SubgraphKey, view: &SubgraphView) -> QueueKey {
        let left = match self {
            Order::Arrival => 0,
            Order::FewestLeft => view.request_left,
        };
        QueueKey {
            rank: Rank::new(view.priority, left),
            released: view.released,
            subgraph,
        }
    }
}

impl Cellular {
    /// For cells with these costs, in the order of [`Cells`](crate::cell_graph::Cells), and this
    /// number of workers.
    pub fn new(costs: &[CellCost], workers: usize, order: Order) -> Cellular {
        let queue = |(cell, cost): (usize, &CellCost)| Queue {
            sizes: cost.rows,
            running_tasks: 0,
            turns: Turns::new(CellId(cell as u16)),
            free: Ready::default(),
            pinned: (0..workers).map(|_| Ready::default()).collect(),
        };
        Cellular {
            order,
            cells: costs.iter().enumerate().map(queue).collect(),
            selector: CellSelector::new(costs.len(), workers),
            rounds: vec![None; workers],
        }
    }

    /// Algorithm 1, `Schedule`: the cell that the worker is to work on.
    fn schedule(&self, worker: WorkerId) -> Option<CellId> {
        let cells = &self.cells;
        let ready = |cell: usize| cells[cell].ready(worker);
        let rows = |cell: usize| ready(cell).min(cells[cell].sizes.max);
        let is_idle = |cell: usize| cells[cell].running_tasks == 0;
        let is_full = |cell: &usize| ready(*cell) >= cells[*cell].sizes.max;
        let cell = self.overdue(worker);
        let cell = cell.or_else(|| (0..cells.len()).rev().find(is_full));
        let cell = cell.or_else(|| self.selector.next(rows, is_idle))?;
        Some(CellId(cell as u16))
    }

    /// The cell that the worker has skipped too often.
    fn overdue(&self, worker: WorkerId) -> Option<usize> {
        let has_rows = |cell: usize| self.cells[cell].ready(worker) > 0;
        self.selector.overdue(worker, has_rows)
    }

    /// Takes the next node of each row of a task, as far as it is ready.
    fn next_step(&mut self, table: &mut Table, before: &Task, rows: &mut Vec<Row>) {
        let queue = &mut self.cells[before.cell.index()];
        for &row in &before.rows {
            let subgraph = table.node_subgraph(row);
            let view = table.view(subgraph);
            if view.ready > 0 {
                let key = self.order.key(subgraph, &view);
                queue.take_one(table, before.worker, key, rows);
            }
        }
    }
}

impl Queue {
    /// Ready nodes that `worker` may take.
    fn ready(&self, worker: WorkerId) -> usize {
        self.free.nodes + self.pinned[worker.0].nodes
    }

    /// Algorithm 1, `FormBatchedTask`.
    fn form(&mut self, table: &mut Table, order: Order, worker: WorkerId, rows: &mut Vec<Row>) {
        let max = self.sizes.max;
        if self.ready(worker) > max {
            let mut turn = self.turns.start(max);
            self.take_in_order(table, worker, max - turn.rows(), rows);
            while let Some((subgraph, view)) = self.turns.next(&mut turn, table, worker) {
                self.take_one(table, worker, order.key(subgraph, &view), rows);
            }
        }
        self.take_in_order(table, worker, max, rows);
    }

    /// Takes nodes in the order of keys until there are `max` rows.
    fn take_in_order(
        &mut self,
        table: &mut Table,
        worker: WorkerId,
        max: usize,
        rows: &mut Vec<Row>,
    ) {
        let mut free = self.free.first(table);
        while rows.len() < max {
            let pinned = self.pinned[worker.0].begun.first();
            let (first, is_free) = match (free, pinned) {
                (Some(free), Some(pinned)) if free < pinned => (free, true),
                (_, Some(pinned)) => (pinned, false),
                (Some(free), None) => (free, true),
                (None, None) => break,
            };
            let from = match is_free {
                true => &mut self.free,
                false => &mut self.pinned[worker.0],
            };
            from.remove_first(first);
            let before = rows.len();
            let left = table.take(first.subgraph, max - before, rows);
            from.nodes -= rows.len() - before + left;
            if is_free {
                free = from.first(table);
            }
            if left > 0 {
                // Its task pins it.
                self.pinned[worker.0].begin(first, left);
            }
        }
    }

    /// Takes one ready node of a subgraph that `worker` may take.
    fn take_one(
        &mut self,
        table: &mut Table,
        worker: WorkerId,
        key: QueueKey,
        rows: &mut Vec<Row>,
    ) {
        let left = table.take(key.subgraph, 1, rows);
        let pinned = &mut self.pinned[worker.0];
        // What a batch takes of `free` is here before its task pins it.
        if pinned.begun.remove(&key) {
            pinned.nodes -= 1 + left;
        } else {
            let stale = |subgraph: SubgraphKey| !table.is_untouched(subgraph);
            self.free.forget(key, 1 + left, stale);
        }
        if left > 0 {
            pinned.begin(key, left);
        }
    }
}

impl Ready {
    /// The first subgraph in the order of keys.
    fn first(&mut self, table: &Table) -> Option<QueueKey> {
        let begun = self.begun.first();
        while let Some(mut queue) = self.waiting.first_entry() {
            match queue.get().front() {
                Some(&front) if table.is_untouched(front.subgraph) => {
                    return Some(begun.map_or(front, |begun| begun.min(front)));
                }
                Some(_) => {
                    queue.get_mut().pop_front();
                    self.queued -= 1;
                    self.stale -= 1;
                }
                None => {
                    queue.remove();
                }
            }
        }
        begun
    }

    /// Removes the result of [`Ready::first`].
    fn remove_first(&mut self, first: QueueKey) {
        if !self.begun.remove(&first)
            && let Entry::Occupied(mut queue) = self.waiting.entry(first.rank)
        {
            queue.get_mut().pop_front();
            self.queued -= 1;
            if queue.get().is_empty() {
                queue.remove();
            }
        }
    }

    fn wait(&mut self, key: QueueKey, nodes: usize) {
        self.waiting.entry(key.rank).or_default().push_back(key);
        self.queued += 1;
        self.nodes += nodes;
    }

    fn begin(&mut self, key: QueueKey, nodes: usize) {
        self.begun.insert(key);
        self.nodes += nodes;
    }

    /// Removes a subgraph with `nodes` ready nodes. An entry of `waiting` becomes stale; `is_stale`
    /// says which are.
    fn forget(&mut self, key: QueueKey, nodes: usize, is_stale: impl Fn(SubgraphKey) -> bool) {
        self.nodes -= nodes;
        if !self.begun.remove(&key) {
            // A search in its queue would cost time in proportion to the number of requests.
            self.stale += 1;
            if self.stale > self.queued / 2 + 32 {
                self.waiting.retain(|_, queue| {
                    queue.retain(|entry| !is_stale(entry.subgraph));
                    !queue.is_empty()
                });
                self.queued = self.waiting.values().map(VecDeque::len).sum();
                self.stale = 0;
            }
        }
    }
}

impl Policy for Cellular {
    fn queued(&self) -> usize {
        let queues = self.cells.iter();
        let all = queues.flat_map(|queue| queue.pinned.iter().chain([&queue.free]));
        all.map(|ready| ready.queued + ready.begun.len()).sum()
    }

    fn ready(&mut self, table: &Table, subgraph: SubgraphKey, count: usize) {
        let view = table.view(subgraph);
        let queue = &mut self.cells[view.cell.index()];
        let key = self.order.key(subgraph, &view);
        queue.turns.enter(subgraph.request);
        match view.pinned {
            Some(worker) => queue.pinned[worker.0].begin(key, count),
            // More nodes of a subgraph that is already queued.
            None if view.ready > count => queue.free.nodes += count,
            // A stream continues: its key has the time of its release, long before those that wait.
            None if view.begun => queue.free.begin(key, count),
            None => queue.free.wait(key, count),
        }
    }

    fn unpinned(&mut self, table: &Table, subgraph: SubgraphKey, worker: WorkerId) {
        let view = table.view(subgraph);
        let ready = view.ready;
        if ready > 0 {
            let queue = &mut self.cells[view.cell.index()];
            let key = self.order.key(subgraph, &view);
            queue.pinned[worker.0].begun.remove(&key);
            queue.pinned[worker.0].nodes -= ready;
            queue.free.begin(key, ready);
        }
    }

    fn next_task(
        &mut self,
        table: &mut Table,
        demand: Demand<'_>,
        rows: &mut Vec<Row>,
    ) -> Option<NewTask> {
        let cell = match demand {
            Demand::Any { worker, formed } => {
                if formed == 0 {
                    self.rounds[worker.0] = self.schedule(worker);
                }
                let cell = self.rounds[worker.0]?;
                let others = || self.overdue(worker).is_some_and(|one| one != cell.index());
                let queue = &self.cells[cell.index()];
                let ready = queue.ready(worker);
                if ready == 0 || formed > 0 && (ready < queue.sizes.min || others()) {
                    return None;
                }
                let cells = &self.cells;
                let has_rows = |cell: usize| cells[cell].ready(worker) > 0;
                self.selector.taken(worker, cell.index(), has_rows);
                self.cells[cell.index()].form(table, self.order, worker, rows);
                cell
            }
            Demand::NextStep(before) => {
                self.next_step(table, before, rows);
                if rows.is_empty() {
                    return None;
                }
                before.cell
            }
        };
        self.cells[cell.index()].running_tasks += 1;
        Some(NewTask { cell, padding: 0 })
    }

    fn done(&mut self, _: &Table, task: &Task, took: Option<Duration>) {
        let cell = task.cell.index();
        self.cells[cell].running_tasks -= 1;
        if let Some(took) = took {
            self.selector.measured(cell, task.batch(), took);
        }
    }

    fn ended(&mut self, table: &Table, request: RequestKey) {
        for cell in table.cells(request) {
            self.cells[cell.index()].turns.leave(request);
        }
        let stale =
            |subgraph: SubgraphKey| subgraph.request == request || !table.is_untouched(subgraph);
        for subgraph in table.ready_subgraphs(request) {
            let view = table.view(subgraph);
            let queue = &mut self.cells[view.cell.index()];
            let key = self.order.key(subgraph, &view);
            match view.pinned {
                Some(worker) => queue.pinned[worker.0].forget(key, view.ready, stale),
                None => queue.free.forget(key, view.ready, stale),
            }
        }
    }
}
