//! The ready subgraphs of one cell, in the order of their keys.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};

use super::super::ordered::Ordered;
use super::super::turns::Turns;
use super::Order;
use crate::cell_graph::{BatchSizes, CellId};
use crate::scheduler::{Row, SubgraphKey, SubgraphView, Table, WorkerId};

/// The ready subgraphs of one cell.
pub(super) struct Queue {
    sizes: BatchSizes,
    pub running_tasks: usize,
    pub turns: Turns,
    free: Ready,
    /// By worker.
    pinned: Vec<Ready>,
}

/// Subgraphs with ready nodes.
#[derive(Default)]
struct Ready {
    nodes: usize,
    /// Subgraphs without a taken node; first in, first out. Some are stale: their requests have
    /// ended, or their first node was taken by turn.
    waiting: BTreeMap<Rank, VecDeque<QueueKey>>,
    /// Number of entries of `waiting`.
    queued: usize,
    /// Number of those that are stale.
    stale: usize,
    /// Subgraphs with a taken node, and those that are not last in their queue when they come.
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
pub(super) struct QueueKey {
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
    pub(super) fn key(self, subgraph: SubgraphKey, view: &SubgraphView) -> QueueKey {
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

impl Queue {
    pub fn new(cell: CellId, sizes: BatchSizes, workers: usize) -> Queue {
        Queue {
            sizes,
            running_tasks: 0,
            turns: Turns::new(cell),
            free: Ready::default(),
            pinned: (0..workers).map(|_| Ready::default()).collect(),
        }
    }

    pub fn sizes(&self) -> BatchSizes {
        self.sizes
    }

    pub fn is_idle(&self) -> bool {
        self.running_tasks == 0
    }

    /// Number of entries.
    pub fn queued(&self) -> usize {
        let all = self.pinned.iter().chain([&self.free]);
        all.map(|ready| ready.queued + ready.begun.len()).sum()
    }

    /// A subgraph has so many more ready nodes.
    pub fn add(&mut self, key: QueueKey, view: &SubgraphView, count: usize) {
        self.turns.enter(key.subgraph.request);
        match view.pinned {
            Some(worker) => self.pinned[worker.0].begin(key, count),
            // More nodes of a subgraph that is already queued.
            None if view.ready > count => self.free.nodes += count,
            // A stream continues: its key has the time of its release, long before those that wait.
            None if view.begun => self.free.begin(key, count),
            None => self.free.wait(key, count),
        }
    }

    /// A subgraph with so many ready nodes is no longer pinned.
    pub fn unpin(&mut self, key: QueueKey, ready: usize, worker: WorkerId) {
        let pinned = &mut self.pinned[worker.0];
        pinned.begun.remove(&key);
        pinned.nodes -= ready;
        self.free.begin(key, ready);
    }

    /// Removes a subgraph of a request that ends; `is_stale` says which entries are stale then.
    pub fn forget(
        &mut self,
        key: QueueKey,
        view: &SubgraphView,
        is_stale: impl Fn(SubgraphKey) -> bool,
    ) {
        match view.pinned {
            Some(worker) => self.pinned[worker.0].forget(key, view.ready, is_stale),
            None => self.free.forget(key, view.ready, is_stale),
        }
    }

    /// Ready nodes that `worker` may take.
    pub fn ready(&self, worker: WorkerId) -> usize {
        self.free.nodes + self.pinned[worker.0].nodes
    }

    /// Algorithm 1, `FormBatchedTask`.
    pub fn form(&mut self, table: &mut Table, order: Order, worker: WorkerId, rows: &mut Vec<Row>) {
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
            let from = if is_free {
                &mut self.free
            } else {
                &mut self.pinned[worker.0]
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
    pub fn take_one(
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
        let queue = self.waiting.entry(key.rank).or_default();
        if queue
            .back()
            .is_some_and(|last| last.released > key.released)
        {
            // Of a large request, which arrives in pieces: later ones came meanwhile.
            return self.begin(key, nodes);
        }
        queue.push_back(key);
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
