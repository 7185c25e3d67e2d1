//! Cellular batching: BatchMaker's Algorithm 1.
//!
//! ```text
//! Schedule(worker):
//!   cell = of those with at least a full batch of ready nodes: the latest in graphs
//!   if there is none: of those with ready nodes the one whose turn it is (`turns.rs`): first those of which no task is running
//!   repeat at most MaxTasksToSubmit times
//!     batch = ready nodes of the cell's subgraphs in their order, not pinned elsewhere, at most a full batch;
//!             of a few more than the cell computes in one pass over its weights, as many as that
//!     if batch is smaller than the least size, and not the first: stop
//!     submit batch to worker; pin its subgraphs there
//! ```
//!
//! The paper scans a queue of all subgraphs for ready nodes. Here a subgraph stands in a queue only while
//! it has ready nodes that a worker may take, so that a decision costs the same however many requests wait:
//! those never begun in first-in-first-out queues, one for each rank, those begun in ordered sets. Merged by rank,
//! then by the order of release. The rank is the priority, and the number of cells left where those with the fewest go
//! first ([`Order`]); with equal priorities and [`Order::Arrival`], that is the paper's order.
//!
//! A pass is what Bsizes are on a CPU. 15 rows of an LSTM take two passes over weights that no private cache holds, and with that a
//! fifth longer than 14. As 14 a batch, who has come first or is nearest to its end goes on sooner, and more is done in a second;
//! the others join as soon as one of those ends, or after eight batches: chains that never end keep nobody waiting for longer.
//! From about half as many more on, two passes are worth it. Where those of the batch do not go on (streams that wait for their
//! users, chains of a step), the others are a small batch of their own, which costs more than it saved: then none is left out in
//! the next eight.
//!
//! Only nodes that the worker may take are counted as ready: counting those pinned elsewhere, as the paper's
//! text does, could choose a cell of which this worker gets an empty batch.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};
use std::time::Duration;

use super::ordered::Ordered;
use super::turns::Turns;
use super::{BatchSizes, Formed, Policy};
use crate::cell_graph::CellId;
use crate::scheduler::{RequestKey, Row, Standing, SubgraphKey, Table, Task, WorkerId};

/// See the [module](self).
pub struct Cellular {
    order: Order,
    cells: Vec<Queue>,
    turns: Turns,
    /// What each worker works on.
    rounds: Vec<Option<CellId>>,
}

/// Who goes first, of those of the highest priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Whose cells could be run first: Algorithm 1.
    Arrival,
    /// Who has the fewest cells left ([`Standing::request_left`]), of equals whose could be run first.
    FewestLeft,
}

/// Most batches in a row that leave out what is more than a pass: the ninth takes all. And how many take all after one that left
/// some out in vain.
const CUTS: usize = 8;

/// How the batches of a cell went that leave out what is more than a pass: of one worker, as each has its own rows.
#[derive(Clone, Copy, Default)]
struct Cuts {
    /// How many the last ones were, in a row.
    in_a_row: usize,
    /// How many of the next shall leave nothing out.
    whole: usize,
}

impl Cuts {
    /// Whether the next batch leaves out what is more than a pass, of so many `ready` rows.
    fn cuts(&mut self, ready: usize, most: usize, pass: usize) -> bool {
        if self.in_a_row > 0 && 2 * ready < pass {
            self.whole = CUTS;
        }
        let is_few = ready > pass && ready.min(most) <= pass + pass / 2;
        let cuts = is_few && self.whole == 0 && self.in_a_row < CUTS;
        self.in_a_row = if cuts { self.in_a_row + 1 } else { 0 };
        if is_few && !cuts {
            self.whole = self.whole.saturating_sub(1);
        }
        cuts
    }
}

/// The ready subgraphs of one cell.
struct Queue {
    sizes: BatchSizes,
    /// Rows of one pass over the cell's weights, if a few more are not worth two.
    pass: Option<usize>,
    /// By worker.
    cuts: Vec<Cuts>,
    running_tasks: usize,
    free: Ready,
    /// By worker.
    pinned: Vec<Ready>,
}

/// Subgraphs with ready nodes.
#[derive(Default)]
struct Ready {
    nodes: usize,
    /// No node taken yet; first in, first out. Some may have ended.
    waiting: BTreeMap<Rank, VecDeque<Place>>,
    /// How many wait.
    queued: usize,
    /// How many of them have ended.
    ended: usize,
    /// Some node taken before.
    begun: Ordered<Place>,
}

/// The priority, highest first, then how many cells are left; 0 where they do not matter. One number, since a batch compares
/// places several times for each of its rows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank(u64);

