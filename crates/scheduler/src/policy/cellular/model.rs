//! The cells of one model.

use std::time::Duration;

use super::super::selector::CellSelector;
use super::Order;
use super::queue::{Queue, QueueKey};
use crate::cell_graph::{CellCost, CellId};
use crate::scheduler::{RequestKey, Row, SubgraphKey, SubgraphView, Table, Task, WorkerId};

/// See the [module](self).
pub(super) struct ModelCells {
    /// The index of its first cell among those of all models.
    first: usize,
    cells: Vec<Queue>,
    selector: CellSelector,
    /// Ready nodes of all cells.
    ready: usize,
}

impl ModelCells {
    pub fn new(first: CellId, costs: &[CellCost], workers: usize) -> ModelCells {
        let first = first.index();
        let cells = costs.iter().enumerate();
        let queue = |(at, cost): (usize, &CellCost)| {
            Queue::new(CellId((first + at) as u32), cost.rows, workers)
        };
        ModelCells {
            first,
            cells: cells.map(queue).collect(),
            selector: CellSelector::new(costs.len(), workers),
            ready: 0,
        }
    }

    pub fn queue(&mut self, cell: CellId) -> &mut Queue {
        &mut self.cells[cell.index() - self.first]
    }

    pub fn queued(&self) -> usize {
        self.cells.iter().map(Queue::queued).sum()
    }

    /// Whether there are rows that the worker may take.
    pub fn has_rows(&self, worker: WorkerId) -> bool {
        self.ready > 0 && self.cells.iter().any(|queue| queue.ready(worker) > 0)
    }

    /// Algorithm 1, `Schedule`: the cell that the worker is to work on.
    pub fn schedule(&self, worker: WorkerId) -> Option<CellId> {
        let cells = &self.cells;
        let ready = |cell: usize| cells[cell].ready(worker);
        let rows = |cell: usize| ready(cell).min(cells[cell].sizes().max);
        let is_idle = |cell: usize| cells[cell].is_idle();
        let is_full = |cell: &usize| ready(*cell) >= cells[*cell].sizes().max;
        let cell = self.overdue(worker);
        let cell = cell.or_else(|| (0..cells.len()).rev().find(is_full));
        let cell = cell.or_else(|| self.selector.next(rows, is_idle))?;
        Some(CellId((self.first + cell) as u32))
    }

    /// The cell that the worker has skipped too often.
    fn overdue(&self, worker: WorkerId) -> Option<usize> {
        let has_rows = |cell: usize| self.cells[cell].ready(worker) > 0;
        self.selector.overdue(worker, has_rows)
    }

    /// Whether the worker, which has got so many tasks of the cell in this round, gets another.
    pub fn goes_on(&self, cell: CellId, worker: WorkerId, formed: usize) -> bool {
        let cell = cell.index() - self.first;
        let ready = self.cells[cell].ready(worker);
        let others = || self.overdue(worker).is_some_and(|other| other != cell);
        ready > 0 && (formed == 0 || ready >= self.cells[cell].sizes().min && !others())
    }

    /// Forms a batch of the cell.
    pub fn form(
        &mut self,
        table: &mut Table,
        order: Order,
        cell: CellId,
        worker: WorkerId,
        rows: &mut Vec<Row>,
    ) {
        let cell = cell.index() - self.first;
        let cells = &self.cells;
        let has_rows = |cell: usize| cells[cell].ready(worker) > 0;
        self.selector.taken(worker, cell, has_rows);
        self.cells[cell].form(table, order, worker, rows);
        self.ready -= rows.len();
    }

    /// Takes the next node of each row of a task, as far as it is ready.
    pub fn next_step(
        &mut self,
        table: &mut Table,
        order: Order,
        before: &Task,
        rows: &mut Vec<Row>,
    ) {
        let queue = &mut self.cells[before.cell.index() - self.first];
        for &row in &before.rows {
            let subgraph = table.node_subgraph(row);
            let view = table.view(subgraph);
            if view.ready > 0 {
                let key = order.key(subgraph, &view);
                queue.take_one(table, before.worker, key, rows);
            }
        }
        self.ready -= rows.len();
    }

    /// A task of the cell starts. Returns the usual seconds of one, if they are known.
    pub fn started(&mut self, cell: CellId) -> Option<f64> {
        self.queue(cell).running_tasks += 1;
        self.selector.usual_seconds(cell.index() - self.first)
    }

    pub fn done(&mut self, task: &Task, took: Option<Duration>) {
        self.queue(task.cell).running_tasks -= 1;
        if let Some(took) = took {
            let cell = task.cell.index() - self.first;
            self.selector.measured(cell, task.batch(), took);
        }
    }

    /// A subgraph has more ready nodes. Returns whether they are the only ones of the model.
    pub fn ready(&mut self, key: QueueKey, view: &SubgraphView, count: usize) -> bool {
        self.queue(view.cell).add(key, view, count);
        self.ready += count;
        self.ready == count
    }

    /// A request ends: its ready nodes are forgotten.
    pub fn ended(&mut self, table: &Table, order: Order, request: RequestKey) {
        for cell in table.cells(request) {
            self.queue(cell).turns.leave(request);
        }
        let stale =
            |subgraph: SubgraphKey| subgraph.request == request || !table.is_untouched(subgraph);
        for subgraph in table.ready_subgraphs(request) {
            let view = table.view(subgraph);
            let key = order.key(subgraph, &view);
            self.queue(view.cell).forget(key, &view, stale);
            self.ready -= view.ready;
        }
    }
}
