//! Cellular batching: BatchMaker's Algorithm 1.
//!
//! ```text
//! Schedule(worker):
//!   among the cells of the model whose turn it is (`shares.rs`):
//!   cell = the cell that has been skipped in MAX_SKIPS batches of the model or more, most of all
//!   if there is none: of the cells with a full batch of ready nodes: the latest in graphs
//!   if there is none: of the cells with ready nodes: the choice of the `CellSelector`
//!   repeat at most MaxTasksToSubmit times, until another cell has been skipped too often or it is
//!     the turn of another model
//!     batch = ready nodes of the cell's subgraphs in their order, not pinned elsewhere, at most a
//!       full batch (where more are ready, an eighth of it by turns of requests: `turns.rs`)
//!     if the batch is smaller than the minimum, and not the first: stop
//!     submit the batch to worker; pin its subgraphs there
//! ```
//!
//! The first two rules are not the paper's, which lets a cell with full batches stop all others.
//! With them a cell with rows that a worker may take waits for at most `MAX_SKIPS + cells - 1`
//! batches of its model at that worker, beside those that the worker has got already: each other
//! cell that has been skipped as often runs once before it. `cells` are those of its model; batches
//! of other models come between by the weights of the models. Within a cell, turns bound the wait
//! of a request beside others that the order prefers; its module has the bound, in batches of the
//! cell.
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

mod model;
mod queue;

use std::time::Duration;

use super::shares::Shares;
use crate::cell_graph::CellId;
use crate::scheduler::{
    Demand, NewModel, NewTask, Policy, RequestKey, Row, SubgraphKey, Table, Task, WorkerId,
};
use model::ModelCells;

/// See the [module](self).
pub struct Cellular {
    order: Order,
    /// By index.
    models: Vec<Option<ModelCells>>,
    /// The index of the model of each cell, by id.
    model_of: Vec<usize>,
    shares: Shares,
    /// The cell that each worker works on.
    rounds: Vec<Option<CellId>>,
}

/// The order of subgraphs with the same priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// In the order of release, as in Algorithm 1.
    Arrival,
    /// Fewest cells left first ([`SubgraphView::request_left`](crate::scheduler::SubgraphView)),
    /// then in the order of release.
    FewestLeft,
}

impl Cellular {
    /// For this number of workers.
    pub fn new(workers: usize, order: Order) -> Cellular {
        Cellular {
            order,
            models: Vec::new(),
            model_of: Vec::new(),
            shares: Shares::new(workers),
            rounds: vec![None; workers],
        }
    }

    /// The cells of the model of a cell with requests or tasks.
    fn model(&mut self, cell: CellId) -> &mut ModelCells {
        let model = self.models[self.model_of[cell.index()]].as_mut();
        model.expect("a model is removed without requests and tasks")
    }

    /// Ready nodes of a cell that the worker may take.
    pub(super) fn waiting(&mut self, cell: CellId, worker: WorkerId) -> usize {
        self.model(cell).queue(cell).ready(worker)
    }

    /// Maximum rows of the batches of a cell.
    pub(super) fn max_rows(&mut self, cell: CellId) -> usize {
        self.model(cell).queue(cell).sizes().max
    }

    /// The model that the worker is to work on.
    fn next_model(&self, worker: WorkerId) -> Option<usize> {
        self.shares.next(worker, has_rows(&self.models, worker))
    }
}

/// Which models have rows that a worker may take.
fn has_rows(models: &[Option<ModelCells>], worker: WorkerId) -> impl Fn(usize) -> bool {
    move |model: usize| {
        models[model]
            .as_ref()
            .is_some_and(|model| model.has_rows(worker))
    }
}

impl Policy for Cellular {
    fn queued(&self) -> usize {
        self.models.iter().flatten().map(ModelCells::queued).sum()
    }

    fn add_model(&mut self, model: NewModel<'_>) {
        let NewModel {
            index,
            weight,
            first_cell,
            costs,
        } = model;
        if self.models.len() <= index {
            self.models.resize_with(index + 1, || None);
        }
        self.models[index] = Some(ModelCells::new(first_cell, costs, self.rounds.len()));
        self.shares.add(index, weight);
        let cells = first_cell.index()..first_cell.index() + costs.len();
        self.model_of.resize(self.model_of.len().max(cells.end), 0);
        self.model_of[cells].fill(index);
    }

    fn remove_model(&mut self, index: usize) {
        self.models[index] = None;
        self.shares.remove(index);
    }

    fn ready(&mut self, table: &Table, subgraph: SubgraphKey, count: usize) {
        let view = table.view(subgraph);
        let key = self.order.key(subgraph, &view);
        let model = self.model(view.cell);
        let is_new = model.ready(key, &view, count);
        if is_new {
            self.shares.enter(self.model_of[view.cell.index()]);
        }
    }

    fn unpinned(&mut self, table: &Table, subgraph: SubgraphKey, worker: WorkerId) {
        let view = table.view(subgraph);
        if view.ready > 0 {
            let key = self.order.key(subgraph, &view);
            let queue = self.model(view.cell).queue(view.cell);
            queue.unpin(key, view.ready, worker);
        }
    }

    fn next_task(
        &mut self,
        table: &mut Table,
        demand: Demand<'_>,
        rows: &mut Vec<Row>,
    ) -> Option<NewTask> {
        let order = self.order;
        let (worker, cell) = match demand {
            Demand::Any { worker, formed } => {
                let next = self.next_model(worker)?;
                if formed == 0 {
                    let model = self.models[next].as_ref();
                    self.rounds[worker.0] = model.and_then(|model| model.schedule(worker));
                }
                let cell = self.rounds[worker.0]?;
                if self.model_of[cell.index()] != next
                    || !self.model(cell).goes_on(cell, worker, formed)
                {
                    return None;
                }
                self.shares
                    .taken(worker, next, has_rows(&self.models, worker));
                self.model(cell).form(table, order, cell, worker, rows);
                (worker, cell)
            }
            Demand::NextStep(before) => {
                self.model(before.cell)
                    .next_step(table, order, before, rows);
                if rows.is_empty() {
                    return None;
                }
                (before.worker, before.cell)
            }
        };
        let usual = self.model(cell).started(cell);
        self.shares
            .start(worker, self.model_of[cell.index()], usual);
        Some(NewTask { cell, padding: 0 })
    }

    fn done(&mut self, _: &Table, task: &Task, took: Option<Duration>) {
        self.model(task.cell).done(task, took);
        let model = self.model_of[task.cell.index()];
        self.shares.done(task.worker, model, took);
    }

    fn ended(&mut self, table: &Table, request: RequestKey) {
        let model = self.models[table.model(request).index()].as_mut();
        if let Some(model) = model {
            model.ended(table, self.order, request);
        }
    }
}