impl Rank {
    fn new(priority: u8, left: u32) -> Rank {
        Rank(u64::from(u8::MAX - priority) << 32 | u64::from(left))
    }
}

/// Where a subgraph stands. The same as long as it has ready nodes: by it, it is found again.
#[derive(Clone, Copy)]
struct Place {
    rank: Rank,
    /// No two have the same.
    released: u64,
    subgraph: SubgraphKey,
}

impl Ord for Place {
    fn cmp(&self, other: &Place) -> Ordering {
        (self.rank, self.released).cmp(&(other.rank, other.released))
    }
}

impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Place) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Place {
    fn eq(&self, other: &Place) -> bool {
        self.released == other.released && self.rank == other.rank
    }
}

impl Eq for Place {}

impl Order {
    fn place(self, subgraph: SubgraphKey, standing: &Standing) -> Place {
        let left = match self {
            Order::Arrival => 0,
            Order::FewestLeft => standing.request_left,
        };
        Place {
            rank: Rank::new(standing.priority, left),
            released: standing.released,
            subgraph,
        }
    }
}

impl Cellular {
    /// For cells with these batch sizes, in the order of [`crate::cell_graph::Cells`], and so many
    /// workers.
    pub fn new(sizes: &[BatchSizes], workers: usize, order: Order) -> Cellular {
        let queue = |&sizes| Queue {
            sizes,
            pass: None,
            cuts: vec![Cuts::default(); workers],
            running_tasks: 0,
            free: Ready::default(),
            pinned: (0..workers).map(|_| Ready::default()).collect(),
        };
        Cellular {
            order,
            cells: sizes.iter().map(queue).collect(),
            turns: Turns::new(sizes.len(), workers),
            rounds: vec![None; workers],
        }
    }

    /// Algorithm 1, `Schedule`: the cell that the worker is to work on.
    fn schedule(&mut self, worker: WorkerId) -> Option<CellId> {
        let cells = &self.cells;
        let ready = |cell: usize| cells[cell].ready(worker);
        let rows = |cell: usize| ready(cell).min(cells[cell].sizes.max);
        let is_idle = |cell: usize| cells[cell].running_tasks == 0;
        let mut latest = (0..cells.len()).rev();
        let full = latest.find(|&cell| ready(cell) >= cells[cell].sizes.max);
        let cell = full.or_else(|| self.turns.next(worker, rows, is_idle))?;
        self.turns.taken(worker, cell, |cell| ready(cell) > 0);
        Some(CellId(cell as u16))
    }
}

impl Queue {
    /// Ready nodes that `worker` may take.
    fn ready(&self, worker: WorkerId) -> usize {
        self.free.nodes + self.pinned[worker.0].nodes
    }

    /// Most rows of the next batch of `worker`, of so many ready ones.
    fn most(&mut self, worker: WorkerId, ready: usize) -> usize {
        let BatchSizes { min, max } = self.sizes;
        match self.pass {
            Some(pass) if self.cuts[worker.0].cuts(ready, max, pass) => pass.clamp(min, max),
            _ => max,
        }
    }

