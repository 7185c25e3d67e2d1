//! E-BATCH on CPUs: cellular batching, with as many steps in a batch as pay.
//!
//! E-BATCH (Silfa, Arnau and González, ACM TACO 2022) reads the weights of a layer once for `N`
//! steps of all sequences of a batch. Here a batch is several steps of the rows that cellular
//! batching chooses, run in one call, layer by layer; requests join and leave between batches. The
//! paper's lanes have a fixed number, so a lane that is done gets another sequence at once. A CPU
//! computes any number of rows, so a batch whose rows end becomes smaller instead.
//!
//! `N` is chosen for each batch, by [`LayerTimes::cap`], the rule that simulated accelerators use:
//! from the times of batches of one step and of several. They come from the cost sheets of the
//! cells (`gatestream tune --steps 1,8 --batch 1,2,4,…`), and are measured while the engine runs,
//! for batches of about the same number of rows.

mod cap;

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use super::{Cellular, Order, moving_average};
use crate::cell_graph::CellCost;
use crate::scheduler::{
    Demand, NewModel, NewTask, Policy, RequestKey, Row, SubgraphKey, Table, Task, WorkerId,
};
pub use cap::{LayerTimes, Rest, Time};

/// The steps of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchSteps {
    /// By load, deadlines and measured times, at most this number.
    ByLoad(usize),
    /// This number, as far as the rows have so many left.
    Fixed(usize),
}

impl BatchSteps {
    /// The largest number that is supported.
    pub const MAX: usize = 1 << 10;

    /// The largest number, for which buffers are allocated.
    pub fn max_steps(self) -> usize {
        match self {
            BatchSteps::ByLoad(max) | BatchSteps::Fixed(max) => max,
        }
    }
}

/// As [`FromStr`] reads it.
impl fmt::Display for BatchSteps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BatchSteps::ByLoad(max) => write!(f, "by-load:{max}"),
            BatchSteps::Fixed(steps) => steps.fmt(f),
        }
    }
}

/// Text that names no [`BatchSteps`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no number of steps; expected by-load, by-load:MAX or a number, in 1..={max}",
    max = BatchSteps::MAX
)]
pub struct BatchStepsError(String);

impl FromStr for BatchSteps {
    type Err = BatchStepsError;

    /// `by-load`, `by-load:MAX` or a number.
    fn from_str(text: &str) -> Result<BatchSteps, BatchStepsError> {
        let number = |digits: &str| {
            let steps = digits.parse().ok();
            let steps = steps.filter(|steps| (1..=BatchSteps::MAX).contains(steps));
            steps.ok_or_else(|| BatchStepsError(text.into()))
        };
        match text.strip_prefix("by-load:") {
            Some(max) => Ok(BatchSteps::ByLoad(number(max)?)),
            None if text == "by-load" => Ok(BatchSteps::default()),
            None => Ok(BatchSteps::Fixed(number(text)?)),
        }
    }
}

impl Default for BatchSteps {
    /// By load, at most 16 steps.
    fn default() -> BatchSteps {
        BatchSteps::ByLoad(16)
    }
}

/// See the [module](self).
pub struct EBatching {
    cellular: Cellular,
    steps: BatchSteps,
    /// By cell.
    cells: Vec<CellTimes>,
    /// By worker: the batches that it has got, in their order.
    batches: Vec<VecDeque<Batch>>,
}

/// A batch of a worker.
struct Batch {
    /// Its tasks, one for each step.
    steps: usize,
    /// Rows of the first: those of the others may have ended.
    rows: usize,
    /// Tasks that are not done.
    left: usize,
    took: Duration,
    /// Whether nothing was computed for one of them.
    is_partial: bool,
}

/// Times of a cell, by the logarithm of the rows.
#[derive(Default)]
struct CellTimes(Vec<Times>);

/// Times of batches of about the same number of rows, in nanoseconds.
#[derive(Clone, Copy, Default)]
struct Times {
    /// Of a batch of one step.
    one: Option<f64>,
    /// Of each further step of a batch.
    further: Option<f64>,
    /// Batches that were started.
    started: u64,
}

/// Steps of the first batch of several.
const FIRST: usize = 4;
/// One of so many batches has one step, so that its time is known as it is now.
const REFRESH: u64 = 64;

impl EBatching {
    /// For this number of workers.
    pub fn new(workers: usize, steps: BatchSteps) -> EBatching {
        EBatching {
            cellular: Cellular::new(workers, Order::Arrival),
            steps,
            cells: Vec::new(),
            batches: (0..workers).map(|_| VecDeque::new()).collect(),
        }
    }
}

impl CellTimes {
    fn of(&mut self, rows: usize) -> &mut Times {
        let index = rows.max(1).ilog2() as usize;
        if self.0.len() <= index {
            self.0.resize(index + 1, Times::default());
        }
        &mut self.0[index]
    }

    /// The times of a cost sheet.
    fn learn_all(&mut self, cost: &CellCost) {
        // Batches of one step first: the others are compared with them.
        for is_several in [false, true] {
            let times = cost.times.iter();
            for batch in times.filter(|batch| (batch.steps > 1) == is_several) {
                let nanoseconds = batch.time.as_nanos() as f64;
                self.of(batch.rows).learn(batch.steps, nanoseconds);
            }
        }
    }
}

impl Times {
    /// A batch of so many steps took this time.
    fn learn(&mut self, steps: usize, took: f64) {
        if steps <= 1 {
            self.one = Some(moving_average::after(self.one, took));
        } else if let Some(one) = self.one {
            let further = (took - one) / (steps - 1) as f64;
            // No step costs more than a batch of its own, nor nothing.
            let further = further.clamp(one / 100.0, one);
            self.further = Some(moving_average::after(self.further, further));
        }
    }

