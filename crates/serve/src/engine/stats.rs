//! Statistics of an engine: counts, batch sizes, times.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::cell_graph::CellId;
use crate::scheduler::{Counts, End, Ended, Task};
use crate::worker::Spent;

/// Statistics of an engine since its start.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Numbers of requests.
    pub counts: Counts,
    /// Statistics of each cell, in the order of [`crate::cell_graph::Cells`]: those of the first
    /// model, then of the models that were added.
    pub cells: Vec<CellStats>,
    /// Queueing times of the completed requests, in microseconds.
    pub queueing: Histogram<u64>,
    /// Computing times of the completed requests, in microseconds.
    pub computing: Histogram<u64>,
    /// Time of scheduling and recording, under the engine's lock.
    pub scheduling: Duration,
}

/// Statistics of one cell.
#[derive(Clone, Debug, PartialEq)]
pub struct CellStats {
    /// Number of tasks (each is a step of a batch) by their rows, padding included.
    pub batches: Vec<u64>,
    /// Rows of live requests.
    pub rows: u64,
    /// Other rows: padding, and those of requests that ended before the batch.
    pub padding: u64,
    /// Time of copying values into batches.
    pub gather: Duration,
    /// Time in the cell.
    pub run: Duration,
    /// Time of each step in the cell, in nanoseconds, to two digits. Steps of one batch have equal
    /// shares of its time.
    pub steps: Histogram<u64>,
    /// Time of copying values out of batches, and of growing graphs.
    pub scatter: Duration,
}

impl CellStats {
    fn new() -> CellStats {
        CellStats {
            batches: Vec::new(),
            rows: 0,
            padding: 0,
            gather: Duration::ZERO,
            run: Duration::ZERO,
            // Up to an hour. Two digits, because `stats` copies the histogram under the lock.
            steps: histogram(3_600_000_000_000, 2),
            scatter: Duration::ZERO,
        }
    }
}

/// Collects [`Stats`].
pub(super) struct Recorder {
    cells: Vec<CellStats>,
    queueing: Histogram<u64>,
    computing: Histogram<u64>,
    scheduling: Duration,
}

/// Up to an hour, to three digits.
fn micros() -> Histogram<u64> {
    histogram(3_600_000_000, 3)
}

/// From 1 to `max`, to `digits` digits.
fn histogram(max: u64, digits: u8) -> Histogram<u64> {
    match Histogram::new_with_bounds(1, max, digits) {
        Ok(histogram) => histogram,
        Err(_) => unreachable!("valid bounds"),
    }
}

impl Recorder {
    pub fn new() -> Recorder {
        Recorder {
            cells: Vec::new(),
            queueing: micros(),
            computing: micros(),
            scheduling: Duration::ZERO,
        }
    }

    /// Begins to record the `count` cells from `first` on.
    pub fn add(&mut self, first: CellId, count: usize) {
        let cells = first.index()..first.index() + count;
        let all = self.cells.len().max(cells.end);
        self.cells.resize_with(all, CellStats::new);
        self.cells[cells].fill_with(CellStats::new);
    }

    pub fn scheduled(&mut self, time: Duration) {
        self.scheduling += time;
    }

    /// A task was run for `rows` of its rows.
    pub fn ran(&mut self, task: &Task, rows: usize, spent: Spent) {
        let cell = &mut self.cells[task.cell.index()];
        let batch = task.rows.len() + task.padding;
        if cell.batches.len() <= batch {
            cell.batches.resize(batch + 1, 0);
        }
        cell.batches[batch] += 1;
        cell.rows += rows as u64;
        cell.padding += (batch - rows) as u64;
        cell.gather += spent.gather;
        cell.run += spent.run;
        cell.scatter += spent.scatter;
        // A task without live rows and padding is not run.
        if rows + task.padding > 0 {
            let nanoseconds = u64::try_from(spent.run.as_nanos()).unwrap_or(u64::MAX);
            cell.steps.saturating_record(nanoseconds);
        }
    }

    pub fn ended(&mut self, ended: &Ended) {
        if ended.end == End::Completed {
            let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            self.queueing
                .saturating_record(micros(ended.timing.queueing));
            self.computing
                .saturating_record(micros(ended.timing.computing));
        }
    }

    pub fn stats(&self, counts: Counts) -> Stats {
        Stats {
            counts,
            cells: self.cells.clone(),
            queueing: self.queueing.clone(),
            computing: self.computing.clone(),
            scheduling: self.scheduling,
        }
    }
}