    /// Algorithm 1, `FormBatchedTask`.
    fn form(&mut self, table: &mut Table, worker: WorkerId, rows: &mut Vec<Row>) {
        let ready = self.ready(worker);
        let most = self.most(worker, ready);
        let mut free = self.free.first(table);
        while rows.len() < most {
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
            let left = table.take(first.subgraph, most - before, rows);
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

    /// Takes one ready node of a subgraph that has a row in a task of `worker`, if there is one.
    fn go_on(&mut self, table: &mut Table, worker: WorkerId, place: Place, rows: &mut Vec<Row>) {
        let subgraph = place.subgraph;
        let pinned = &mut self.pinned[worker.0];
        pinned.begun.remove(&place);
        let left = table.take(subgraph, 1, rows);
        pinned.nodes -= 1 + left;
        if left > 0 {
            pinned.begin(place, left);
        }
    }
}

impl Ready {
    /// The subgraph whose turn it is.
    fn first(&mut self, table: &Table) -> Option<Place> {
        let begun = self.begun.first();
        while let Some(mut queue) = self.waiting.first_entry() {
            match queue.get().front() {
                Some(&front) if table.is_live(front.subgraph.request) => {
                    return Some(begun.map_or(front, |begun| begun.min(front)));
                }
                Some(_) => {
                    queue.get_mut().pop_front();
                    self.queued -= 1;
                    self.ended -= 1;
                }
                None => {
                    queue.remove();
                }
            }
        }
        begun
    }

    /// Takes out what [`Ready::first`] found.
    fn remove_first(&mut self, first: Place) {
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

    fn wait(&mut self, place: Place, nodes: usize) {
        self.waiting.entry(place.rank).or_default().push_back(place);
        self.queued += 1;
        self.nodes += nodes;
    }

    fn begin(&mut self, place: Place, nodes: usize) {
        self.begun.insert(place);
        self.nodes += nodes;
    }

    /// Forgets a subgraph with so many ready nodes whose request ends.
    fn forget(&mut self, table: &Table, place: Place, nodes: usize) {
        self.nodes -= nodes;
        if !self.begun.remove(&place) {
            // Somewhere in a queue; looking for it would cost as much as there are requests.
            self.ended += 1;
            if self.ended > self.queued / 2 + 32 {
                let ends = place.subgraph.request;
                self.waiting.retain(|_, queue| {
                    queue.retain(|Place { subgraph, .. }| {
                        subgraph.request != ends && table.is_live(subgraph.request)
                    });
                    !queue.is_empty()
                });
                self.queued = self.waiting.values().map(VecDeque::len).sum();
                self.ended = 0;
            }
        }
    }
}

impl Policy for Cellular {
    fn name(&self) -> &'static str {
        match self.order {
            Order::Arrival => "cellular",
            Order::FewestLeft => "shortest",
        }
    }

    fn passes(&mut self, rows: &[Option<usize>]) {
        for (queue, rows) in self.cells.iter_mut().zip(rows) {
            queue.pass = *rows;
        }
    }

    fn queued(&self) -> usize {
        let queues = self.cells.iter();
        let all = queues.flat_map(|queue| queue.pinned.iter().chain([&queue.free]));
        all.map(|ready| ready.queued + ready.begun.len()).sum()
    }

    fn ready(&mut self, table: &Table, subgraph: SubgraphKey, count: usize) {
        let standing = table.standing(subgraph);
        let queue = &mut self.cells[standing.cell.index()];
        let place = self.order.place(subgraph, &standing);
        match standing.pinned {
            Some(worker) => queue.pinned[worker.0].begin(place, count),
            // New nodes of one that is queued already.
            None if standing.ready > count => queue.free.nodes += count,
            // A stream goes on: its place is by its release, which was long before.
            None if standing.begun => queue.free.begin(place, count),
            None => queue.free.wait(place, count),
        }
    }

    fn unpinned(&mut self, table: &Table, subgraph: SubgraphKey, worker: WorkerId) {
        let standing = table.standing(subgraph);
        let ready = standing.ready;
        if ready > 0 {
            let queue = &mut self.cells[standing.cell.index()];
            let place = self.order.place(subgraph, &standing);
            queue.pinned[worker.0].begun.remove(&place);
            queue.pinned[worker.0].nodes -= ready;
            queue.free.begin(place, ready);
        }
    }

    fn next_task(
        &mut self,
        table: &mut Table,
        worker: WorkerId,
        formed: usize,
        rows: &mut Vec<Row>,
    ) -> Option<Formed> {
        if formed == 0 {
            self.rounds[worker.0] = self.schedule(worker);
        }
        let cell = self.rounds[worker.0]?;
        let queue = &mut self.cells[cell.index()];
        let ready = queue.ready(worker);
        if ready == 0 || formed > 0 && ready < queue.sizes.min {
            return None;
        }
        queue.form(table, worker, rows);
        queue.running_tasks += 1;
        Some(Formed { cell, padding: 0 })
    }

    fn further_steps(
        &mut self,
        table: &mut Table,
        before: &Task,
        rows: &mut Vec<Row>,
    ) -> Option<Formed> {
        let queue = &mut self.cells[before.cell.index()];
        for &row in &before.rows {
            let subgraph = table.node_subgraph(row);
            let standing = table.standing(subgraph);
            if standing.ready > 0 {
                let place = self.order.place(subgraph, &standing);
                queue.go_on(table, before.worker, place, rows);
            }
        }
        if rows.is_empty() {
            return None;
        }
        queue.running_tasks += 1;
        let (cell, padding) = (before.cell, 0);
        Some(Formed { cell, padding })
    }

    fn measured(&mut self, cell: CellId, rows: usize, took: Duration) {
        self.turns.measured(cell.index(), rows, took);
    }

    fn done(&mut self, _: &Table, task: &Task) {
        self.cells[task.cell.index()].running_tasks -= 1;
    }

    fn ended(&mut self, table: &Table, request: RequestKey) {
        for subgraph in table.ready_subgraphs(request) {
            let standing = table.standing(subgraph);
            let queue = &mut self.cells[standing.cell.index()];
            let place = self.order.place(subgraph, &standing);
            match standing.pinned {
                Some(worker) => queue.pinned[worker.0].forget(table, place, standing.ready),
                None => queue.free.forget(table, place, standing.ready),
            }
        }
    }
}