    /// What of a batch does not depend on its steps, and the time of a step.
    fn layer(&self) -> Option<LayerTimes> {
        let (one, further) = (self.one?, self.further?);
        Some(LayerTimes {
            layers: 1,
            fetch: (one - further).max(0.0) as u64,
            step: further as u64,
        })
    }
}

impl Policy for EBatching {
    fn queued(&self) -> usize {
        self.cellular.queued()
    }

    fn add_model(&mut self, model: NewModel<'_>) {
        let first = model.first_cell.index();
        let end = first + model.costs.len();
        if self.cells.len() < end {
            self.cells.resize_with(end, CellTimes::default);
        }
        for (cell, cost) in self.cells[first..end].iter_mut().zip(model.costs) {
            *cell = CellTimes::default();
            cell.learn_all(cost);
        }
        self.cellular.add_model(model);
    }

    fn remove_model(&mut self, index: usize) {
        self.cellular.remove_model(index);
    }

    fn ready(&mut self, table: &Table, subgraph: SubgraphKey, count: usize) {
        self.cellular.ready(table, subgraph, count);
    }

    fn unpinned(&mut self, table: &Table, subgraph: SubgraphKey, worker: WorkerId) {
        self.cellular.unpinned(table, subgraph, worker);
    }

    fn next_task(
        &mut self,
        table: &mut Table,
        demand: Demand<'_>,
        rows: &mut Vec<Row>,
    ) -> Option<NewTask> {
        let (worker, is_further) = match demand {
            Demand::Any { worker, .. } => (worker, false),
            Demand::NextStep(before) => (before.worker, true),
        };
        let task = self.cellular.next_task(table, demand, rows)?;
        let batches = &mut self.batches[worker.0];
        match batches.back_mut().filter(|_| is_further) {
            Some(batch) => {
                batch.steps += 1;
                batch.left += 1;
            }
            None => batches.push_back(Batch {
                steps: 1,
                rows: rows.len(),
                left: 1,
                took: Duration::ZERO,
                is_partial: false,
            }),
        }
        Some(task)
    }

    fn max_steps(&self) -> Option<usize> {
        Some(self.steps.max_steps())
    }

    fn steps(&mut self, now: Instant, table: &Table, first: &Task) -> usize {
        let max = match self.steps {
            BatchSteps::Fixed(steps) => return steps,
            BatchSteps::ByLoad(max) => max,
        };
        let waiting = self.cellular.waiting(first.cell, first.worker);
        let lanes = self.cellular.max_rows(first.cell);
        let times = self.cells[first.cell.index()].of(first.rows.len());
        times.started += 1;
        if times.one.is_none() || times.started.is_multiple_of(REFRESH) {
            return 1;
        }
        let Some(layer) = times.layer() else {
            return FIRST.min(max);
        };
        let left = first.rows.iter().map(|row| {
            let view = table.view(table.node_subgraph(*row));
            let deadline = table.deadline(row.request);
            let deadline = deadline.map(|at| at.saturating_duration_since(now).as_nanos() as u64);
            // The row's own step is taken already.
            let further = if view.ready > 0 { view.request_left } else { 0 };
            Rest {
                steps: 1 + further as usize,
                deadline,
            }
        });
        // Deadlines are times from now on.
        let steps = layer.cap(0, lanes, waiting, left);
        steps.unwrap_or(max).min(max)
    }

    fn done(&mut self, table: &Table, task: &Task, took: Option<Duration>) {
        self.cellular.done(table, task, took);
        let batches = &mut self.batches[task.worker.0];
        let Some(batch) = batches.front_mut() else {
            return;
        };
        batch.left -= 1;
        batch.took += took.unwrap_or_default();
        batch.is_partial |= took.is_none();
        if batch.left == 0 {
            let times = self.cells[task.cell.index()].of(batch.rows);
            if !batch.is_partial {
                times.learn(batch.steps, batch.took.as_nanos() as f64);
            }
            batches.pop_front();
        }
    }

    fn ended(&mut self, table: &Table, request: RequestKey) {
        self.cellular.ended(table, request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_back() {
        for steps in [
            BatchSteps::default(),
            BatchSteps::Fixed(5),
            BatchSteps::ByLoad(1024),
        ] {
            assert_eq!(steps.to_string().parse(), Ok(steps));
        }
        assert_eq!("by-load".parse(), Ok(BatchSteps::default()));
        for text in ["0", "by-load:0", "by-load8", "by-load:", "1025", "many", ""] {
            let error = text.parse::<BatchSteps>().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("`{text}` is no number")),
                "{error}"
            );
        }
    }

    #[test]
    fn times_are_split_into_a_part_of_the_batch_and_one_of_each_step() {
        let mut times = Times::default();
        times.learn(5, 900.0); // without a batch of one step there is nothing to compare with
        assert!(times.layer().is_none());
        times.learn(1, 300.0);
        times.learn(5, 300.0 + 4.0 * 100.0);
        let layer = times.layer().unwrap();
        assert_eq!((layer.fetch, layer.step), (200, 100));
        // A batch that is faster than a single step, and one in which nothing is saved.
        for (took, further) in [(1.0, 3.0), (1e9, 300.0)] {
            let mut times = Times::default();
            times.learn(1, 300.0);
            times.learn(5, took);
            assert_eq!(times.further, Some(further));
        }
    }
}
